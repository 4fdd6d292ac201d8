"""Facts about the rows of all episodes, from one pass over the data files. Rules read these arrays,
never the files.

A file that cannot be read, or a column of it, becomes an entry of `unreadable`; the other files are
still read.
"""

import hashlib
from collections import Counter
from collections.abc import Callable
from dataclasses import dataclass, replace
from functools import cached_property
from itertools import pairwise
from typing import Any

import numpy as np
import pyarrow as pa

from understudy_base import DatasetError
from understudy_data import (
    DEFAULTS,
    Catalog,
    FileCheck,
    Lost,
    Part,
    Workers,
    read_numbers,
    storable,
)
from understudy_tools import motion
from understudy_tools.check.column_facts import Column, FrameStride, PairFacts
from understudy_tools.motion import Speeds, moves, named_motion, rate_dims

ACTION = "action"
STATE = "observation.state"
WIDEST = 1024
"""Most numbers per frame of a column that is summarized; wider ones hold images or maps."""

_UNKNOWN = -(1 << 62)


PART_ROWS = 250_000
"""Rows of a part of the work."""
KNOWN = 100_000
"""Frames from which the speed of the dimensions is known; those of larger datasets are measured on
the first files.
"""


class IdleCounter:
    """Counts idle frames.

    Args:
        is_rate: which dimensions are differences or velocities (D,) (`motion.rate_dims`).
        thresholds: `threshold` and `rates` of `moves`; None measures them on the episodes that are
            added.

    Attributes:
        thresholds: the same; after `result` not None.
    """

    def __init__(
        self, is_rate: np.ndarray, thresholds: tuple[np.ndarray, np.ndarray] | None = None
    ) -> None:
        self._speeds = Speeds(is_rate)
        self._is_rate = is_rate
        self._waiting: list[tuple[int, np.ndarray, np.ndarray]] = []
        self.thresholds = thresholds
        self._counts: dict[int, tuple[int, int]] = {}

    def add(self, row: int, values: np.ndarray) -> None:
        """Add the actions and states (L, D) of the episode of a table row."""
        with np.errstate(invalid="ignore"):  # inf - inf is NaN, not rest
            steps = np.diff(values.astype(np.float64), axis=0)
        if self.thresholds is not None:
            self._count(row, steps, values[1:], *self.thresholds)
            return
        self._speeds.add(steps, values)
        rates = values[1:] if self._is_rate.any() else values[:0]
        self._waiting.append((row, steps.astype(np.float32), rates.astype(np.float32)))

    def result(self, episodes: int) -> np.ndarray:
        """Return the idle frames of each table row, and those at its end, int64 (2, episodes)."""
        self.thresholds = self.thresholds or self._speeds.thresholds()
        for waiting in self._waiting:
            self._count(*waiting, *self.thresholds)
        counts = np.zeros((2, episodes), np.int64)
        for row, both in self._counts.items():
            counts[:, row] = both
        return counts

    def _count(
        self,
        row: int,
        steps: np.ndarray,
        values: np.ndarray,
        threshold: np.ndarray,
        rates: np.ndarray,
    ) -> None:
        if len(steps):
            moved = np.flatnonzero(moves(steps, threshold, values, rates))
            idle_at_end = len(steps) - 1 - int(moved[-1]) if len(moved) else len(steps)
            self._counts[row] = (len(steps) - len(moved), idle_at_end)


