"""Remote files, read by position through the host's cache, so that each byte is fetched once per
host.

A read uses the cached bytes, then claims, fetches and stores the others. It waits for bytes that
another thread or process has claimed; the claim of a dead process is free again.

Threads fetch spans before they are read. They start when there is work and end shortly after the
last of it, or at once on `close`. So a reader that is dropped, a Ctrl-C or a fork needs no cleanup.
Errors are discarded: the reader of the span fetches it again and raises.
"""

from __future__ import annotations

import contextlib
import hashlib
import json
import os
import threading
import time
from collections import deque
from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import replace
from functools import partial
from itertools import chain, islice, takewhile
from typing import Protocol, TypeVar

import numpy as np

from understudy_base import DataAccessError, DatasetError, MissingFileError, SourceError
from understudy_data.storage import locks, remote_store
from understudy_data.storage.byte_source import CHANGED, RESTART, ByteSource
from understudy_data.storage.cancel import Cancelled, cancel_when
from understudy_data.storage.dataset_version import DatasetVersion, Stat, VersionCheck
from understudy_data.storage.disk_cache import Claim, DiskCache, Entry
from understudy_data.storage.remote_options import (
    RemoteOptions,
    RetryPolicy,
    call_with_retries,
    should_stop,
)
from understudy_data.storage.remote_store import First, FsspecStore, WebStore, web_store

_IDLE = 0.5  # seconds without work after which a thread ends
_MEASURED = 64  # latest transfers that the latency is computed from


Job = Callable[[threading.Event], None]


class Fetcher:
    """Runs jobs in at most `num_threads` threads, in order of submission.

    A job is created when a thread is about to be free for it: there may be more jobs than fit in
    memory.
    """

    def __init__(self, num_threads: int) -> None:
        self._num_threads = num_threads
        # next job of a submission, and its remaining ones
        self._jobs: deque[tuple[Job, Iterator[Job]]] = deque()
        self._wake = threading.Condition()
        self._threads: set[threading.Thread] = set()  # threads that take jobs
        self._started: list[threading.Thread] = []  # those, and threads that are about to end
        self._idle = 0
        self.stop = threading.Event()  # stops everything under way; `close` replaces it

    def submit(self, jobs: Iterable[Job]) -> None:
        """Run `job(stop)` for each job soon; errors are discarded."""
        remaining = iter(jobs)
        none: Iterator[Job] = iter(())
        with self._wake:
            first = list(islice(remaining, self._num_threads))
            for number, job in enumerate(first, start=1):
                following = remaining if number == len(first) else none
                self._jobs.append((job, following))
                self._start_thread()
            self._wake.notify_all()

    def _take(self) -> Job:
        job, remaining = self._jobs.popleft()
        following = next(remaining, None)
        if following is not None:
            self._jobs.appendleft((following, remaining))
            self._start_thread()
        return job

    def _start_thread(self) -> None:
        if self._idle < len(self._jobs) and len(self._threads) < self._num_threads:
            thread = threading.Thread(
                target=self._run, args=(self.stop,), name="understudy-fetch", daemon=True
            )
            self._threads.add(thread)
            thread.start()
            self._started = [*(other for other in self._started if other.is_alive()), thread]

    def _run(self, stop: threading.Event) -> None:
        cancel_when(stop.is_set)
        try:
            while not stop.is_set():
                with self._wake:
                    if not self._jobs:
                        self._idle += 1
                        try:
                            self._wake.wait_for(lambda: self._jobs or stop.is_set(), timeout=_IDLE)
                        finally:
                            self._idle -= 1
                        if not self._jobs or stop.is_set():
                            # under the lock, so `submit` sees it
                            self._threads.discard(threading.current_thread())
                            return
                    job = self._take()
                try:
                    job(stop)
                except Exception:  # the reader of the span meets the error again and raises it
                    continue
        finally:
            with self._wake:
                self._threads.discard(threading.current_thread())

    def close(self, abort: Callable[[], None], wait: float = 5.0) -> None:
        """Drop all jobs, stop those under way and join the threads.

        Args:
            abort: Ends transfers under way; called repeatedly.
            wait: Longest wait in seconds.
        """
        with self._wake:
            self._jobs.clear()
            stop = self.stop
            self.stop = threading.Event()
            stop.set()
            threads = list(self._started)
            self._wake.notify_all()
        end = time.monotonic() + wait
        while any(thread.is_alive() for thread in threads) and time.monotonic() < end:
            abort()
            for thread in threads:
                thread.join(0.02)


