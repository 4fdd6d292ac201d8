"""Rows of episodes: columns of whole data files, loaded on first use.

The file's own `episode_index` column assigns rows to episodes. Without it, the lengths of the
preceding episodes in the file do.

Columns of a large dataset are decoded once per host, into a memory-mapped file for each data file
(`row_tables.py`): its pages are shared by all processes, and the kernel may drop them. Other
columns are in the memory of this process, within a byte budget.

Of a data file on a server that no process has decoded, the rows of single episodes are read
(`row_parts.py`). Where they have taken more than an eighth of its bytes and another one is needed,
a thread decodes the whole file meanwhile. Where they would take more bytes than the file has, the
whole file is read at once.
"""

import os
import threading
import warnings
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from functools import partial
from itertools import pairwise
from typing import Any, TypeAlias

import numpy as np
import pyarrow as pa

from understudy_base import (
    DataAccessError,
    DatasetError,
    LRUCache,
    MissingFileError,
    plural,
)
from understudy_data.datasets.format.catalog import Catalog
from understudy_data.datasets.format.features import DEFAULTS, INDEX_KEYS, Feature
from understudy_data.datasets.format.pairing import (
    PAIRING_FIX,
)
from understudy_data.datasets.read.columns import fill_absent, is_numeric, to_numpy
from understudy_data.datasets.read.row_parts import Footers, Place, RowPart
from understudy_data.datasets.read.row_tables import MAPPED_FILES, RowTables
from understudy_data.plain_values import storable
from understudy_data.storage import mapped_tables
from understudy_data.storage.byte_source import ByteSource
from understudy_data.storage.dataset_root import with_location

PART_BYTES = 32 << 20
"""Memory for the rows of single episodes of data files on a server, and as much for footers in use
and for freed ones, unless `keep` sets another.
"""
# a data file is decoded as a whole if it is needed again once parts have taken an eighth of its
# bytes
_WHOLE = 8
# share of the bytes of a file that parts take at most; then the whole file costs less
_MOST_TAKEN = 1.0
_COMPUTED = {"frame_index", "episode_index"}  # they follow from the place of an episode
_OFF_TIMES = "timestamps are up to"  # the note of one file stands for all

Column: TypeAlias = np.ndarray | pa.ChunkedArray
"""Numbers as an array (rows, ...); strings and records as Arrow data."""


