"""Where a robot moves: the frame ranges of an episode that are worth learning from, without the long idle ones.

By default only frames go in which nothing moves. `IdleRule.droid()` is the rule of openpi's
`compute_droid_nonidle_ranges.py`, with which DROID's keep-ranges were made; there the values are commanded joint
velocities in rad/s at 15 frames per second.
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
    min_moving: int = 1
    """Frames that a stretch between two of those must have to be kept."""
    cut_last: int = 0
    """Frames cut from the end of each stretch that is kept: chunks that begin there run into the pause."""
    settled: bool = True
    """Of a pause, the first `min_idle` frames stay: a gripper that was told to close may not have done so yet. And a
    pause in which values drift, by `threshold` or more from its least to its greatest, is a slow movement and stays
    whole. False: a pause goes from its first frame on, whatever the sum of its small changes."""

    @classmethod
    def droid(cls) -> "IdleRule":
        """openpi's rule and numbers."""
        return cls(threshold=1e-3, difference=True, min_idle=7, min_moving=16, cut_last=10, settled=False)


def idle_ranges(values: np.ndarray, rule: IdleRule) -> list[tuple[int, int]]:
    """[start, stop) frame ranges of one episode in which the robot stands for long, ascending and apart.

    Args:
        values: numbers (L, ...), one row per frame.
    """
    if len(values) == 0:
        return []
    flat = values.reshape(len(values), -1).astype(np.float64)
    steps = flat
    if rule.difference:
        with np.errstate(invalid="ignore"):  # an infinity that stays
            steps = np.diff(flat, axis=0, prepend=np.inf)
    idle: np.ndarray = np.all(np.abs(steps) < rule.threshold, axis=1)
    pauses = [(start, stop) for start, stop in _runs(idle) if stop - start >= rule.min_idle]
    if not rule.settled:
        return pauses
    return [
        (start + rule.min_idle, stop)
        for start, stop in pauses
        if stop - start > rule.min_idle
        and not (rule.difference and (np.ptp(flat[start - 1 : stop], axis=0) >= rule.threshold).any())
    ]


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
