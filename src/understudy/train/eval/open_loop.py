"""Open-loop action error: how far sampled actions are from those that were recorded, on each n-th held-out frame.

The policy sees what the demonstrator saw and proposes a chunk of actions, from noise that belongs to the sample; the
difference to the recorded chunk is told per joint in the robot's units, over the steps that the episode still had. It
is not success: a policy may do the same thing another way.
"""

import math
from collections.abc import Mapping
from typing import Any

import numpy as np
import torch
from torch import Tensor

from understudy.batch_keys import ACTION
from understudy.load.eval.validation_data import HeldOut
from understudy.order import sample_normal
from understudy.policies.common.affine import of_head
from understudy.policies.flow.model import FlowPolicy
from understudy.train.step import to_device

STEPS = 10
"""Euler steps of the sampling."""


class OpenLoop:
    """Open-loop errors over a line of held-out frames.

    Args:
        every: of each source each `every`-th held-out frame, from its first one on.
        seed: of the noise.
        width: of an action. mode: in which the policy proposes them, one that does.
    """

    def __init__(self, every: int, seed: int, width: int, mode: str, held: HeldOut) -> None:
        self.every, self._seed, self._mode, self._held = every, seed, mode, held
        self._chosen = np.flatnonzero(held.place % every == 0)
        rows = {"squared": width, "absolute": width, "count": width, "normalised": 1, "elements": 1}
        self.shapes = {name: (size, len(self._chosen)) for name, size in rows.items()}
        """(numbers, chosen samples) of what is told of each sample: sums over the steps of the chunk."""

    def errors(self, policy: FlowPolicy, batch: Mapping[str, Any], part: slice) -> dict[str, tuple[Tensor, Tensor]]:
        """Of the chosen samples of a chunk, by name of `shapes`: (which they are int64 [n], float [numbers, n]).

        At least one forward pass is made, so that all ranks make equally many.
        """
        first, last = np.searchsorted(self._chosen, [part.start, part.stop])
        chosen = self._chosen[first:last] - part.start
        some = torch.from_numpy(chosen if len(chosen) else np.zeros(1, np.int64))
        here = {key: _rows(value, some) for key, value in batch.items()}
        shape = (policy.config.chunk, policy.config.noise_dim)
        identity = self._held.identity(part)[some].numpy()
        noise = torch.from_numpy(sample_normal(self._seed, "open loop", identity, shape))
        recorded = here[ACTION]
        proposed = policy.sample_actions(here, to_device(noise, recorded.device), STEPS, self._mode)
        if not len(chosen):
            return {}
        absent = here[f"{ACTION}_is_pad"][..., None].expand(recorded.shape)  # [n, T, A]
        if (padded := here.get(f"{ACTION}_dim_is_pad")) is not None:
            absent = absent | padded[:, None]
        difference = torch.where(absent, 0.0, proposed - recorded.float()).double()
        units, head = policy.units, policy.units.head(here)
        scaled = units.action.normalise(proposed, head) - units.action.normalise(recorded, head)
        scaled = torch.where(absent, 0.0, scaled).double()
        # A dimension that never changed in training has no scale to be measured by.
        moves = of_head(units.action.spread, head)[:, None] != 0  # [n or 1, 1, A]
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
        """From float64 arrays of `shapes`, by name, without the samples of the line that are not `readable`, bool (N,):

        {"every", "normalised": mean squared error in units of the normalisation's spread, over all samples, joints and
        steps alike (joints that never move left out; None where none does), "sources": {name: {"samples", "normalised",
        "mse": {joint: mean squared error in the robot's units}, "mae": {joint: mean absolute error}}}}.
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
            joints = self._held.joints(number)

            def mean(kind: str, own: np.ndarray = of_source, over: list[float] = counts) -> list[float]:
                return [math.fsum(row) / max(1.0, count) for row, count in zip(found[kind][:, own], over)]

            sources[name] = {
                "samples": len(of_source),
                "normalised": _ratio(found["normalised"][0, of_source], found["elements"][0, of_source]),
                "mse": dict(zip(joints, mean("squared"))),
                "mae": dict(zip(joints, mean("absolute"))),
            }
        normalised = _ratio(found["normalised"][0], found["elements"][0])
        return {"every": self.every, "normalised": normalised, "sources": sources}


def _rows(value: Any, some: Tensor) -> Any:
    """The chosen rows of a tensor, or of a list."""
    if isinstance(value, Tensor):
        return value.index_select(0, some.to(value.device))
    return [value[i] for i in some.tolist()]


def _ratio(sums: np.ndarray, counts: np.ndarray) -> float | None:
    """None where there is nothing to divide by: 0 would be taken for the best that there can be."""
    count = math.fsum(counts)
    return math.fsum(sums) / count if count else None
