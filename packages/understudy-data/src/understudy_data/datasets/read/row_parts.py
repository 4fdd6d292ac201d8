"""Rows of one episode of a data file on a server, without the rest of the file.

The first batch of a run has samples of dozens of data files. To fetch and decode whole files would
take gigabytes and minutes before it. The row groups of an episode are a small part of a file that
was written episode by episode. Of a file of one row group the columns are read up to the end of the
episode.

An episode is read so only where the file proves that its rows are where `meta/` lists them, and
nowhere else: by the smallest and largest `episode_index` of each row group, or by the column.
Everything else is for a reader of the whole file, which tells what is wrong.

The footer of a file of 1,000 row groups takes 5 MB of objects, and dozens of threads would have one
each. `Footers` bounds their memory, and what the C library keeps of it once they are gone.
"""

from __future__ import annotations

import ctypes
import threading
from collections.abc import Callable
from dataclasses import dataclass
from functools import lru_cache
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq

from understudy_data.storage.byte_source import ByteSource, as_file
from understudy_data.storage.dataset_root import Files
from understudy_data.storage.parquet_faults import check_values

_ROWS_AT_ONCE = 1024
_READ = 1 << 18  # bytes of a column that are read at once
_GAP = 1 << 16  # bytes between two columns that are fetched with them: a request costs more
_MARGIN = 1.1  # of the bytes of rows of equal size
_LARGE = 1 << 20  # bytes of a part that is fetched by several requests
_PARSED = 8  # memory of a parsed footer over its bytes in the file
_TAIL = 8  # last bytes of a file: the length of its footer, and "PAR1"


@dataclass(frozen=True)
class Place:
    """Where `meta/` lists the rows of an episode: rows [begin, end) of a file with `listed` rows in
    all.
    """

    episode: int
    begin: int
    end: int
    listed: int


class Footers:
    """Memory for parsed footers. Thread-safe.

    A thread waits until the footers of the others leave enough; a single one may be larger. Freed
    footers stay in the heap of each thread. Once as much has been freed, the C library returns free
    memory to the system.

    Args:
        most: bytes of footers at the same time, and of freed ones.

    Attributes:
        held: bytes of the footers in use.
    """

    def __init__(self, most: int) -> None:
        self.most = most
        self.held = 0
        self._freed = 0
        self._change = threading.Condition()

    def take(self, size: int) -> None:
        """Wait for `size` bytes."""
        with self._change:
            self._change.wait_for(lambda: not self.held or self.held + size <= self.most)
            self.held += size

    def give_back(self, size: int) -> None:
        """Give back `size` bytes of a footer that is freed."""
        with self._change:
            self.held -= size
            self._freed += size
            is_due = self._freed >= self.most
            self._freed = 0 if is_due else self._freed
            self._change.notify_all()
        if is_due:
            _return_freed_memory()


@lru_cache(maxsize=1)
def _find_trim() -> Callable[[int], int]:
    return getattr(ctypes.CDLL(None), "malloc_trim", lambda _: 0)


def _return_freed_memory() -> None:
    """Return free memory of the heaps to the system, where the C library can."""
    _find_trim()(0)


