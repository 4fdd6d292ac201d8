"""On-disk cache of remote files: spans of bytes, shared by all processes of a host, within a
budget.

    <folder>/v1/objects/<key>/<start>-<end>-<crc32>     bytes [start, end) of one version of one
                                                        file, complete
                              <start>-<end>.claim       a span being fetched; locked while its owner
                                                        lives; the bytes are written here before the
                                                        rename to a span
              v1/known/<hash>                           last known version of a file
                                                        (`remote_source.py`)
              v1/locks/<xx>                             held while spans are claimed or renamed, not
                                                        during transfers; holds the name of the last
                                                        claimant
              v1/used                                   upper bound of the bytes in all spans;
                                                        locked while it changes

Existing files are never trusted. A span appears by a rename, its name holds length and checksum,
and each process verifies it before the first use. Leftovers of a killed process are complete spans
or unlocked claims, to be removed. The key is a hash of address and version (etag, revision), so a
changed file has another key. Pinned spans hold a shared lock and are never evicted; others go by
time of last use. A span is as long as its fetch instead of a fixed block, so no unneeded byte is
fetched.
"""

from __future__ import annotations

import contextlib
import os
import threading
import time
import warnings
import zlib
from collections import OrderedDict
from collections.abc import Iterable
from dataclasses import dataclass

from understudy_base import DatasetError
from understudy_data.storage import locks
from understudy_data.storage.cache_budget import (
    CacheBudget,
    Span,
    Spans,
    cover,
    parse_claim,
    parse_span,
    subtract,
)

_STRIPES = 256
_TOUCH_EVERY = 60.0  # seconds between two updates of a span's modification time
MAX_PINS = 256
"""Most spans pinned by one process; each is an open file."""


@dataclass(frozen=True)
class Claim:
    """The exclusive right to fetch bytes [start, end) until they are stored or the claim is
    abandoned.
    """

    start: int
    end: int
    path: str
    lock: int


class DiskCache:
    """The cache of a host, as seen by one process. Safe in threads, not across a fork.

    Args:
        folder: Folder of the cache; created if missing.
        max_bytes: Budget in bytes. Spans beyond it are read without being cached.
    """

    def __init__(self, folder: str, max_bytes: int) -> None:
        self.folder = os.path.join(folder, "v1")
        self.budget = CacheBudget(self.folder, max_bytes)
        self._entries: dict[str, Entry] = {}
        self._lock = threading.Lock()
        self._pinned: OrderedDict[tuple[Entry, str], int] = (
            OrderedDict()
        )  # (entry, span name) -> descriptor, oldest pin first
        try:
            for name in ("objects", "known", "locks"):
                os.makedirs(os.path.join(self.folder, name), exist_ok=True)
        except OSError as error:
            problem = f"the cache folder cannot be created: {error.strerror}"
            raise DatasetError(problem, where=folder, fix="name another with cache=") from error
        for name in ("objects", "known", "locks"):
            if not os.access(os.path.join(self.folder, name), os.R_OK | os.W_OK | os.X_OK):
                raise DatasetError(
                    "the cache folder is not writable", where=folder, fix="name another with cache="
                )

    def entry(self, key: str) -> Entry:
        """Return the entry of one version of one file."""
        with self._lock:
            entry = self._entries.get(key)
            if entry is None:
                entry = self._entries[key] = Entry(self, key)
            return entry

    def close(self) -> None:
        """Unpin all spans."""
        with self._lock:
            entries = list(self._entries.values())
        for entry in entries:
            entry.unpin_all()

    def pin(self, entry: Entry, name: str, number: int) -> None:
        """Pin a span by its locked descriptor; beyond the limit the oldest pin is released."""
        with self._lock:
            spare = number if (entry, name) in self._pinned else None
            if spare is None:
                self._pinned[entry, name] = number
                if len(self._pinned) > MAX_PINS:
                    (other, first), spare = self._pinned.popitem(last=False)
                    other.pins.pop(first, None)
        if spare is not None:
            locks.release(spare)

    def unpin(self, keys: Iterable[tuple[Entry, str]]) -> None:
        """Release pins."""
        with self._lock:
            numbers = [self._pinned.pop(key) for key in keys if key in self._pinned]
        for number in numbers:
            locks.release(number)


