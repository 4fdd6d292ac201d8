"""Disk budgets: space in a host's cache is reserved before bytes are written, and the oldest files
are evicted.

Also the spans of a file as the cache names and indexes them: bytes [start, end) and their checksum.
"""

from __future__ import annotations

import bisect
import contextlib
import os
import time
import warnings
from collections.abc import Iterable, Iterator
from dataclasses import dataclass
from itertools import accumulate
from pathlib import Path

from understudy_base import DRAFT_SUFFIX, DatasetError
from understudy_data.storage import locks

_STALE = 3600.0  # seconds after which a draft or lock is a leftover of a killed process
_RETRY_FULL = 0.5  # seconds between two searches for evictable spans in a full cache


@dataclass
class Span:
    """Bytes [start, end) of a file, cached under `name`.

    Attributes:
        start: First byte.
        end: Byte after the last one.
        name: File name in the cache.
        crc: CRC-32 of the bytes.
        verified: Whether this process has checked the bytes against `crc`.
        used: When this process last updated the modification time, in seconds since 1970.
    """

    start: int
    end: int
    name: str
    crc: int
    verified: bool = False
    used: float = 0.0


class Spans:
    """Index of the spans of one file, which may overlap. Not safe in threads.

    Attributes:
        by_name: All spans by file name.
    """

    def __init__(self) -> None:
        self.by_name: dict[str, Span] = {}
        self._spans: list[Span] = []  # by start
        self._starts: list[int] = []
        self._reach: list[int] = []  # furthest end of this span and all before it

    def add(self, span: Span) -> None:
        """Add a span, unless one of its name is there."""
        if span.name in self.by_name:
            return
        self.by_name[span.name] = span
        place = bisect.bisect_right(self._starts, span.start)
        self._spans.insert(place, span)
        self._starts.insert(place, span.start)
        reach_before = self._reach[place - 1] if place else 0
        self._reach.insert(place, max(span.end, reach_before))
        for i in range(place + 1, len(self._reach)):
            if self._reach[i] >= span.end:
                break
            self._reach[i] = span.end

    def remove(self, names: Iterable[str]) -> None:
        """Remove the spans of these names; unknown names are ignored."""
        for name in names:
            self.by_name.pop(name, None)
        self._spans = [span for span in self._spans if span.name in self.by_name]
        self._starts = [span.start for span in self._spans]
        self._reach = list(accumulate((span.end for span in self._spans), max))

    def overlapping(self, start: int, end: int) -> list[Span]:
        """Return the spans that overlap [start, end), sorted by start."""
        low = bisect.bisect_right(self._reach, start)
        high = bisect.bisect_left(self._starts, end)
        return [span for span in self._spans[low:high] if span.end > start]


def parse_span(name: str) -> Span | None:
    """Return the span that a cached file's name describes; None for a foreign name."""
    try:
        start, end, crc = (int(part, 16) for part in name.split("-"))
    except ValueError:
        return None
    return Span(start, end, name, crc)


def parse_claim(name: str) -> tuple[int, int] | None:
    """Return (start, end) from the file name of a claim; None for a foreign name."""
    try:
        start, end = (int(part, 16) for part in name.removesuffix(".claim").split("-"))
    except ValueError:
        return None
    return start, end


def cover(spans: list[Span], start: int, end: int) -> list[tuple[Span, int, int]] | None:
    """Return (span, start, end) pieces that make up [start, end); None if some byte is in no span.

    `spans` must be sorted by start.
    """
    pieces = []
    while start < end:
        place = bisect.bisect_right(spans, start, key=lambda span: span.start)
        # nearly always the first of these
        candidates = (spans[i] for i in range(place - 1, -1, -1))
        span = next((span for span in candidates if span.end > start), None)
        if span is None:
            return None
        stop = min(span.end, end)
        pieces.append((span, start, stop))
        start = stop
    return pieces


def subtract(
    intervals: list[tuple[int, int]], removed: list[tuple[int, int]]
) -> list[tuple[int, int]]:
    """Return the parts of `intervals` outside all intervals of `removed`."""
    for begin, end in removed:
        left = []
        for start, stop in intervals:
            if end <= start or stop <= begin:
                left.append((start, stop))
                continue
            if start < begin:
                left.append((start, begin))
            if end < stop:
                left.append((end, stop))
        intervals = left
    return intervals


