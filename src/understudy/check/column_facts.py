"""Summaries of a numeric column, per episode and dimension, from one pass over its rows in bounded memory."""

from dataclasses import dataclass

import numpy as np

SAMPLE = 1 << 16
"""Rows kept of a dataset for quantiles, evenly spread."""
_BLOCK = 1 << 21  # numbers that are converted to float64 at a time
_PER_EPISODE = (
    *("low", "high", "mean", "m2", "first", "last", "step", "beside", "path", "jerk", "tick", "changes"),
    *("at_low", "at_high", "visits", "entry", "zero_edge"),
)


@dataclass
class Column:
    """Summary of one column of N episodes with D numbers per frame. Arrays are (N, D) float64 unless stated.

    Attributes:
        names: names of the dimensions.
        low, high, mean, m2: extremes, mean and sum of squared differences to the mean of the finite values.
        first: value in the first frame.
        step: largest change between two frames; `step_frame` int64 (N, D) is the frame after it.
        beside: the smaller one of the changes before and after the largest one; 0 at the ends of an episode.
        path: sum of the absolute changes.
        jerk: sum of the absolute second differences of consecutive changes.
        at_low, at_high: frames at the episode's least and greatest value.
        visits: separate runs of frames at the greatest or least value, whichever has more frames.
        last: value in the last frame.
        tick: smallest change that is not 0; infinite without any. `changes`: frames that differ from the one before.
        entry: mean change by which the runs of `visits` are entered.
        zeros: int64 (N,), frames whose values are all 0; `zero_frame` int64 (N,) is the first.
        zero_edge: largest change between such a frame and another one.
        bad: int64 (N,), frames with a value that is not finite; `bad_frame` int64 (N,) is the first.
        sample: float64 (S, D), rows evenly spread over the dataset.
        steps: float64 (S, D), absolute changes to the next row of those rows.
    """

    key: str
    names: list[str]
    low: np.ndarray
    high: np.ndarray
    mean: np.ndarray
    m2: np.ndarray
    first: np.ndarray
    step: np.ndarray
    step_frame: np.ndarray
    beside: np.ndarray
    path: np.ndarray
    jerk: np.ndarray
    at_low: np.ndarray
    at_high: np.ndarray
    visits: np.ndarray
    last: np.ndarray
    tick: np.ndarray
    changes: np.ndarray
    entry: np.ndarray
    zero_edge: np.ndarray
    zeros: np.ndarray
    zero_frame: np.ndarray
    bad: np.ndarray
    bad_frame: np.ndarray
    sample: np.ndarray
    steps: np.ndarray

    @property
    def width(self) -> int:
        """Numbers per frame, D."""
        return self.low.shape[1]

    @property
    def range(self) -> np.ndarray:
        """Greatest minus least value, (N, D)."""
        return self.high - self.low