class Entry:
    """The cached spans of one version of one file.

    Attributes:
        pins: Spans pinned by this process, by name.
    """

    def __init__(self, cache: DiskCache, key: str) -> None:
        self._cache = cache
        self._folder = os.path.join(cache.folder, "objects", key[:2], key)
        self._stripe = os.path.join(
            cache.folder, "locks", f"{zlib.crc32(key.encode()) % _STRIPES:02x}"
        )
        # identifies the last claimant under a shared lock
        self._name = os.urandom(8).hex().encode()
        self._spans = Spans()
        self._claims: dict[str, tuple[int, int]] = {}  # of all processes, by path
        self._own: set[str] = set()  # paths of this process's claims
        # whether the index matches the folder if no other process has claimed since
        self._current = False
        self.pins: dict[str, Span] = {}
        self._damaged: set[str] = set()  # damaged spans that could not be removed
        self._changed = threading.Condition()

    def read(self, offset: int, size: int) -> bytes | None:
        """Return bytes [offset, offset + size); None if this process does not know all of them to
        be cached.
        """
        memory = bytearray(size)
        return bytes(memory) if self.fill(offset, memoryview(memory)) else None

    def covers(self, offset: int, size: int) -> bool:
        """Return whether this process knows bytes [offset, offset + size) to be cached, damaged or
        not.
        """
        return self._cover(offset, offset + size) is not None

    def _cover(self, start: int, end: int) -> list[tuple[Span, int, int]] | None:
        with self._changed:
            return cover(self._spans.overlapping(start, end), start, end)

    def fill(self, offset: int, memory: memoryview) -> bool:
        """Fill `memory` with the bytes from `offset` on; return False if some are not cached."""
        pieces = self._cover(offset, offset + len(memory))
        return pieces is not None and all(
            self._read_span(span, start, memory[start - offset : end - offset])
            for span, start, end in pieces
        )

    def _read_span(self, span: Span, start: int, memory: memoryview) -> bool:
        """Fill `memory` from byte `start` of the file on; return False if the span is gone or
        damaged.
        """
        path = os.path.join(self._folder, span.name)
        try:
            number = os.open(path, os.O_RDONLY | os.O_CLOEXEC)
        except OSError:
            self._forget(span)
            return False
        try:
            if not span.verified:
                data = os.pread(number, span.end - span.start + 1, 0)
                if len(data) != span.end - span.start or zlib.crc32(data) != span.crc:
                    warnings.warn(f"{path}: damaged, fetched again", stacklevel=2)
                    self._damaged.add(span.name)
                    with contextlib.suppress(OSError):
                        os.unlink(path)
                        self._damaged.discard(span.name)
                    self._forget(span)
                    return False
                span.verified = True
            count = os.preadv(number, [memory], start - span.start)
            now = time.time()
            if now - span.used > _TOUCH_EVERY:
                os.utime(number)
                span.used = now
        except OSError:
            self._forget(span)
            return False
        finally:
            os.close(number)
        if count != len(memory):
            self._forget(span)
        return count == len(memory)

    def _forget(self, span: Span) -> None:
        with self._changed:
            self._spans.remove([span.name])
            self._current = False

    def claim(self, offset: int, size: int, part: int) -> tuple[list[Claim], bool]:
        """Claim the uncached bytes of [offset, offset + size), except those claimed by others.

        Args:
            offset: First byte.
            size: Number of bytes.
            part: Largest size of one claim.

        Returns:
            The claims, and whether others are fetching some of the bytes.
        """
        claims: list[Claim] = []
        with locks.hold(self._stripe) as held:
            if held is None:
                raise DatasetError(
                    "another process holds a lock", where=self._stripe, fix="end that process"
                )
            if not self._current or os.pread(held, len(self._name), 0) != self._name:
                self._rescan()
                os.pwrite(held, self._name, 0)
            busy = False
            with self._changed:
                cached = self._spans.overlapping(offset, offset + size)
                gaps = subtract([(offset, offset + size)], [(s.start, s.end) for s in cached])
                known_claims = list(self._claims.items())
            for path, (start, end) in known_claims:
                if start < offset + size and offset < end and gaps:
                    number = locks.acquire(path)
                    if number is None:
                        left = subtract(gaps, [(start, end)])
                        busy = busy or left != gaps
                        gaps = left
                    else:
                        try:
                            os.unlink(path)  # its owner died
                        except FileNotFoundError:  # it was renamed to a span
                            busy = True
                            gaps = subtract(gaps, [(start, end)])
                        finally:
                            locks.release(number)
            try:
                for start, end in gaps:
                    for begin in range(start, end, part):
                        claims.append(self._claim(begin, min(begin + part, end)))
            except BaseException:
                for claim in claims:
                    self.abandon(claim)
                raise
        return claims, busy

    def _claim(self, start: int, end: int) -> Claim:
        path = os.path.join(self._folder, f"{start:x}-{end:x}.claim")
        for _ in range(100):
            if (number := locks.acquire(path, create=True)) is not None:
                with self._changed:
                    self._claims[path] = start, end
                    self._own.add(path)
                return Claim(start, end, path, number)
            # not created yet, or evicted when it was empty
            os.makedirs(self._folder, exist_ok=True)
            time.sleep(0.001)  # else an eviction is testing the claim's lock
        raise DatasetError(
            "cannot be claimed", where=path, fix="check the cache folder, or name another"
        )

    def _rescan(self) -> None:
        """Update the index from the folder; the caller holds the lock for claims.

        Thousands of names may be there, and each costs a turn of the interpreter's lock. So this is
        called only if another process has claimed since.
        """
        with self._changed:
            known_names = set(self._spans.by_name)
        try:
            names = set(os.listdir(self._folder))
        except (FileNotFoundError, NotADirectoryError):
            names = set()
        with self._changed:
            self._claims = {path: self._claims[path] for path in self._own}
            for name in names - known_names - self._damaged:
                if (span := parse_span(name)) is not None:
                    self._spans.add(span)
                elif name.endswith(".claim") and (interval := parse_claim(name)) is not None:
                    self._claims[os.path.join(self._folder, name)] = interval
            self._current = len(self._claims) == len(self._own)
            if gone := known_names - names:
                self._spans.remove(gone)

    def store(self, claim: Claim, data: bytes, pin: bool = False) -> None:
        """Turn a claim into a cached span; its bytes must have been reserved in the budget.

        Args:
            claim: The claim; it ends.
            data: All of its bytes.
            pin: Pin the span.
        """
        span = Span(claim.start, claim.end, "", zlib.crc32(data), verified=True, used=time.time())
        span.name = f"{span.start:x}-{span.end:x}-{span.crc:08x}"
        try:
            view = memoryview(data)
            while view:
                view = view[os.write(claim.lock, view) :]
            # a listing meanwhile might have neither of the two names
            with locks.hold(self._stripe, wait=1.0):
                os.rename(claim.path, os.path.join(self._folder, span.name))
        except OSError as error:  # a full disk only makes reading slower
            self._cache.budget.release(len(data))
            if not isinstance(error, FileNotFoundError):
                self._cache.budget.warn_unwritable(error)
            self.abandon(claim)
            return
        pin = pin and locks.downgrade(claim.lock)
        with self._changed:
            self._spans.add(span)
            if pin:
                self.pins[span.name] = span
            self._end_claim(claim)
        if pin:
            self._cache.pin(self, span.name, claim.lock)
        else:
            locks.release(claim.lock)

    def abandon(self, claim: Claim) -> None:
        """End a claim without a span."""
        with contextlib.suppress(OSError):
            os.unlink(claim.path)
        locks.release(claim.lock)
        with self._changed:
            self._end_claim(claim)

    def _end_claim(self, claim: Claim) -> None:
        self._claims.pop(claim.path, None)
        self._own.discard(claim.path)
        self._changed.notify_all()

    def wait(self, seconds: float) -> None:
        """Wait until a thread of this process ends a claim, at most `seconds`."""
        with self._changed:
            self._changed.wait(seconds)

    def pin(self, offset: int, size: int) -> None:
        """Protect the cached spans of [offset, offset + size) from eviction until they are read to
        their ends.
        """
        with self._changed:
            spans = [
                span
                for span in self._spans.overlapping(offset, offset + size)
                if span.name not in self.pins
            ]
        for span in spans:
            number = locks.acquire(os.path.join(self._folder, span.name), shared=True)
            if number is not None:
                with self._changed:
                    self.pins[span.name] = span
                self._cache.pin(self, span.name, number)

    def unpin(self, offset: int, size: int) -> None:
        """Unpin the spans that end in [offset, offset + size]: they have been read to their
        ends.
        """
        if not self.pins:
            return
        with self._changed:
            spans = self._spans.overlapping(offset, offset + size)
            done = [
                span.name for span in spans if span.end <= offset + size and span.name in self.pins
            ]
            for name in done:
                del self.pins[name]
        if done:
            self._cache.unpin([(self, name) for name in done])

    def unpin_all(self) -> None:
        """Unpin all spans of this entry."""
        with self._changed:
            done = list(self.pins)
            self.pins = {}
        self._cache.unpin([(self, name) for name in done])
