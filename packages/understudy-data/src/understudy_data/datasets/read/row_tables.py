"""Mapped files of columns: those of a large dataset are decoded once per host, not once per process
and lane.

A lane of the order reads its own data file, and hundreds of lanes read hundreds of files. Columns
of whole files in the memory of each process would be 1.4 GB for 18.8 million frames with two
vectors of seven numbers; a smaller cache would decode a file again for every few samples. So each
data file is decoded at its first use into an Arrow IPC file in the host's cache. All processes map
it; its pages are page cache, which the kernel drops where memory is needed.

The name of a mapped file is a hash of all that its content depends on: size, times or etag of the
data file, the keys and their declarations, and the episodes that `meta/` lists for it. Appended
data files leave the earlier ones as they are. A killed process leaves a draft, never half a table.
Where no local folder can be written, or it is on a network file system, columns are in the memory
of the process.
"""

from __future__ import annotations

import hashlib
import json
import logging
import math
import resource
import threading
import time
from collections.abc import Callable, Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager
from pathlib import Path
from typing import Any, TypeVar

import numpy as np

from understudy_base import DataAccessError
from understudy_data.datasets.format.catalog import Catalog
from understudy_data.datasets.format.features import DEFAULTS, INDEX_KEYS
from understudy_data.storage import mapped_tables

