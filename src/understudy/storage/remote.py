"""Files that are not on this machine, read by place through the cache of the host: each byte is fetched once per host.

A read takes what the cache holds; it claims the rest, fetches it and stores it, and waits for what another thread or
process has claimed. If that one dies, its claim is free.
"""

from __future__ import annotations

import contextlib
import hashlib
import json
import os
import threading
import time
from collections.abc import Callable, Iterator
from dataclasses import replace
from functools import partial
from itertools import takewhile
from typing import Protocol, TypeVar

import numpy as np

from understudy.cancel import Cancelled
from understudy.errors import DatasetError, SourceError
from understudy.storage import locks
from understudy.storage.cache import Claim, DiskCache, Entry
from understudy.storage.options import RemoteOptions
from understudy.storage.prefetch import Fetcher, Latency
from understudy.storage.retry import RetryPolicy, call_with_retries, should_stop
from understudy.storage.source import CHANGED, RESTART, ByteSource
from understudy.storage.stores import FsspecStore, Stat, Store
from understudy.storage.web import web_store

T = TypeVar("T")
_PART = 8 << 20  # bytes of one transfer at most
_NEVER = threading.Event()  # who reads waits; who fetches ahead can be stopped
_CLOSED, _CLOSE_LATER = "the one it was read for has gone", "close after reading"
_LARGEST = {
    ".json": 1 << 30,
    ".jsonl": 1 << 36,
    ".parquet": 1 << 38,
    "": 1 << 42,
}  # bytes that a file can mean, by its end
_FIRST_CONTACT = 15.0  # seconds for a server that has never answered: perhaps its name is misspelt


class RemoteRoot(Protocol):
    """Whose files these are; `Files` is one. Pickles, and gives fresh `remote_files` after a fork."""

    @property
    def remote_files(self) -> RemoteFiles: ...


class RemoteFiles:
    """A root that is not on this machine. Safe in threads; not across a fork or a pickle, for which `Root` is."""

    def __init__(self, address: str, root: str, options: RemoteOptions, pin: str = "") -> None:
        """address: with credentials, as it is opened. root: without, as it is shown."""
        self.root, self.options = root, options
        store = web_store(address, options.storage_options, pin)
        self.store: Store = store if store is not None else FsspecStore(address, dict(options.storage_options))
        self.cache = DiskCache(options.folder, options.cache_bytes)
        self.fetcher = Fetcher(options.num_threads)
        self.latency = Latency()
        self._reached = bool(pin)
        self._stats: dict[str, Stat] = {}
        self._lock = threading.Lock()

    def stat(self, path: str) -> Stat:
        """What a file was when this process first asked for it. One process of the host asks for its first bytes, too;
        the others only whether it is still the same. Raises DatasetError."""
        with self._lock:
            found = self._stats.get(path)
        if found is not None:
            return found
        name = self.store.name(path)
        note = os.path.join(self.cache.folder, "known", hashlib.sha256(name.encode()).hexdigest())
        stop = _NEVER
        with contextlib.ExitStack() as stack:
            with contextlib.suppress(OSError):  # nothing can be written there: each process asks for itself
                stack.enter_context(locks.hold(f"{note}.lock", stop, wait=self.options.retry.deadline))
            known = _read_note(note)
            found, head = self.call(lambda p: self.store.stat(path, known, p, stop), path, stop)
            most = _LARGEST.get(os.path.splitext(path)[1], _LARGEST[""])
            if not 0 <= found.size <= most:
                what = f"its server says that it has {found.size} bytes; no file of its kind has more than {most}"
                raise SourceError(what, where=f"{self.root}/{path}", fix="mend the server, or copy the dataset to disk")
            if head:
                self._keep(self.cache.entry(self.key(path, found)), head)
            if found != known:
                _write_note(note, found)
        with self._lock:
            return self._stats.setdefault(path, found)

    def _keep(self, entry: Entry, head: bytes) -> None:
        try:
            claims = entry.claim(0, len(head), len(head))[0]
        except OSError as error:
            self.cache.budget.warn_unwritable(error)
            return
        for claim in claims:
            if self.cache.budget.reserve(claim.end - claim.start):
                entry.store(claim, head[claim.start : claim.end])
            else:
                entry.abandon(claim)

    def key(self, path: str, stat: Stat) -> str:
        """The name of one version of a file in the cache."""
        said = json.dumps([self.store.name(path), stat.size, stat.tag])
        return hashlib.sha256(said.encode()).hexdigest()[:40]

    def call(
        self, act: Callable[[RetryPolicy], T], path: str, stop: threading.Event, retry: RetryPolicy | None = None
    ) -> T:
        """What `act` gives, tried again while that may help; errors name the file."""
        where, retry = f"{self.root}/{path}", retry or self.options.retry
        if not self._reached:
            retry = replace(retry, deadline=min(retry.deadline, _FIRST_CONTACT))
        try:
            result = call_with_retries(lambda: act(retry), where, retry, stop)
        except Cancelled:
            raise SourceError(_CLOSED, where=where, fix=_CLOSE_LATER) from None
        except DatasetError as error:
            if error.where is not None:
                raise
            raise type(error)(error.what, where=where, fix=error.fix) from error
        self._reached = True
        return result

    def close(self) -> None:
        """Stop fetching ahead, leave no thread behind, unpin what was fetched and not read. Reading may go on."""
        self.fetcher.close(self.store.abort)
        self.cache.close()