@storable
class RowFacts:
    """Facts about the rows of N episodes. Arrays are int64 (N,) unless stated; -2**62 where
    unknown.

    Args:
        episodes: number of episodes N.

    Attributes:
        is_read: bool (N,), the episode's rows were found as the tables describe them, and
            summarized.
        found: rows of the episode in its file.
        is_split: bool (N,), the rows are not contiguous.
        is_doubtful: bool (N,), place and columns disagree in a file of several episodes
            (`format/pairing.py`).
        stored_id: first value of `episode_index` in a file that holds one episode.
        first_index: first value of `index`; `index_counts` bool (N,): it rises by one.
        position: number of rows in all files before the episode's first.
        frames_rise, frames_count: bool (N,), `frame_index` rises; it counts 0, 1, 2, ...
        time: float64 (N, 5): first timestamp, least, median and largest step, and the largest
            distance from first + frame / fps, all in seconds.
        late_frame: frame after the largest step of `timestamp`.
        idle: idle frames (`motion.py`); `idle_end`: those after the last motion.
        digest: per episode 16 bytes that depend on all numeric columns but the index columns, b""
            unread.
        used_tasks: table row -> each task_index in its rows.
        orphans: id -> rows of episodes that are not listed for the file that holds them.
        orphan_file: first file with orphan rows.
        unreadable: (file number, column or "", error).
        schemas: columns with their types -> files, as far as they are read.
        absent: (column, table row) -> rows of the episode whose whole number is null or NaN.
        lacking: column -> files without it.
        undeclared: columns that info.json does not declare.
        thresholds: speeds from which on a dimension moves (`IdleCounter.thresholds`), of the first
            files.
        columns: key -> summary.
        pairs: action against state; None unless both have the same width.
        rows, files: number of rows and files that were read.
    """

    def __init__(self, episodes: int) -> None:
        self.is_read = np.zeros(episodes, bool)
        self.found = np.full(episodes, _UNKNOWN)
        self.is_split = np.zeros(episodes, bool)
        self.is_doubtful = np.zeros(episodes, bool)
        self.stored_id = np.full(episodes, _UNKNOWN)
        self.first_index = np.full(episodes, _UNKNOWN)
        self.index_counts = np.ones(episodes, bool)
        self.position = np.full(episodes, _UNKNOWN)
        self.frames_rise = np.ones(episodes, bool)
        self.frames_count = np.ones(episodes, bool)
        self.late_frame = np.zeros(episodes, np.int64)
        self.idle = np.zeros(episodes, np.int64)
        self.idle_end = np.zeros(episodes, np.int64)
        self.time = np.full((episodes, 5), np.nan)
        self.digest = [b""] * episodes
        self.used_tasks: dict[int, set[int]] = {}
        self.orphans: Counter[int] = Counter()
        self.orphan_file = ""
        self.unreadable: list[tuple[int, str, DatasetError]] = []
        self.schemas: dict[tuple[tuple[str, str], ...], list[int]] = {}
        self.absent: dict[tuple[str, int], int] = {}
        self.lacking: dict[str, list[int]] = {}
        self.undeclared: dict[str, str] = {}
        self.thresholds: tuple[np.ndarray, np.ndarray] | None = None
        self.columns: dict[str, Column] = {}
        self.pairs: PairFacts | None = None
        self.rows = self.files = 0

    def merge(self, part: "RowFacts", rows: np.ndarray, catalog: Catalog) -> None:
        """Add the facts about the table rows `rows` of a dataset, whose files follow those that
        were added.
        """
        part.position[part.is_read] += self.rows
        _copy_rows(self, part, rows)
        for row, digest in zip(rows.tolist(), part.digest):
            self.digest[row] = digest
        self.used_tasks |= {int(rows[row]): tasks for row, tasks in part.used_tasks.items()}
        self.orphans.update(part.orphans)
        self.orphan_file = self.orphan_file or part.orphan_file
        self.unreadable += part.unreadable
        self.absent |= {(key, int(rows[row])): count for (key, row), count in part.absent.items()}
        self.undeclared |= part.undeclared
        files_of: list[tuple[dict[Any, list[int]], dict[Any, list[int]]]]
        files_of = [(self.schemas, part.schemas), (self.lacking, part.lacking)]
        for whole, added in files_of:
            for name, files in added.items():
                whole.setdefault(name, []).extend(files)
        for key, column in part.columns.items():
            if key not in self.columns:
                self.columns[key] = Column(key, column.names, catalog.episodes.ids)
            self.columns[key].merge(column, rows)
        if part.pairs is not None:
            self.pairs = self.pairs or PairFacts(len(self.digest), part.pairs.correlation.shape[1])
            _copy_rows(self.pairs, part.pairs, rows)
        self.thresholds = self.thresholds or part.thresholds
        self.rows += part.rows
        self.files += part.files

    @staticmethod
    def is_known(values: np.ndarray) -> np.ndarray:
        """Whether each value of an int64 array of these facts is known, bool."""
        return np.asarray(values != _UNKNOWN)

    def summarized(self, column: Column, *, finite: bool = False) -> np.ndarray:
        """Whether each episode has a summary in a column, bool (N,); `finite`: of finite values
        only.
        """
        is_summarized = self.is_read & np.isfinite(column.mean).all(axis=1)
        return is_summarized & (column.bad == 0) if finite else is_summarized

    def partner(self, column: Column) -> Column | None:
        """Action of the state, and the reverse; None for other columns, and where it is absent."""
        return self.columns.get({ACTION: STATE, STATE: ACTION}.get(column.key, ""))


