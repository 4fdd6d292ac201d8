"""Rows of episodes: columns of whole data files, loaded on first use.

The file's own `episode_index` column assigns rows to episodes. Without it, the lengths of the preceding episodes in the
file do.

Columns of a large dataset are decoded once per host, into a memory-mapped file for each data file (`row_tables.py`):
its pages are shared by all processes, and the kernel may drop them. Other columns are in the memory of this process,
within a byte budget.

Storage varies between writers: list or fixed-size list, nested lists for arrays of two dimensions and more, double
where float32 is declared. The declaration in info.json decides; values that the declared type cannot hold are refused.
"""

import os
import threading
import warnings
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from itertools import pairwise
from typing import Any, TypeAlias

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from understudy.data.format.catalog import Catalog
from understudy.data.format.features import DEFAULTS, INDEX_KEYS, Feature
from understudy.data.format.pairing import MIXED, PAIRING_FIX, claimed_episode, doubtful_places
from understudy.data.read.row_tables import MAPPED_FILES, RowTables
from understudy.errors import DatasetError, MissingFileError
from understudy.lru import LRUCache
from understudy.plain_values import storable
from understudy.plural import plural
from understudy.storage.dataset_root import with_location

_REPAIR = "repair the file, or leave the key out with keys=[...]"


def to_numpy(column: pa.ChunkedArray, feature: Feature | None, where: str, key: str) -> np.ndarray:
    """Convert a numeric column to an array (rows, *shape).

    Args:
        column: the column.
        feature: the declaration in info.json; None keeps dtype and shape as stored.
        where: name of the file, for errors.
        key: name of the column, for errors.

    Raises:
        DatasetError: nulls, rows of different sizes, another shape than declared, or values that are not numbers.
    """
    array = column.combine_chunks()
    array = array.storage if isinstance(array, pa.ExtensionArray) else array
    rows, sizes = len(array), [len(array)]
    kind = array.type
    while _is_list(kind):
        _refuse_nulls(array, where, key, rows)
        sizes.append(_list_size(array, where, key))
        array = array.flatten()
        kind = array.type
    _refuse_nulls(array, where, key, rows)
    if not is_numeric(kind):
        raise DatasetError(f"column {key!r} holds {column.type} instead of numbers", where=where, fix=_REPAIR)
    values = array.to_numpy(zero_copy_only=False)
    stored = tuple(sizes[1:])
    if feature is None:
        return values.reshape(rows, *stored)
    shape = feature.value_shape
    flat = len(stored) == 1 and stored[0] == int(np.prod(shape))
    if rows and not flat and _without_ones(stored) != _without_ones(shape):
        problem = f"column {key!r} holds values of shape {stored}, info.json declares {feature.shape}"
        raise DatasetError(problem, where=where, fix="correct the shape in info.json")
    return _cast(values, np.dtype(feature.dtype), where, key).reshape(rows, *shape)


def fill_absent(column: pa.ChunkedArray, feature: Feature | None) -> tuple[pa.ChunkedArray, np.ndarray | None]:
    """Fill absent whole numbers, null or NaN as pandas writes them, so that only their episodes are unusable.

    Returns:
        The column with -1 or 0 in their place, and which rows lack one, bool (n,); (`column`, None) where none does.
    """
    kind = column.type
    is_number = pa.types.is_floating(kind) or pa.types.is_integer(kind)
    if feature is None or feature.is_text or not is_number or np.dtype(feature.dtype).kind not in "iu":
        return column, None
    absent = np.asarray(pc.is_null(column, nan_is_null=True).to_numpy())
    if not absent.any():
        return column, None
    filler = -1 if np.dtype(feature.dtype).kind == "i" and not pa.types.is_unsigned_integer(kind) else 0
    values = pc.if_else(pa.array(absent), pa.scalar(filler, kind), column)
    return values if isinstance(values, pa.ChunkedArray) else pa.chunked_array([values]), absent


def _without_ones(shape: tuple[int, ...]) -> list[int]:
    return [size for size in shape if size != 1]