class ProcessLocal:
    """Base of readers whose caches and locks belong to one process: they are not pickled, and made
    anew after a fork.

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
        return {
            k: v for k, v in self.__dict__.items() if not k.startswith("_") and k not in self._local
        }

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
    "`understudy edit SRC OUT --lengths rows` where `understudy check` says that only meta/ is "
    "wrong; else repair the file, or leave the episode out"
)


@storable
@dataclass(frozen=True)
class _DataFile:
    """Columns of one data file but frame_index and episode_index, which follow from the place of
    its episodes.
    """

    columns: dict[str, Column]
    rows: np.ndarray  # int64 (n,), table rows of its episodes, ascending
    start: np.ndarray  # int64 (n,), first row of each episode in the file
    bad: dict[int, _Bad]  # table row -> reason why its rows are unusable
    notes: tuple[str, ...]
    nbytes: int
    first: int = 0  # row of the file that is the first one here


class Rows(ProcessLocal):
    """Values of columns by (table row, frame). Thread-safe; pickles without its cache.

    Args:
        catalog: the dataset.
        keys: columns to read in addition to the index columns (which are computed where a file
            lacks them).
        cache_bytes: memory for loaded files that are not mapped; the file in use always stays.
        tables: mapped files of this host; None keeps all columns in the memory of this process, as
            a single pass over the rows should.

    Attributes:
        files: loaded files by number.
        mapped: mapped files by number.
        parts: loaded rows of single episodes by table row.
    """

    _local = ("files", "mapped", "parts")

    def __init__(
        self,
        catalog: Catalog,
        keys: Sequence[str],
        cache_bytes: int,
        tables: RowTables | None = None,
    ) -> None:
        self.catalog = catalog
        self.keys = tuple(keys)
        self.cache_bytes = cache_bytes
        self.part_bytes = PART_BYTES
        self.tables = tables
        self.notes: list[str] = []
        self._forget()

    def _forget(self) -> None:
        self.files: LRUCache[int, _DataFile] = LRUCache(
            self.cache_bytes, lambda file: file.nbytes, keep=1
        )
        self.mapped: LRUCache[int, _DataFile] = LRUCache(MAPPED_FILES, lambda file: 1)
        self.parts: LRUCache[int, _DataFile] = LRUCache(
            self.part_bytes, lambda part: part.nbytes, keep=1
        )
        self._taken: dict[int, float] = {}  # share of the bytes of each file that parts have taken
        # files that a thread decodes, and what stops it
        self._decoding: dict[int, threading.Event] = {}
        self._whole: set[int] = set()  # files that are read as a whole
        self._make_locks()

    def keep(self, cache_bytes: int, part_bytes: int = PART_BYTES) -> None:
        """Set the memory for loaded files that are not mapped, and for rows of single episodes
        (`PART_BYTES`).
        """
        self.cache_bytes = cache_bytes
        self.part_bytes = part_bytes
        self._footers.most = part_bytes
        with self._lock:
            self.files.resize(cache_bytes)
            self.parts.resize(part_bytes)

    def _make_locks(self) -> None:
        self._lock = threading.Lock()
        self._pid = os.getpid()
        self._footers = Footers(self.part_bytes)
        # by file or episode: a second thread waits for the columns of the first
        self._reading: dict[tuple[str, int], threading.Lock] = {}

    def take(
        self, rows: np.ndarray, frames: Mapping[str, np.ndarray]
    ) -> dict[str, np.ndarray | list[Any]]:
        """Return values of columns at frames of episodes.

        Args:
            rows: int64 (B,), table rows (see `EpisodeTable`).
            frames: key -> int64 (B,) or (B, T), frame numbers in [0, length).

        Returns:
            key -> array (B, ...) or (B, T, ...); nested lists of the same shape for strings and
            records.

        Raises:
            DatasetError: a file is missing, broken, or disagrees with the metadata.
        """
        if len(rows) == 0:
            raise ValueError("rows is empty: give at least one")
        if self._pid != os.getpid():  # after a fork, a thread of the parent may hold the lock
            self._make_locks()
        file_of = self.catalog.episodes.data_file[rows]
        numbers = np.unique(file_of).tolist()
        if len(numbers) > 1:
            self.prefetch(rows)
        self._load_all(numbers)
        by_file = np.argsort(file_of, kind="stable")
        ends = np.searchsorted(file_of[by_file], numbers, side="right").tolist()
        values: dict[str, np.ndarray | list[Any]] = {}
        for key in _COMPUTED & frames.keys():
            values[key] = _computed(key, self.catalog.episodes.ids[rows], frames[key])
        stored = [(key, wanted) for key, wanted in frames.items() if key not in _COMPUTED]
        for file, begin, end in zip(numbers, [0, *ends], ends):
            for members, loaded in self._find(file, rows, by_file[begin:end]):
                start = self._start(loaded, rows[members])
                # by identity of the frames: most keys have the same
                places: dict[int, np.ndarray] = {}
                for key, wanted in stored:
                    if id(wanted) not in places:
                        places[id(wanted)] = _places(start, wanted[members])
                    picked = _pick(loaded.columns[key], places[id(wanted)])
                    values[key] = _scatter(values.get(key), members, picked, len(rows))
        return {key: values[key] for key in frames}

    def span(self, row: int, key: str, start: int, stop: int) -> np.ndarray:
        """Return the numbers of a column in frames [start, stop) of a table row: (stop - start,
        D).
        """
        values = self.take(np.array([row]), {key: np.arange(start, stop)[None]})[key]
        return np.asarray(values).reshape(stop - start, -1)

    def file_rows(self, rows: np.ndarray, frames: np.ndarray) -> np.ndarray:
        """Return row numbers in the data files, int64 of the shape of `frames`: (B,) or (B, T)."""
        file_of = self.catalog.episodes.data_file[rows]
        starts = np.empty(len(rows), np.int64)
        for file in np.unique(file_of).tolist():
            for members, loaded in self._find(file, rows, np.flatnonzero(file_of == file)):
                starts[members] = self._start(loaded, rows[members]) + loaded.first
        return starts.reshape(-1, *[1] * (frames.ndim - 1)) + frames

    def bad_rows(self, row: int) -> dict[int, str]:
        """Find the episodes in the data file of a table row that disagree with the metadata: table
        row -> reason.

        Raises:
            DatasetError: the file cannot be read.
        """
        bad = self._load(int(self.catalog.episodes.data_file[row])).bad
        return {row_of_file: unusable.reason for row_of_file, unusable in bad.items()}

    def _start(self, loaded: _DataFile, rows: np.ndarray) -> np.ndarray:
        """First rows in the file of the episodes of table rows (n,), int64 (n,)."""
        if loaded.bad:
            for row in rows.tolist():
                if row in loaded.bad:
                    bad = loaded.bad[row]
                    raise DatasetError(bad.reason, where=self.catalog.data_place(row), fix=bad.fix)
        first = int(loaded.rows[0])
        last = int(loaded.rows[-1])
        is_range = last - first == len(loaded.rows) - 1  # the usual case, which needs no search
        places = rows - first if is_range else np.searchsorted(loaded.rows, rows)
        return loaded.start[places]

    def _load_all(self, files: Sequence[int]) -> None:
        """Load several files beside each other, where reading them takes long."""
        if self.tables is None or len(files) == 1:
            return
        with self._lock:
            absent = [
                file
                for file in files
                if self.files.get(file) is None and self.mapped.get(file) is None
            ]
        absent = [file for file in absent if self._is_mapped(file) and not self._has_parts(file)]
        self.tables.run(self._load, absent)

    def _is_mapped(self, file: int) -> bool:
        return self.tables is not None and self.tables.holds(file)

    def prefetch(self, rows: np.ndarray) -> None:
        """Start to fetch what the rows of episodes (table rows) of a dataset on a server need.
        Returns at once.
        """
        if self.tables is None or self.catalog.files.is_local:
            return
        self._check_process()
        for row in np.unique(rows).tolist():
            file = int(self.catalog.episodes.data_file[row])
            with self._lock:
                is_here = row in self.parts or file in self.mapped or file in self.files
            if not is_here:
                self.catalog.files.remote_files.fetcher.submit([partial(self._prefetch, file, row)])

    def _prefetch(self, file: int, row: int, stop: threading.Event) -> None:
        if not self._has_parts(file):
            if self.tables is None or not self._is_mapped(file) or not self.tables.is_decoded(file):
                self.catalog.files.prefetch(self.catalog.data_path(row))
            return
        self._part(file, row, ahead=True)
        if file in self._whole:
            self.catalog.files.prefetch(self.catalog.data_path(row))

    def _has_parts(self, file: int) -> bool:
        """Return whether single episodes of a file are read: it is on a server, mapped, and not
        decoded yet.
        """
        table = self.catalog.episodes
        if (
            self.catalog.files.is_local
            or table.own_files
            or table.pairing == "files"
            or file in self._whole
        ):
            return False
        if self.tables is None or not self.tables.holds(file):
            return False
        with self._lock:
            is_loaded = file in self.mapped or file in self.files
        if is_loaded or self.tables.is_decoded(file):
            self._whole.add(file)
            return False
        return True

    def _find(
        self, file: int, rows: np.ndarray, members: np.ndarray
    ) -> list[tuple[np.ndarray, _DataFile]]:
        """Load what `rows[members]`, table rows of one file, need: (members, their columns) of each
        part.
        """
        if not self._has_parts(file):
            return [(members, self._load(file))]
        parts = []
        of_members = rows[members]
        for row in np.unique(of_members).tolist():
            part = self._part(file, row)
            if part is None:  # the whole file tells what is wrong
                return [(members, self._load(file))]
            parts.append((members[of_members == row], part))
        return parts or [(members, self._load(file))]

    def _part(self, file: int, row: int, ahead: bool = False) -> _DataFile | None:
        """Rows of one episode; None where only the whole file shows that they are sound.

        `ahead` of their use the bytes of a large part are only requested, which gives None as well.
        """
        with self._lock:
            part = self.parts.get(row)
            if part is not None:
                return part
            reading = self._reading.setdefault(("episode", row), threading.Lock())
        with reading:
            with self._lock:
                part = self.parts.get(row)
            if part is None:
                part = self._read_part(file, row, ahead)
            with self._lock:
                self._reading.pop(("episode", row), None)
        return part

    def _open_part(self, row: int, source: ByteSource) -> RowPart:
        catalog = self.catalog
        table = self.catalog.episodes
        listed = int(table.lengths[table.data_file == table.data_file[row]].sum())
        begin = int(table.data_row[row])
        place = Place(int(table.ids[row]), begin, begin + int(table.lengths[row]), listed)
        names = self._stored_names()
        episodes = self._names_of("episode_index")[0]
        return RowPart(
            catalog.files, catalog.data_path(row), source, names, episodes, place, self._footers
        )

    def _read_part(self, file: int, row: int, ahead: bool) -> _DataFile | None:
        catalog = self.catalog
        part: _DataFile | None = None
        try:
            path = catalog.data_path(row)
            with catalog.files.opening(path) as source, self._open_part(row, source) as opened:
                is_needed_again = file in self._taken
                taken = self._taken.get(file, opened.footer_share)
                if taken + opened.share > _MOST_TAKEN:
                    self._whole.add(file)
                    return None
                if ahead and opened.prefetch_large():
                    return None
                table = opened.read()
            if table is not None:
                runs = {int(catalog.episodes.ids[row]): [(0, len(table))]}
                part = self._convert(table, np.array([row]), catalog.data_place(row), runs)
        except DatasetError:
            pass
        if part is None or part.bad or part.notes:
            self._whole.add(file)
            return None
        part = replace(part, first=int(catalog.episodes.data_row[row]))
        with self._lock:
            self.parts.put(row, part)
            self._taken[file] = taken + opened.share
        # not at the first need: the first batches come before it
        if is_needed_again and taken * _WHOLE >= 1:
            self._decode_later(file)
        return part

    def _decode_later(self, file: int) -> None:
        """Let a thread decode a whole file, once until it is stopped."""
        decoder = self.catalog.files.remote_files.decoder
        with self._lock:
            stop = self._decoding.get(file)
            if stop is not None and not stop.is_set():
                return
            self._decoding[file] = decoder.stop
        decoder.submit([partial(self._decode, file)])

    def _decode(self, file: int, stop: threading.Event) -> None:
        try:
            self._load(file)
        except DataAccessError:
            self._whole.add(file)  # the next sample of the file raises the error

    def _load(self, file: int) -> _DataFile:
        with self._lock:
            loaded = self.mapped.get(file) or self.files.get(file)
            if loaded is not None:
                return loaded
            reading = self._reading.setdefault(("file", file), threading.Lock())
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
        is_mapped = loaded is not None and mapped_tables.is_mapped(loaded.start)
        if loaded is None:
            loaded = self.read_file(file)
            # reading takes three times the columns for a moment
            pa.default_memory_pool().release_unused()
        for note in loaded.notes:
            self._add_note(note)
        with self._lock:
            cache = self.mapped if is_mapped else self.files
            cache.put(file, loaded)
            self._reading.pop(("file", file), None)
        return loaded

    def _add_note(self, text: str) -> None:
        """Add a note and warn, once per text; that of timestamps is no warning, and the first one
        stands for all.
        """
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
        rows = catalog.episodes.rows_in(file)
        first = int(rows[0])
        path = catalog.data_path(first)
        ids = catalog.episodes.ids[rows].tolist()
        episodes = f"episode {ids[0]}" if len(ids) == 1 else f"episodes {ids[0]} to {ids[-1]}"
        where = f"{catalog.files.where(path)} ({episodes})"
        if catalog.episodes.data.number[file] < 0:
            problem = f"episode {ids[0]} names no data file"
            raise DatasetError(
                problem, where=catalog.root, fix="restore meta/episodes, or leave the episode out"
            )
        with with_location(where):
            try:
                table = catalog.files.table(path, self._stored_names())
            except MissingFileError as error:
                raise catalog.explain_missing(error, first) from error
        return self._convert(table, rows, where)

    def _names_of(self, key: str) -> list[str]:
        """Names in the files of the columns of a key."""
        joined = [part.key for part in self.catalog.joined.get(key, ())]
        return joined or [self.catalog.stored_names.get(key, key)]

    def _stored_names(self) -> list[str]:
        """Names of all needed columns, as in the files."""
        names: list[str] = []
        for key in dict.fromkeys([*self.keys, *INDEX_KEYS]):
            names += self._names_of(key)
        return list(dict.fromkeys(names))

    def _convert(
        self,
        table: pa.Table,
        rows: np.ndarray,
        where: str,
        known_runs: Mapping[int, list[tuple[int, int]]] | None = None,
    ) -> _DataFile:
        """Convert the rows of episodes (table rows), of a whole file, or with their runs known to
        be sound.
        """
        catalog = self.catalog
        stored = {key: self._names_of(key) for key in dict.fromkeys([*self.keys, *INDEX_KEYS])}
        columns: dict[str, Column] = {}
        notes: list[str] = []
        absent: dict[str, np.ndarray] = {}  # column of whole numbers -> rows without one
        lacking: list[str] = []
        for key, names in stored.items():
            missing = [name for name in names if name not in table.column_names]
            if missing:
                if key not in INDEX_KEYS:
                    lacking += missing
            elif parts := catalog.joined.get(key):
                arrays = [
                    np.asarray(self._column(table.column(part.key), part.key, part, where, notes))
                    for part in parts
                ]
                columns[key] = np.concatenate(
                    [array.reshape(len(table), -1) for array in arrays], axis=1
                )
            else:
                feature = self.catalog.features.get(key)
                column, rows_without = fill_absent(
                    table.column(names[0]), feature or DEFAULTS.get(key)
                )
                columns[key] = self._column(column, key, feature, where, notes)
                if rows_without is not None:
                    absent[key] = rows_without
        if lacking:
            fix = "restore the file, or leave the key out with keys=[...]"
            raise DatasetError(f"there is no column {lacking[0]!r}", where=where, fix=fix)
        runs = known_runs or self._find_runs(rows, columns.get("episode_index"), len(table), where)
        doubtful = (
            {} if known_runs else self._find_doubtful(rows, runs, columns, len(table), where, notes)
        )
        start, bad = self._index_rows(rows, runs, columns, len(table), where, notes)
        bad |= doubtful | self._find_absent(rows, start, bad, absent)
        nbytes = sum(int(column.nbytes) for column in columns.values())
        return _DataFile(columns, rows, start, bad, tuple(notes), nbytes)

    def _column(
        self,
        column: pa.ChunkedArray,
        key: str,
        feature: Feature | None,
        where: str,
        notes: list[str],
    ) -> Column:
        feature = feature or DEFAULTS.get(key)
        if feature is not None and feature.is_text:
            if column.null_count and feature.dtype != "language":
                raise DatasetError(
                    f"column {key!r} has {column.null_count} nulls",
                    where=where,
                    fix="repair the file",
                )
            return column
        if feature is None and not is_numeric(column.type):
            return column
        values = to_numpy(column, feature, where, key)
        if values.dtype.kind == "f" and not np.isfinite(values).all():
            bad = ~np.isfinite(values.reshape(len(values), -1)).all(1)
            count = int(bad.sum())
            first = int(bad.argmax())
            notes.append(
                f"{where}: {key!r} is not finite in {plural(count, 'row')}, first {first}; the "
                "values are kept"
            )
        if key in INDEX_KEYS and values.ndim > 1:
            values = values.reshape(len(values), -1)
            if values.shape[1] != 1:
                raise DatasetError(
                    f"column {key!r} is not a single number per row",
                    where=where,
                    fix="repair the file",
                )
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
        return {
            int(table.ids[row]): [(int(table.data_row[row]), int(table.lengths[row]))]
            for row in rows
        }

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
            Table row -> reason; {} and a note where no image can be paired wrong, or the setting
            decides.
        """
        table = self.catalog.episodes
        ids, index = (_numbers(columns.get(key)) for key in ("episode_index", "index"))
        doubtful: dict[int, str] = {}
        if table.own_files:
            row = int(rows[0])
            claimed = table.claimed_episode(row, ids, index)
            if claimed != table.ids[row]:
                column = "column index" if ids is None else "column episode_index"
                other = "several episodes" if claimed == table.MIXED else f"episode {claimed}"
                doubtful[row] = (
                    f"the file of episode {int(table.ids[row])} has rows of {other}, by its "
                    f"{column}"
                )
        else:
            first_runs = [runs.get(episode, [(0, 0)])[0] for episode in table.ids[rows].tolist()]
            begins, counts = np.array(first_runs, np.int64).reshape(-1, 2).T
            for place in np.flatnonzero(
                table.doubtful_places(rows, begins, counts, index, total)
            ).tolist():
                row = int(rows[place])
                listed = int(table.data_row[row])
                actual_place = "nowhere in the file"
                if counts[place]:
                    actual_place = f"row {int(begins[place])} of the file"
                doubtful[row] = (
                    f"rows of episode {int(table.ids[row])} are at {actual_place} by the column "
                    "episode_index"
                )
                doubtful[row] += (
                    f", and meta/ lists row {listed}, where the column is {_value_at(ids, listed)}"
                )
        if table.pairing == "columns" or (not table.pairing and self.catalog.has_images_by_place):
            return {row: _Bad(reason, PAIRING_FIX) for row, reason in doubtful.items()}
        decides = "the file name is used" if table.own_files else "the column is used"
        for reason in doubtful.values():
            notes.append(f"{where}: {reason}; {decides}")
        return {}

    def _find_absent(
        self,
        rows: np.ndarray,
        start: np.ndarray,
        bad: Mapping[int, _Bad],
        absent: Mapping[str, np.ndarray],
    ) -> dict[int, _Bad]:
        """Find the episodes of a file that lack whole numbers: table row -> reason."""
        lacking: dict[int, _Bad] = {}
        for key, rows_without in absent.items():
            for row, first in zip(rows.tolist(), start.tolist()):
                length = int(self.catalog.episodes.lengths[row])
                inside = rows_without[first : first + length]
                # Rows without an episode's id are in none: any episode of the file may have lost
                # them.
                inside = rows_without if key == "episode_index" and row in bad else inside
                if inside.any():
                    count = int(inside.sum())
                    place = int(inside.argmax())
                    reason = (
                        f"column {key!r} is null or NaN in {plural(count, 'row')}, first {place}"
                    )
                    lacking.setdefault(
                        row, _Bad(reason, f"write {key!r} there, or leave the episode out")
                    )
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
        """Check the index columns, drop those that follow from the rows' places, and compute
        missing ones.

        Returns:
            First row of each of the file's episodes, int64 (n,), and table row -> reason why its
            rows are unusable.
        """
        table = self.catalog.episodes
        catalog = self.catalog
        frame, index, tasks = (np.zeros(total, np.int64) for _ in range(3))
        episodes = np.full(total, -1, np.int64)
        start = np.zeros(len(rows), np.int64)
        bad = dict[int, _Bad]()
        frame_column = columns.get("frame_index")
        task_column = columns.get("task_index")
        for place, (row, episode) in enumerate(zip(rows.tolist(), table.ids[rows].tolist())):
            length = int(table.lengths[row])
            (begin, count), *others = runs.get(episode, [(0, 0)])
            start[place] = begin
            span = slice(begin, begin + length)
            if others:
                bad[row] = _Bad(f"the rows of episode {episode} are not contiguous")
                continue
            if count != length:
                reason = (
                    f"episode {episode} has length {length} in meta/, the file {count} rows of it"
                )
                bad[row] = _Bad(reason, _LENGTH_FIX)
                continue
            frame[span] = np.arange(length)
            episodes[span] = episode
            index[span] = np.arange(length) + table.index_from[row]
            if isinstance(frame_column, np.ndarray):
                if (np.diff(frame_column[span]) <= 0).any():
                    bad[row] = _Bad(f"frame_index of episode {episode} does not rise")
                elif (frame_column[span] != frame[span]).any():
                    note = (
                        f"{where}: frame_index does not count 0, 1, 2, ...; the place in the "
                        "episode is used"
                    )
                    if note not in notes:
                        notes.append(note)
            if isinstance(task_column, np.ndarray):
                unknown = (task_column[span] < 0) | (task_column[span] >= len(catalog.tasks))
                if unknown.any():
                    number = int(task_column[span][unknown][0])
                    bad[row] = _Bad(
                        f"task_index {number} of episode {episode} is not in meta/tasks"
                    )
            elif length:
                named = table.tasks_of(row)
                tasks[span] = named[0] if len(named) else -1
                if len(named) != 1 or named[0] < 0:
                    reason = (
                        f"no task_index column, and meta/ names {len(named)} tasks for the episode"
                    )
                    bad[row] = _Bad(reason)
        for computed in ("frame_index", "episode_index"):
            columns.pop(computed, None)
        columns.setdefault("index", index)
        columns.setdefault("task_index", tasks)
        seconds = frame / float(catalog.fps)
        dtype = catalog.features.get("timestamp", DEFAULTS["timestamp"]).dtype
        columns.setdefault("timestamp", seconds.astype(dtype))
        self._compare_times(columns["timestamp"], frame, episodes >= 0, where, notes)
        return start, bad

    def _compare_times(
        self, times: Column, frame: np.ndarray, listed: np.ndarray, where: str, notes: list[str]
    ) -> None:
        """Note that timestamps differ from frame / fps. They are kept; they select no frames."""
        off = np.abs(np.asarray(times, np.float64) * float(self.catalog.fps) - frame)[listed]
        if off.size and off.max() > 0.5:
            notes.append(
                f"{_OFF_TIMES} {off.max():.3g} frames off frame / fps, first in {where}; frames go "
                "by order"
            )


