"""Action against state of the same joints, per episode: correlation per dimension, and the delay between them."""

import numpy as np

LAGS = range(-4, 11)
"""Frames by which the state may follow the action."""
_LONGEST = 2000  # frames of an episode that count
_DIMENSIONS = 8  # moving dimensions that count for the delay
_JUMPS = 0.98  # quantile of the changes that larger ones are cut to: one wrap of an angle would decide the delay


class PairFacts:
    """Action against state of N episodes with D dimensions each.

    Attributes:
        correlation: float64 (N, D), correlation of action and state; NaN where one of them is constant.
        follows: float64 (N, len(LAGS)), correlation of the changes of all dimensions at each lag; NaN without motion.
        copies: bool (N,), action and state are equal in all frames, and move.
        frozen: int64 (N,), frames of the longest range in which no dimension of the state changes; `frozen_frame` int64
            (N,) is its first.
        meanwhile: float64 (N,), range of the action in it as a share of that of the episode, mean over the dimensions.
    """

    def __init__(self, episodes: int, width: int) -> None:
        self.correlation = np.full((episodes, width), np.nan)
        self.follows = np.full((episodes, len(LAGS)), np.nan)
        self.copies = np.zeros(episodes, bool)
        self.frozen, self.frozen_frame = np.zeros(episodes, np.int64), np.zeros(episodes, np.int64)
        self.meanwhile = np.zeros(episodes)

    def add(self, row: int, action: np.ndarray, state: np.ndarray) -> None:
        """Add an episode: its table row, and action and state of shape (length, D)."""
        a, s = action[:_LONGEST].astype(np.float64), state[:_LONGEST].astype(np.float64)
        if len(a) < 2 * len(LAGS) or not (np.isfinite(a).all() and np.isfinite(s).all()):
            return
        self._add_equality(row, a, s)
        da, ds = a - a.mean(0), s - s.mean(0)
        scale = np.sqrt((da**2).sum(0) * (ds**2).sum(0))
        self.correlation[row] = np.divide((da * ds).sum(0), scale, out=np.full(len(scale), np.nan), where=scale > 0)
        va, vs = _cut(np.diff(a, axis=0)), _cut(np.diff(s, axis=0))
        size_a, size_s = va.std(0), vs.std(0)
        use = (size_a > 1e-9) & (size_s > 1e-9)
        if not use.any():
            return
        some = np.flatnonzero(use)[:_DIMENSIONS]
        va, vs = va[:, some] / size_a[some], vs[:, some] / size_s[some]
        begin, last = -min(LAGS), len(va) - max(LAGS)
        x = va[begin:last].reshape(-1)
        for place, lag in enumerate(LAGS):
            y = vs[begin + lag : last + lag].reshape(-1)
            norm = np.sqrt((x @ x) * (y @ y))
            self.follows[row, place] = (x @ y) / norm if norm > 0 else np.nan

    def _add_equality(self, row: int, action: np.ndarray, state: np.ndarray) -> None:
        extent = np.ptp(action, axis=0)
        moving = extent > 0
        self.copies[row] = bool(moving.any() and (action == state).all())
        still = np.concatenate([[0], (state[1:] == state[:-1]).all(axis=1), [0]])
        turns = np.flatnonzero(np.diff(still))
        if len(turns) and moving.any():
            begins, ends = turns[::2], turns[1::2]
            longest = int((ends - begins).argmax())
            begin, end = int(begins[longest]), int(ends[longest]) + 1
            self.frozen[row], self.frozen_frame[row] = end - begin, begin
            self.meanwhile[row] = float((np.ptp(action[begin:end], axis=0)[moving] / extent[moving]).mean())


def _cut(changes: np.ndarray) -> np.ndarray:
    """Limit changes (n, D) to a quantile of their magnitude, where it is above 0: a switch changes rarely."""
    limit = np.quantile(np.abs(changes), _JUMPS, axis=0)
    limit = np.where(limit > 0, limit, np.inf)
    return np.asarray(np.clip(changes, -limit, limit))
