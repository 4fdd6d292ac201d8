"""Summaries of columns that can be pooled over sources, in bounded memory.

Moments are numpy's own over blocks of up to `ROWS` rows, merged by the parallel formula of Chan,
Golub & LeVeque (1979). Blocks begin anew with each part of a source, which has about `PART_FRAMES`
frames. A column of one block has numpy's figures bit for bit; a pool has the variance of all its
rows. Quantiles are computed from rows, never from quantiles. A pool of up to `ROWS` rows keeps all
of them and is exact. In a larger pool each source keeps every stride-th row, together at least half
of `ROWS` (a seventh for some window lengths, see `quantile_stride`). The 1 % quantile of such a
pool is between the exact 0.98 % and 1.02 % quantiles: three standard errors of `ROWS` / 2
independent rows, and one row per source.

`summarize` makes one pass over the rows of a source: action, state, and action minus state. It
reads the two columns only, file by file. Memory of each process holds one file's columns, a block
of each column, and the sampled rows.

`load_or_compute` keeps summaries on disk for the next run, under a hash of everything they depend
on.

    <folder>/statistics/<hash>.npz      the summaries of one source
    <folder>/statistics/<hash>          those of up to about 64 small sources of a mixture
                                        (`mapped_tables.py`)

The hash covers the frames, the keys and how they are learnt, the places of the rows by the
metadata, and size and time of change (remote: etag or revision) of every data file that was read. A
file appears by a rename and holds its own name and checksums. A torn or foreign file is computed
again. The oldest files are removed beyond `BUDGET`.
"""

import contextlib
import hashlib
import json
import os
import warnings
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from functools import cached_property, partial
from itertools import count
from math import gcd, prod
from pathlib import Path
from typing import TYPE_CHECKING, Any, Literal

import numpy as np

from understudy_base import ACTION, STATE, DatasetError, replace_file
from understudy_data.datasets.format.recorded_stats import aggregate
from understudy_data.datasets.read.rows import Rows
from understudy_data.datasets.stats.running import RowSample, compute_moments
from understudy_data.parts import Lost, Part, Workers
from understudy_data.plain_values import storable
from understudy_data.storage.cache_budget import evict_files
from understudy_data.storage.mapped_tables import Member, are_many, is_network, once_per_group

if TYPE_CHECKING:
    from understudy_data.datasets.episode_arrays import EpisodeArrays

Mode = Literal["mean_std", "min_max", "quantile"]
DimensionMode = Literal["mean_std", "min_max", "quantile", "identity"]
"""Normalization of one dimension."""


@dataclass(frozen=True)
class Statistics:
    """Statistics of one column, float64 [dim] each; population deviation; NaN is unknown."""

    count: int
    """Rows; 0 where unknown."""
    mean: np.ndarray
    std: np.ndarray
    min: np.ndarray
    max: np.ndarray
    q01: np.ndarray
    q99: np.ndarray


TINY = 1e-2
"""Share of half the range of a dimension below which a spread is tiny beside it."""
LEAST_SHARE = 1e-4
"""Share of values far from all others below which they are damaged ones, and no part of the motion.
"""
_FEWEST = 2.5  # and their number


def offset_and_spread(
    statistics: Statistics, mode: DimensionMode | Sequence[DimensionMode] = "mean_std"
) -> dict[str, np.ndarray]:
    """Return the affine map of one column, (x - offset) / spread: {"offset", "spread"}, float32
    [dim].

    "mean_std" gives mean 0 and deviation 1. "min_max" gives -1..1. "quantile" maps the 1 % and 99 %
    quantiles to -1 and 1; values beyond are not clipped, so the inverse is exact. "identity" leaves
    the values as they are. A constant dimension gets spread 0 and its value as offset. A dimension
    may change so rarely that its spread is tiny beside its range (`uses_range`): it falls back to
    its range.

    Args:
        statistics: of the column.
        mode: one of all dimensions, or one of each.
    """
    s = statistics
    modes = [mode] * len(s.min) if isinstance(mode, str) else list(mode)
    offset = np.full(len(modes), np.nan)
    spread = np.full(len(modes), np.nan)
    middle = (s.min + s.max) / 2
    half = (s.max - s.min) / 2
    for kind in dict.fromkeys(modes):
        dims = np.array([other == kind for other in modes])
        center, width = _center_and_width(s, kind)
        offset[dims] = center[dims]
        spread[dims] = width[dims]
    ranged = uses_range(s, modes)
    offset = np.where(ranged, middle, offset)
    spread = np.where(ranged, half, spread)
    # Rounding leaves a deviation of 1e-17 on equal numbers; only min == max identifies a constant.
    constant = (s.min == s.max) & (np.array(modes) != "identity")
    offset = np.where(constant, s.min, offset).astype(np.float32)
    spread = np.where(constant, 0.0, spread).astype(np.float32)
    return {"offset": offset, "spread": spread}