def _numbers(column: Column | None) -> np.ndarray | None:
    return column if isinstance(column, np.ndarray) else None


def _value_at(ids: np.ndarray | None, row: int) -> str:
    return str(int(ids[row])) if ids is not None and row < len(ids) else "absent"


def _computed(key: str, ids: np.ndarray, frames: np.ndarray) -> np.ndarray:
    """Values of an index column that follows from the frames (B,) or (B, T) of episodes `ids`
    (B,).
    """
    if key == "frame_index":
        return frames.astype(np.int64)
    return np.broadcast_to(ids.reshape(-1, *[1] * (frames.ndim - 1)), frames.shape).astype(np.int64)


def _places(start: np.ndarray, frames: np.ndarray) -> np.ndarray:
    """Rows of a file of frames (B,) or (B, T) of episodes that start at `start` (B,)."""
    return start.reshape(-1, *[1] * (frames.ndim - 1)) + frames


def _pick(column: Column, places: np.ndarray) -> np.ndarray | list[Any]:
    """Take values at `places`, (B,) or (B, T)."""
    if isinstance(column, np.ndarray):
        return column[places]
    # `take` would first copy the whole column
    flat = [column[i].as_py() for i in places.reshape(-1).tolist()]
    if places.ndim == 1:
        return flat
    width = places.shape[1]
    return [flat[i : i + width] for i in range(0, places.size, width)]


def _scatter(
    out: np.ndarray | list[Any] | None,
    members: np.ndarray,
    values: np.ndarray | list[Any],
    count: int,
) -> np.ndarray | list[Any]:
    """Put the values of one file at their places in `out`, which holds `count` and is made at the
    first ones.
    """
    if len(members) == count:  # sorted, hence in the requested order
        return values
    if isinstance(values, np.ndarray):
        out = np.empty((count, *values.shape[1:]), values.dtype) if out is None else out
        assert isinstance(out, np.ndarray)
        out[members] = values
        return out
    out = [None] * count if out is None else out
    for i, value in zip(members.tolist(), values):
        out[i] = value
    return out
