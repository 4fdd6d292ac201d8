"""Bytes of one file by position: the interface `ByteSource` and its local implementation.

Videos, rows and metadata are all read through it. A source is pinned to the version of the file
that was opened: a file that changes under its reader raises an error and never yields a mix of two
versions. `remote_source.py` implements it for remote files.
"""

import io
import os
import resource
from collections.abc import Callable
from stat import S_ISREG
from typing import BinaryIO, ClassVar, Protocol, cast

import numpy as np

from understudy_base import DatasetError, SourceError

CHANGED = "it changed while it was read"
RESTART = "start again when nothing writes to it any more"


class ByteSource(Protocol):
    """A file read by position, from any thread. It pickles as its address.

    Attributes:
        where: Full name of the file, for messages.
        size: Size in bytes.
        tag: Version of the file when it was opened: etag, revision, or size and modification time.
    """

    where: str
    size: int
    tag: str

    def fill(self, offset: int, memory: memoryview) -> None:
        """Fill `memory` (writable bytes) with the bytes from `offset` on.

        Raises:
            DatasetError: The file is shorter, cannot be read or has another `tag` now. `memory` is
                then undefined.
        """

    def read(self, offset: int, size: int) -> bytes:
        """Return a copy of `size` bytes from `offset`; raises as `fill` does."""
        memory = bytearray(size)
        self.fill(offset, memoryview(memory))
        return bytes(memory)

    def prefetch(self, spans: np.ndarray) -> None:
        """Announce spans that will be read soon: int64 (k, 2) of (offset, size), in reading order.

        Returns at once and raises nothing; `read` raises any error later. Does nothing for a local
        file.
        """

    def note_index(self) -> None:
        """Note that all reads so far were of the file's index. Other files of a server are opened
        with as many bytes.

        Does nothing for a local file.
        """

    def close(self) -> None:
        """Release the open file and all prefetched spans."""


_LIMIT = resource.getrlimit(resource.RLIMIT_NOFILE)[0]
_OPEN_FILES = (
    min(256, _LIMIT // 4) if _LIMIT > 0 else 256
)  # that stay open in this process; others are opened for a read


class _Descriptor:
    """A file descriptor closed with its last reference, so that no thread reads from a number given
    to another file.
    """

    opened: ClassVar[set[int]] = set()  # numbers of this process

    def __init__(self, path: str) -> None:
        self.number = -1
        self.number = os.open(path, os.O_RDONLY | os.O_CLOEXEC)
        self.opened.add(self.number)

    # `os` may be gone at interpreter exit
    def __del__(self, close: Callable[[int], None] = os.close) -> None:
        if self.number >= 0:
            self.opened.discard(self.number)
            close(self.number)


class LocalSource(ByteSource):
    """A local file, read with `preadv`. A read after `close` opens it again."""

    def __init__(self, path: str) -> None:
        self.where = path
        self.tag = ""
        file = self._open()  # this reference keeps it open
        stat = os.fstat(file.number)
        self.size = stat.st_size
        self.tag = _tag(stat)

    def _open(self) -> _Descriptor:
        path = self.where
        try:
            if not S_ISREG(os.stat(path).st_mode):  # opening a pipe would block
                raise DatasetError("is not a file", where=path, fix="name a file")
            file = _Descriptor(path)
        except OSError as error:
            raise DatasetError(
                f"cannot be opened: {error.strerror}", where=path, fix="check path and rights"
            ) from None
        self._file = file if len(file.opened) <= _OPEN_FILES else None
        return file

    def fill(self, offset: int, memory: memoryview) -> None:
        """See `ByteSource.fill`."""
        # this reference keeps the descriptor open if another thread calls `close`
        file = self._file or self._open()
        size = len(memory)
        try:
            count = os.preadv(file.number, [memory], offset)
            while 0 < count < size and (
                more := os.preadv(file.number, [memory[count:]], offset + count)
            ):
                count += more
            stat = os.fstat(file.number)
        except OSError as error:
            raise DatasetError(
                f"cannot be read: {error.strerror}", where=self.where, fix="check the disk"
            ) from None
        if count < size:
            problem = f"ends at byte {offset + count}, where byte {offset + size} is needed"
            raise DatasetError(
                problem, where=self.where, fix="the file is damaged: copy or record it again"
            )
        if _tag(stat) != self.tag:
            raise SourceError(CHANGED, where=self.where, fix=RESTART)

    def prefetch(self, spans: np.ndarray) -> None:
        """Do nothing: the file is local."""

    def note_index(self) -> None:
        """Do nothing: the file is local."""

    def close(self) -> None:
        """Close the file, as soon as no thread reads from it."""
        self._file = None

    def __reduce__(self) -> tuple[object, ...]:
        return LocalSource, (self.where,)


def _tag(stat: os.stat_result) -> str:
    return f"{stat.st_size}-{stat.st_mtime_ns}"


class _Raw(io.RawIOBase):
    """A source with a current position, for readers that need a file object."""

    def __init__(self, source: ByteSource) -> None:
        self._source = source
        self._at = 0

    def readable(self) -> bool:
        return True

    def seekable(self) -> bool:
        return True

    def tell(self) -> int:
        return self._at

    def seek(self, offset: int, whence: int = os.SEEK_SET) -> int:
        base = {os.SEEK_SET: 0, os.SEEK_CUR: self._at, os.SEEK_END: self._source.size}[whence]
        if base + offset < 0:
            raise ValueError(f"seek to {base + offset}, before the start of the file")
        self._at = base + offset
        return self._at

    def readinto(self, buffer: object) -> int:
        # io's stub wants `Buffer` of Python 3.12
        view = memoryview(buffer).cast("B")  # type: ignore[arg-type]
        count = max(0, min(len(view), self._source.size - self._at))
        if count:
            self._source.fill(self._at, view[:count])
        self._at += count
        return count


def as_file(source: ByteSource, buffer: int = 0) -> BinaryIO:
    """Wrap a source as a file object.

    Args:
        source: The file to read.
        buffer: Least number of bytes per read; 0 reads exactly as much as requested.
    """
    raw = _Raw(source)
    file = io.BufferedReader(raw, buffer) if buffer else raw
    return cast(BinaryIO, file)