T = TypeVar("T")
_MAX_TRANSFER = 8 << 20  # bytes
_MAX_PREFETCH = 1 << 20  # bytes of a transfer of which there are many at once
_MOST_FIRST = 1 << 20  # bytes that are fetched when a file is met
_NEVER = threading.Event()  # `stop` of reads; only prefetches can be stopped
_CLOSED = "the reader that needed it has gone"
_CLOSE_LATER = "close after reading"
# plausible bytes, by suffix
_MAX_SIZES = {".json": 1 << 30, ".jsonl": 1 << 36, ".parquet": 1 << 38, "": 1 << 42}
_FIRST_CONTACT = 15.0  # seconds for a server without any response yet: its name may be misspelt


class RemoteRoot(Protocol):
    """Owner of remote files, such as `Files`. It pickles, and opens its `remote_files` again after
    a fork.
    """

    @property
    def remote_files(self) -> RemoteFiles:
        """The files as this process has opened them."""


class RemoteFiles:
    """The files of a remote root in this process. Safe in threads, but not across a fork or pickle
    (`RemoteRoot` is).

    Args:
        address: URL with credentials, to be opened.
        root: The same without credentials, for messages.
        options: Options for remote reading.
        pin: See `WebStore.pin`.
        version: The version of the dataset to read; None before it is known.
    """

    def __init__(
        self,
        address: str,
        root: str,
        options: RemoteOptions,
        pin: str = "",
        version: DatasetVersion | None = None,
    ) -> None:
        self.root = root
        self.options = options
        web = web_store(address, options.storage_options, pin)
        self.store: FsspecStore | WebStore = web or FsspecStore(
            address, dict(options.storage_options)
        )
        self.cache = DiskCache(options.folder, options.cache_bytes)
        self.fetcher = Fetcher(options.num_threads)
        self.decoder = Fetcher(1)  # of whole files, while parts of them are read
        self._durations: deque[float] = deque(maxlen=_MEASURED)
        self._reached = bool(pin)
        self._stats: dict[str, Stat] = {}
        # of files that a thread asks about for the first time
        self._asking: dict[str, threading.Lock] = {}
        # files of which no question for the version has followed, and since when
        self._met: dict[str, float] = {}
        self._index_bytes: dict[str, int] = {}  # most bytes of the index of a file, by kind of file
        self._lock = threading.Lock()
        self._check: VersionCheck | None = None
        if version is not None:
            self.keep_to(version)

    @property
    def commit(self) -> str:
        """Commit of the hub that is read; "" on any other server."""
        return self.store.backend.pin if isinstance(self.store, WebStore) else ""

    @property
    def pinned_address(self) -> str:
        """Address of the commit that is read; "" on any other server."""
        return self.store.backend.pinned_address if isinstance(self.store, WebStore) else ""

    def pin_version(self, paths: Sequence[str]) -> DatasetVersion:
        """Read from now on the version that these files of `meta/` have (`VersionCheck`), and
        return it.
        """
        marks: dict[str, Stat | None] = {}
        if not self.commit:  # a commit cannot change
            for path in paths:
                try:
                    marks[path] = self.stat(path)
                except MissingFileError:
                    marks[path] = None
        opened = self.store.opened if isinstance(self.store, WebStore) else 0.0
        latest = max((mark.modified for mark in marks.values() if mark is not None), default=0.0)
        version = DatasetVersion(marks, opened or latest)
        self.keep_to(version)
        return version

    def keep_to(self, version: DatasetVersion) -> None:
        """Read this version from now on."""
        self._check = VersionCheck(version, self.root, self._ask)

    def _ask(self, path: str, known_stat: Stat | None) -> Stat | None:
        try:
            return self.call(
                lambda policy: self.store.ask(path, known_stat, policy, _NEVER), path, _NEVER
            )
        except MissingFileError:
            return None

    def stat(self, path: str) -> Stat:
        """Return the version of a file when this process first requested it; raises
        DatasetError.
        """
        stat = self.meet(path)
        self.confirm(path)
        return stat

    def confirm(self, path: str) -> None:
        """Check that a file which was met belongs to the version of the dataset; raises
        SourceError.
        """
        with self._lock:
            met = self._met.get(path)
        if met is not None:
            if self._check is not None:
                self._check.confirm(path, self._stats[path], met)
            with self._lock:
                self._met.pop(path, None)

    def meet(self, path: str) -> Stat:
        """Return the same as `stat`, for a caller that uses no byte of the file before `confirm`.

        One process of the host fetches its first bytes as well. The others ask beside each other
        whether it changed.
        """
        with self._lock:
            stat = self._stats.get(path)
            if stat is not None:
                return stat
            asking = self._asking.setdefault(path, threading.Lock())
        with asking:  # a second thread waits for the answer to the first
            with self._lock:
                stat = self._stats.get(path)
            return self._meet_first(path) if stat is None else stat

    def note_index(self, path: str, size: int) -> None:
        """Note how many bytes the index of a file takes at its start, or a table's at its end.

        As many are fetched when another file of the kind is met: packed videos of one camera have
        about the same.
        """
        kind = _kind(path)
        with self._lock:
            self._index_bytes[kind] = max(self._index_bytes.get(kind, 0), min(size, _MOST_FIRST))

    def _first(self, path: str) -> First:
        with self._lock:
            size = self._index_bytes.get(_kind(path), 0)
        return First(max(size, remote_store.HEAD), is_tail=path.endswith(".parquet"))

    def _meet_first(self, path: str) -> Stat:
        name = self.store.name(path)
        note = os.path.join(self.cache.folder, "known", hashlib.sha256(name.encode()).hexdigest())
        with contextlib.ExitStack() as stack:
            known_stat = _read_note(note)
            if known_stat is None:
                # not writable: each process requests it for itself
                with contextlib.suppress(OSError):
                    stack.enter_context(locks.hold(note, wait=self.options.retry.deadline))
                known_stat = _read_note(note)
            first = self._first(path)
            stat, offset, data = self.call(
                lambda retry: self.store.meet(path, known_stat, first, retry, _NEVER), path, _NEVER
            )
            largest = _MAX_SIZES.get(os.path.splitext(path)[1], _MAX_SIZES[""])
            if not 0 <= stat.size <= largest:
                problem = (
                    f"its server reports {stat.size} bytes; no file of its kind has more "
                    f"than {largest}"
                )
                fix = "repair the server, or copy the dataset to disk"
                raise SourceError(problem, where=f"{self.root}/{path}", fix=fix)
            if data:
                self._store_first(self.cache.entry(self.key(path, stat)), offset, data)
            if stat != known_stat:
                _write_note(note, stat)
        with self._lock:
            self._asking.pop(path, None)
            if path not in self._stats:
                self._stats[path] = stat
                self._met[path] = time.monotonic()
            return self._stats[path]

    def _store_first(self, entry: Entry, offset: int, data: bytes) -> None:
        try:
            claims = entry.claim(offset, len(data), len(data))[0]
        except OSError as error:
            self.cache.budget.warn_unwritable(error)
            return
        for claim in claims:
            if self.cache.budget.reserve(claim.end - claim.start):
                entry.store(claim, data[claim.start - offset : claim.end - offset])
            else:
                entry.abandon(claim)

    def key(self, path: str, stat: Stat) -> str:
        """Return the cache key of one version of a file."""
        text = json.dumps([self.store.name(path), stat.size, stat.tag])
        return hashlib.sha256(text.encode()).hexdigest()[:40]

    def call(
        self,
        act: Callable[[RetryPolicy], T],
        path: str,
        stop: threading.Event,
        retry: RetryPolicy | None = None,
    ) -> T:
        """Return `act(retry)`, repeated after transient errors.

        Raises:
            DatasetError: It names the file.
        """
        where = f"{self.root}/{path}"
        retry = retry or self.options.retry
        if not self._reached:
            retry = replace(retry, deadline=min(retry.deadline, _FIRST_CONTACT))
        try:
            result = call_with_retries(lambda: act(retry), where, retry, stop)
        except Cancelled:
            raise SourceError(_CLOSED, where=where, fix=_CLOSE_LATER) from None
        except DataAccessError as error:
            if error.where is not None:
                raise
            raise error.replaced(where=where) from error
        self._reached = True
        return result

    def note_transfer(self, seconds: float) -> None:
        """Record the duration of a transfer."""
        self._durations.append(seconds)

    @property
    def latency(self) -> float:
        """Ninth decile of the seconds that recent transfers took; 0 before the first."""
        recent = sorted(self._durations)
        return recent[len(recent) * 9 // 10] if recent else 0.0

    def close(self) -> None:
        """Stop prefetching, join its threads and unpin spans that were not read. Files can still be
        read.
        """
        self.decoder.close(self.store.abort)
        self.fetcher.close(self.store.abort)
        self.cache.close()


class RemoteSource(ByteSource):
    """One version of one remote file; see `ByteSource`.

    Attributes:
        root: The dataset that the file belongs to.
        key: Name of this version in the cache.

    Args:
        root: See above.
        path: The file in it.
        is_confirmed: Whether it is known to belong to the version of the dataset; where not, the
            caller confirms it.
    """

    def __init__(self, root: RemoteRoot, path: str, is_confirmed: bool = True) -> None:
        remote = root.remote_files
        self.root = root
        self._path = path
        self._stat = remote.stat(path) if is_confirmed else remote.meet(path)
        # bytes before and from there on have been read
        self._start = 0
        self._end = self._stat.size
        self.where = f"{remote.root}/{path}"
        self.size = self._stat.size
        self.tag = self._stat.tag
        self.key = remote.key(path, self._stat)

    @property
    def entry(self) -> Entry:
        """Cached spans of this version of the file."""
        return self.root.remote_files.cache.entry(self.key)

    def fill(self, offset: int, memory: memoryview) -> None:
        """See `ByteSource.fill`."""
        size = len(memory)
        if offset < 0 or offset + size > self.size:
            problem = f"ends at byte {self.size}, where byte {offset + size} is needed"
            raise DatasetError(
                problem, where=self.where, fix="the file is damaged: copy or record it again"
            )
        remote = self.root.remote_files
        entry = self.entry
        if not entry.fill(offset, memory):
            try:
                memory[:] = self._read_missing(remote, entry, offset, size)
            # it was readable when it was opened, so the data is not at fault
            except DatasetError as error:
                raise SourceError(
                    error.what, where=error.where or self.where, fix=error.fix
                ) from error
        entry.unpin(offset, size)
        if offset <= self._start:
            self._start = max(self._start, offset + size)
        if offset + size >= self._end:
            self._end = min(self._end, offset)

    def note_index(self) -> None:
        """See `ByteSource.note_index`."""
        is_tail = self._path.endswith(".parquet")
        index_bytes = self.size - self._end if is_tail else self._start
        self.root.remote_files.note_index(self._path, index_bytes)

    def prefetch(self, spans: np.ndarray) -> None:
        """See `ByteSource.prefetch`."""
        remote = self.root.remote_files
        entry = self.entry
        ends = ((offset, min(offset + size, self.size)) for offset, size in spans.tolist())
        parts = chain.from_iterable(_split(offset, end) for offset, end in ends)
        remote.fetcher.submit(
            partial(self._prefetch_span, remote, entry, begin, n, True) for begin, n in parts
        )

    def prefetch_all(self) -> None:
        """Prefetch the whole file.

        The first part that fails ends this: the file may be shorter than its server reports.
        """
        remote = self.root.remote_files
        entry = self.entry
        failed = threading.Event()

        def fetch(offset: int, size: int, stop: threading.Event) -> None:
            try:
                self._prefetch_span(remote, entry, offset, size, False, stop)
            except BaseException:
                failed.set()
                raise

        parts = takewhile(lambda _: not failed.is_set(), _split(0, self.size))
        remote.fetcher.submit(partial(fetch, begin, n) for begin, n in parts)

    def close(self) -> None:
        """Unpin the spans that were prefetched and not read."""
        self.entry.unpin_all()

    def __reduce__(self) -> tuple[object, ...]:
        return _reopen, (self.root, self._path, self.tag)

    def _prefetch_span(
        self,
        remote: RemoteFiles,
        entry: Entry,
        offset: int,
        size: int,
        pin: bool,
        stop: threading.Event,
    ) -> None:
        """Fetch a span into the cache, as far as its budget allows, and pin it there if `pin`."""
        if not entry.covers(offset, size):
            retry = remote.options.retry
            # a read that needs the span has the full deadline
            shorter = replace(retry, deadline=retry.deadline / 4)
            self._fetch_unclaimed(remote, entry, offset, size, shorter, stop, None, pin)
        if pin:  # also spans that were cached before, or fetched by others
            entry.pin(offset, size)

    def _read_missing(self, remote: RemoteFiles, entry: Entry, offset: int, size: int) -> bytes:
        """Return bytes of which some are not cached: fetch those, or wait for another process that
        does.
        """
        retry = remote.options.retry
        end_of_wait = time.monotonic() + 2 * retry.deadline + size / retry.min_rate
        pieces: dict[int, bytes] = {}  # by offset; kept here since the cache may be full
        pause = 0.005
        while True:
            for begin, count in _gaps(offset, size, pieces):
                data = entry.read(begin, count)
                if data is not None:
                    pieces[begin] = data
            gaps = _gaps(offset, size, pieces)
            if not gaps:
                return _join(offset, size, pieces)
            if time.monotonic() > end_of_wait:  # the claimant is alive but idle, perhaps suspended
                return self._fetch(remote, offset, size, retry, _NEVER)
            busy = [
                self._fetch_unclaimed(remote, entry, begin, count, retry, _NEVER, pieces)
                for begin, count in gaps
            ]
            if any(busy):
                entry.wait(pause)  # only threads of this process wake it, so it polls for others
                pause = min(1.5 * pause, 0.05)
                if should_stop(_NEVER):
                    raise SourceError(_CLOSED, where=self.where, fix=_CLOSE_LATER)

    def _fetch_unclaimed(
        self,
        remote: RemoteFiles,
        entry: Entry,
        offset: int,
        size: int,
        retry: RetryPolicy,
        stop: threading.Event,
        pieces: dict[int, bytes] | None,
        pin: bool = False,
    ) -> bool:
        """Fetch and store the bytes that are neither cached nor claimed by others.

        Args:
            remote: The files of the root.
            entry: Cache entry of this file.
            offset: First byte.
            size: Number of bytes.
            retry: Deadlines of the transfers.
            stop: Ends them when it is set.
            pieces: Receives the fetched bytes by offset. If None, only bytes within the cache's
                budget are fetched.
            pin: Pin the stored spans.

        Returns:
            Whether others have claimed some of the bytes.
        """
        try:
            claims, busy = entry.claim(offset, size, _MAX_TRANSFER)
        except OSError as error:  # the cache is not writable
            remote.cache.budget.warn_unwritable(error)
            if pieces is not None:
                pieces[offset] = self._fetch(remote, offset, size, retry, stop)
            return False
        left: list[Claim] = list(reversed(claims))
        try:
            while left:
                claim = left[-1]
                count = claim.end - claim.start
                reserved = remote.cache.budget.reserve(count)
                if not reserved and pieces is None:
                    break
                try:
                    data = self._fetch(remote, claim.start, count, retry, stop)
                except BaseException:
                    if reserved:
                        remote.cache.budget.release(count)
                    raise
                if pieces is not None:
                    pieces[claim.start] = data
                if reserved:
                    entry.store(left.pop(), data, pin)
                else:
                    entry.abandon(left.pop())
        finally:
            for claim in left:
                entry.abandon(claim)
        return busy

    def _fetch(
        self, remote: RemoteFiles, offset: int, size: int, retry: RetryPolicy, stop: threading.Event
    ) -> bytes:
        """Fetch bytes from the store, continuing after short responses."""
        parts: list[bytes] = []
        received = 0

        def get(policy: RetryPolicy) -> bytes:
            return remote.store.get(
                self._path, self._stat, offset + received, size - received, policy, stop
            )

        while received < size:
            begun = time.monotonic()
            parts.append(remote.call(get, self._path, stop, retry))
            remote.note_transfer(time.monotonic() - begun)
            received += len(parts[-1])
        return parts[0] if len(parts) == 1 else b"".join(parts)


def _kind(path: str) -> str:
    """Return the first two folders of a file and its suffix: those of one camera, or of the
    rows.
    """
    folders = path.split("/")[:-1]
    return "/".join(folders[:2]) + os.path.splitext(path)[1]


def _reopen(root: RemoteRoot, path: str, tag: str) -> RemoteSource:
    source = RemoteSource(root, path)
    if source.tag != tag:
        raise SourceError(CHANGED, where=source.where, fix=RESTART)
    return source


def _split(begin: int, end: int) -> Iterator[tuple[int, int]]:
    """Split [begin, end) into prefetched transfers (offset, size)."""
    return ((start, min(_MAX_PREFETCH, end - start)) for start in range(begin, end, _MAX_PREFETCH))


def _gaps(offset: int, size: int, pieces: dict[int, bytes]) -> list[tuple[int, int]]:
    """Return the parts of [offset, offset + size) in no piece, as (offset, size)."""
    gaps = []
    covered = offset
    for begin in sorted(pieces):
        if begin > covered:
            gaps.append((covered, begin - covered))
        covered = max(covered, begin + len(pieces[begin]))
    if covered < offset + size:
        gaps.append((covered, offset + size - covered))
    return gaps


def _join(offset: int, size: int, pieces: dict[int, bytes]) -> bytes:
    if len(pieces) == 1:
        return next(iter(pieces.values()))
    out = bytearray(size)
    for begin, data in pieces.items():
        out[begin - offset : begin - offset + len(data)] = data
    return bytes(out)


def _read_note(path: str) -> Stat | None:
    """Read the last known version of a file; its server must confirm it."""
    try:
        with open(path, encoding="utf-8") as file:
            size, tag, modified = json.load(file)
        return Stat(int(size), str(tag), float(modified))
    except (OSError, ValueError, TypeError):
        return None


def _write_note(path: str, stat: Stat) -> None:
    """Write a note in place, since it may be locked; a part of a note is none."""
    # else the next process asks again
    with contextlib.suppress(OSError), open(path, "w", encoding="utf-8") as file:
        file.write(json.dumps([stat.size, stat.tag, stat.modified]))