def is_numeric(kind: pa.DataType) -> bool:
    """Check that a stored type is numbers or (nested) lists of numbers."""
    while _is_list(kind):
        kind = kind.value_type
    return bool(pa.types.is_integer(kind) or pa.types.is_floating(kind) or pa.types.is_boolean(kind))


def _is_list(kind: pa.DataType) -> bool:
    return bool(pa.types.is_list(kind) or pa.types.is_large_list(kind) or pa.types.is_fixed_size_list(kind))


def _list_size(array: pa.Array, where: str, key: str) -> int:
    if pa.types.is_fixed_size_list(array.type):
        return int(array.type.list_size)
    lengths = array.value_lengths().to_numpy(zero_copy_only=False)
    if len(lengths) == 0:
        return 0
    if (lengths != lengths[0]).any():
        row = int(np.flatnonzero(lengths != lengths[0])[0])
        problem = f"column {key!r} has {int(lengths[0])} values in its first row and {int(lengths[row])} in row {row}"
        raise DatasetError(problem, where=where, fix=_REPAIR)
    return int(lengths[0])


def _refuse_nulls(array: pa.Array, where: str, key: str, rows: int) -> None:
    if array.null_count:
        first = int(np.flatnonzero(array.is_null().to_numpy(zero_copy_only=False))[0])
        row = first * rows // max(1, len(array))
        raise DatasetError(
            f"column {key!r} has {array.null_count} nulls, the first in row {row}", where=where, fix=_REPAIR
        )


def _cast(values: np.ndarray, dtype: np.dtype, where: str, key: str) -> np.ndarray:
    if values.dtype == dtype:
        return values
    with np.errstate(over="ignore", invalid="ignore"):
        result = values.astype(dtype)
        exact = dtype.kind == "f" or bool(np.array_equal(result.astype(values.dtype), values))
    if not exact:
        problem = f"column {key!r} holds {values.dtype} values that {dtype}, which info.json declares, cannot hold"
        raise DatasetError(problem, where=where, fix="correct the dtype in info.json")
    return result


_OFF_TIMES = "timestamps are up to"  # the note of one file stands for all

Column: TypeAlias = np.ndarray | pa.ChunkedArray
"""Numbers as an array (rows, ...); strings and records as Arrow data."""


class ProcessLocal:
    """Base of readers whose caches and locks belong to one process: they are not pickled, and made anew after a fork.

    Attributes:
        catalog: the dataset.
        notes: irregularities of the files read so far.
    """

    catalog: Catalog
    notes: list[str]
    _local: tuple[str, ...] = ()  # public attributes that are not pickled
    _pid = -1

    def _forget(self) -> None:
        """Make caches and locks anew."""
        raise NotImplementedError

    def _check_process(self) -> None:
        if self._pid != os.getpid():  # a thread of the parent may hold the lock
            self._forget()

    def __getstate__(self) -> dict[str, object]:
        return {k: v for k, v in self.__dict__.items() if not k.startswith("_") and k not in self._local}

    def __setstate__(self, state: dict[str, object]) -> None:
        self.__dict__.update(state)
        self._forget()

    def note(self, text: str) -> None:
        """Add a note and warn, once per text."""
        if text not in self.notes:
            self.notes.append(text)
            warnings.warn(text, stacklevel=3)


@storable
@dataclass(frozen=True)
class _Bad:
    """Reason why the rows of an episode are unusable, and the remedy."""

    reason: str
    fix: str = "repair meta/ or the file, or leave the episode out"


_LENGTH_FIX = (
    "`understudy edit SRC OUT --lengths rows` where `understudy check` says that only meta/ is wrong; else repair the "
    "file, or leave the episode out"
)


