"""Summaries of a numeric column, per episode and dimension, from one pass over its rows in bounded
memory.
"""

from collections.abc import Iterable, Sequence
from functools import cached_property
from typing import Any, overload

import numpy as np

from understudy_data import Catalog, storable
from understudy_tools.check.findings import Place

SAMPLE = 1 << 16
"""Rows kept of a dataset for quantiles, evenly spread."""
_BLOCK = 1 << 21  # numbers that are converted to float64 at a time


class FrameStride:
    """Frames of a dataset that are sampled: every N-th by its number in the whole dataset, about
    `SAMPLE` of them.

    Args:
        catalog: the dataset.
        rows: int64 (n,), table rows of the episodes that have the numbers 0 to n - 1 here.
    """

    def __init__(self, catalog: Catalog, rows: np.ndarray) -> None:
        lengths = catalog.episodes.lengths
        self._firsts = (np.cumsum(lengths) - lengths)[rows]
        self._stride = max(1, catalog.num_frames // SAMPLE)

    def sampled(self, episodes: np.ndarray, lengths: np.ndarray) -> np.ndarray:
        """Return the places of sampled frames in all frames of `episodes`, int64."""
        number = np.arange(lengths.sum()) + np.repeat(
            self._firsts[episodes] - (np.cumsum(lengths) - lengths), lengths
        )
        return np.flatnonzero(number % self._stride == 0)


def copy_rows(whole: object, part: object, rows: np.ndarray) -> None:
    """Copy each array of an object, with an entry for each episode, to the table rows `rows` of
    those of `whole`.
    """
    for name, values in vars(part).items():
        if isinstance(values, np.ndarray):
            getattr(whole, name)[rows] = values


class Fact:
    """Fact about each episode in a column: an attribute of `Column` that holds an array.

    Args:
        meaning: a noun phrase with the unit.
        absent: value of episodes that were not added; its type is that of the array.
        of_dims: whether the array is (N, D), not (N,).
    """

    def __init__(self, meaning: str, absent: float = np.nan, of_dims: bool = True) -> None:
        self.meaning = meaning
        self.absent = absent
        self.of_dims = of_dims

    @overload
    def __get__(self, column: None, owner: type) -> "Fact": ...
    @overload
    def __get__(self, column: object, owner: type) -> np.ndarray: ...
    def __get__(self, column: object, owner: type) -> Any:
        return self  # a column has an array of this name, which hides this

    def array(self, episodes: int, dims: int) -> np.ndarray:
        """Return the array of episodes that were not added."""
        return np.full((episodes, dims) if self.of_dims else episodes, self.absent)


@storable
class Column:
    """Summary of one column of N episodes with D numbers per frame, from their rows in any order:
    an array for each of `FACTS`, under its name.

    Args:
        key: key of the column.
        names: names of its dimensions.
        catalog: the dataset.
        stride: frames to sample; by default those of all episodes of the catalog.
    """

    lengths = Fact("frames of the episode", 0, of_dims=False)
    low = Fact("least finite value")
    high = Fact("greatest finite value")
    mean = Fact("mean of the finite values")
    m2 = Fact("sum of the squared differences to the mean")
    first = Fact("value in the first frame")
    last = Fact("value in the last frame")
    step = Fact("largest change between two frames")
    step_frame = Fact("frame after the largest change", 0)
    beside = Fact("smaller one of the changes around the largest; 0 at the ends of an episode")
    path = Fact("sum of the absolute changes")
    jerk = Fact("mean of the absolute second differences of consecutive changes")
    tick = Fact("smallest change that is not 0; infinite without any")
    changes = Fact("frames that differ from the one before")
    at_low = Fact("frames at the episode's least value")
    at_high = Fact("frames at the episode's greatest value")
    visits = Fact("separate runs of frames at the extreme that has more frames")
    entry = Fact("mean change by which the runs of `visits` are entered")
    zeros = Fact("frames whose values are all 0", 0, of_dims=False)
    zero_frame = Fact("first frame whose values are all 0", 0, of_dims=False)
    zero_edge = Fact("largest change between a frame of zeros and another one")
    bad = Fact("frames with a value that is not finite", 0, of_dims=False)
    bad_frame = Fact("first frame with a value that is not finite", 0, of_dims=False)

    def __init__(
        self, key: str, names: list[str], catalog: Catalog, stride: FrameStride | None = None
    ) -> None:
        self.key = key
        self.names = names
        self._catalog = catalog
        episodes = len(catalog.episodes)
        for name, fact in FACTS.items():
            vars(self)[name] = fact.array(episodes, len(names))
        self._stride = stride or FrameStride(catalog, np.arange(episodes))
        self._parts: list[tuple[np.ndarray, np.ndarray]] = []

    @property
    def width(self) -> int:
        """Numbers per frame, D."""
        return len(self.names)

    @property
    def range(self) -> np.ndarray:
        """Greatest minus least value, (N, D)."""
        return self.high - self.low

    @property
    def square(self) -> np.ndarray:
        """Mean of the squares, (N, D)."""
        return self.m2 / np.maximum(self.lengths, 1)[:, None] + self.mean**2

    @property
    def std(self) -> np.ndarray:
        """Standard deviation of the population, (N, D)."""
        return np.sqrt(self.m2 / np.maximum(self.lengths, 1)[:, None])

    @cached_property
    def sample(self) -> np.ndarray:
        """Rows evenly spread over the dataset, float64 (S, D); read after all episodes were
        added.
        """
        return np.concatenate([np.zeros((0, self.width)), *(rows for rows, _ in self._parts)])

    @cached_property
    def steps(self) -> np.ndarray:
        """Absolute changes to the next row of the rows of `sample`, float64 (S, D)."""
        return np.concatenate([np.zeros((0, self.width)), *(changes for _, changes in self._parts)])

    @cached_property
    def bounds(self) -> np.ndarray:
        """Least and greatest value of each dimension without the outer hundredths, float64 (2,
        D).
        """
        return np.asarray(np.quantile(self.sample, [0.005, 0.995], axis=0))

    @property
    def spread(self) -> np.ndarray:
        """Distance of the `bounds`, float64 (D,)."""
        return np.asarray(self.bounds[1] - self.bounds[0])

    def merge(self, part: "Column", rows: np.ndarray) -> None:
        """Add the episodes of a part of the dataset, which have the table rows `rows`."""
        copy_rows(self, part, rows)
        self._parts += part._parts

    def __getstate__(self) -> dict[str, Any]:
        # those of the whole dataset remain
        return {**vars(self), "_catalog": None, "_stride": None}

    def place(
        self,
        rows: Sequence[int] | np.ndarray,
        dimension: int | None = None,
        frame: int | None = None,
    ) -> Place:
        """Place of table rows in this column, or in one of its dimensions."""
        name = "" if dimension is None else self.dimension(dimension)
        return Place.from_rows(self._catalog, rows, self.key, name, frame=frame)

    def dimension(self, number: int) -> str:
        """Name of a dimension; "" of the only one."""
        return self.names[number] if self.width > 1 else ""

    def list_names(self, dimensions: Iterable[int]) -> str:
        """Names of the first eight of the dimensions."""
        return ", ".join(self.names[number] for number in list(dimensions)[:8])

    def add(
        self, rows: np.ndarray, values: np.ndarray, starts: np.ndarray, lengths: np.ndarray
    ) -> None:
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

    def _add_block(
        self, rows: np.ndarray, values: np.ndarray, starts: np.ndarray, lengths: np.ndarray
    ) -> None:
        ends = starts + lengths
        if (starts[1:] == ends[:-1]).all():
            block = values[starts[0] : ends[-1]].astype(np.float64)
        else:
            block = np.concatenate([values[a:b] for a, b in zip(starts, ends)]).astype(np.float64)
        begins = np.cumsum(lengths) - lengths
        block = self._without_gaps(rows, block, begins)
        low = np.minimum.reduceat(block, begins)
        high = np.maximum.reduceat(block, begins)
        episode_of = np.repeat(np.arange(len(rows)), lengths)
        with np.errstate(over="ignore", invalid="ignore"):
            mean = np.add.reduceat(block, begins) / lengths[:, None]
            self.m2[rows] = np.add.reduceat((block - mean[episode_of]) ** 2, begins)
            change = np.zeros_like(block)
            np.subtract(block[1:], block[:-1], out=change[1:])
            change[begins] = 0.0
            second = np.zeros_like(block)
            np.subtract(change[1:], change[:-1], out=second[1:])
            for starts_of in (begins, (begins + 1)[lengths > 1]):
                second[starts_of] = 0.0
            np.abs(change, out=change)
            np.abs(second, out=second)
            self.jerk[rows] = np.add.reduceat(second, begins) / np.maximum(lengths - 2, 1)[:, None]
            self.path[rows] = np.add.reduceat(change, begins)
        step = np.maximum.reduceat(change, begins)
        self.low[rows] = low
        self.high[rows] = high
        self.mean[rows] = mean
        self.step[rows] = step
        self.first[rows] = block[begins]
        self.last[rows] = block[begins + lengths - 1]
        self.tick[rows] = np.minimum.reduceat(np.where(change > 0, change, np.inf), begins)
        self.changes[rows] = np.add.reduceat(change > 0, begins, dtype=np.float64)
        self.lengths[rows] = lengths
        self._add_zeros(rows, block, change, begins)
        self._add_bounds(rows, block, change, begins, episode_of)
        # The frame of the largest step is only needed where it is large: the first frame that
        # reaches it.
        reached = np.where(change == step[episode_of], np.arange(len(block))[:, None], len(block))
        frame = np.minimum.reduceat(reached, begins)
        self.step_frame[rows] = frame - begins[:, None]
        # the first change of an episode is 0
        around = np.concatenate([change, np.zeros((1, change.shape[1]))])
        self.beside[rows] = np.minimum(
            np.take_along_axis(around, frame - 1, axis=0),
            np.take_along_axis(around, frame + 1, axis=0),
        )
        sampled = self._stride.sampled(rows, lengths)
        self._parts.append((block[sampled], change[sampled]))

    def _without_gaps(self, rows: np.ndarray, block: np.ndarray, begins: np.ndarray) -> np.ndarray:
        """Count values that are not finite, and replace them by the preceding value of their
        dimension, or by 0.
        """
        finite = np.isfinite(block)
        if finite.all():
            return block
        bad = ~finite.all(axis=1)
        self.bad[rows], self.bad_frame[rows] = _count(bad, begins)
        source = np.where(finite, np.arange(len(block))[:, None], -1)
        source[begins] = np.maximum(source[begins], begins[:, None])
        source = np.maximum.accumulate(source, axis=0)
        filled = np.take_along_axis(block, source, axis=0)
        return np.asarray(np.where(np.isfinite(filled), filled, 0.0))

    def _add_bounds(
        self,
        rows: np.ndarray,
        block: np.ndarray,
        change: np.ndarray,
        begins: np.ndarray,
        episode_of: np.ndarray,
    ) -> None:
        """Frames at the extremes, separate visits of the one with more frames, and the mean change
        that enters it.
        """
        sides = []
        for bound in (self.low[rows], self.high[rows]):
            touches = block == bound[episode_of]
            enters = touches.copy()
            enters[1:] &= ~touches[:-1]
            enters[begins] = touches[begins]
            visits = np.add.reduceat(enters, begins, dtype=np.float64)
            entry = np.add.reduceat(change * enters, begins) / visits
            sides.append((np.add.reduceat(touches, begins, dtype=np.float64), visits, entry))
        (self.at_low[rows], *low), (self.at_high[rows], *high) = sides
        more = self.at_high[rows] >= self.at_low[rows]
        self.visits[rows], self.entry[rows] = (np.where(more, *pair) for pair in zip(high, low))

    def _add_zeros(
        self, rows: np.ndarray, block: np.ndarray, change: np.ndarray, begins: np.ndarray
    ) -> None:
        """Frames of zeros, and the largest change between one and another frame."""
        zero = np.asarray(~block.any(axis=1))
        self.zero_edge[rows] = 0.0
        if zero.any():
            self.zeros[rows], self.zero_frame[rows] = _count(zero, begins)
            edge = np.diff(zero, prepend=zero[:1])
            self.zero_edge[rows] = np.maximum.reduceat(change * edge[:, None], begins)


FACTS = {name: fact for name, fact in vars(Column).items() if isinstance(fact, Fact)}
"""Name -> fact about each episode in a column."""


def _count(flags: np.ndarray, begins: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
    """Frames with a flag in each episode int64 (n,), and the first of them."""
    first = np.where(flags, np.arange(len(flags)), len(flags))
    return np.add.reduceat(flags.astype(np.int64), begins), np.minimum.reduceat(
        first, begins
    ) - begins


TURNS = (2 * np.pi, 360.0)
"""A whole turn, in radians and degrees."""
_UNIT = 0.02  # allowed distance of the mean squared norm of unit quaternions from 1


def wrapping(column: Column, rows: np.ndarray) -> np.ndarray:
    """Find angles that wrap: no range exceeds a whole turn, and a step in some episode nearly
    equals it.

    Args:
        column: the column.
        rows: the episodes to use: bool (N,), or their table rows.

    Returns:
        bool (D,).
    """
    wraps = np.zeros(column.width, bool)
    if len(column.mean[rows]):
        step = column.step[rows].max(axis=0)
        extent = column.high[rows].max(axis=0) - column.low[rows].min(axis=0)
        for turn in TURNS:
            wraps |= (step > 0.9 * turn) & (step < 1.01 * turn) & (extent < 1.01 * turn)
    return wraps


def quaternions(column: Column, rows: np.ndarray) -> list[slice]:
    """Find four dimensions side by side whose mean squared norm is 1 in all episodes, none of them
    constant.

    Args:
        column: the column.
        rows: the episodes to use: bool (N,), or their table rows.

    Returns:
        The dimensions of each, without overlap.
    """
    parts: list[slice] = []
    square = column.square[rows]
    if not len(square):
        return parts
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
    """Whether the largest step of a dimension in an episode is that of a quaternion to its
    negative, of norm 2.
    """
    for part in rotations:
        if part.start <= dim < part.stop:
            together = column.step_frame[row, part] == column.step_frame[row, dim]
            return bool(abs(np.linalg.norm(column.step[row, part][together]) - 2) < 0.1)
    return False


LAGS = range(-4, 11)
"""Frames by which the state may follow the action."""
_LONGEST = 2000  # frames of an episode that count
_DIMENSIONS = 8  # moving dimensions that count for the delay
# quantile of the changes that larger ones are cut to: one wrap of an angle would decide the delay
_JUMPS = 0.98


@storable
class PairFacts:
    """Action against state of N episodes with D dimensions each.

    Attributes:
        correlation: float64 (N, D), correlation of action and state; NaN where one of them is
            constant.
        follows: float64 (N, len(LAGS)), correlation of the changes of all dimensions at each lag;
            NaN without motion.
        copies: bool (N,), action and state are equal in all frames, and move.
        frozen: int64 (N,), frames of the longest range in which no dimension of the state changes;
            `frozen_frame` int64 (N,) is its first.
        meanwhile: float64 (N,), range of the action in it as a share of that of the episode, mean
            over the dimensions.
    """

    def __init__(self, episodes: int, width: int) -> None:
        self.correlation = np.full((episodes, width), np.nan)
        self.follows = np.full((episodes, len(LAGS)), np.nan)
        self.copies = np.zeros(episodes, bool)
        self.frozen = np.zeros(episodes, np.int64)
        self.frozen_frame = np.zeros(episodes, np.int64)
        self.meanwhile = np.zeros(episodes)

    def add(self, row: int, action: np.ndarray, state: np.ndarray) -> None:
        """Add an episode: its table row, and action and state of shape (length, D)."""
        a = action[:_LONGEST].astype(np.float64)
        s = state[:_LONGEST].astype(np.float64)
        if len(a) < 2 * len(LAGS) or not (np.isfinite(a).all() and np.isfinite(s).all()):
            return
        self._add_equality(row, a, s)
        da = a - a.mean(0)
        ds = s - s.mean(0)
        scale = np.sqrt((da**2).sum(0) * (ds**2).sum(0))
        self.correlation[row] = np.divide(
            (da * ds).sum(0), scale, out=np.full(len(scale), np.nan), where=scale > 0
        )
        va = _cut(np.diff(a, axis=0))
        vs = _cut(np.diff(s, axis=0))
        size_a = va.std(0)
        size_s = vs.std(0)
        use = (size_a > 1e-9) & (size_s > 1e-9)
        if not use.any():
            return
        some = np.flatnonzero(use)[:_DIMENSIONS]
        va = va[:, some] / size_a[some]
        vs = vs[:, some] / size_s[some]
        begin = -min(LAGS)
        last = len(va) - max(LAGS)
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
            begins = turns[::2]
            ends = turns[1::2]
            longest = int((ends - begins).argmax())
            begin = int(begins[longest])
            end = int(ends[longest]) + 1
            self.frozen[row] = end - begin
            self.frozen_frame[row] = begin
            self.meanwhile[row] = float(
                (np.ptp(action[begin:end], axis=0)[moving] / extent[moving]).mean()
            )


def _cut(changes: np.ndarray) -> np.ndarray:
    """Limit changes (n, D) to a quantile of their magnitude, where it is above 0: a switch changes
    rarely.
    """
    limit = np.quantile(np.abs(changes), _JUMPS, axis=0)
    limit = np.where(limit > 0, limit, np.inf)
    return np.asarray(np.clip(changes, -limit, limit))