def _copy_rows(whole: object, part: object, rows: np.ndarray) -> None:
    """Copy each array of an object, with an entry for each episode, to the table rows `rows` of
    those of `whole`.
    """
    for name, values in vars(part).items():
        if isinstance(values, np.ndarray):
            getattr(whole, name)[rows] = values


@dataclass(frozen=True)
class ReadRows:
    """Facts about the rows of data files, as a function of their numbers (`parts.Work`).

    Attributes:
        catalog: the dataset.
        thresholds: those of the first files (`RowFacts.thresholds`); None for these themselves.
    """

    catalog: Catalog
    thresholds: tuple[np.ndarray, np.ndarray] | None = None

    def __call__(self, part: Part) -> RowFacts:
        """Read files; the facts are those of the rows `rows_of`."""
        table = self.catalog.episodes
        rows = self.rows_of(part)
        some = replace(self.catalog, episodes=table.take(rows))
        facts = RowFacts(len(rows))
        idle = IdleCounter(rate_dims(some, named_motion(numeric_keys(some))), self.thresholds)
        if {ACTION, STATE} <= some.features.keys():
            widths = [int(np.prod(some.features[key].shape)) for key in (ACTION, STATE)]
            if widths[0] == widths[1] <= WIDEST:
                facts.pairs = PairFacts(len(rows), widths[0])
        stride = FrameStride(table.lengths, rows)
        for file in part:
            count = _read_file(
                some, file, np.flatnonzero(some.episodes.data_file == file), facts, idle, stride
            )
            facts.rows += count
            facts.files += count > 0
        facts.idle, facts.idle_end = idle.result(len(rows))
        facts.thresholds = idle.thresholds
        return facts

    def rows_of(self, part: Part) -> np.ndarray:
        """Table rows of the episodes of files, ascending, int64."""
        order, files = self._by_file
        left, right = (np.searchsorted(files, np.array(part), side) for side in ("left", "right"))
        return np.sort(np.concatenate([order[a:b] for a, b in zip(left, right)]))

    @cached_property
    def _by_file(self) -> tuple[np.ndarray, np.ndarray]:
        order = np.argsort(self.catalog.episodes.data_file, kind="stable")
        return order, self.catalog.episodes.data_file[order]

    def depends_on(self, part: Part) -> Any:
        """Return the metadata, the thresholds, and the versions of the files."""
        return self._mark, self.catalog.marks(map(self._path, part))

    @cached_property
    def _mark(self) -> str:
        return f"{self.catalog.mark} {self.thresholds}"

    def _path(self, file: int) -> str:
        return self.catalog.episodes.data.find(self.catalog.files, file)


