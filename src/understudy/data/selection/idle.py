"""Frame ranges of an episode without long pauses, which are runs of idle frames (`motion.py`).

Without other settings only frames in which nothing moves are removed. `IdleRule.droid()` is the rule of openpi's
`compute_droid_nonidle_ranges.py`, which made DROID's keep-ranges. Its values are commanded joint velocities in rad/s at
15 frames per second.
"""

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np

from understudy.data.selection.motion import changes, moves


@dataclass(frozen=True)
class IdleRule:
    """Definition of idle frames, and of the ranges to keep."""

    threshold: float | tuple[float, ...] = 1e-3
    """A frame is idle when all values changed by less than this since the previous frame, in the column's units; one
    number, or one for each dimension (`motion_thresholds`). The first frame is never idle. A value that is not finite
    is a change."""
    difference: bool = True
    """False: a frame is idle when all values are below the threshold in magnitude (velocities of a resting robot)."""
    min_idle: int = 7
    """Consecutive idle frames to remove; shorter pauses stay."""
    min_moving: int = 1
    """Least frames of a range between two pauses to keep it."""
    cut_last: int = 0
    """Frames cut from the end of each range: action chunks that begin there reach into the pause."""
    settled: bool = True
    """Keep the first `min_idle` frames of a pause, since a gripper may still be closing. Also keep a whole pause in
    which values drift by `threshold` or more (least to greatest), since it is a slow movement. False: remove each pause
    from its first frame on, however far its small changes add up."""
    rates: tuple[float, ...] = ()
    """For each dimension the least value that is a motion, infinite where the value is none (`motion.moves`); empty:
    for none."""

    @classmethod
    def droid(cls) -> "IdleRule":
        """Return openpi's rule and numbers."""
        return cls(threshold=1e-3, difference=True, min_idle=7, min_moving=16, cut_last=10, settled=False)


def idle_frames(values: np.ndarray, rule: IdleRule) -> np.ndarray:
    """Return which frames are idle, bool (L,), for the numbers (L, ...) of one episode."""
    flat = values.reshape(len(values), -1).astype(np.float64)
    steps = changes(flat) if rule.difference else flat
    rates = np.asarray(rule.rates) if rule.rates else np.full(flat.shape[1], np.inf)
    return ~moves(steps, np.asarray(rule.threshold), flat, rates)


def idle_ranges(values: np.ndarray, rule: IdleRule) -> list[tuple[int, int]]:
    """Find the long idle [start, stop) frame ranges of one episode, ascending and disjoint.

    Args:
        values: numbers (L, ...), one row per frame.
        rule: the definition of idle.
    """
    if len(values) == 0:
        return []
    flat, threshold = values.reshape(len(values), -1).astype(np.float64), np.asarray(rule.threshold)
    idle = idle_frames(values, rule)
    pauses = [(start, stop) for start, stop in _runs(idle) if stop - start >= rule.min_idle]
    if not rule.settled:
        return pauses
    return [
        (start + rule.min_idle, stop)
        for start, stop in pauses
        if stop - start > rule.min_idle
        and not (rule.difference and (np.ptp(flat[start - 1 : stop], axis=0) >= threshold).any())
    ]


def non_idle_ranges(values: np.ndarray, rule: IdleRule) -> list[tuple[int, int]]:
    """Return the [start, stop) frame ranges to keep of one episode, ascending, disjoint, not empty.

    Args:
        values: numbers (L, ...), one row per frame.
        rule: the definition of idle.
    """
    moving = np.ones(len(values), bool)
    for start, stop in idle_ranges(values, rule):
        moving[start:stop] = False
    ranges = [(start, stop - rule.cut_last) for start, stop in _runs(moving) if stop - start >= rule.min_moving]
    return [(start, stop) for start, stop in ranges if start < stop]


def _runs(flags: np.ndarray) -> Sequence[tuple[int, int]]:
    """[start, stop) of each maximal run of True in bool (L,)."""
    turns = np.flatnonzero(np.diff(np.concatenate([[False], flags, [False]]).astype(np.int8)))
    return list(zip(turns[::2].tolist(), turns[1::2].tolist()))