MAPPED_FILES = max(64, min(1024, resource.getrlimit(resource.RLIMIT_NOFILE)[0] // 4))
"""Most files that a process has mapped; each takes a file descriptor. A file that is mapped again
costs 0.3 ms.
"""
LEAST_DATASET = 64 << 20
"""Bytes of columns of a dataset from which on they are mapped."""
LEAST_FILE = 1 << 20
"""Bytes of columns of a data file from which on they are mapped."""

_FOLDER = "rows"
_COMPUTED = ("frame_index", "episode_index")  # they follow from the place of a row
_TOLD_AFTER = 2.0  # seconds of decoding before the first line about it
_TOLD_EVERY = 30.0
_log = logging.getLogger("understudy.data.read.row_tables")

T = TypeVar("T")


def row_bytes(catalog: Catalog, keys: Sequence[str]) -> int:
    """Bytes of the columns of one row; a text counts as a number."""
    size = 0
    for key in dict.fromkeys([*keys, *INDEX_KEYS]):
        feature = catalog.features.get(key) or DEFAULTS.get(key)
        if key in _COMPUTED or (feature is not None and feature.is_camera):
            continue
        if feature is None or feature.is_text:
            size += 8
            continue
        size += math.prod(feature.value_shape) * np.dtype(feature.dtype).itemsize
    return size


class RowTables:
    """Mapped files of the columns of a dataset.

    Args:
        catalog: the dataset.
        keys: its columns.
    """

    def __init__(self, catalog: Catalog, keys: Sequence[str]) -> None:
        self.catalog = catalog
        self.keys = tuple(dict.fromkeys([*keys, *INDEX_KEYS]))
        self.row_bytes = row_bytes(catalog, self.keys)
        self._set_up()

    def _set_up(self) -> None:
        self._lock = threading.Lock()
        self._frames: np.ndarray | None = None
        self._is_available: bool | None = None
        self._folder: Path | None = None
        self._keys: dict[int, str] = {}
        self._progress = _Progress()
        self.limit(1)

    def __getstate__(self) -> dict[str, Any]:
        return {name: value for name, value in self.__dict__.items() if not name.startswith("_")}

    def __setstate__(self, state: dict[str, Any]) -> None:
        self.__dict__.update(state)
        self._set_up()

    @property
    def is_available(self) -> bool:
        """Whether the columns of large data files are mapped: the dataset is large, and there is a
        folder for them.
        """
        if self._is_available is None:
            cache = self.catalog.files.cache
            self._folder = (
                mapped_tables.table_folder(cache, _FOLDER) if self._is_large_set else None
            )
            self._is_available = self._folder is not None
        return self._is_available

    @property
    def _is_large_set(self) -> bool:
        return self.catalog.episodes.frames * self.row_bytes >= LEAST_DATASET

    def is_large(self, size: int) -> bool:
        """Return whether columns of one data file, `size` bytes, are mapped where there is a folder
        for them.
        """
        return size >= LEAST_FILE and self._is_large_set

    def limit(self, readers: int) -> None:
        """Let this process decode so many data files at the same time."""
        self._readers = threading.BoundedSemaphore(readers)
        self._threads = readers

    def holds(self, file: int) -> bool:
        """Return whether the columns of a data file are mapped."""
        if not self.is_available:
            return False
        if self._frames is None:
            table = self.catalog.episodes
            self._frames = np.bincount(table.data_file, table.lengths, len(table.data)).astype(
                np.int64
            )
        return self.is_large(int(self._frames[file]) * self.row_bytes)

    def is_decoded(self, file: int) -> bool:
        """Return whether a process of the host has decoded a data file, without a look into the
        result.
        """
        if not self.is_available:
            return False
        folder = self._folder
        assert folder is not None
        if file not in self._keys:
            try:
                self._keys[file] = self._key(file, self._version(file))
            except DataAccessError:
                return False  # reading the file explains it
        return mapped_tables.is_stored(folder, self._keys[file])

    def open(self, decode: Callable[[int], T], file: int) -> T | None:
        """Map the columns of a data file, and decode them first if no process of the host has done
        so.

        Args:
            decode: decodes a data file by its number.
            file: number of the data file.

        Returns:
            The columns; None where the data file or the folder of mapped files cannot be read.
        """
        try:
            version = self._version(file)
        except DataAccessError:
            return None  # reading the file explains it

        def make() -> tuple[T, bool]:
            with self._readers, self._progress.of_one(self):
                loaded = decode(file)
            return loaded, self._version(file) == version

        options = self.catalog.files.options
        budget = options.cache_bytes if options is not None else 0
        return mapped_tables.once_per_host(
            self._key(file, version),
            make,
            self.catalog.files.cache,
            folder=_FOLDER,
            budget=budget or mapped_tables.ROW_BUDGET,
            durable=False,
        )

    def run(self, load: Callable[[int], object], files: Sequence[int]) -> None:
        """Call `load` with each file, in several threads where memory allows (`limit`)."""
        threads = min(len(files), self._threads)
        if threads < 2:
            return
        with ThreadPoolExecutor(threads, "rows") as pool:
            for _ in pool.map(load, files):
                pass

    def _version(self, file: int) -> str:
        path = self.catalog.data_path(int(self.catalog.episodes.rows_in(file)[0]))
        self.catalog.files.confirm(path)
        return f"{path} {self.catalog.files.version(path)}"

    def _key(self, file: int, version: str) -> str:
        catalog = self.catalog
        table = catalog.episodes
        rows = table.rows_in(file)
        declared = [(key, repr(catalog.features.get(key))) for key in self.keys]
        names = [
            (key, repr(catalog.joined.get(key)), catalog.stored_names.get(key)) for key in self.keys
        ]
        settings = [table.own_files, table.lists_places, table.pairing, catalog.has_images_by_place]
        facts = [
            mapped_tables.code_version(),
            catalog.root,
            version,
            declared,
            names,
            settings,
            len(catalog.tasks),
        ]
        digest = hashlib.sha256(json.dumps([*facts, float(catalog.fps)], default=str).encode())
        for column in (rows, table.ids, table.lengths, table.index_from, table.data_row):
            of_file = column if column is rows else column[rows]
            digest.update(of_file.astype(np.int64).tobytes())
        tasks = table.task_indices.view(np.uint8).data
        width = table.task_indices.itemsize
        begins = (table.task_offsets[rows] * width).tolist()
        ends = (table.task_offsets[rows + 1] * width).tolist()
        of_rows = [tasks[begin:end] for begin, end in zip(begins, ends)]
        digest.update(b"|".join([*of_rows, b""]))
        return digest.hexdigest()


class _Progress:
    """Lines about the decoding of data files, where it takes long."""

    def __init__(self) -> None:
        self._lock = threading.Lock()
        self._begun = 0.0
        self._told = 0.0
        self._decoded = 0

    @contextmanager
    def of_one(self, tables: RowTables) -> Iterator[None]:
        """Count a data file that the block decodes."""
        with self._lock:
            self._begun = self._begun or time.monotonic()
        yield
        with self._lock:
            self._decoded += 1
            now = time.monotonic()
            waited = now - (self._told or self._begun)
            patience = _TOLD_EVERY if self._told else _TOLD_AFTER
            if waited < patience:
                return
            self._told = now
            rate = self._decoded / (now - self._begun)
        files = len(tables.catalog.episodes.data)
        gigabytes = tables.catalog.episodes.frames * tables.row_bytes / 1e9
        line = (
            "%s: rows are decoded once per host: %d of %d data files in this process, %.1f "
            "files/s, %.1f GB in all"
        )
        _log.info(line, tables.catalog.name, self._decoded, files, rate, gigabytes)