def read_rows(
    catalog: Catalog,
    workers: Workers | None = None,
    progress: Callable[[int], None] = lambda rows: None,
) -> RowFacts:
    """Read all data files of a dataset.

    Args:
        catalog: the dataset.
        workers: processes that read; None reads in this one.
        progress: receives numbers of rows.
    """
    table = catalog.episodes
    workers = workers or Workers()
    facts = RowFacts(len(table))
    rows_of_files = np.bincount(table.data_file, table.lengths, len(table.data)).astype(np.int64)
    present = table.data_file[(table.lengths > 0) & ~FileCheck(catalog).absent_rows()["data"]]
    files = np.unique(present)
    frames = rows_of_files[np.unique(present)]
    progress(int(rows_of_files.sum() - frames.sum()))
    first = int(np.searchsorted(np.cumsum(frames), KNOWN)) + 1
    first_parts = [tuple(files[:first].tolist())] if len(files) else []
    later_parts = Workers.cut(files[first:].tolist(), frames[first:].tolist(), PART_ROWS)
    for parts in (first_parts, later_parts):
        work = ReadRows(catalog, facts.thresholds)
        done = lambda part: progress(int(rows_of_files[list(part)].sum()))  # noqa: E731
        for part, result in workers.run(work, parts, done):
            if isinstance(result, Lost):
                facts.unreadable.append((part[0], "", result.error))
            else:
                facts.merge(result, work.rows_of(part), catalog)
    return facts


def numeric_keys(catalog: Catalog) -> list[str]:
    """Keys of the declared columns of numbers that are summarized, without cameras and index
    columns.
    """
    return [
        key
        for key in motion.numeric_keys(catalog)
        if 0 < np.prod(catalog.features[key].shape) <= WIDEST
    ]


def _read_file(
    catalog: Catalog,
    file: int,
    rows: np.ndarray,
    facts: RowFacts,
    idle: IdleCounter,
    stride: FrameStride,
) -> int:
    """Read one file. Returns its rows; 0 where it cannot be read."""
    path = catalog.data_path(int(rows[0]))
    keys = numeric_keys(catalog)
    cameras = [
        key
        for key, feature in catalog.features.items()
        if feature.is_camera and not feature.is_video
    ]
    texts = [key for key, feature in catalog.features.items() if feature.is_text]
    stored = {key: stored_columns(catalog, key) for key in (*keys, *cameras, *texts)}
    numbers: list[str] = []
    for key in keys:
        numbers += stored[key]
    try:
        with catalog.files.parquet(path) as opened:
            schema = opened.schema_arrow
            total = int(opened.metadata.num_rows)
        table = catalog.files.table(path, [*numbers, *DEFAULTS])
    except DatasetError as error:
        facts.unreadable.append((file, "", error))
        return 0
    facts.schemas.setdefault(tuple(sorted((f.name, str(f.type)) for f in schema)), []).append(file)
    declared = {*catalog.features, *catalog.skipped_features, *DEFAULTS}
    declared.update(*stored.values())
    facts.undeclared |= {f.name: str(f.type) for f in schema if f.name not in declared}
    for key, names in stored.items():
        if not set(names) <= set(schema.names):
            facts.lacking.setdefault(key, []).append(file)
    absent: dict[str, np.ndarray] = {}
    needed = {key: stored.get(key, [key]) for key in (*DEFAULTS, *keys)}
    columns = _read_columns(catalog, file, table, needed, facts, absent)
    starts, is_complete = _find_episodes(catalog, rows, columns, total, path, facts)
    for key, rows_without in absent.items():
        for place, (row, start) in enumerate(zip(rows.tolist(), starts.tolist())):
            inside = rows_without[start : start + int(catalog.episodes.lengths[row])]
            inside = rows_without if key == "episode_index" and not is_complete[place] else inside
            if inside.any():
                facts.absent[key, row] = int(inside.sum())
                is_complete[place] = False
    good = np.flatnonzero(is_complete & (catalog.episodes.lengths[rows] > 0))
    good = good[np.argsort(starts[good], kind="stable")]
    if len(good):
        placed = rows[good]
        begins = starts[good]
        lengths = catalog.episodes.lengths[placed]
        facts.is_read[placed] = True
        facts.position[placed] = facts.rows + begins
        _read_index(catalog, columns, placed, begins, lengths, facts)
        for key in keys:
            if key in columns:
                values = columns[key].reshape(total, -1)
                if key not in facts.columns:
                    names = _names(catalog, key, values.shape[1])
                    facts.columns[key] = Column(key, names, catalog.episodes.ids, stride)
                facts.columns[key].add(placed, values, begins, lengths)
        _digest(columns, keys, placed, begins, lengths, facts, idle)
    return total