def uses_range(statistics: Statistics, mode: DimensionMode | Sequence[DimensionMode]) -> np.ndarray:
    """Return the dimensions, bool [dim], that the range normalizes in place of the figures of
    `mode`.

    Their spread is 0, or tiny beside their range (`TINY`), and the rare values far from the rest
    are a part of the motion: a gripper that is 0 but for noise in 995 of 1,000 frames. One or two
    damaged values, or one in 10,000, are none: the range would flatten all other values. Their
    number follows from the deviation.
    """
    s = statistics
    modes = [mode] * len(s.min) if isinstance(mode, str) else list(mode)
    with np.errstate(invalid="ignore", divide="ignore"):
        half = (s.max - s.min) / 2
        central = (s.q99 - s.q01) / 2
        # of values at the other end; exact where all others are equal
        share = (s.std / (2 * half)) ** 2
        damaged = (share < LEAST_SHARE) | (share * (s.count or np.inf) < _FEWEST)
        by_figures = {
            "quantile": (central <= 0) | (central < TINY * half) & ~damaged,
            "mean_std": (half > 0)
            & ((s.std <= 0) | (s.std < TINY * half) & (central < TINY * s.std)),
        }
        nothing = np.zeros(len(modes), bool)
        tiny = np.array(
            [by_figures.get(kind, nothing)[dim] for dim, kind in enumerate(modes)], bool
        )
        return np.asarray(tiny & ~(half <= 0))


def _center_and_width(s: Statistics, mode: DimensionMode) -> tuple[np.ndarray, np.ndarray]:
    """Offset and spread of all dimensions by the figures of one mode."""
    if mode == "mean_std":
        return s.mean, s.std
    if mode == "min_max":
        return (s.min + s.max) / 2, (s.max - s.min) / 2
    if mode == "quantile":
        return (s.q01 + s.q99) / 2, (s.q99 - s.q01) / 2
    if mode == "identity":
        return np.zeros(len(s.min)), np.ones(len(s.min))
    raise ValueError(f"mode={mode!r}: must be mean_std, min_max, quantile or identity")


ROWS = 1 << 22
"""Rows of a pool up to which quantiles are exact, and rows of a block (4 bytes times this and the
width in memory).
"""
PART_FRAMES = ROWS
"""Frames of a part of the work."""

FIGURES = ("mean", "std", "min", "max")


