"""Open-loop action error: distance between sampled and recorded actions on every N-th validation frame.

The policy gets the recorded observation and predicts a chunk of actions, from noise that belongs to the sample. The
error is the difference to the recorded chunk per joint in the robot's units, over the remaining steps of the episode.
It does not measure success: a policy may reach the goal by other actions.
"""

import math
from collections.abc import Mapping
from typing import Any

import numpy as np
import torch
from torch import Tensor

from understudy.batch_keys import ACTION
from understudy.load.validation.validation_data import ValidationData
from understudy.policies.batch import from_present, to_device
from understudy.policies.common.affine import of_head
from understudy.policies.draws import make_draws
from understudy.policies.policy import Policy

STEPS = 10
"""Euler steps of the sampling."""


class OpenLoop:
    """Open-loop errors over validation frames.

    Args:
        every: take every N-th validation frame of each source, from its first one on.
        seed: of the noise.
        width: of an action.
        mode: task mode that leads to actions.
        held: the frames.
    """

    def __init__(self, every: int, seed: int, width: int, mode: str, held: ValidationData) -> None:
        self.every, self._seed, self._mode, self._held = every, seed, mode, held
        self._chosen = np.flatnonzero(held.place % every == 0)
        rows = {"squared": width, "absolute": width, "count": width, "normalised": 1, "elements": 1}
        self.shapes = {name: (size, len(self._chosen)) for name, size in rows.items()}
        """Shapes (numbers, chosen samples) of the figures per sample: sums over the steps of the chunk."""

    def errors(self, policy: Policy, batch: Mapping[str, Any], part: slice) -> dict[str, tuple[Tensor, Tensor]]:
        """Compute the figures of the chosen samples of a chunk, by name of `shapes`: (indices int64 [n], [numbers, n]).

        There is at least one forward pass, so that all ranks run equally many.
        """
        first, last = np.searchsorted(self._chosen, [part.start, part.stop])
        chosen = self._chosen[first:last] - part.start
        some = torch.from_numpy(chosen if len(chosen) else np.zeros(1, np.int64))
        here = from_present({key: _rows(value, some) for key, value in batch.items()}, policy.config)
        recorded = here[ACTION]
        proposed = predict_actions(policy, here, self._held.identity(part)[some], self._seed, self._mode)
        if not len(chosen):
            return {}
        absent = here[f"{ACTION}_is_pad"][..., None].expand(recorded.shape)  # [n, T, A]
        if (padded := here.get(f"{ACTION}_dim_is_pad")) is not None:
            absent = absent | padded[:, None]
        difference = torch.where(absent, 0.0, proposed - recorded.float()).double()
        normalizer, head = policy.normalizer, policy.normalizer.head(here)
        scaled = normalizer.action.normalize(proposed, head) - normalizer.action.normalize(recorded, head)
        scaled = torch.where(absent, 0.0, scaled).double()
        # A dimension that never changed in training has no scale to be measured by.
        moves = of_head(normalizer.action.spread, head)[:, None] != 0  # [n or 1, 1, A]
        elements = (~absent & moves).sum(dim=(1, 2))
        found = {
            "squared": difference.square().sum(dim=1).T,
            "absolute": difference.abs().sum(dim=1).T,
            "count": (~absent).sum(dim=1).T,
            "normalised": scaled.square().sum(dim=(1, 2))[None],
            "elements": elements[None],
        }
        columns = torch.arange(int(first), int(last), device=recorded.device)
        return {name: (columns, values) for name, values in found.items()}

    def result(self, found: Mapping[str, np.ndarray], readable: np.ndarray) -> dict[str, Any]:
        """Average the figures, float64 arrays of `shapes` by name, over the samples that are `readable`, bool (N,).

        Returns:
            {"every", "normalised": mean squared error in units of the normalization's spread, over all samples, joints
            and steps (without joints that never move; None where none does), "sources": {name: {"samples",
            "normalised", "mse": {joint: mean squared error in the robot's units}, "mae": {joint: mean absolute
            error}}}}.
        """
        counted = readable[self._chosen]
        found, source = (
            {name: each[:, counted] for name, each in found.items()},
            self._held.source[self._chosen[counted]],
        )
        sources = {}
        for number, name in enumerate(self._held.names):
            of_source = np.flatnonzero(source == number)
            counts = [math.fsum(row) for row in found["count"][:, of_source]]
            joints = self._held.action_names(number)

            def mean(kind: str, own: np.ndarray = of_source, over: list[float] = counts) -> list[float]:
                return [math.fsum(row) / max(1.0, count) for row, count in zip(found[kind][:, own], over)]

            sources[name] = {
                "samples": len(of_source),
                "normalised": _ratio(found["normalised"][0, of_source], found["elements"][0, of_source]),
                "mse": dict(zip(joints, mean("squared"))),
                "mae": dict(zip(joints, mean("absolute"))),
            }
        normalized = _ratio(found["normalised"][0], found["elements"][0])
        return {"every": self.every, "normalised": normalized, "sources": sources}


def predict_actions(policy: Policy, batch: Mapping[str, Any], identity: Tensor, seed: int, mode: str) -> Tensor:
    """Predict chunks of actions for validation samples: [n, T, A] in the robot's units.

    Args:
        policy: the policy.
        batch: the samples, prepared, on the device.
        identity: int64 [n], `ValidationData.identity` of the samples, which keys the noise.
        seed: of the noise.
        mode: task mode that leads to actions.
    """
    draws = make_draws(policy.random_spec("act"), seed, identity, "open loop")
    draws = {name: to_device(values, batch[ACTION].device) for name, values in draws.items()}
    return policy.act(batch, draws, STEPS, mode)


def _rows(value: Any, some: Tensor) -> Any:
    """The chosen rows of a tensor, or of a list."""
    if isinstance(value, Tensor):
        return value.index_select(0, some.to(value.device))
    return [value[i] for i in some.tolist()]


def _ratio(sums: np.ndarray, counts: np.ndarray) -> float | None:
    """Sum of `sums` / sum of `counts`; None for no counts, since 0 would be the best figure."""
    count = math.fsum(counts)
    return math.fsum(sums) / count if count else None