def stored_columns(catalog: Catalog, key: str) -> list[str]:
    """Return the names of the columns that hold a feature."""
    joined = [part.key for part in catalog.joined.get(key, ())]
    return joined or [catalog.stored_names.get(key, key)]


def _read_columns(
    catalog: Catalog,
    file: int,
    table: pa.Table,
    stored: dict[str, list[str]],
    facts: RowFacts,
    absent: dict[str, np.ndarray],
) -> dict[str, np.ndarray]:
    """Return the columns of a file, key -> numbers (rows, ...), that are there and can be read.

    Rows without a whole number go into `absent`, by column.
    """
    columns: dict[str, np.ndarray] = {}
    where = catalog.files.where(
        catalog.data_path(int(np.flatnonzero(catalog.episodes.data_file == file)[0]))
    )
    for key, names in stored.items():
        if set(names) <= set(table.column_names):
            try:
                parts = catalog.joined.get(key, (catalog.features.get(key),))
                arrays = []
                for name, part in zip(names, parts):
                    values, rows_without = read_numbers(
                        table.column(name), part, where, key, part or DEFAULTS.get(key)
                    )
                    arrays.append(_one_per_row(values, where, key) if key in DEFAULTS else values)
                    if rows_without is not None:
                        absent[key] = rows_without
                if len(arrays) > 1:
                    arrays = [
                        np.concatenate([array.reshape(len(array), -1) for array in arrays], 1)
                    ]
                columns[key] = arrays[0]
            except DatasetError as error:
                facts.unreadable.append((file, key, error))
    return columns


def _one_per_row(values: np.ndarray, where: str, key: str) -> np.ndarray:
    """Return an index column as numbers (rows,). Raises DatasetError for several in a row."""
    flat = values.reshape(len(values), -1)
    if len(flat) and flat.shape[1] != 1:
        raise DatasetError(
            f"column {key!r} is not a single number per row", where=where, fix="repair the file"
        )
    return flat[:, 0] if flat.shape[1] else np.zeros(0)


def _names(catalog: Catalog, key: str, width: int) -> list[str]:
    names = catalog.features[key].dimension_names
    return names if len(names) == width else [str(number) for number in range(width)]


def _find_episodes(
    catalog: Catalog,
    rows: np.ndarray,
    columns: dict[str, np.ndarray],
    total: int,
    path: str,
    facts: RowFacts,
) -> tuple[np.ndarray, np.ndarray]:
    """Return the first row of each listed episode, int64 (n,), and whether its rows are as listed,
    bool (n,).
    """
    table = catalog.episodes
    ids = columns.get("episode_index")
    listed_ids = table.ids[rows]
    lengths = table.lengths[rows]
    if table.own_files:
        facts.found[rows] = total
        if ids is not None and total:
            facts.stored_id[rows] = int(ids[0]) if (ids == ids[0]).all() else table.MIXED
        return np.zeros(len(rows), np.int64), lengths == total
    if ids is None or (table.pairing == "files" and total == int(lengths.sum())):
        starts = table.data_row[rows]
        facts.found[rows] = np.where(
            total == lengths.sum(), lengths, np.clip(total - starts, 0, lengths)
        )
        return starts, facts.found[rows] == lengths
    cuts = np.concatenate([[0], np.flatnonzero(np.diff(ids)) + 1, [total]]).astype(np.int64)
    cuts = cuts if total else np.zeros(1, np.int64)
    begins = cuts[:-1]
    sizes = np.diff(cuts)
    run_ids = ids[begins].astype(np.int64)
    is_orphan = ~np.isin(run_ids, listed_ids)
    for episode, size in zip(run_ids[is_orphan].tolist(), sizes[is_orphan].tolist()):
        facts.orphans[episode] += size
        facts.orphan_file = facts.orphan_file or path
    order = np.argsort(run_ids, kind="stable")
    left = np.searchsorted(run_ids[order], listed_ids, side="left")
    right = np.searchsorted(run_ids[order], listed_ids, side="right")
    ends = np.concatenate([[0], np.cumsum(sizes[order])])
    facts.found[rows] = ends[right] - ends[left]
    facts.is_split[rows] = right - left > 1
    starts = np.zeros(len(rows), np.int64)
    there = right > left
    starts[there] = begins[order][left[there]]
    facts.is_doubtful[rows] = table.doubtful_places(
        rows, starts, facts.found[rows], columns.get("index"), total
    )
    return starts, (right - left == 1) & (facts.found[rows] == lengths)


