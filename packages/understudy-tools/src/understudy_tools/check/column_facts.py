"""Summaries of a numeric column, per episode and dimension, from one pass over its rows in bounded
memory.
"""

from collections.abc import Callable, Iterable, Sequence
from functools import cached_property
from typing import Annotated, Any, overload

import numpy as np

from understudy_data import storable
from understudy_tools.check.findings import Place
from understudy_tools.check.threshold import Threshold

SAMPLE = 1 << 16
"""Rows kept of a dataset for quantiles, evenly spread."""
_BLOCK = 1 << 21  # numbers that are converted to float64 at a time


class FrameStride:
    """Frames of a dataset that are sampled: every N-th by its number in the whole dataset, about
    `SAMPLE` of them.

    Args:
        lengths: int64 (N,), frames of all episodes of the dataset.
        rows: int64 (n,), table rows of the episodes that have the numbers 0 to n - 1 here; by
            default all of them.
    """

    def __init__(self, lengths: np.ndarray, rows: np.ndarray | slice = slice(None)) -> None:
        self._firsts = (np.cumsum(lengths) - lengths)[rows]
        self._stride = max(1, int(lengths.sum()) // SAMPLE)

    def sampled(self, episodes: np.ndarray, lengths: np.ndarray) -> np.ndarray:
        """Return the places of sampled frames in all frames of `episodes`, int64."""
        number = np.arange(lengths.sum()) + np.repeat(
            self._firsts[episodes] - (np.cumsum(lengths) - lengths), lengths
        )
        return np.flatnonzero(number % self._stride == 0)


class Block:
    """Rows of n episodes in one column, of which facts are computed. Arrays that several facts need
    are computed once, when the first of them asks.

    Args:
        values: float64 (total, D), the rows; those that are not finite become the preceding value
            of their dimension, or 0.
        lengths: int64 (n,), rows of each episode, 1 or more.
    """

    def __init__(self, values: np.ndarray, lengths: np.ndarray) -> None:
        self.lengths = lengths
        self.begins = np.cumsum(lengths) - lengths
        finite = np.isfinite(values)
        self.is_bad: np.ndarray | None = None
        if not finite.all():
            self.is_bad = ~finite.all(axis=1)
            values = self._without_gaps(values, finite)
        self.values = values

    def _without_gaps(self, values: np.ndarray, finite: np.ndarray) -> np.ndarray:
        source = np.where(finite, np.arange(len(values))[:, None], -1)
        source[self.begins] = np.maximum(source[self.begins], self.begins[:, None])
        source = np.maximum.accumulate(source, axis=0)
        filled = np.take_along_axis(values, source, axis=0)
        return np.asarray(np.where(np.isfinite(filled), filled, 0.0))

    def least(self, rows: np.ndarray) -> np.ndarray:
        """Least entry of each episode (n, ...) of `rows` (total, ...)."""
        return np.minimum.reduceat(rows, self.begins)

    def most(self, rows: np.ndarray) -> np.ndarray:
        """Greatest entry of each episode."""
        return np.maximum.reduceat(rows, self.begins)

    def total(self, rows: np.ndarray) -> np.ndarray:
        """Sum of each episode in float64; of flags their number."""
        return np.add.reduceat(rows, self.begins, dtype=np.float64)

    def number(self, flags: np.ndarray | None) -> np.ndarray:
        """Rows of each episode with a flag, int64 (n,); 0 where `flags` (total,) is None."""
        if flags is None:
            return np.zeros(len(self.lengths), np.int64)
        return np.add.reduceat(flags, self.begins, dtype=np.int64)

    def first(self, flags: np.ndarray | None) -> np.ndarray:
        """Frame of each episode's first row with a flag, int64 (n,); 0 without one."""
        if flags is None:
            return np.zeros(len(self.lengths), np.int64)
        place = self.least(np.where(flags, np.arange(len(flags)), len(flags)))
        return np.where(self.number(flags) > 0, place - self.begins, 0)

    @cached_property
    def episode_of(self) -> np.ndarray:
        """Number of the episode of each row, int64 (total,)."""
        return np.repeat(np.arange(len(self.lengths)), self.lengths)

    @cached_property
    def low(self) -> np.ndarray:
        """Least value (n, D)."""
        return self.least(self.values)

    @cached_property
    def high(self) -> np.ndarray:
        """Greatest value (n, D)."""
        return self.most(self.values)

    @cached_property
    def mean(self) -> np.ndarray:
        """Mean value (n, D)."""
        return self.total(self.values) / self.lengths[:, None]

    @cached_property
    def differences(self) -> tuple[np.ndarray, np.ndarray]:
        """Absolute changes from the row before, 0 in the first one, and absolute changes of the
        changes, 0 in the first two: (total, D) each.
        """
        change = np.zeros_like(self.values)
        np.subtract(self.values[1:], self.values[:-1], out=change[1:])
        change[self.begins] = 0.0
        second = np.zeros_like(self.values)
        np.subtract(change[1:], change[:-1], out=second[1:])
        for starts in (self.begins, (self.begins + 1)[self.lengths > 1]):
            second[starts] = 0.0
        return np.abs(change, out=change), np.abs(second, out=second)

    @property
    def change(self) -> np.ndarray:
        """First of the `differences`."""
        return self.differences[0]

    @cached_property
    def step(self) -> np.ndarray:
        """Largest change (n, D)."""
        return self.most(self.change)

    @cached_property
    def step_row(self) -> np.ndarray:
        """First row that reaches the largest change, int64 (n, D)."""
        reached = self.change == self.step[self.episode_of]
        number = np.arange(len(self.values))[:, None]
        return self.least(np.where(reached, number, len(self.values)))

    @cached_property
    def is_zero(self) -> np.ndarray | None:
        """Rows whose values are all 0, bool (total,); None without any."""
        flags = np.asarray(~self.values.any(axis=1))
        return flags if flags.any() else None

    @cached_property
    def runs(self) -> tuple[np.ndarray, np.ndarray, np.ndarray, np.ndarray]:
        """Rows at the least and at the greatest value; of the one with more rows separate runs, and
        the mean change that enters them: float64 (n, D) each.
        """
        rows = []
        runs = []
        entries = []
        for bound in (self.low, self.high):
            touches = self.values == bound[self.episode_of]
            enters = touches.copy()
            enters[1:] &= ~touches[:-1]
            enters[self.begins] = touches[self.begins]
            rows.append(self.total(touches))
            runs.append(self.total(enters))
            entries.append(self.total(self.change * enters) / runs[-1])
        more = rows[1] >= rows[0]
        return *rows, np.where(more, *runs[::-1]), np.where(more, *entries[::-1])


class Fact:
    """Fact about each episode in a column: an attribute of `Column` that holds an array.

    Args:
        meaning: a noun phrase with the unit.
        compute: function of a block, which returns (n, D), or (n,) where `of_dims` is false.
        absent: value of episodes that were not added; its type is that of the array.
        of_dims: whether the array is (N, D), not (N,).
    """

    def __init__(
        self,
        meaning: str,
        compute: Callable[[Block], np.ndarray],
        absent: float = np.nan,
        of_dims: bool = True,
    ) -> None:
        self.meaning = meaning
        self.compute = compute
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


def _spread_of_mean(block: Block) -> np.ndarray:
    return block.total((block.values - block.mean[block.episode_of]) ** 2)


def _jerk(block: Block) -> np.ndarray:
    return block.total(block.differences[1]) / np.maximum(block.lengths - 2, 1)[:, None]


def _beside(block: Block) -> np.ndarray:
    # the first change of an episode is 0
    around = np.concatenate([block.change, np.zeros((1, block.change.shape[1]))])
    return np.minimum(
        np.take_along_axis(around, block.step_row - 1, axis=0),
        np.take_along_axis(around, block.step_row + 1, axis=0),
    )


def _zero_edge(block: Block) -> np.ndarray:
    zero = block.is_zero
    if zero is None:
        return np.zeros_like(block.low)
    return block.most(block.change * np.diff(zero, prepend=zero[:1])[:, None])


@storable
class Column:
    """Summary of one column of N episodes with D numbers per frame, from their rows in any order:
    an array for each of `FACTS`, under its name.

    Args:
        key: key of the column.
        names: names of its dimensions.
        ids: int64 (N,), ids of the episodes.
        stride: frames to sample; None for a summary that others are merged into.
    """

    lengths = Fact("frames of the episode", lambda block: block.lengths, 0, of_dims=False)
    low = Fact("least finite value", lambda block: block.low)
    high = Fact("greatest finite value", lambda block: block.high)
    mean = Fact("mean of the finite values", lambda block: block.mean)
    m2 = Fact("sum of the squared differences to the mean", _spread_of_mean)
    first = Fact("value in the first frame", lambda block: block.values[block.begins])
    last = Fact(
        "value in the last frame", lambda block: block.values[block.begins + block.lengths - 1]
    )
    step = Fact("largest change between two frames", lambda block: block.step)
    step_frame = Fact(
        "frame after the largest change", lambda block: block.step_row - block.begins[:, None], 0
    )
    beside = Fact(
        "smaller one of the changes around the largest; 0 at the ends of an episode", _beside
    )
    path = Fact("sum of the absolute changes", lambda block: block.total(block.change))
    jerk = Fact("mean of the absolute second differences of consecutive changes", _jerk)
    tick = Fact(
        "smallest change that is not 0; infinite without any",
        lambda block: block.least(np.where(block.change > 0, block.change, np.inf)),
    )
    changes = Fact(
        "frames that differ from the one before", lambda block: block.total(block.change > 0)
    )
    at_low = Fact("frames at the episode's least value", lambda block: block.runs[0])
    at_high = Fact("frames at the episode's greatest value", lambda block: block.runs[1])
    visits = Fact(
        "separate runs of frames at the extreme that has more frames", lambda block: block.runs[2]
    )
    entry = Fact(
        "mean change by which the runs of `visits` are entered", lambda block: block.runs[3]
    )
    zeros = Fact(
        "frames whose values are all 0", lambda block: block.number(block.is_zero), 0, of_dims=False
    )
    zero_frame = Fact(
        "first frame of zeros, 0 without one",
        lambda block: block.first(block.is_zero),
        0,
        of_dims=False,
    )
    zero_edge = Fact("largest change between a frame of zeros and another one", _zero_edge)
    bad = Fact(
        "frames with a value that is not finite",
        lambda block: block.number(block.is_bad),
        0,
        of_dims=False,
    )
    bad_frame = Fact(
        "first frame with a value that is not finite, 0 without one",
        lambda block: block.first(block.is_bad),
        0,
        of_dims=False,
    )

    def __init__(
        self, key: str, names: list[str], ids: np.ndarray, stride: FrameStride | None = None
    ) -> None:
        self.key = key
        self.names = names
        self._ids = ids
        for name, fact in FACTS.items():
            vars(self)[name] = fact.array(len(ids), len(names))
        self._stride = stride
        self._parts: list[tuple[np.ndarray, np.ndarray]] = []

    @property
    def width(self) -> int:
        """Numbers per frame, D."""
        return len(self.names)

    # Facts about all that was added are computed when a rule asks first.

    @cached_property
    def range(self) -> np.ndarray:
        """Greatest minus least value, (N, D)."""
        return self.high - self.low

    @cached_property
    def square(self) -> np.ndarray:
        """Mean of the squares, (N, D)."""
        return self.m2 / np.maximum(self.lengths, 1)[:, None] + self.mean**2

    @cached_property
    def std(self) -> np.ndarray:
        """Standard deviation of the population, (N, D)."""
        return np.sqrt(self.m2 / np.maximum(self.lengths, 1)[:, None])

    @cached_property
    def sample(self) -> np.ndarray:
        """Rows evenly spread over the dataset, float64 (S, D)."""
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

    @cached_property
    def spread(self) -> np.ndarray:
        """Distance of the `bounds`, float64 (D,)."""
        return np.asarray(self.bounds[1] - self.bounds[0])

    @cached_property
    def grippers(self) -> np.ndarray:
        """Whether each dimension is a gripper, bool (D,): by name, or by values at two levels, of
        which it holds each for long.
        """
        return np.array([self._is_gripper(dim) for dim in range(self.width)], bool)

    def _is_gripper(self, dim: int) -> bool:
        name = self.names[dim].lower()
        if any(word in name for word in ("gripper", "jaw", "claw")):
            return True
        values = self.sample[:, dim]
        low = values.min()
        high = values.max()
        if not low < high:
            return False
        place = (values - low) / (high - low)
        ends = (place < 0.1) | (place > 0.9)
        held = min((place < 0.1).mean(), (place > 0.9).mean())
        return bool(ends.mean() > 0.9 and held > 0.05)

    def merge(self, part: "Column", rows: np.ndarray) -> None:
        """Add the episodes of a part of the dataset, which have the table rows `rows`."""
        for name in FACTS:
            getattr(self, name)[rows] = getattr(part, name)
        self._parts += part._parts

    def __getstate__(self) -> dict[str, Any]:
        # those of the whole dataset remain
        return {**vars(self), "_ids": None, "_stride": None}

    def place(
        self,
        rows: Sequence[int] | np.ndarray,
        dimension: int | None = None,
        frame: int | None = None,
    ) -> Place:
        """Place of table rows in this column, or in one of its dimensions."""
        name = "" if dimension is None else self.dimension(dimension)
        ids = self._ids[np.sort(np.asarray(rows, np.int64))]
        return Place(tuple(ids.tolist()), self.key, name, frame=frame)

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
            own_rows = values[starts[0] : ends[-1]].astype(np.float64)
        else:
            own_rows = np.concatenate([values[a:b] for a, b in zip(starts, ends)]).astype(
                np.float64
            )
        block = Block(own_rows, lengths)
        with np.errstate(over="ignore", invalid="ignore"):
            for name, fact in FACTS.items():
                getattr(self, name)[rows] = fact.compute(block)
        if self._stride is not None:
            sampled = self._stride.sampled(rows, lengths)
            self._parts.append((block.values[sampled], block.change[sampled]))


FACTS = {name: fact for name, fact in vars(Column).items() if isinstance(fact, Fact)}
"""Name -> fact about each episode in a column."""


TURNS = (2 * np.pi, 360.0)
"""A whole turn, in radians and degrees."""
_UNIT: Annotated[
    float,
    Threshold(
        "distance of the mean squared norm of a quaternion from 1",
        fault="joint_jumps_by_two",
    ),
] = 0.02


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
