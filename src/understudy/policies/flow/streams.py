"""Targets of the flow policy's loss terms, with the slots that are inputs and count nothing."""

from typing import NamedTuple

import torch
from torch import Tensor

from understudy.batch_keys import ACTION, STATE
from understudy.policies.common.flow_matching import noisy_actions
from understudy.policies.common.task_modes import DYNAMICS, FLOW, MODES, TRAINS

KEY_OF = {FLOW: ACTION, DYNAMICS: STATE}
"""Key of a batch that each loss term predicts."""


class Stream(NamedTuple):
    """Target of one loss term: the chunk of actions, or the states that follow."""

    clean: Tensor
    """float32 [B, T, dim], normalized, 0 in padded slots and dimensions."""
    is_pad: Tensor
    """bool [B, T]."""
    dim_is_pad: Tensor | None
    """bool [B, dim]."""
    given: Tensor | None
    """bool [B], True where the sample's mode gives the target as an input; None: nowhere."""
    first: Tensor | None = None
    """bool [B, T], True for leading actions that the sample is given (`max_delay`); None: nowhere."""

    def points(self, noise: Tensor, time: Tensor) -> Tensor:
        """Compute x_t on the path from `noise` [B, D, T, dim] at `time` [B, D]; leading given actions are clean."""
        clean = self.clean[:, None].expand_as(noise)
        found = noisy_actions(clean, noise, time)
        return found if self.first is None else torch.where(self.first[:, None, :, None], clean, found)


def uncounted(is_pad: Tensor, given: Tensor | None, first: Tensor | None = None) -> Tensor:
    """Slots that count nothing, bool [B, T]: slots without a target, and given ones; see `Stream`."""
    found = is_pad if given is None else is_pad | given[:, None]
    return found if first is None else found | first


def samples_given(mode: Tensor, term: str) -> Tensor:
    """Samples whose mode, int64 [B], gives the target of `term`: bool [B]."""
    found = torch.zeros_like(mode, dtype=torch.bool)
    for number, name in enumerate(MODES):
        if term not in TRAINS[name]:
            found = found | (mode == number)
    return found