@storable
@dataclass(frozen=True)
class Summary:
    """One column of one source.

    Attributes:
        count: rows; 0 where unknown (figures computed elsewhere).
        mean: float64 [dim].
        std: float64 [dim], population deviation.
        min: float64 [dim].
        max: float64 [dim].
        rows: [R, dim] as stored, every `stride`-th row; [0, dim] with stride 0.
        stride: 0 keeps no rows.
    """

    count: int
    mean: np.ndarray
    std: np.ndarray
    min: np.ndarray
    max: np.ndarray
    rows: np.ndarray
    stride: int

    def thinned(self, stride: int) -> "Summary":
        """Return the summary with every `stride`-th row only; a multiple of its own stride."""
        rows = self.rows[:0] if stride == 0 else self.rows[:: stride // self.stride]
        return replace(self, rows=rows, stride=stride)


def quantile_stride(total: int, period: int = 1) -> int:
    """Return the stride at which to keep a pool's `total` rows: a power of the least prime that
    `period` lacks.

    Rows may come in runs of `period` (the pairs of one frame with each step of its window). A
    stride without common factor meets every place of a run. Powers of one prime let rows kept for a
    smaller pool serve a larger one.
    """
    base = next(p for p in count(2) if gcd(p, period) == 1)
    stride = 1
    while total > stride * ROWS:
        stride *= base
    return stride


class SummaryBuilder:
    """Accumulates the rows of one column, block by block.

    Args:
        total: number of rows to come.
        stride: see `Summary`.
        before: number of rows before them in the source.
    """

    def __init__(self, total: int, stride: int, before: int = 0) -> None:
        self._total = total
        self._count = 0
        self._sample = RowSample(stride, seen=before)
        self._block: np.ndarray | None = None
        self._filled = 0
        self._parts: list[dict[str, np.ndarray]] = []

    def add(self, rows: np.ndarray) -> None:
        """Add rows: finite numbers or bools [n, dim]."""
        while len(rows):
            if self._block is None:
                self._block = np.empty(
                    (min(self._total - self._count, ROWS), rows.shape[1]), rows.dtype
                )
            room = min(len(self._block) - self._filled, len(rows))
            self._block[self._filled : self._filled + room] = rows[:room]
            self._filled = self._filled + room
            self._count = self._count + room
            rows = rows[room:]
            if self._filled == len(self._block):
                self._parts.append(_figures(self._block))
                self._sample.add(self._block)
                self._block = None
                self._filled = 0

    def summary(self) -> Summary:
        """Return the summary once all rows were added."""
        if self._count < self._total or not self._parts:
            raise ValueError(f"{self._count} of {self._total} rows were added")
        figures = _combine(self._parts)
        mean, std, low, high = (figures[name] for name in FIGURES)
        return Summary(self._count, mean, std, low, high, self._sample.rows(), self._sample.stride)


def pool(parts: Sequence[Summary]) -> Statistics:
    """Combine sources into the statistics of their union; their order does not change a bit.

    Figures that do not follow from the parts are NaN: quantiles where a part kept no rows, mean and
    deviation where a row count is unknown. All parts with rows must have one stride.
    """
    parts = sorted(
        parts, key=lambda part: (part.count, *(getattr(part, name).tobytes() for name in FIGURES))
    )
    figures = _figures_of(parts)
    if len(parts) > 1 and not all(part.count for part in parts):
        figures |= {name: np.full_like(figures[name], np.nan) for name in ("mean", "std")}
    quantiles = np.full((2, parts[0].rows.shape[1]), np.nan)
    if all(len(part.rows) for part in parts):
        if len({part.stride for part in parts}) > 1:
            raise ValueError(f"strides {sorted({part.stride for part in parts})} in one pool")
        for dim in range(quantiles.shape[1]):  # one dimension at a time: a quantile sorts a copy
            x = np.concatenate([part.rows[:, dim].astype(np.float64) for part in parts])
            quantiles[:, dim] = np.quantile(x, [0.01, 0.99])
    return Statistics(sum(p.count for p in parts), *(figures[name] for name in FIGURES), *quantiles)


def _figures_of(parts: Sequence[Summary]) -> dict[str, np.ndarray]:
    figures = []
    for part in parts:
        of_part = {name: getattr(part, name) for name in FIGURES}
        figures.append(of_part | {"count": np.array([part.count])})
    return _combine(figures)


def _combine(parts: list[dict[str, np.ndarray]]) -> dict[str, np.ndarray]:
    return parts[0] if len(parts) == 1 else aggregate(parts)


def _figures(block: np.ndarray) -> dict[str, np.ndarray]:
    """Figures of rows [n, dim], float64 [dim]; one dimension at a time bounds memory."""
    columns = [compute_moments(block[:, dim]) for dim in range(block.shape[1])]
    figures = {}
    for name in FIGURES:
        figures[name] = np.array([getattr(column, name) for column in columns])
    figures["count"] = np.array([len(block)])
    return figures


DELTA = "action - observation.state"
"""Key of the action's dimensions learnt as differences, over all pairs of a frame and a valid step
of its window.
"""

# bytes of loaded rows; more than one file where an order alternates between files
LOADED_BYTES = 256 << 20
PAIRS = 1 << 18  # pairs that are computed at once


def vector_widths(data: "EpisodeArrays") -> dict[str, int]:
    """Return the widths of `ACTION` and, if present, `STATE`.

    Raises:
        DatasetError: there is no action, or one of them is not a vector of numbers.
    """
    widths = {}
    for key in (ACTION, STATE):
        feature = data.catalog.features.get(key)
        if feature is None and key == STATE:
            continue
        if feature is None or feature.is_text or feature.is_camera or len(feature.value_shape) > 1:
            problem = "there is no such feature"
            if feature is not None:
                problem = f"it is {feature.dtype} of shape {feature.shape}"
            raise DatasetError(
                f"{key!r} is needed as a vector: {problem}", where=data.name, fix="see `check`"
            )
        widths[key] = prod(feature.value_shape)
    return widths


def count_frames(data: "EpisodeArrays") -> int:
    """Count the frames that are samples."""
    return int(_frames(data).sum())


def _frames(data: "EpisodeArrays") -> np.ndarray:
    return np.asarray(data.segments[:, 2] - data.segments[:, 1])


def count_pairs(data: "EpisodeArrays", chunk: int) -> int:
    """Count the pairs (frame, step of its window of `chunk` frames) without padding."""
    return int(_pairs(data, chunk).sum())


def _pairs(data: "EpisodeArrays", chunk: int) -> np.ndarray:
    def up_to(n: np.ndarray) -> np.ndarray:
        """Count pairs of the last n frames before a window's bound: sum over i = 1..n of min(i,
        chunk).
        """
        short = np.minimum(n, chunk)
        return short * (short + 1) // 2 + (n - short) * chunk

    left = data.window_stops - data.segments[:, 1]
    return np.asarray(up_to(left) - up_to(left - _frames(data)))


def summarize(
    data: "EpisodeArrays",
    delta: tuple[int, ...],
    chunk: int,
    strides: Mapping[str, int],
    progress: Callable[[int], object],
    workers: Workers | None = None,
) -> dict[str, Summary]:
    """Summarise `ACTION`, `STATE` (if present) and `DELTA` (if `delta` names dimensions,
    [len(delta)]).

    Args:
        data: the source; its segments give the frames.
        delta: dimensions of the action that are differences to the state.
        chunk: frames of the action's window from the present on.
        strides: stride of the sampled rows, by each of the three keys (see `Summary`).
        progress: receives the number of frames done since the last call.
        workers: processes; None reads in this one.

    Raises:
        DatasetError: a file cannot be read, or a value of a sample is not finite; names the column,
            the episode and the dimension.
    """
    frames = _frames(data)
    spans = [
        ((part[0], part[-1] + 1),)
        for part in Workers.cut(range(len(frames)), frames.tolist(), PART_FRAMES)
    ]
    work = SummarizeSegments(data, delta, chunk, strides)

    def done(part: Part) -> None:
        progress(int(frames[slice(*part[0])].sum()))

    parts = []
    for _, summaries in (workers or Workers()).run(work, spans, done):
        if isinstance(summaries, Lost):
            raise summaries.error.replaced(where=data.name)
        parts.append(summaries)
    joined = {}
    for key in parts[0]:
        joined[key] = _join([part[key] for part in parts])
    return joined


def _join(parts: Sequence[Summary]) -> Summary:
    """Join the summaries of consecutive rows with one stride."""
    figures = _figures_of(parts)
    mean, std, low, high = (figures[name] for name in FIGURES)
    rows = parts[0].rows if len(parts) == 1 else np.concatenate([part.rows for part in parts])
    return Summary(sum(part.count for part in parts), mean, std, low, high, rows, parts[0].stride)


@dataclass(frozen=True)
class SummarizeSegments:
    """Summaries of segments [start, stop) of a source, as `summarize` makes them (`parts.Work`)."""

    data: "EpisodeArrays"
    delta: tuple[int, ...]
    chunk: int
    strides: Mapping[str, int]

    def depends_on(self, part: Part) -> Any:
        """Return a hash of the data, and the strides."""
        return self._mark, sorted(self.strides.items())

    @cached_property
    def _mark(self) -> str:
        return _hash_inputs(self.data, self.delta, self.chunk)

    def __call__(self, part: Part) -> dict[str, Summary]:
        """Return the summaries."""
        data = self.data
        span = slice(*part[0])
        chunk = self.chunk
        keys = tuple(vector_widths(data))
        counts = dict.fromkeys(keys, _frames(data))
        if self.delta:
            counts[DELTA] = _pairs(data, chunk)
        builders = {
            key: SummaryBuilder(int(of[span].sum()), self.strides[key], int(of[: span.start].sum()))
            for key, of in counts.items()
        }
        rows = Rows(data.catalog, keys, LOADED_BYTES)
        # Windows reach beyond the samples of a segment: those are targets or past states, and must
        # be finite, too.
        reached = {ACTION: (data.reach_of(ACTION)[0], chunk - 1), STATE: data.reach_of(STATE)}
        for (episode, start, stop), bound in zip(
            data.segments[span].tolist(), data.window_stops[span].tolist()
        ):
            row = data.catalog.episodes.row_of(episode)
            values = {}
            for key in keys:
                first = max(0, start - reached[key][0])
                table = rows.span(row, key, first, min(bound, stop + reached[key][1]))
                check_finite(key, table, f"{data.name}, episode {episode}")
                values[key] = table[start - first :]
                builders[key].add(values[key][: stop - start])
            if self.delta:
                for differences in _differences(values, stop - start, self.delta, chunk):
                    builders[DELTA].add(differences)
        return {key: builder.summary() for key, builder in builders.items()}


def _differences(
    values: Mapping[str, np.ndarray], count: int, delta: tuple[int, ...], chunk: int
) -> Iterator[np.ndarray]:
    """Yield action[t + k] - state[t] of `delta` for t in [0, count) and every valid k, k fastest.

    Parts are [pairs, len(delta)], in the wider of the two dtypes and at least float32.
    """
    wide = np.result_type(values[ACTION], values[STATE], np.float32)
    action, state = (values[key][:, list(delta)].astype(wide) for key in (ACTION, STATE))
    step = max(1, PAIRS // chunk)
    for first in range(0, count, step):
        frames = np.arange(first, min(first + step, count))
        steps = frames[:, None] + np.arange(chunk)  # [frames, chunk]
        is_valid = steps < len(action)
        yield (action[np.where(is_valid, steps, 0)] - state[frames][:, None])[is_valid]


def check_finite(key: str, table: np.ndarray, where: str) -> None:
    """Raise DatasetError for a value of a column, rows [n, dim], that is not finite."""
    bad = np.argwhere(~np.isfinite(table))
    if len(bad):
        row, dim = bad[0]
        raise DatasetError(
            f"{key}[{dim}] is {table[row, dim]} ({len(bad)} such values)",
            where=where,
            fix="leave the episode out (exclude_episodes) or the column",
        )


FORMAT = 2
"""Incremented whenever summaries of the same data would differ."""

BUDGET = 4 << 30
"""Most bytes of all summaries in a folder."""

Summaries = dict[str, Summary]


def load_or_compute(
    folder: Path | None,
    data: "EpisodeArrays",
    delta: tuple[int, ...],
    chunk: int,
    strides: Mapping[str, int],
    compute: Callable[[], Summaries],
) -> Summaries:
    """Return the stored result of `compute`, or compute and store it.

    The other arguments describe the result, see `summarize`. A stored result with a smaller stride
    serves a larger one.

    Args:
        folder: cache folder; None always computes.
        data: the source.
        delta: dimensions of the action that are differences to the state.
        chunk: frames of the action's window.
        strides: strides of the sampled rows, by key.
        compute: computes the summaries.
    """
    if folder is None:
        return compute()
    name = _hash_inputs(data, delta, chunk)
    path = folder / "statistics" / f"{name}.npz"
    summaries = _read(path, name, strides)
    if summaries is not None:
        return summaries
    summaries = compute()
    if _hash_inputs(data, delta, chunk) == name:  # no file changed while it was read
        try:
            _write(path, name, summaries)
        except OSError as error:
            warnings.warn(
                f"{path}: cannot be written; the next run computes it again: {error.strerror}",
                stacklevel=2,
            )
    return summaries


SMALL = 4096
"""Most rows of a small source, pairs of a window's frames included."""


@dataclass(frozen=True)
class Request:
    """The arguments of `load_or_compute` of one source."""

    data: "EpisodeArrays"
    delta: tuple[int, ...]
    chunk: int
    strides: Mapping[str, int]

    @property
    def name(self) -> str:
        """Hash of everything that the summaries depend on, apart from the strides."""
        return _hash_inputs(self.data, self.delta, self.chunk)

    @property
    def rows(self) -> int:
        """Rows that summaries of a stride of 1 keep of a column."""
        return count_pairs(self.data, self.chunk) if self.delta else count_frames(self.data)


def load_or_compute_all(
    folder: Path | None,
    requests: Sequence[Request],
    compute: Callable[[Request], Summaries],
    done: Callable[[Request], object],
) -> list[Summaries]:
    """Return the summaries of each source, as `load_or_compute` does for one; those of many small
    sources in groups.

    A change of any source of a group computes it again (`mapped_tables.once_per_group`). On a
    network file system, where another host can truncate a mapped file, each source has a file of
    its own.

    Args:
        folder: cache folder; None always computes.
        requests: the sources.
        compute: computes the summaries of one.
        done: called with each source whose summaries are there.
    """
    small = [number for number, request in enumerate(requests) if request.rows <= SMALL]
    summaries_of: dict[int, Summaries] = {}
    if folder is not None and are_many(len(small)) and not is_network(str(folder)):
        members = [_member(requests[number], compute) for number in small]
        for place, summaries in once_per_group(
            members, str(folder), folder="statistics", budget=BUDGET
        ):
            assert summaries is not None
            summaries_of[small[place]] = summaries
            done(requests[small[place]])
    for number, request in enumerate(requests):
        if number not in summaries_of:
            wanted = request.data, request.delta, request.chunk, request.strides
            summaries_of[number] = load_or_compute(folder, *wanted, partial(compute, request))
            done(request)
    return [summaries_of[number] for number in range(len(requests))]


def _member(request: Request, compute: Callable[[Request], Summaries]) -> Member[Summaries]:
    strides = json.dumps(sorted(request.strides.items()))
    root = request.data.catalog.root
    return Member(root, lambda: f"{request.name} {strides}", partial(compute, request))


def _hash_inputs(data: "EpisodeArrays", delta: tuple[int, ...], chunk: int) -> str:
    """Hash everything that summaries depend on."""
    catalog = data.catalog
    table = data.catalog.episodes
    rows = table.rows_of(data.episodes)
    keys = {
        key: [
            catalog.stored_names.get(key, key),
            catalog.features[key].dtype,
            catalog.features[key].shape,
            data.reach_of(key),
        ]
        for key in (ACTION, STATE)
        if key in catalog.features
    }
    parts = [FORMAT, ROWS, np.__version__, catalog.root, keys, list(delta), chunk, table.own_files]
    if table.pairing:
        parts.append(table.pairing)
    digest = hashlib.sha256(json.dumps(parts).encode())
    arrays = (
        data.segments,
        data.window_stops,
        table.lengths[rows],
        table.data_file[rows],
        table.data_row[rows],
    )
    for array in arrays:
        digest.update(f"{array.shape}".encode() + np.ascontiguousarray(array, np.int64).tobytes())
    for file in np.unique(table.data_file[rows]).tolist():
        path = table.data.find(catalog.files, file)
        digest.update(json.dumps([path, catalog.files.version(path)]).encode())
    return digest.hexdigest()


def _read(path: Path, name: str, strides: Mapping[str, int]) -> Summaries | None:
    """Read a file if it is complete, has this name, and its rows are not sampled more coarsely than
    `strides`.
    """
    try:
        # zip: a checksum for each array, a directory at the end
        with np.load(path, allow_pickle=False) as file:
            if str(file["name"]) != name:
                return None
            summaries = {}
            for number, (key, count, stride) in enumerate(json.loads(str(file["columns"]))):
                mean, std, low, high = (file[f"{number} {figure}"] for figure in FIGURES)
                summaries[key] = Summary(
                    int(count), mean, std, low, high, file[f"{number} rows"], int(stride)
                )
    except Exception:  # numpy and zipfile document no error type for a broken file
        return None
    for key, summary in summaries.items():
        stride_now = strides[key]
        if summary.stride == stride_now:
            continue
        remainder = stride_now % summary.stride if summary.stride else stride_now
        if remainder:
            return None
    with contextlib.suppress(OSError):
        os.utime(path)  # marks the file as used
    return {key: summary.thinned(strides[key]) for key, summary in summaries.items()}


def _write(path: Path, name: str, summaries: Summaries) -> None:
    path.parent.mkdir(parents=True, exist_ok=True)
    arrays = {}
    for number, summary in enumerate(summaries.values()):
        for figure in (*FIGURES, "rows"):
            arrays[f"{number} {figure}"] = getattr(summary, figure)
    columns = json.dumps(
        [[key, summary.count, summary.stride] for key, summary in summaries.items()]
    )
    with replace_file(path) as draft, draft.open("wb") as file:
        np.savez(file, name=np.array(name), columns=np.array(columns), **arrays)
    evict_files(path.parent, BUDGET, keep=path)