class ColumnBuilder:
    """Builds a `Column` from the rows of episodes, in any order.

    Args:
        key: key of the column.
        names: names of its dimensions.
        episodes: number of episodes N.
        frames: number of frames of the dataset.
    """

    def __init__(self, key: str, names: list[str], episodes: int, frames: int) -> None:
        self.key, self.names = key, names
        width = len(names)
        self._tables = {name: np.full((episodes, width), np.nan) for name in _PER_EPISODE}
        self._step_frame = np.zeros((episodes, width), np.int64)
        self._bad, self._bad_frame = np.zeros(episodes, np.int64), np.zeros(episodes, np.int64)
        self._zeros, self._zero_frame = np.zeros(episodes, np.int64), np.zeros(episodes, np.int64)
        self._stride = max(1, frames // SAMPLE)
        self._seen = 0
        self._sample: list[np.ndarray] = []
        self._steps: list[np.ndarray] = []

    def add(self, rows: np.ndarray, values: np.ndarray, starts: np.ndarray, lengths: np.ndarray) -> None:
        """Add episodes.

        Args:
            rows: int64 (n,), their table rows.
            values: numbers (total, D), rows of the file.
            starts: int64 (n,), first row of each episode in `values`, ascending.
            lengths: int64 (n,), rows of each, 1 or more.
        """
        limit = max(1, _BLOCK // max(1, values.shape[1]))
        begin = 0
        while begin < len(rows):
            ends = np.cumsum(lengths[begin:])
            count = max(1, int(np.searchsorted(ends, limit, side="right")))
            part = slice(begin, begin + count)
            self._add_block(rows[part], values, starts[part], lengths[part])
            begin += count

    def _add_block(self, rows: np.ndarray, values: np.ndarray, starts: np.ndarray, lengths: np.ndarray) -> None:
        ends = starts + lengths
        if (starts[1:] == ends[:-1]).all():
            block = values[starts[0] : ends[-1]].astype(np.float64)
        else:
            block = np.concatenate([values[a:b] for a, b in zip(starts, ends)]).astype(np.float64)
        begins = np.cumsum(lengths) - lengths
        block = self._without_gaps(rows, block, begins)
        counts = lengths[:, None]
        low, high = np.minimum.reduceat(block, begins), np.maximum.reduceat(block, begins)
        with np.errstate(over="ignore", invalid="ignore"):
            mean = np.add.reduceat(block, begins) / counts
            of = np.repeat(np.arange(len(rows)), lengths)
            m2 = np.add.reduceat((block - mean[of]) ** 2, begins)
            change = np.zeros_like(block)
            np.subtract(block[1:], block[:-1], out=change[1:])
            change[begins] = 0.0
            second = np.zeros_like(block)
            np.subtract(change[1:], change[:-1], out=second[1:])
            inner = np.clip(lengths - 2, 0, None)
            for starts_of in (begins, (begins + 1)[lengths > 1]):
                second[starts_of] = 0.0
            np.abs(change, out=change)
            np.abs(second, out=second)
            jerk = np.add.reduceat(second, begins) / np.maximum(inner, 1)[:, None]
            path = np.add.reduceat(change, begins)
        step = np.maximum.reduceat(change, begins)
        tables = {"low": low, "high": high, "mean": mean, "m2": m2, "first": block[begins], "step": step}
        tables |= {"path": path, "jerk": jerk}
        tables |= {"last": block[begins + lengths - 1], "tick": _least_change(change, begins)}
        tables["changes"] = np.add.reduceat(change > 0, begins, dtype=np.float64)
        tables["zero_edge"] = self._add_zeros(rows, block, change, begins, of)
        tables |= self._bounds(block, low, high, change, begins, of)
        for name, table in tables.items():
            self._tables[name][rows] = table
        # The frame of the largest step is only needed where it is large: the first frame that reaches it.
        reached = change == step[of]
        number = np.where(reached, np.arange(len(block))[:, None], len(block))
        frame = np.minimum.reduceat(number, begins)
        self._step_frame[rows] = frame - begins[:, None]
        around = np.concatenate([change, np.zeros((1, change.shape[1]))])  # the first change of an episode is 0
        around = np.minimum(
            np.take_along_axis(around, frame - 1, axis=0), np.take_along_axis(around, frame + 1, axis=0)
        )
        self._tables["beside"][rows] = around
        sampled = np.arange(-self._seen % self._stride, len(block), self._stride)
        self._seen += len(block)
        self._sample.append(block[sampled])
        self._steps.append(change[sampled])

    def _without_gaps(self, rows: np.ndarray, block: np.ndarray, begins: np.ndarray) -> np.ndarray:
        """Count values that are not finite, and replace them by the preceding value of their dimension, or by 0."""
        finite = np.isfinite(block)
        if finite.all():
            return block
        bad = ~finite.all(axis=1)
        self._bad[rows] = np.add.reduceat(bad.astype(np.int64), begins)
        first = np.where(bad, np.arange(len(block)), len(block))
        self._bad_frame[rows] = np.minimum.reduceat(first, begins) - begins
        source = np.where(finite, np.arange(len(block))[:, None], -1)
        source[begins] = np.maximum(source[begins], begins[:, None])
        source = np.maximum.accumulate(source, axis=0)
        filled = np.take_along_axis(block, source, axis=0)
        return np.asarray(np.where(np.isfinite(filled), filled, 0.0))

    @staticmethod
    def _bounds(
        block: np.ndarray, low: np.ndarray, high: np.ndarray, change: np.ndarray, begins: np.ndarray, of: np.ndarray
    ) -> dict[str, np.ndarray]:
        """Frames at the extremes, separate visits of the one with more frames, and the mean change that enters it."""
        counts, visits, entry = {}, {}, {}
        for name, bound in (("at_low", low), ("at_high", high)):
            touches = block == bound[of]
            enters = touches.copy()
            enters[1:] &= ~touches[:-1]
            enters[begins] = touches[begins]
            counts[name] = np.add.reduceat(touches, begins, dtype=np.float64)
            visits[name] = np.add.reduceat(enters, begins, dtype=np.float64)
            entry[name] = np.add.reduceat(change * enters, begins) / visits[name]
        more = counts["at_high"] >= counts["at_low"]
        chosen = {"visits": visits, "entry": entry}
        return counts | {name: np.where(more, table["at_high"], table["at_low"]) for name, table in chosen.items()}

    def _add_zeros(
        self, rows: np.ndarray, block: np.ndarray, change: np.ndarray, begins: np.ndarray, of: np.ndarray
    ) -> np.ndarray:
        """Count frames of zeros, and return the largest change between one and another frame (n, D)."""
        zero = np.asarray(~block.any(axis=1))
        if not zero.any():
            return np.zeros((len(rows), block.shape[1]))
        self._zeros[rows] = np.add.reduceat(zero.astype(np.int64), begins)
        self._zero_frame[rows] = np.minimum.reduceat(np.where(zero, np.arange(len(block)), len(block)), begins) - begins
        edge = np.zeros(len(block), bool)
        edge[1:] = zero[1:] != zero[:-1]
        return np.asarray(np.maximum.reduceat(change * edge[:, None], begins))

    def result(self) -> Column:
        """Return the summary; NaN for episodes that were not added."""
        empty = np.zeros((0, len(self.names)))
        return Column(
            key=self.key,
            names=self.names,
            **self._tables,
            step_frame=self._step_frame,
            zeros=self._zeros,
            zero_frame=self._zero_frame,
            bad=self._bad,
            bad_frame=self._bad_frame,
            sample=np.concatenate([empty, *self._sample]),
            steps=np.concatenate([empty, *self._steps]),
        )


def _least_change(change: np.ndarray, begins: np.ndarray) -> np.ndarray:
    """Smallest change above 0 of each episode, infinite without any."""
    return np.asarray(np.minimum.reduceat(np.where(change > 0, change, np.inf), begins))


TURNS = (2 * np.pi, 360.0)
"""A whole turn, in radians and degrees."""
_UNIT = 0.02  # allowed distance of the mean squared norm of unit quaternions from 1


def wrapping(column: Column, rows: np.ndarray) -> np.ndarray:
    """Find angles that wrap: no range exceeds a whole turn, and a step in some episode nearly equals it.

    Args:
        column: the column.
        rows: bool (N,), the episodes to use.

    Returns:
        bool (D,).
    """
    wraps = np.zeros(column.width, bool)
    if rows.any():
        step, extent = column.step[rows].max(axis=0), column.high[rows].max(axis=0) - column.low[rows].min(axis=0)
        for turn in TURNS:
            wraps |= (step > 0.9 * turn) & (step < 1.01 * turn) & (extent < 1.01 * turn)
    return wraps


def quaternions(column: Column, rows: np.ndarray, lengths: np.ndarray) -> list[slice]:
    """Find four dimensions side by side whose mean squared norm is 1 in all episodes, none of them constant.

    Args:
        column: the column.
        rows: bool (N,), the episodes to use.
        lengths: int64 (N,), their frames.

    Returns:
        The dimensions of each, without overlap.
    """
    parts: list[slice] = []
    if not rows.any():
        return parts
    square = column.m2[rows] / np.maximum(lengths[rows], 1)[:, None] + column.mean[rows] ** 2
    varies = column.high[rows].max(axis=0) > column.low[rows].min(axis=0)
    dim = 0
    while dim + 4 <= column.width:
        part = slice(dim, dim + 4)
        if varies[part].all() and (np.abs(square[:, part].sum(axis=1) - 1) < _UNIT).all():
            parts.append(part)
            dim += 3
        dim += 1
    return parts


def is_sign_flip(column: Column, row: int, dim: int, rotations: list[slice]) -> bool:
    """Whether the largest step of a dimension in an episode is that of a quaternion to its negative, of norm 2."""
    for part in rotations:
        if part.start <= dim < part.stop:
            together = column.step_frame[row, part] == column.step_frame[row, dim]
            return bool(abs(np.linalg.norm(column.step[row, part][together]) - 2) < 0.1)
    return False


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
