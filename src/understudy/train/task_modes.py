"""Task modes of a run: which position is a lesson in what, and what that means for the losses.

A mode is drawn for each position by (seed, position), as everything random is: the same on any number of processes and
after any restart.
"""

from collections.abc import Mapping
from fractions import Fraction
from typing import Any

import numpy as np
import torch
from torch import Tensor

from understudy.order import sample_uniform
from understudy.policies.common.modes import DYNAMICS, FLOW, MODES, TRAINS

TRAINED = {FLOW: "action", DYNAMICS: "dynamics"}
"""What a loss term is called for people."""


def mode_of(seed: int, positions: Tensor, shares: Mapping[str, float]) -> Tensor:
    """The mode of each position, int64 [n]: numbers into `MODES`.

    Args:
        positions: int64 [n], on the host.
        shares: of each mode by name; their sum is 1.
    """
    bounds = np.cumsum([shares.get(mode, 0.0) for mode in MODES])
    last = max(number for number, mode in enumerate(MODES) if shares.get(mode))  # where the sum is just below 1
    drawn = sample_uniform(seed, "task mode", positions.numpy()).reshape(-1)
    return torch.from_numpy(np.minimum(np.searchsorted(bounds, drawn, side="right"), last).astype(np.int64))


def told(mode: str | Mapping[Any, float], shares: Mapping[str, float]) -> list[str]:
    """What a mode leaves out, one line per loss that not every sample trains.

    Args:
        mode: as the settings say it. shares: of each mode by name; their sum is 1.
    """
    name = mode if isinstance(mode, str) else " + ".join(f"{part:g} {each}" for each, part in mode.items() if part)
    lines = []
    for term, words in TRAINED.items():
        part = sum(share for each, share in shares.items() if term in TRAINS[each])
        if part < 1 - 1e-12:
            near = Fraction(part).limit_denominator(1000)
            of = f"on {near} of the samples" if part else "on no sample"
            lines.append(f"{name} trains the {words} loss {of}")
    return lines
