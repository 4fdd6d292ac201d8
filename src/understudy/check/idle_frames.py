"""Frames of each episode in which the action does not move, each dimension compared with its own speed."""

import numpy as np

from understudy.data.selection.motion import MOTION_SHARE, SpeedHistogram

KNOWN = 200_000
"""Frames from which the speed of the dimensions is known; those of larger datasets are measured on the first files."""


class IdleCounter:
    """Counts idle frames. A dimension moves if it changes by 5 % of the 99th percentile of its changes per frame.

    Changes of zero are left out of the percentile, so units do not matter.
    """

    def __init__(self) -> None:
        self._histogram = SpeedHistogram()
        self._waiting: list[tuple[int, np.ndarray]] = []
        self._frames = 0
        self._threshold: np.ndarray | None = None
        self._counts: dict[int, int] = {}

    def add(self, row: int, values: np.ndarray) -> None:
        """Add the actions (L, D) of the episode of a table row."""
        with np.errstate(invalid="ignore"):  # inf - inf is NaN, which is no rest
            steps = np.abs(np.diff(values.astype(np.float64), axis=0))
        if self._threshold is not None:
            self._count(row, steps)
            return
        if len(steps):
            self._histogram.add(steps)
        self._waiting.append((row, steps))
        self._frames += len(values)
        if self._frames >= KNOWN:
            self._decide()

    def result(self, episodes: int) -> np.ndarray:
        """Return the idle frames of each table row, int64 (episodes,); a first frame is never idle."""
        if self._threshold is None:
            self._decide()
        found = np.zeros(episodes, np.int64)
        for row, count in self._counts.items():
            found[row] = count
        return found

    def _decide(self) -> None:
        self._threshold = MOTION_SHARE * self._histogram.quantile(0.99)
        for row, steps in self._waiting:
            self._count(row, steps)
        self._waiting = []

    def _count(self, row: int, steps: np.ndarray) -> None:
        if len(steps):
            self._counts[row] = int((steps < self._threshold).all(axis=1).sum())