@storable
@dataclass(frozen=True)
class _DataFile:
    """Columns of one data file but frame_index and episode_index, which follow from the place of its episodes."""

    columns: dict[str, Column]
    rows: np.ndarray  # int64 (n,), table rows of its episodes, ascending
    start: np.ndarray  # int64 (n,), first row of each episode in the file
    bad: dict[int, _Bad]  # table row -> reason why its rows are unusable
    notes: tuple[str, ...]
    nbytes: int

    def pick(self, key: str, ids: np.ndarray, start: np.ndarray, frames: np.ndarray) -> np.ndarray | list[Any]:
        """Take values of a column at frames (B,) or (B, T) of episodes whose rows start at `start` (B,)."""
        if key == "frame_index":
            return frames.astype(np.int64)
        if key == "episode_index":
            return np.broadcast_to(ids.reshape(-1, *[1] * (frames.ndim - 1)), frames.shape).astype(np.int64)
        return _pick(self.columns[key], start, frames)


class Rows(ProcessLocal):
    """Values of columns by (table row, frame). Thread-safe; pickles without its cache.

    Args:
        catalog: the dataset.
        keys: columns to read in addition to the index columns (which are computed where a file lacks them).
        cache_bytes: memory for loaded files that are not mapped; the file in use always stays.
        tables: mapped files of this host; None keeps all columns in the memory of this process, as a single pass over
            the rows should.

    Attributes:
        files: loaded files by number.
        mapped: mapped files by number.
    """

    _local = ("files", "mapped")

    def __init__(
        self, catalog: Catalog, keys: Sequence[str], cache_bytes: int, tables: RowTables | None = None
    ) -> None:
        self.catalog = catalog
        self.keys = tuple(keys)
        self.cache_bytes = cache_bytes
        self.tables = tables
        self.notes: list[str] = []
        self._forget()

    def _forget(self) -> None:
        self.files: LRUCache[int, _DataFile] = LRUCache(self.cache_bytes, lambda file: file.nbytes, keep=1)
        self.mapped: LRUCache[int, _DataFile] = LRUCache(MAPPED_FILES, lambda file: 1)
        self._make_locks()

    def keep(self, cache_bytes: int) -> None:
        """Set the memory for loaded files that are not mapped."""
        self.cache_bytes = cache_bytes
        with self._lock:
            self.files.resize(cache_bytes)

    def _make_locks(self) -> None:
        self._lock, self._pid = threading.Lock(), os.getpid()
        self._reading: dict[int, threading.Lock] = {}  # by file: a second thread waits for the columns of the first

    def take(self, rows: np.ndarray, frames: Mapping[str, np.ndarray]) -> dict[str, np.ndarray | list[Any]]:
        """Return values of columns at frames of episodes.

        Args:
            rows: int64 (B,), table rows (see `EpisodeTable`).
            frames: key -> int64 (B,) or (B, T), frame numbers in [0, length).

        Returns:
            key -> array (B, ...) or (B, T, ...); nested lists of the same shape for strings and records.

        Raises:
            DatasetError: a file is missing, broken, or disagrees with the metadata.
        """
        if len(rows) == 0:
            raise ValueError("rows is empty: give at least one")
        if self._pid != os.getpid():  # after a fork, a thread of the parent may hold the lock
            self._make_locks()
        file_of = self.catalog.episodes.data_file[rows]
        numbers = np.unique(file_of).tolist()
        self._load_all(numbers)
        parts: list[tuple[np.ndarray, dict[str, np.ndarray | list[Any]]]] = []
        for file in numbers:
            members = np.flatnonzero(file_of == file)
            loaded = self._load(file)
            start = self._start(loaded, rows[members])
            ids = self.catalog.episodes.ids[rows[members]]
            parts.append((members, {k: loaded.pick(k, ids, start, f[members]) for k, f in frames.items()}))
        if len(parts) == 1:
            return parts[0][1]
        return {key: _scatter([(members, values[key]) for members, values in parts], len(rows)) for key in frames}

    def span(self, row: int, key: str, start: int, stop: int) -> np.ndarray:
        """Return the numbers of a column in frames [start, stop) of a table row: (stop - start, D)."""
        values = self.take(np.array([row]), {key: np.arange(start, stop)[None]})[key]
        return np.asarray(values).reshape(stop - start, -1)

    def file_rows(self, rows: np.ndarray, frames: np.ndarray) -> np.ndarray:
        """Return row numbers in the data files, int64 of the shape of `frames`: (B,) or (B, T)."""
        file_of, starts = self.catalog.episodes.data_file[rows], np.empty(len(rows), np.int64)
        for file in np.unique(file_of):
            members = file_of == file
            starts[members] = self._start(self._load(int(file)), rows[members])
        return starts.reshape(-1, *[1] * (frames.ndim - 1)) + frames

    def bad_rows(self, row: int) -> dict[int, str]:
        """Find the episodes in the data file of a table row that disagree with the metadata: table row -> reason.

        Raises:
            DatasetError: the file cannot be read.
        """
        bad = self._load(int(self.catalog.episodes.data_file[row])).bad
        return {row_of_file: unusable.reason for row_of_file, unusable in bad.items()}

    def _start(self, loaded: _DataFile, rows: np.ndarray) -> np.ndarray:
        """First rows in the file of the episodes of table rows (n,), int64 (n,)."""
        for row in rows.tolist() if loaded.bad else ():
            if row in loaded.bad:
                bad = loaded.bad[row]
                raise DatasetError(bad.reason, where=self.catalog.data_place(row), fix=bad.fix)
        return loaded.start[np.searchsorted(loaded.rows, rows)]

    def _load_all(self, files: Sequence[int]) -> None:
        """Load several files beside each other, where reading them takes long."""
        if self.tables is None or len(files) == 1:
            return
        with self._lock:
            absent = [file for file in files if self.files.get(file) is None and self.mapped.get(file) is None]
        absent = [file for file in absent if self._is_mapped(file)]
        self.tables.run(self._load, absent)

    def _is_mapped(self, file: int) -> bool:
        return self.tables is not None and self.tables.holds(file)

    def _load(self, file: int) -> _DataFile:
        with self._lock:
            loaded = self.mapped.get(file) or self.files.get(file)
            if loaded is not None:
                return loaded
            reading = self._reading.setdefault(file, threading.Lock())
        with reading:
            with self._lock:
                loaded = self.mapped.get(file) or self.files.get(file)
            if loaded is None:
                loaded = self._read_once(file)
        return loaded

    def _read_once(self, file: int) -> _DataFile:
        loaded: _DataFile | None = None
        if self.tables is not None and self._is_mapped(file):
            loaded = self.tables.open(self.read_file, file)
        is_mapped = loaded is not None
        if loaded is None:
            loaded = self.read_file(file)
            pa.default_memory_pool().release_unused()  # reading takes three times the columns for a moment
        for note in loaded.notes:
            self._add_note(note)
        with self._lock:
            (self.mapped if is_mapped else self.files).put(file, loaded)
            self._reading.pop(file, None)
        return loaded

    def _add_note(self, text: str) -> None:
        """Add a note and warn, once per text; that of timestamps is no warning, and the first one stands for all."""
        if not text.startswith(_OFF_TIMES):
            self.note(text)
        elif not any(earlier.startswith(_OFF_TIMES) for earlier in self.notes):
            self.notes.append(text)

    def read_file(self, file: int) -> _DataFile:
        """Decode the columns of a data file by number, and find the rows of its episodes.

        Raises:
            DatasetError: the file cannot be read, or a column holds other values than declared.
        """
        catalog = self.catalog
        rows = np.flatnonzero(catalog.episodes.data_file == file)
        first = int(rows[0])
        path = catalog.data_path(first)
        ids = catalog.episodes.ids[rows].tolist()
        episodes = f"episode {ids[0]}" if len(ids) == 1 else f"episodes {ids[0]} to {ids[-1]}"
        where = f"{catalog.files.where(path)} ({episodes})"
        if catalog.episodes.data.number[file] < 0:
            problem = f"episode {ids[0]} names no data file"
            raise DatasetError(problem, where=catalog.root, fix="restore meta/episodes, or leave the episode out")
        stored: dict[str, list[str]] = {
            key: [part.key for part in catalog.joined.get(key, ())] or [catalog.stored_names.get(key, key)]
            for key in dict.fromkeys([*self.keys, *INDEX_KEYS])
        }
        with with_location(where):
            needed = list(dict.fromkeys(name for names in stored.values() for name in names))
            try:
                table = catalog.files.table(path, needed)
            except MissingFileError as error:
                raise catalog.explain_missing(error, first) from error
        columns: dict[str, Column] = {}
        notes: list[str] = []
        absent: dict[str, np.ndarray] = {}  # column of whole numbers -> rows without one
        lacking: list[str] = []
        for key, names in stored.items():
            missing = [name for name in names if name not in table.column_names]
            if missing:
                lacking += missing if key not in INDEX_KEYS else []
            elif parts := catalog.joined.get(key):
                arrays = [
                    np.asarray(self._column(table.column(part.key), part.key, part, where, notes)) for part in parts
                ]
                columns[key] = np.concatenate([array.reshape(len(table), -1) for array in arrays], axis=1)
            else:
                feature = self.catalog.features.get(key)
                column, rows_without = fill_absent(table.column(names[0]), feature or DEFAULTS.get(key))
                columns[key] = self._column(column, key, feature, where, notes)
                absent |= {key: rows_without} if rows_without is not None else {}
        if lacking:
            fix = "restore the file, or leave the key out with keys=[...]"
            raise DatasetError(f"there is no column {lacking[0]!r}", where=where, fix=fix)
        runs = self._find_runs(rows, columns.get("episode_index"), len(table), where)
        doubtful = self._find_doubtful(rows, runs, columns, len(table), where, notes)
        start, bad = self._index_rows(rows, runs, columns, len(table), where, notes)
        bad |= doubtful | self._find_absent(rows, start, bad, absent)
        nbytes = sum(int(column.nbytes) for column in columns.values())
        return _DataFile(columns, rows, start, bad, tuple(notes), nbytes)

    def _column(
        self, column: pa.ChunkedArray, key: str, feature: Feature | None, where: str, notes: list[str]
    ) -> Column:
        feature = feature or DEFAULTS.get(key)
        if feature is not None and feature.is_text:
            if column.null_count and feature.dtype != "language":
                raise DatasetError(f"column {key!r} has {column.null_count} nulls", where=where, fix="repair the file")
            return column
        if feature is None and not is_numeric(column.type):
            return column
        values = to_numpy(column, feature, where, key)
        if values.dtype.kind == "f" and not np.isfinite(values).all():
            bad = ~np.isfinite(values.reshape(len(values), -1)).all(1)
            count, first = int(bad.sum()), int(bad.argmax())
            notes.append(
                f"{where}: {key!r} is not finite in {plural(count, 'row')}, first {first}; the values are kept"
            )
        if key in INDEX_KEYS and values.ndim > 1:
            values = values.reshape(len(values), -1)
            if values.shape[1] != 1:
                raise DatasetError(f"column {key!r} is not a single number per row", where=where, fix="repair the file")
            values = values[:, 0]
        return values

    def _find_runs(
        self, rows: np.ndarray, ids: Column | None, total: int, where: str
    ) -> dict[int, list[tuple[int, int]]]:
        """(first row, rows) of each run of rows in a file, by the episode's id."""
        table = self.catalog.episodes
        if table.own_files:
            return {int(table.ids[rows[0]]): [(0, total)]}
        by_place = table.pairing == "files" and total == int(table.lengths[rows].sum())
        if isinstance(ids, np.ndarray) and not by_place:
            runs: dict[int, list[tuple[int, int]]] = {}
            for begin, end in pairwise([0, *(np.flatnonzero(np.diff(ids)) + 1).tolist(), total]):
                if end > begin:
                    runs.setdefault(int(ids[begin]), []).append((begin, end - begin))
            return runs
        if total != (listed := int(table.lengths[rows].sum())):
            problem = f"no episode_index column, and {total} rows where meta/ lists {listed}"
            raise DatasetError(problem, where=where, fix="restore the file")
        return {int(table.ids[row]): [(int(table.data_row[row]), int(table.lengths[row]))] for row in rows}

    def _find_doubtful(
        self,
        rows: np.ndarray,
        runs: Mapping[int, list[tuple[int, int]]],
        columns: Mapping[str, Column],
        total: int,
        where: str,
        notes: list[str],
    ) -> dict[int, _Bad]:
        """Find the episodes of a file whose place and columns disagree (`format/pairing.py`).

        Returns:
            Table row -> reason; {} and a note where no image can be paired wrong, or the setting decides.
        """
        table = self.catalog.episodes
        ids, index = (_numbers(columns.get(key)) for key in ("episode_index", "index"))
        doubtful: dict[int, str] = {}
        if table.own_files:
            row = int(rows[0])
            claimed = claimed_episode(table, row, ids, index)
            if claimed != table.ids[row]:
                column = "column index" if ids is None else "column episode_index"
                other = "several episodes" if claimed == MIXED else f"episode {claimed}"
                doubtful[row] = f"the file of episode {int(table.ids[row])} has rows of {other}, by its {column}"
        else:
            found = [runs.get(episode, [(0, 0)])[0] for episode in table.ids[rows].tolist()]
            begins, counts = np.array(found, np.int64).reshape(-1, 2).T
            for place in np.flatnonzero(doubtful_places(table, rows, begins, counts, index, total)).tolist():
                row = int(rows[place])
                listed = int(table.data_row[row])
                there = f"row {int(begins[place])} of the file" if counts[place] else "nowhere in the file"
                doubtful[row] = f"rows of episode {int(table.ids[row])} are at {there} by the column episode_index"
                doubtful[row] += f", and meta/ lists row {listed}, where the column is {_value_at(ids, listed)}"
        if table.pairing == "columns" or (not table.pairing and self.catalog.has_images_by_place):
            return {row: _Bad(reason, PAIRING_FIX) for row, reason in doubtful.items()}
        decides = "the file name is used" if table.own_files else "the column is used"
        for reason in doubtful.values():
            notes.append(f"{where}: {reason}; {decides}")
        return {}

    def _find_absent(
        self, rows: np.ndarray, start: np.ndarray, bad: Mapping[int, _Bad], absent: Mapping[str, np.ndarray]
    ) -> dict[int, _Bad]:
        """Find the episodes of a file that lack whole numbers: table row -> reason."""
        lacking: dict[int, _Bad] = {}
        for key, rows_without in absent.items():
            for row, first in zip(rows.tolist(), start.tolist()):
                length = int(self.catalog.episodes.lengths[row])
                inside = rows_without[first : first + length]
                # Rows without an episode's id are in none: any episode of the file may have lost them.
                inside = rows_without if key == "episode_index" and row in bad else inside
                if inside.any():
                    count, place = int(inside.sum()), int(inside.argmax())
                    reason = f"column {key!r} is null or NaN in {plural(count, 'row')}, first {place}"
                    lacking.setdefault(row, _Bad(reason, f"write {key!r} there, or leave the episode out"))
        return lacking

    def _index_rows(
        self,
        rows: np.ndarray,
        runs: Mapping[int, list[tuple[int, int]]],
        columns: dict[str, Column],
        total: int,
        where: str,
        notes: list[str],
    ) -> tuple[np.ndarray, dict[int, _Bad]]:
        """Check the index columns, drop those that follow from the rows' places, and compute missing ones.

        Returns:
            First row of each of the file's episodes, int64 (n,), and table row -> reason why its rows are unusable.
        """
        table, catalog = self.catalog.episodes, self.catalog
        frame, index, tasks = (np.zeros(total, np.int64) for _ in range(3))
        episodes = np.full(total, -1, np.int64)
        start, bad = np.zeros(len(rows), np.int64), dict[int, _Bad]()
        frame_column, task_column = columns.get("frame_index"), columns.get("task_index")
        for place, (row, episode) in enumerate(zip(rows.tolist(), table.ids[rows].tolist())):
            length = int(table.lengths[row])
            (begin, count), *others = runs.get(episode, [(0, 0)])
            start[place], span = begin, slice(begin, begin + length)
            if others:
                bad[row] = _Bad(f"the rows of episode {episode} are not contiguous")
                continue
            if count != length:
                reason = f"episode {episode} has length {length} in meta/, the file {count} rows of it"
                bad[row] = _Bad(reason, _LENGTH_FIX)
                continue
            frame[span], episodes[span] = np.arange(length), episode
            index[span] = np.arange(length) + table.index_from[row]
            if isinstance(frame_column, np.ndarray):
                if (np.diff(frame_column[span]) <= 0).any():
                    bad[row] = _Bad(f"frame_index of episode {episode} does not rise")
                elif (frame_column[span] != frame[span]).any():
                    note = f"{where}: frame_index does not count 0, 1, 2, ...; the place in the episode is used"
                    notes += [] if note in notes else [note]
            if isinstance(task_column, np.ndarray):
                unknown = (task_column[span] < 0) | (task_column[span] >= len(catalog.tasks))
                if unknown.any():
                    number = int(task_column[span][unknown][0])
                    bad[row] = _Bad(f"task_index {number} of episode {episode} is not in meta/tasks")
            elif length:
                named = table.tasks_of(row)
                tasks[span] = named[0] if len(named) else -1
                if len(named) != 1 or named[0] < 0:
                    reason = f"no task_index column, and meta/ names {len(named)} tasks for the episode"
                    bad[row] = _Bad(reason)
        for computed in ("frame_index", "episode_index"):
            columns.pop(computed, None)
        columns.setdefault("index", index)
        columns.setdefault("task_index", tasks)
        seconds = frame / float(catalog.fps)
        columns.setdefault("timestamp", seconds.astype(catalog.features.get("timestamp", DEFAULTS["timestamp"]).dtype))
        self._compare_times(columns["timestamp"], frame, episodes >= 0, where, notes)
        return start, bad

    def _compare_times(
        self, times: Column, frame: np.ndarray, listed: np.ndarray, where: str, notes: list[str]
    ) -> None:
        """Note that timestamps differ from frame / fps. They are kept; they select no frames."""
        off = np.abs(np.asarray(times, np.float64) * float(self.catalog.fps) - frame)[listed]
        if off.size and off.max() > 0.5:
            notes.append(f"{_OFF_TIMES} {off.max():.3g} frames off frame / fps, first in {where}; frames go by order")


