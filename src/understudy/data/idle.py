"""Where a robot moves: the frame ranges of an episode that are worth learning from, without the long idle ones.

The rule is that of openpi's `compute_droid_nonidle_ranges.py`, with which DROID's keep-ranges were made; there the
values are commanded joint velocities in rad/s at 15 frames per second. Not here: reading them, and the file of ranges
(`select.py` reads it, `tools/ranges.py` writes it).
"""

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np


@dataclass(frozen=True)
class IdleRule:
    """What counts as idle, and what is left of the rest."""

    threshold: float = 1e-3
    """A frame is idle when all values changed by less than this since the frame before, in the column's own units. The
    first frame never is. A value that is not finite is a change."""
    difference: bool = True
    """False: when all values themselves are below it in magnitude (of velocities: the robot stands)."""
    min_idle: int = 7
    """Frames in a row that must be idle to be left out; shorter pauses stay."""
    min_moving: int = 16
    """Frames that a stretch between two of those must have to be kept."""
    cut_last: int = 10
    """Frames cut from the end of each stretch that is kept: chunks that begin there run into the pause."""


def idle_ranges(values: np.ndarray, rule: IdleRule) -> list[tuple[int, int]]:
    """[start, stop) frame ranges of one episode in which the robot stands for long, ascending and apart.

    Args:
        values: numbers (L, ...), one row per frame.
    """
    if len(values) == 0:
        return []
    flat = values.reshape(len(values), -1).astype(np.float64)
    if rule.difference:
        with np.errstate(invalid="ignore"):  # an infinity that stays
            flat = np.abs(np.diff(flat, axis=0, prepend=np.inf))
    idle: np.ndarray = np.all(np.abs(flat) < rule.threshold, axis=1)
    return [(start, stop) for start, stop in _runs(idle) if stop - start >= rule.min_idle]


def non_idle_ranges(values: np.ndarray, rule: IdleRule) -> list[tuple[int, int]]:
    """[start, stop) frame ranges to keep of one episode, ascending and apart, none empty.

    Args:
        values: numbers (L, ...), one row per frame.
    """
    kept = np.ones(len(values), bool)
    for start, stop in idle_ranges(values, rule):
        kept[start:stop] = False
    stretches = [(start, stop - rule.cut_last) for start, stop in _runs(kept) if stop - start >= rule.min_moving]
    return [(start, stop) for start, stop in stretches if start < stop]


def _runs(flags: np.ndarray) -> Sequence[tuple[int, int]]:
    """[start, stop) of every longest run of True in bool (L,)."""
    turns = np.flatnonzero(np.diff(np.concatenate([[False], flags, [False]]).astype(np.int8)))
    return list(zip(turns[::2].tolist(), turns[1::2].tolist()))
