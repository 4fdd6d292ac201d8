"""Idle frames of each episode, by the definition of `data/selection/motion.py`."""

import numpy as np

from understudy.data.selection.motion import Speeds, moves

KNOWN = 100_000
"""Frames from which the speed of the dimensions is known; those of larger datasets are measured on the first files."""


class IdleCounter:
    """Counts idle frames.

    Args:
        is_rate: which dimensions are differences or velocities (D,) (`motion.rate_dims`).
    """

    def __init__(self, is_rate: np.ndarray) -> None:
        self._speeds = Speeds(is_rate)
        self._is_rate = is_rate
        self._waiting: list[tuple[int, np.ndarray, np.ndarray]] = []
        self._frames = 0
        self._known: tuple[np.ndarray, np.ndarray] | None = None
        self._counts: dict[int, tuple[int, int]] = {}

    def add(self, row: int, values: np.ndarray) -> None:
        """Add the actions and states (L, D) of the episode of a table row."""
        with np.errstate(invalid="ignore"):  # inf - inf is NaN, which is no rest
            steps = np.diff(values.astype(np.float64), axis=0)
        if self._known is not None:
            self._count(row, steps, values[1:], *self._known)
            return
        self._speeds.add(steps, values)
        rates = values[1:] if self._is_rate.any() else values[:0]
        self._waiting.append((row, steps.astype(np.float32), rates.astype(np.float32)))
        self._frames += len(values)
        if self._frames >= KNOWN:
            self._decide()

    def result(self, episodes: int) -> np.ndarray:
        """Return the idle frames of each table row, and those at its end, int64 (2, episodes)."""
        if self._known is None:
            self._decide()
        counts = np.zeros((2, episodes), np.int64)
        for row, both in self._counts.items():
            counts[:, row] = both
        return counts

    def _decide(self) -> None:
        self._known = self._speeds.thresholds()
        for waiting in self._waiting:
            self._count(*waiting, *self._known)
        self._waiting = []

    def _count(self, row: int, steps: np.ndarray, values: np.ndarray, threshold: np.ndarray, rates: np.ndarray) -> None:
        if len(steps):
            moved = np.flatnonzero(moves(steps, threshold, values, rates))
            self._counts[row] = len(steps) - len(moved), len(steps) - 1 - int(moved[-1]) if len(moved) else len(steps)