class CacheBudget:
    """Budget for the spans of all processes of a host. Safe in threads and across processes.

    Args:
        folder: The cache's folder. Its spans are below `objects`; the file `used` holds their total
            size.
        max_bytes: Largest total size.
    """

    def __init__(self, folder: str, max_bytes: int) -> None:
        self._folder = folder
        self._max_bytes = max_bytes
        self._full_until = 0.0

    def warn_unwritable(self, error: OSError) -> None:
        """Warn that the cache cannot be written. Reading continues, only slower."""
        warnings.warn(f"{self._folder}: cannot be written: {error.strerror}", stacklevel=3)

    def reserve(self, count: int) -> bool:
        """Reserve bytes that the holder of a claim will write, evicting old spans; return False if
        they do not fit.
        """
        if count > self._max_bytes:
            return False
        try:
            return self._reserve(count)
        except OSError as error:
            self.warn_unwritable(error)
            return False

    def _reserve(self, count: int) -> bool:
        with self._lock_used() as file:
            text = os.pread(file, 32, 0)
            used = int(text) if text.isdigit() else None
            if used is not None and used + count <= self._max_bytes:
                fits = True
                used = used + count
            elif time.monotonic() < self._full_until:
                return False
            else:
                # its count includes the claim's bytes
                used = self._evict(self._max_bytes * 9 // 10)
                fits = used <= self._max_bytes
                if not fits:
                    used -= count
                    self._full_until = time.monotonic() + _RETRY_FULL
            os.pwrite(file, b"%032d" % used, 0)
        return fits

    def release(self, count: int) -> None:
        """Return reserved bytes that were not written."""
        with contextlib.suppress(OSError), self._lock_used() as file:
            text = os.pread(file, 32, 0)
            if text.isdigit():
                os.pwrite(file, b"%032d" % max(0, int(text) - count), 0)

    @contextlib.contextmanager
    def _lock_used(self) -> Iterator[int]:
        path = os.path.join(self._folder, "used")
        with locks.hold(path) as file:
            if file is None:
                raise DatasetError(
                    "another process holds the cache's lock", where=path, fix="end that process"
                )
            yield file

    def _evict(self, goal: int) -> int:
        """Remove leftovers of killed processes, then the oldest spans until at most `goal` bytes
        are left.

        The caller holds the lock of `used`. Returns the bytes of all remaining spans and claims.
        """
        total = 0
        spans = []
        for folder in _list_objects(os.path.join(self._folder, "objects")):
            for entry in _scan(folder):
                name = entry.name
                if name.endswith(".claim"):
                    start, end = parse_claim(name) or (0, 0)
                    if (number := locks.acquire(entry.path)) is not None:
                        with contextlib.suppress(OSError):
                            os.unlink(entry.path)
                            end = start  # its owner died; if unlinking fails, it has become a span
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
            if (number := locks.acquire(path)) is not None:  # None: a process has pinned it
                with contextlib.suppress(OSError):
                    os.unlink(path)
                    total -= size
                locks.release(number)
                with contextlib.suppress(OSError):
                    os.rmdir(os.path.dirname(path))  # succeeds for the last span of a file
        return total


def _list_objects(root: str) -> Iterator[str]:
    for outer in _scan(root):
        yield from (inner.path for inner in _scan(outer.path))


def _scan(folder: str) -> list[os.DirEntry[str]]:
    try:
        with os.scandir(folder) as entries:
            return list(entries)
    except (FileNotFoundError, NotADirectoryError):
        return []


def evict_files(folder: Path, max_bytes: int, keep: Path) -> None:
    """Remove leftovers of killed processes, and the least recently used files beyond `max_bytes`,
    from a flat folder.

    Args:
        folder: Folder of files that are replaced in one step (`atomic.py`).
        max_bytes: Largest sum of all file sizes.
        keep: File that stays in any case; it counts.
    """
    files = []
    for entry in os.scandir(folder):
        with contextlib.suppress(OSError):  # another process evicts, too
            stat = entry.stat()
            if entry.name.endswith((DRAFT_SUFFIX, ".lock")):
                if time.time() - stat.st_mtime > _STALE:
                    os.unlink(entry.path)
            else:
                files.append((max(stat.st_atime_ns, stat.st_mtime_ns), stat.st_size, entry.path))
    total = sum(size for _, size, _ in files)
    for _, size, path in sorted(files):
        if total <= max_bytes:
            return
        if path != str(keep):
            with contextlib.suppress(OSError):
                os.unlink(path)
            total -= size
