"""Bytes of one file by place: `ByteSource`, the one way to read videos, rows and metadata; and its local form.

A source is pinned to what the file was when it was opened: a file that changes under its reader is an error and never a
mixture of two files. Reading from elsewhere is in `remote/`.
"""

from __future__ import annotations

import io
import os
from collections.abc import Callable
from typing import BinaryIO, Protocol, cast

import numpy as np

from understudy.errors import DatasetError, SourceError

CHANGED = "it changed while it was read"
RESTART = "start again once nothing writes to it any more"


class ByteSource(Protocol):
    """A file that is read by place, from any thread; it pickles as its address.

    Attributes:
        where: its full name, for people.
        size: bytes.
        tag: what the file was when it was opened (etag, revision, or size and time of change).
    """

    where: str
    size: int
    tag: str

    def fill(self, offset: int, memory: memoryview) -> None:
        """Fill `memory` (writable, of bytes) from `offset` on. Raises DatasetError: so many are not there, cannot be
        had, or the file is no longer what `tag` says; what is in the memory is then undefined."""

    def read(self, offset: int, size: int) -> bytes:
        """Exactly `size` bytes from `offset`, in memory of their own. Raises as `fill` does."""
        memory = bytearray(size)
        self.fill(offset, memoryview(memory))
        return bytes(memory)

    def prefetch(self, spans: np.ndarray) -> None:
        """Say that `spans`, int64 (k, 2) of (offset, size), will be read soon, in this order. Returns at once; raises
        nothing, since whatever is wrong will be raised by `read`. Nothing to do for a local file."""

    def close(self) -> None:
        """Release what is held open, and what was fetched ahead and not read."""


class _Descriptor:
    """An open file that closes when nobody refers to it any more: `close` in one thread must not give away a number
    that another thread is reading from."""

    def __init__(self, path: str) -> None:
        self.number = -1
        self.number = os.open(path, os.O_RDONLY | os.O_CLOEXEC)

    def __del__(self, close: Callable[[int], None] = os.close) -> None:  # at exit `os` may be gone
        if self.number >= 0:
            close(self.number)


class LocalSource(ByteSource):
    """A file of this machine, read with `preadv`; see `ByteSource`. Closed, it opens again when it is read."""

    def __init__(self, path: str) -> None:
        self.where, self.tag = path, ""
        there = os.fstat(self._open().number)
        self.size, self.tag = there.st_size, _tag(there)

    def _open(self) -> _Descriptor:
        path = self.where
        if os.path.exists(path) and not os.path.isfile(path):  # a pipe would be waited for
            raise DatasetError("is no file", where=path, fix="name a file")
        try:
            self._file: _Descriptor | None = _Descriptor(path)
        except OSError as error:
            raise DatasetError(f"cannot be opened: {error.strerror}", where=path, fix="check path and rights") from None
        return self._file

    def fill(self, offset: int, memory: memoryview) -> None:
        file = self._file or self._open()  # held here, so that no other thread's `close` gives its number away
        size = len(memory)
        try:
            have = os.preadv(file.number, [memory], offset)
            while 0 < have < size and (more := os.preadv(file.number, [memory[have:]], offset + have)):
                have += more
            there = os.fstat(file.number)
        except OSError as error:
            raise DatasetError(f"cannot be read: {error.strerror}", where=self.where, fix="check the disk") from None
        if have < size:
            what = f"ends at byte {offset + have}, where byte {offset + size} is needed"
            raise DatasetError(what, where=self.where, fix="the file is damaged: copy or record it again")
        if _tag(there) != self.tag:
            raise SourceError(CHANGED, where=self.where, fix=RESTART)

    def prefetch(self, spans: np.ndarray) -> None:
        return None

    def close(self) -> None:
        self._file = None

    def __reduce__(self) -> tuple[object, ...]:
        return LocalSource, (self.where,)


def _tag(there: os.stat_result) -> str:
    return f"{there.st_size}-{there.st_mtime_ns}"


class _Raw(io.RawIOBase):
    """A source with a place in it, for readers that want a file."""

    def __init__(self, source: ByteSource) -> None:
        self._source, self._at = source, 0

    def readable(self) -> bool:
        return True

    def seekable(self) -> bool:
        return True

    def tell(self) -> int:
        return self._at

    def seek(self, offset: int, whence: int = os.SEEK_SET) -> int:
        base = {os.SEEK_SET: 0, os.SEEK_CUR: self._at, os.SEEK_END: self._source.size}[whence]
        if base + offset < 0:
            raise ValueError(f"a place before the file: {base + offset}")
        self._at = base + offset
        return self._at

    def readinto(self, buffer: object) -> int:
        view = memoryview(buffer).cast("B")  # type: ignore[arg-type]  # the stub of io says `Buffer`, of 3.12
        count = max(0, min(len(view), self._source.size - self._at))
        if count:
            self._source.fill(self._at, view[:count])
        self._at += count
        return count


def as_file(source: ByteSource, buffer: int = 0) -> BinaryIO:
    """A file to read from, of a source. `buffer`: bytes read at once at least (0: what is asked for)."""
    raw = _Raw(source)
    return cast(BinaryIO, io.BufferedReader(raw, buffer) if buffer else raw)