class RemoteSource(ByteSource):
    """One version of one file; see `ByteSource`."""

    def __init__(self, root: RemoteRoot, path: str) -> None:
        remote = root.remote_files
        self._root, self._path, self._stat = root, path, remote.stat(path)
        self.where, self.size, self.tag = f"{remote.root}/{path}", self._stat.size, self._stat.tag
        self._key = remote.key(path, self._stat)

    def fill(self, offset: int, memory: memoryview) -> None:
        size = len(memory)
        if offset < 0 or offset + size > self.size:
            what = f"ends at byte {self.size}, where byte {offset + size} is needed"
            raise DatasetError(what, where=self.where, fix="the file is damaged: copy or record it again")
        remote = self._root.remote_files
        entry = remote.cache.entry(self._key)
        if not entry.fill(offset, memory):
            try:
                memory[:] = self._obtain(remote, entry, offset, size)
            except SourceError:
                raise
            except DatasetError as error:  # it was there, and readable: that it is not now says nothing about the data
                raise SourceError(error.what, where=error.where or self.where, fix=error.fix) from error
        entry.unpin(offset, size)

    def prefetch(self, spans: np.ndarray) -> None:
        remote = self._root.remote_files
        entry = remote.cache.entry(self._key)
        parts = ((at, n) for offset, size in spans.tolist() for at, n in _parts(offset, min(offset + size, self.size)))
        remote.fetcher.submit(partial(self._ahead, remote, entry, at, n, True) for at, n in parts)

    def prefetch_all(self) -> None:
        """Have the whole file fetched: it is small, or every byte of it is needed. The first part that cannot be had
        ends that: perhaps the file is not as long as its server says."""
        remote = self._root.remote_files
        entry = remote.cache.entry(self._key)
        failed = threading.Event()

        def fetch(offset: int, size: int, stop: threading.Event) -> None:
            try:
                self._ahead(remote, entry, offset, size, False, stop)
            except BaseException:
                failed.set()
                raise

        parts = takewhile(lambda _: not failed.is_set(), _parts(0, self.size))
        remote.fetcher.submit(partial(fetch, at, n) for at, n in parts)

    def close(self) -> None:
        self._root.remote_files.cache.entry(self._key).unpin_all()

    def __reduce__(self) -> tuple[object, ...]:
        return _reopened, (self._root, self._path, self.tag)

    def _ahead(
        self, remote: RemoteFiles, entry: Entry, offset: int, size: int, pin: bool, stop: threading.Event
    ) -> None:
        """Have a span in the cache, as far as the cache has room for it, and pin it there."""
        if entry.read(offset, size) is None:
            retry = remote.options.retry
            hurried = replace(retry, deadline=retry.deadline / 4)  # who needs it then has the whole deadline
            self._fill(remote, entry, offset, size, hurried, stop, None, pin)
        if pin:  # also what was there, or came by others
            entry.pin(offset, size)

    def _obtain(self, remote: RemoteFiles, entry: Entry, offset: int, size: int) -> bytes:
        """Bytes of which some are not in the cache: fetch them, or wait for whoever fetches them."""
        retry = remote.options.retry
        alone = time.monotonic() + 2 * retry.deadline + size / retry.min_rate
        have: dict[int, bytes] = {}  # by place; the cache may have no room
        pause = 0.005
        while True:
            for begin, count in _gaps(offset, size, have):
                data = entry.read(begin, count)
                if data is not None:
                    have[begin] = data
            gaps = _gaps(offset, size, have)
            if not gaps:
                return _joined(offset, size, have)
            if time.monotonic() > alone:  # whoever claims it lives and does nothing: perhaps it was stopped
                return self._fetch(remote, offset, size, retry, _NEVER)
            busy = [self._fill(remote, entry, begin, count, retry, _NEVER, have) for begin, count in gaps]
            if any(busy):
                entry.wait(pause)  # threads of this process wake each other, for others it has to look
                pause = min(1.5 * pause, 0.05)
                if should_stop(_NEVER):
                    raise SourceError(_CLOSED, where=self.where, fix=_CLOSE_LATER)

    def _fill(
        self,
        remote: RemoteFiles,
        entry: Entry,
        offset: int,
        size: int,
        retry: RetryPolicy,
        stop: threading.Event,
        have: dict[int, bytes] | None,
        pin: bool = False,
    ) -> bool:
        """Fetch and store (and `pin`) what is neither in the cache nor claimed by others; True when something is. Into
        `have`, too, if given; otherwise only what the cache has room for is fetched."""
        try:
            claims, busy = entry.claim(offset, size, _PART)
        except OSError as error:  # nothing can be written there
            remote.cache.budget.warn_unwritable(error)
            if have is not None:
                have[offset] = self._fetch(remote, offset, size, retry, stop)
            return False
        left: list[Claim] = list(reversed(claims))
        try:
            while left:
                claim = left[-1]
                count = claim.end - claim.start
                room = remote.cache.budget.reserve(count)
                if not room and have is None:
                    break
                try:
                    data = self._fetch(remote, claim.start, count, retry, stop)
                except BaseException:
                    if room:
                        remote.cache.budget.release(count)
                    raise
                if have is not None:
                    have[claim.start] = data
                if room:
                    entry.store(left.pop(), data, pin)
                else:
                    entry.abandon(left.pop())
        finally:
            for claim in left:
                entry.abandon(claim)
        return busy

    def _fetch(self, remote: RemoteFiles, offset: int, size: int, retry: RetryPolicy, stop: threading.Event) -> bytes:
        """Bytes from the source, short answers continued until all are there."""
        parts: list[bytes] = []
        have = 0
        while have < size:
            begun = time.monotonic()
            get = partial(remote.store.get, self._path, self._stat, offset + have, size - have, stop=stop)
            part = remote.call(lambda p, get=get: get(retry=p), self._path, stop, retry)  # type: ignore[misc]
            remote.latency.add(time.monotonic() - begun)
            parts.append(part)
            have += len(part)
        return parts[0] if len(parts) == 1 else b"".join(parts)


