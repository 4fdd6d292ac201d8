"""Disk budget of a host's cache: space is reserved before bytes are written, and the oldest spans are evicted."""

from __future__ import annotations

import contextlib
import os
import time
import warnings
from collections.abc import Iterator

from understudy.errors import DatasetError
from understudy.storage import locks
from understudy.storage.spans import parse_claim, parse_span

_FULL = 0.5  # seconds for which a cache full of pinned spans is not searched again


class CacheBudget:
    """The bytes of all spans below a cache's folder, of all processes together. Safe in threads and across processes.

    Args:
        folder: of the cache; the spans are below its `objects`, and their sum is kept in its `used`.
        budget: bytes that they may have.
    """

    def __init__(self, folder: str, budget: int) -> None:
        self._folder, self._budget = folder, budget
        self._full_until = 0.0

    def warn_unwritable(self, error: OSError) -> None:
        """Say that the cache cannot be written: that costs speed, not samples."""
        warnings.warn(f"{self._folder}: cannot be written: {error.strerror}", stacklevel=3)

    def reserve(self, count: int) -> bool:
        """Count bytes that the holder of a claim will write, making room for them; False where there is none."""
        if count > self._budget:
            return False
        try:
            return self._reserve(count)
        except OSError as error:
            self.warn_unwritable(error)
            return False

    def _reserve(self, count: int) -> bool:
        with self._used() as file:
            said = os.pread(file, 32, 0)
            used = int(said) if said.isdigit() else None
            if used is not None and used + count <= self._budget:
                fits, used = True, used + count
            elif time.monotonic() < self._full_until:
                return False
            else:
                used = self._evict(self._budget * 9 // 10)  # the claim is counted there
                fits = used <= self._budget
                if not fits:
                    used -= count
                    self._full_until = time.monotonic() + _FULL
            os.pwrite(file, b"%032d" % used, 0)
        return fits

    def release(self, count: int) -> None:
        """Take back a reservation of bytes that were not written."""
        with contextlib.suppress(OSError), self._used() as file:
            said = os.pread(file, 32, 0)
            if said.isdigit():
                os.pwrite(file, b"%032d" % max(0, int(said) - count), 0)

    @contextlib.contextmanager
    def _used(self) -> Iterator[int]:
        path = os.path.join(self._folder, "used")
        with locks.hold(path) as file:
            if file is None:
                raise DatasetError("another process holds the cache's lock", where=path, fix="end that process")
            yield file

    def _evict(self, goal: int) -> int:
        """Remove spans, those unused for longest first, until at most `goal` bytes are left, and what killed processes
        left; the bytes that are there or being fetched. The caller holds the lock of `used`."""
        total, spans = 0, []
        for folder in _folders(os.path.join(self._folder, "objects")):
            for entry in _entries(folder):
                name = entry.name
                if name.endswith(".claim"):
                    start, end = parse_claim(name) or (0, 0)
                    if (number := locks.acquire(entry.path)) is not None:
                        with contextlib.suppress(OSError):
                            os.unlink(entry.path)
                            end = start  # it was nobody's; else it is a span by now
                        locks.release(number)
                    total += end - start
                elif (span := parse_span(name)) is not None:
                    with contextlib.suppress(OSError):
                        spans.append((entry.stat().st_mtime, span.end - span.start, entry.path))
                        total += span.end - span.start
        spans.sort()
        for _, size, path in spans:
            if total <= goal:
                break
            if (number := locks.acquire(path)) is not None:  # else somebody pinned it
                with contextlib.suppress(OSError):
                    os.unlink(path)
                    total -= size
                locks.release(number)
                with contextlib.suppress(OSError):
                    os.rmdir(os.path.dirname(path))  # the last of its file
        return total


def _folders(root: str) -> Iterator[str]:
    for outer in _entries(root):
        yield from (inner.path for inner in _entries(outer.path))


def _entries(folder: str) -> list[os.DirEntry[str]]:
    try:
        with os.scandir(folder) as found:
            return list(found)
    except (FileNotFoundError, NotADirectoryError):
        return []