def _read_index(
    catalog: Catalog,
    columns: dict[str, np.ndarray],
    rows: np.ndarray,
    starts: np.ndarray,
    lengths: np.ndarray,
    facts: RowFacts,
) -> None:
    """Facts about the index columns, episode by episode."""
    index = columns.get("index")
    frame = columns.get("frame_index")
    time = columns.get("timestamp")
    task = columns.get("task_index")
    fps = float(catalog.fps)
    for row, start, length in zip(rows.tolist(), starts.tolist(), lengths.tolist()):
        part = slice(start, start + length)
        if index is not None:
            facts.first_index[row] = int(index[start])
            facts.index_counts[row] = (np.diff(index[part]) == 1).all()
        if frame is not None:
            steps = np.diff(frame[part])
            facts.frames_rise[row] = (steps > 0).all()
            facts.frames_count[row] = (steps == 1).all() and int(frame[start]) == 0
        if time is not None:
            seconds = time[part].astype(np.float64)
            gaps = np.diff(seconds) if length > 1 else np.full(1, 1 / fps)
            off = np.abs(seconds - seconds[0] - np.arange(length) / fps).max()
            facts.time[row] = seconds[0], gaps.min(), np.median(gaps), gaps.max(), off
            facts.late_frame[row] = int(gaps.argmax()) + 1
        if task is not None:
            facts.used_tasks[row] = set(np.unique(task[part]).astype(int).tolist())


def _digest(
    columns: dict[str, np.ndarray],
    keys: list[str],
    rows: np.ndarray,
    starts: np.ndarray,
    lengths: np.ndarray,
    facts: RowFacts,
    idle: IdleCounter,
) -> None:
    """Digests, idle frames, and action against state, episode by episode."""
    stored = [np.ascontiguousarray(columns[key]) for key in keys if key in columns]
    flat = {
        key: columns[key].reshape(len(columns[key]), -1)
        for key in (ACTION, STATE)
        if key in columns
    }
    moved_keys = named_motion(keys)
    moving = None
    if moved_keys and all(key in columns for key in moved_keys):
        moving = np.concatenate(
            [columns[key].reshape(len(columns[key]), -1) for key in moved_keys], axis=1
        )
    both = facts.pairs is not None and len(flat) == 2
    for row, start, length in zip(rows.tolist(), starts.tolist(), lengths.tolist()):
        digest = hashlib.blake2b(digest_size=16)
        for values in stored:
            digest.update(values[start : start + length].data)
        facts.digest[row] = digest.digest() if stored else b""
        if moving is not None and length > 1:
            idle.add(row, moving[start : start + length])
        if both and facts.pairs is not None:
            part = slice(start, start + length)
            facts.pairs.add(row, flat[ACTION][part], flat[STATE][part])


def runs_of(flags: np.ndarray) -> list[tuple[int, int]]:
    """[start, stop) of each maximal run of True in bool (n,)."""
    turns = np.flatnonzero(np.diff(np.concatenate([[False], flags, [False]]).astype(np.int8)))
    return list(pairwise(turns.tolist()))[::2]