def _reopened(root: RemoteRoot, path: str, tag: str) -> RemoteSource:
    source = RemoteSource(root, path)
    if source.tag != tag:
        raise SourceError(CHANGED, where=source.where, fix=RESTART)
    return source


def _parts(begin: int, end: int) -> Iterator[tuple[int, int]]:
    """[begin, end) as (offset, size) of transfers."""
    return ((at, min(_PART, end - at)) for at in range(begin, end, _PART))


def _gaps(offset: int, size: int, have: dict[int, bytes]) -> list[tuple[int, int]]:
    """What of [offset, offset + size) no piece holds, as (offset, size)."""
    gaps, at = [], offset
    for begin in sorted(have):
        if begin > at:
            gaps.append((at, begin - at))
        at = max(at, begin + len(have[begin]))
    if at < offset + size:
        gaps.append((at, offset + size - at))
    return gaps


def _joined(offset: int, size: int, have: dict[int, bytes]) -> bytes:
    if len(have) == 1:
        return next(iter(have.values()))
    out = bytearray(size)
    for begin, data in have.items():
        out[begin - offset : begin - offset + len(data)] = data
    return bytes(out)


def _read_note(path: str) -> Stat | None:
    """What a file was when some process last asked; no more than a question to its server."""
    try:
        with open(path, encoding="utf-8") as file:
            size, tag, modified = json.load(file)
        return Stat(int(size), str(tag), float(modified))
    except (OSError, ValueError, TypeError):
        return None


def _write_note(path: str, stat: Stat) -> None:
    draft = f"{path}.{os.getpid()}.part"
    try:
        with open(draft, "w", encoding="utf-8") as file:
            json.dump([stat.size, stat.tag, stat.modified], file)
        os.replace(draft, path)
    except OSError:
        return  # the next process asks for the first bytes again
