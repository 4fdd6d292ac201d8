"""What was read from elsewhere, kept on this host's disk: spans of files, shared by all its processes, within a budget.

    <folder>/v1/objects/<key>/<start>-<end>-<crc32>     bytes [start, end) of one version of one file, complete
                              <start>-<end>.claim       somebody is fetching these; locked while that somebody lives;
                                                        what was fetched is written into it before it gets its name
              v1/known/<hash>                             what a file was when it was last asked for (`remote.py`)
              v1/locks/<xx>                             held while claims are shared out, never during a transfer;
                                                        says who did that last
              v1/used                                   bytes in all spans, at least; locked while it changes

Nothing is trusted because it is there. A span appears by a rename, under a name that holds its length and checksum, and
is checked when a process first reads it; whatever a killed process leaves is either complete or has no lock, and is
removed. The key is a hash of the address and version (etag, revision), so a changed source is another object. A span
that somebody pinned is locked by him and never evicted; the rest goes by age of last use. Spans are what was fetched,
not blocks of a fixed size, so that not one byte more is fetched than is needed.
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

from understudy.errors import DatasetError
from understudy.storage import locks
from understudy.storage.cache_budget import CacheBudget
from understudy.storage.spans import Span, Spans, cover, parse_claim, parse_span, subtract

_STRIPES = 256
_FRESH = 60.0  # seconds within which a span is not marked as used again
_PINS = 256  # spans that one process pins at most: each is an open file


@dataclass(frozen=True)
class Claim:
    """The right to fetch [start, end), until it is given back."""

    start: int
    end: int
    path: str
    lock: int


class DiskCache:
    """The cache of a host, as seen by one process. Safe in threads, not across a fork; see the head of this file.

    Args:
        folder: made if it is not there.
        budget: bytes. What does not fit is read without being kept.
    """

    def __init__(self, folder: str, budget: int) -> None:
        self.folder = os.path.join(folder, "v1")
        self.budget = CacheBudget(self.folder, budget)
        self._entries: dict[str, Entry] = {}
        self._lock = threading.Lock()
        self._pinned: OrderedDict[tuple[Entry, str], int] = OrderedDict()  # descriptors, the first pinned first
        try:
            for name in ("objects", "known", "locks"):
                os.makedirs(os.path.join(self.folder, name), exist_ok=True)
        except OSError as error:
            what = f"the cache folder cannot be made: {error.strerror}"
            raise DatasetError(what, where=folder, fix="name another with cache=") from error
        for name in ("objects", "known", "locks"):
            if not os.access(os.path.join(self.folder, name), os.R_OK | os.W_OK | os.X_OK):
                raise DatasetError("the cache folder may not be written", where=folder, fix="name another with cache=")

    def entry(self, key: str) -> Entry:
        """What is kept of one version of one file."""
        with self._lock:
            found = self._entries.get(key)
            if found is None:
                found = self._entries[key] = Entry(self, key)
            return found

    def close(self) -> None:
        """Unpin everything."""
        with self._lock:
            entries = list(self._entries.values())
        for entry in entries:
            entry.unpin_all()

    def pin(self, entry: Entry, name: str, number: int) -> None:
        """Keep the locked descriptor of a span; the first of too many is let go."""
        with self._lock:
            spare = number if (entry, name) in self._pinned else None
            if spare is None:
                self._pinned[entry, name] = number
                if len(self._pinned) > _PINS:
                    (other, first), spare = self._pinned.popitem(last=False)
                    other.pins.pop(first, None)
        if spare is not None:
            locks.release(spare)

    def unpin(self, keys: Iterable[tuple[Entry, str]]) -> None:
        """Let go of spans."""
        with self._lock:
            numbers = [self._pinned.pop(key) for key in keys if key in self._pinned]
        for number in numbers:
            locks.release(number)


class Entry:
    """The spans of one version of one file."""

    def __init__(self, cache: DiskCache, key: str) -> None:
        self._cache = cache
        self._folder = os.path.join(cache.folder, "objects", key[:2], key)
        self._stripe = os.path.join(cache.folder, "locks", f"{zlib.crc32(key.encode()) % _STRIPES:02x}")
        self._name = os.urandom(8).hex().encode()  # of this one among all that claim under the same lock
        self._spans = Spans()
        self._claims: dict[str, tuple[int, int]] = {}  # own and others', by path
        self._own: set[str] = set()
        self._alone = False  # none of others under way, and nothing gone
        self.pins: dict[str, Span] = {}
        self._damaged: set[str] = set()  # and not to be removed
        self._changed = threading.Condition()

    def read(self, offset: int, size: int) -> bytes | None:
        """Bytes [offset, offset + size), or None when some of them are not here (as far as this process knows)."""
        memory = bytearray(size)
        return bytes(memory) if self.fill(offset, memoryview(memory)) else None

    def fill(self, offset: int, memory: memoryview) -> bool:
        """Fill memory with the bytes from `offset` on; False when some of them are not here."""
        with self._changed:
            spans = cover(self._spans.overlapping(offset, offset + len(memory)), offset, offset + len(memory))
        return spans is not None and all(
            self._read(span, start, memory[start - offset : end - offset]) for span, start, end in spans
        )

    def _read(self, span: Span, start: int, memory: memoryview) -> bool:
        """Fill memory from this place in a span on; False where the span turns out not to be here."""
        path = os.path.join(self._folder, span.name)
        try:
            number = os.open(path, os.O_RDONLY | os.O_CLOEXEC)
        except OSError:
            self._forget(span)
            return False
        try:
            if not span.verified:
                whole = os.pread(number, span.end - span.start + 1, 0)
                if len(whole) != span.end - span.start or zlib.crc32(whole) != span.crc:
                    warnings.warn(f"{path}: damaged, fetched again", stacklevel=2)
                    self._damaged.add(span.name)
                    with contextlib.suppress(OSError):
                        os.unlink(path)
                        self._damaged.discard(span.name)
                    self._forget(span)
                    return False
                span.verified = True
            have = os.preadv(number, [memory], start - span.start)
            now = time.time()
            if now - span.used > _FRESH:
                os.utime(number)
                span.used = now
        except OSError:
            self._forget(span)
            return False
        finally:
            os.close(number)
        if have != len(memory):
            self._forget(span)
        return have == len(memory)

    def _forget(self, span: Span) -> None:
        with self._changed:
            self._spans.remove([span.name])
            self._alone = False

    def claim(self, offset: int, size: int, part: int) -> tuple[list[Claim], bool]:
        """Claim what is not here of [offset, offset + size), in parts of at most `part` bytes; and whether something of
        it is being fetched by others."""
        claims: list[Claim] = []
        with locks.hold(self._stripe) as held:
            if held is None:
                raise DatasetError("another process holds a lock", where=self._stripe, fix="end that process")
            if not self._alone or os.pread(held, len(self._name), 0) != self._name:
                self._look()
                os.pwrite(held, self._name, 0)
            busy = False
            with self._changed:
                near = self._spans.overlapping(offset, offset + size)
                gaps = subtract([(offset, offset + size)], [(s.start, s.end) for s in near])
                under_way = list(self._claims.items())
            for path, (start, end) in under_way:
                if start < offset + size and offset < end and gaps:
                    number = locks.acquire(path)
                    if number is None:
                        left = subtract(gaps, [(start, end)])
                        busy, gaps = busy or left != gaps, left
                    else:
                        try:
                            os.unlink(path)  # its owner died
                        except FileNotFoundError:  # no: it is a span by now
                            busy, gaps = True, subtract(gaps, [(start, end)])
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
            os.makedirs(self._folder, exist_ok=True)  # it is not there yet, or went, being empty
            time.sleep(0.001)  # or an eviction looks whether the claim's owner lives
        raise DatasetError("cannot be claimed", where=path, fix="look into the cache folder, or name another")

    def _look(self) -> None:
        """See what is here. There may be thousands of names, each of which costs a turn of the interpreter's lock, so
        this is left out where nobody else has claimed anything since; whoever claims holds the lock."""
        with self._changed:
            before = set(self._spans.by_name)
        try:
            names = set(os.listdir(self._folder))
        except (FileNotFoundError, NotADirectoryError):
            names = set()
        with self._changed:
            self._claims = {path: self._claims[path] for path in self._own}
            for name in names - before - self._damaged:
                if (span := parse_span(name)) is not None:
                    self._spans.add(span)
                elif name.endswith(".claim") and (whose := parse_claim(name)) is not None:
                    self._claims[os.path.join(self._folder, name)] = whose
            self._alone = len(self._claims) == len(self._own)
            if gone := before - names:
                self._spans.remove(gone)

    def store(self, claim: Claim, data: bytes, pin: bool = False) -> None:
        """Keep the bytes of a claim, which is given back, for which room was reserved; `pin` them, too."""
        span = Span(claim.start, claim.end, "", zlib.crc32(data), verified=True, used=time.time())
        span.name = f"{span.start:x}-{span.end:x}-{span.crc:08x}"
        try:
            view = memoryview(data)
            while view:
                view = view[os.write(claim.lock, view) :]
            os.rename(claim.path, os.path.join(self._folder, span.name))
        except OSError as error:  # a full disk costs speed, not samples
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
            self._give_back(claim)
        if pin:
            self._cache.pin(self, span.name, claim.lock)
        else:
            locks.release(claim.lock)

    def abandon(self, claim: Claim) -> None:
        """Give a claim back."""
        with contextlib.suppress(OSError):
            os.unlink(claim.path)
        locks.release(claim.lock)
        with self._changed:
            self._give_back(claim)

    def _give_back(self, claim: Claim) -> None:
        self._claims.pop(claim.path, None)
        self._own.discard(claim.path)
        self._changed.notify_all()

    def wait(self, seconds: float) -> None:
        """Until something was stored by this process, or so long."""
        with self._changed:
            self._changed.wait(seconds)

    def pin(self, offset: int, size: int) -> None:
        """Keep what is here of [offset, offset + size) from being evicted by anybody, until it was read to its end."""
        with self._changed:
            inside = [span for span in self._spans.overlapping(offset, offset + size) if span.name not in self.pins]
        for span in inside:
            number = locks.acquire(os.path.join(self._folder, span.name), shared=True)
            if number is not None:
                with self._changed:
                    self.pins[span.name] = span
                self._cache.pin(self, span.name, number)

    def unpin(self, offset: int, size: int) -> None:
        """Let go of the spans that end in [offset, offset + size]: they were read to their end."""
        if not self.pins:
            return
        with self._changed:
            near = self._spans.overlapping(offset, offset + size)
            done = [span.name for span in near if span.end <= offset + size and span.name in self.pins]
            for name in done:
                del self.pins[name]
        if done:
            self._cache.unpin([(self, name) for name in done])

    def unpin_all(self) -> None:
        with self._changed:
            done, self.pins = list(self.pins), {}
        self._cache.unpin([(self, name) for name in done])