def _numbers(column: Column | None) -> np.ndarray | None:
    return column if isinstance(column, np.ndarray) else None


def _value_at(ids: np.ndarray | None, row: int) -> str:
    return str(int(ids[row])) if ids is not None and row < len(ids) else "absent"


def _pick(column: Column, start: np.ndarray, frames: np.ndarray) -> np.ndarray | list[Any]:
    """Take values at start (B,) + frames (B,) or (B, T)."""
    places = start.reshape(-1, *[1] * (frames.ndim - 1)) + frames
    if isinstance(column, np.ndarray):
        return column[places]
    flat = [column[i].as_py() for i in places.reshape(-1).tolist()]  # `take` would first copy the whole column
    return flat if places.ndim == 1 else [flat[i : i + places.shape[1]] for i in range(0, places.size, places.shape[1])]


def _scatter(parts: list[tuple[np.ndarray, np.ndarray | list[Any]]], count: int) -> np.ndarray | list[Any]:
    """Put parts of several files back into the requested order."""
    first = parts[0][1]
    if isinstance(first, np.ndarray):
        out = np.empty((count, *first.shape[1:]), first.dtype)
        for members, values in parts:
            out[members] = values
        return out
    placed: list[Any] = [None] * count
    for members, values in parts:
        for i, value in zip(members.tolist(), values):
            placed[i] = value
    return placed
