"""Task mode of each position, and its meaning for the losses.

A mode is drawn by (seed, position), like everything random: it is the same on any number of processes and after any
restart.
"""

from collections.abc import Mapping
from fractions import Fraction
from typing import Any

import numpy as np
import torch
from torch import Tensor

from understudy.order import sample_uniform
from understudy.policies.common.task_modes import DYNAMICS, FLOW, IMAGES, MODES, TRAINS

LOSS_NAMES = {FLOW: "action", DYNAMICS: "dynamics", IMAGES: "images"}
"""Loss term -> its name in messages."""


def draw_modes(seed: int, positions: Tensor, shares: Mapping[str, float]) -> Tensor:
    """Draw the mode of each position: indexes into `MODES`, int64 [n].

    Args:
        seed: seed of the run.
        positions: int64 [n], on the host.
        shares: share of each mode by name; they sum to 1.
    """
    bounds = np.cumsum([shares.get(mode, 0.0) for mode in MODES])
    last = max(number for number, mode in enumerate(MODES) if shares.get(mode))  # where the sum is just below 1
    drawn = sample_uniform(seed, "task mode", positions.numpy()).reshape(-1)
    return torch.from_numpy(np.minimum(np.searchsorted(bounds, drawn, side="right"), last).astype(np.int64))


def describe_modes(mode: str | Mapping[Any, float], shares: Mapping[str, float], images: bool = False) -> list[str]:
    """Return one line for each loss that not every sample trains.

    Args:
        mode: the setting `mode`.
        shares: share of each mode by name; they sum to 1.
        images: whether the policy predicts future images.
    """
    name = mode if isinstance(mode, str) else " + ".join(f"{part:g} {each}" for each, part in mode.items() if part)
    lines = []
    for term, word in LOSS_NAMES.items():
        if term == IMAGES and not images:
            continue
        part = sum(share for each, share in shares.items() if term in TRAINS[each])
        if part < 1 - 1e-12:
            near = Fraction(part).limit_denominator(1000)
            on = f"on {near} of the samples" if part else "on no sample"
            lines.append(f"{name} trains the {word} loss {on}")
    return lines