class RowPart:
    """The rows of an episode in a data file. A context manager, which holds the footer.

    Attributes:
        share: bytes of its row groups over those of the file.
        footer_share: bytes of the footer over those of the file.

    Args:
        files: the dataset's.
        path: the data file.
        source: the same, open. No row may be used before it is known to be of the version of the
            dataset.
        names: columns to read; those that the file lacks are left out.
        episodes: the column of these that holds numbers of episodes.
        place: where the episode is listed.
        footers: memory for footers.

    Raises:
        DatasetError: the file cannot be opened.
    """

    def __init__(
        self,
        files: Files,
        path: str,
        source: ByteSource,
        names: list[str],
        episodes: str,
        place: Place,
        footers: Footers,
    ) -> None:
        self._files = files
        self._path = path
        self._episodes = episodes
        self._place = place
        self._names = names
        self._footers = footers
        self._file: Any = None
        self._metadata: Any = None
        self._source = source
        end = source.size
        tail = source.read(max(0, end - _TAIL), min(_TAIL, end))
        length = min(int.from_bytes(tail[:4], "little") + len(tail), end)
        source.read(end - length, length)  # at once, where Arrow asks twice
        source.note_index()
        self._size = length * _PARSED
        footers.take(self._size)
        try:
            self._parse()
        except BaseException:
            self.__exit__()
            raise

    def __enter__(self) -> RowPart:
        return self

    def __exit__(self, *_: object) -> None:
        self._file = self._metadata = None
        self._footers.give_back(self._size)
        self._source.close()

    def _parse(self) -> None:
        place = self._place
        with self._files.explained(self._path):
            self._file = pq.ParquetFile(
                as_file(self._source, _GAP),
                page_checksum_verification=True,
                pre_buffer=False,
                buffer_size=_READ,
            )
            self._metadata = self._file.metadata
            # `metadata.schema` would make a cycle, which keeps the footer
            schema = self._file.schema_arrow
        self._leaves: list[str] = []
        for field in schema:
            self._leaves += [field.name] * _leaves_of(field.type)
        self._names = [name for name in self._names if name in schema.names]
        counts = [
            self._metadata.row_group(g).num_rows for g in range(self._metadata.num_row_groups)
        ]
        self._ends = np.cumsum([0, *counts])
        first, last = (
            np.searchsorted(self._ends, [place.begin, max(place.begin, place.end - 1)], "right") - 1
        )
        self._groups = range(int(first), min(int(last) + 1, len(counts)))
        self._spans = self._find_spans()
        size = max(1, self._source.size)
        self.share = int(self._spans[:, 1].sum()) / size
        self.footer_share = self._metadata.serialized_size / size

    def _find_spans(self) -> np.ndarray:
        """Spans of the needed bytes, int64 (k, 2) of (offset, size)."""
        spans: list[list[int]] = []
        for group in self._groups:
            begin = int(self._ends[group])
            end = int(self._ends[group + 1])
            needed = min(1.0, (self._place.end - begin) / max(1, end - begin))
            for leaf, (offset, size) in enumerate(_chunks(self._metadata.row_group(group))):
                name = self._leaves[leaf]
                if name in self._names:
                    most = size
                    if name != self._episodes:
                        most = min(size, int(size * needed * _MARGIN) + _GAP)
                    spans.append([offset, offset + most])
        joined: list[list[int]] = []
        for offset, stop in sorted(spans):
            if joined and offset <= joined[-1][1] + _GAP:
                joined[-1][1] = max(stop, joined[-1][1])
            else:
                joined.append([offset, stop])
        return np.array([(offset, stop - offset) for offset, stop in joined], np.int64).reshape(
            -1, 2
        )

    def prefetch_large(self) -> bool:
        """Start to fetch the bytes where they take several requests; return whether they do."""
        is_large = bool(self._spans[:, 1].sum() > _LARGE)
        if is_large:
            self._source.prefetch(self._spans)
        return is_large

    def read(self) -> pa.Table | None:
        """Read the rows; None where the file does not prove that they are where they are listed."""
        place = self._place
        if not 0 <= place.begin < place.end <= int(self._ends[-1]):
            return None
        if not self.prefetch_large():
            for offset, size in self._spans.tolist():
                # one request, where Arrow would make one for each column
                self._source.read(offset, size)
        with self._files.explained(self._path):
            if not self._is_proven():
                return None
            table = self._take()
            check_values(table, self._files.where(self._path))
        return table

    def _is_proven(self) -> bool:
        """Whether the rows of the episode are where they are listed, and no others."""
        place = self._place
        if self._episodes not in self._names:
            return int(self._ends[-1]) == place.listed
        for group in range(self._metadata.num_row_groups):
            begin = int(self._ends[group])
            end = int(self._ends[group + 1])
            inside = max(begin, place.begin) - begin, min(end, place.end) - begin
            bounds = _bounds(self._metadata.row_group(group), self._episodes)
            if bounds is None:
                return False
            if not bounds[0] <= place.episode <= bounds[1]:
                if inside[0] < inside[1]:
                    return False
            elif bounds[0] < bounds[1] or inside != (0, end - begin):
                column = self._file.read_row_group(
                    group, [self._episodes], use_threads=False
                ).column(0)
                ids = column.to_numpy()
                is_inside = np.zeros(len(ids), bool)
                is_inside[inside[0] : max(inside)] = inside[0] < inside[1]
                if column.null_count or ((ids == place.episode) != is_inside).any():
                    return False
        return True

    def _take(self) -> pa.Table:
        """Read batches until the end of the episode."""
        place = self._place
        parts = []
        at = int(self._ends[self._groups.start])
        batches = self._file.iter_batches(
            _ROWS_AT_ONCE, list(self._groups), self._names, use_threads=False
        )
        for batch in batches:
            low = max(place.begin, at)
            high = min(place.end, at + len(batch))
            if low < high:
                parts.append(batch.slice(low - at, high - low))
            at += len(batch)
            if at >= place.end:
                break
        return pa.Table.from_batches(parts).select(self._names)


def _leaves_of(kind: pa.DataType) -> int:
    """Columns of a file that hold values of a type."""
    if pa.types.is_struct(kind):
        return sum(_leaves_of(field.type) for field in kind)
    if pa.types.is_map(kind):
        return _leaves_of(kind.key_type) + _leaves_of(kind.item_type)
    if isinstance(kind, pa.BaseExtensionType):
        return _leaves_of(kind.storage_type)
    return _leaves_of(kind.value_type) if kind.num_fields else 1


def _chunks(group: pq.RowGroupMetaData) -> list[tuple[int, int]]:
    """(offset, size) of each column of a row group."""
    chunks = []
    for number in range(group.num_columns):
        column = group.column(number)
        offsets = [column.data_page_offset]
        if column.has_dictionary_page:
            offsets.append(column.dictionary_page_offset)
        chunks.append((min(offsets), column.total_compressed_size))
    return chunks


def _bounds(group: pq.RowGroupMetaData, name: str) -> tuple[Any, Any] | None:
    """Smallest and largest episode of a row group by its statistics; None where there are none."""
    for number in range(group.num_columns):
        column = group.column(number)
        if column.path_in_schema == name:
            statistics = column.statistics if column.is_stats_set else None
            if statistics is None or not statistics.has_min_max or statistics.null_count:
                return None
            return statistics.min, statistics.max
    return None
