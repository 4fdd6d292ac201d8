"""Streams of a policy with a future: actions, and the states and images behind them, as targets of
loss terms.
"""

from collections.abc import Sequence
from typing import Any, NamedTuple

import torch
from torch import Tensor

from understudy.policies.batch import check_shape, value_of
from understudy.policies.common.encoders import text_room
from understudy.policies.common.flow_matching import noisy_actions, velocity
from understudy.policies.common.normalizer import Normalizer
from understudy.policies.common.settings import LossTerm, TaskMode
from understudy.policies.policy import Policy
from understudy_base import ACTION, MODE, STATE, Batch, Record

VALIDATION_DRAWS = 8
"""Noises and flow times per sample of a validation."""


class Stream(NamedTuple):
    """Target of one loss term."""

    clean: Tensor
    """float32 [B, tokens, dim], normalized, 0 in padded tokens and dimensions."""
    is_pad: Tensor
    """bool [B, tokens], tokens without a target."""
    dim_is_pad: Tensor | None
    """bool [B, dim], dimensions that the sample's robot does not have; None: it has all."""
    given: Tensor | None
    """bool [B], True where the sample's mode gives the target as an input; None: nowhere."""
    first: Tensor | None = None
    """bool [B, tokens], True for leading actions that the sample is given (`max_delay`); None:
    nowhere.
    """

    @classmethod
    def read(cls, term: str, batch: Batch, config: Any, normalizer: Normalizer) -> "Stream":
        """Read the target of a loss term of vectors from a training batch; raises as `read_values`.

        Values in padded slots must not matter, and x_t at a padded slot is an input of the network.
        So the values are replaced here, before any arithmetic: such a slot carries noise only, a
        padded dimension 0.
        """
        key = LossTerm.KEYS[term]
        clean = read_values(term, batch, config, normalizer)
        is_pad: Tensor = value_of(batch, f"{key}_is_pad")
        slots = config.chunk + (term == LossTerm.DYNAMICS)
        check_shape(f"{key}_is_pad", is_pad, (len(clean), slots))
        is_pad = is_pad[:, -config.chunk :]
        clean = torch.where(is_pad[..., None], 0.0, clean)
        given = cls.samples_given(term, batch, config)
        return cls(clean, is_pad, normalizer.dim_is_pad(key, batch), given)

    @staticmethod
    def samples_given(term: str, batch: Batch, config: Any) -> Tensor | None:
        """Return the samples whose mode gives the target of `term`, bool [B]; None: there are no
        modes.

        Raises:
            ValueError: the batch has modes, and the policy no future.
        """
        if MODE not in batch:
            return None
        if not config.future:
            raise ValueError(
                f"the batch has {MODE!r}; a policy without a future is trained in mode "
                f"{TaskMode.POLICY!r} only"
            )
        is_given = torch.zeros_like(batch[MODE], dtype=torch.bool)
        for number, mode in enumerate(TaskMode.ALL):
            if term not in TaskMode.TRAINS[mode]:
                is_given = is_given | (batch[MODE] == number)
        return is_given

    @property
    def uncounted(self) -> Tensor:
        """Tokens that count nothing: those without a target, and given ones."""
        mask = self.is_pad if self.given is None else self.is_pad | self.given[:, None]
        return mask if self.first is None else mask | self.first

    def points(self, noise: Tensor, time: Tensor) -> Tensor:
        """Compute x_t on the path from `noise` [B, D, T, dim] at `time` [B, D]; leading given
        actions are clean.
        """
        clean = self.clean[:, None].expand_as(noise)
        points = noisy_actions(clean, noise, time)
        if self.first is None:
            return points
        return torch.where(self.first[:, None, :, None], clean, points)

    def velocity(self, noise: Tensor) -> Tensor:
        """Compute the velocity of the path from `noise` [B, D, T, dim], the target of the network
        at every time.
        """
        return velocity(self.clean[:, None].expand_as(noise), noise)


def read_values(term: str, batch: Batch, config: Any, normalizer: Normalizer) -> Tensor:
    """Return the actions of a batch, or the states behind them: normalized, float32 [B, T, dim].

    Raises:
        ValueError: a missing key or a wrong shape, by name.
    """
    values = value_of(batch, LossTerm.KEYS[term])
    if term == LossTerm.FLOW:
        check_shape(ACTION, values, (None, config.chunk, config.action_dim))
        return normalizer.actions(batch)
    check_shape(STATE, values, (None, 1 + config.chunk, config.state_dim))
    return normalizer.states(batch, values[:, 1:])


class StreamPolicy(Policy):
    """Base class of the policies that may be built with a future, and read texts as bytes."""

    validation_draws = VALIDATION_DRAWS

    def __init__(self, config: Any, normalization: Record) -> None:
        """Read the normalization; see `policies/common/normalizer.py` for it and its errors."""
        super().__init__()
        self.config = config
        self.normalizer = Normalizer(normalization, config.widths)

    @property
    def imagines(self) -> bool:
        """Whether it was built with a future."""
        return bool(self.config.future)

    @property
    def modes(self) -> tuple[str, ...]:
        """Task modes that the policy can be trained in."""
        return TaskMode.ALL if self.config.future else (TaskMode.POLICY,)

    def prompt_room(self, prompts: Sequence[str]) -> tuple[int, int, str]:
        """Bytes, with the one that starts each text."""
        return text_room(prompts, self.config.text_bytes)
