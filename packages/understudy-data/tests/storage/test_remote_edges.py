"""Edges of remote reading: refusals, Retry-After, redirect loops, unwritable caches, wrong clocks,
many files.
"""

import email.utils
import os
import pickle
import threading
import time
import warnings
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from understudy_base import DatasetError, SourceError
from understudy_base.testing.refusals import refused, warned
from understudy_data.storage import disk_cache, http_client, remote_options
from understudy_data.storage.dataset_root import Files, with_location
from understudy_data.storage.disk_cache import DiskCache
from understudy_data.storage.remote_options import (
    RemoteOptions,
    RetryPolicy,
    TransientError,
    call_with_retries,
)
from understudy_data.storage.remote_source import RemoteSource
from understudy_data.testing.servers import Asked, RangeServer

DATA = np.random.default_rng(3).integers(0, 256, 300_000, np.uint8).tobytes()
QUICK = RetryPolicy(deadline=120.0, stall=60.0, initial_backoff=0.001, max_backoff=0.004)
PATH = "/set/a.mp4"


@pytest.fixture
def server() -> Iterator[RangeServer]:
    with RangeServer({PATH: DATA, "/set/b": b"b"}) as server:
        yield server


def files_of(server: RangeServer, cache: Path, retry: RetryPolicy = QUICK, **more: object) -> Files:
    options = RemoteOptions(cache=str(cache), retry=retry, **more)  # type: ignore[arg-type]
    return Files(server.url + "/set", options)


@pytest.mark.parametrize("status", [401, 403, 404, 410, 400])
def test_refusal_during_the_run_is_a_source_error(
    status: int, server: RangeServer, tmp_path: Path
) -> None:
    """After expired credentials or a removed file, no other sample may replace the missing one."""
    source = files_of(server, tmp_path).source("a.mp4")
    server.answer = lambda asked: (status, {}, b"no")
    with refused(where="/set/a.mp4", kind=SourceError):
        source.read(200_000, 10)
    if status in (401, 403):  # also for a file opened later
        with refused(status, where="/set/b", kind=SourceError):
            files_of(server, tmp_path).source("b")


def test_locked_cache_is_a_source_error(
    server: RangeServer, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    source = files_of(server, tmp_path).source("a.mp4")

    def locked(*_: object, **__: object) -> None:
        raise DatasetError("another process holds a lock", where="x", fix="end that process")

    monkeypatch.setattr(disk_cache.Entry, "claim", locked)
    with refused("lock", where="x", kind=SourceError):
        source.read(200_000, 10)


def test_redirect_loop_raises_without_retry(server: RangeServer, tmp_path: Path) -> None:
    server.answer = lambda asked: (302, {"Location": asked.path}, b"")
    with refused("redirects", where="/set/a.mp4", kind=SourceError):
        files_of(server, tmp_path).source("a.mp4")
    assert len(server.log) <= 40


def test_retry_after_waits_are_limited_in_sum(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(remote_options, "MAX_RETRY_AFTER", 0.3)
    asked = 0

    def always() -> None:
        nonlocal asked
        asked += 1
        raise TransientError("the server answers 429", after=0.1)

    with refused(429, where="x", kind=SourceError) as caught, warned("x", 429):
        call_with_retries(
            always,
            "x",
            RetryPolicy(deadline=60.0, initial_backoff=0.001, max_backoff=0.002),
            threading.Event(),
        )
    assert 3 <= asked <= 4
    assert pickle.loads(pickle.dumps(caught.value)).transient


def test_an_outage_stays_one_with_another_place(server: RangeServer, tmp_path: Path) -> None:
    """Readers of images and tables name the episode in place of the file; the exit code follows
    from the error.
    """
    files = files_of(
        server, tmp_path, RetryPolicy(deadline=0.05, initial_backoff=0.01, max_backoff=0.01)
    )
    server.answer = lambda asked: (503, {}, b"no")
    with refused(503, where="episode 3", kind=SourceError) as caught, with_location("episode 3"):
        files.source("a.mp4")
    assert caught.value.transient
    assert pickle.loads(pickle.dumps(caught.value)).where == "episode 3"


def test_tries_count_only_failures_in_a_row() -> None:
    failures = [
        TransientError("odd", tries=2),
        TransientError("slow"),
        TransientError("odd", tries=2),
        TransientError("slow"),
    ]

    def act() -> str:
        if failures:
            raise failures.pop()
        return "yes"

    assert (
        call_with_retries(
            act, "x", RetryPolicy(initial_backoff=0.001, max_backoff=0.002), threading.Event()
        )
        == "yes"
    )


def test_entry_claims_a_span_that_others_evicted(server: RangeServer, tmp_path: Path) -> None:
    source = files_of(server, tmp_path).source("a.mp4")
    assert isinstance(source, RemoteSource)
    source.read(100_000, 1_000)
    (path,) = tmp_path.glob(f"v1/objects/*/*/{100_000:x}-*")
    path.unlink()
    entry = source.entry
    assert entry.read(100_000, 1_000) is None
    claims, busy = entry.claim(100_000, 1_000, 1 << 20)
    assert ([(claim.start, claim.end) for claim in claims], busy) == ([(100_000, 101_000)], False)
    entry.abandon(claims[0])


def test_retry_after_accepts_dates_by_the_servers_clock() -> None:
    then = 1_000_000_000.0
    dates = {
        "Date": email.utils.formatdate(then, usegmt=True),
        "Retry-After": email.utils.formatdate(then + 7, usegmt=True),
    }
    assert http_client.retry_after(dates) == 7.0
    assert (
        http_client.retry_after(
            dates | {"Retry-After": email.utils.formatdate(then - 7, usegmt=True)}
        )
        == 0.0
    )
    assert http_client.retry_after({"Retry-After": "3"}) == 3.0
    assert http_client.retry_after({"Retry-After": "soon"}) is None
    assert http_client.retry_after({}) is None
    near = http_client.retry_after(
        {"Retry-After": email.utils.formatdate(time.time() + 60, usegmt=True)}
    )
    assert near is not None
    assert 0 < near <= 61


def test_compressed_response_is_refused(server: RangeServer, tmp_path: Path) -> None:
    source = files_of(server, tmp_path).source("a.mp4")
    server.headers = {"Content-Encoding": "gzip"}
    asked = len(server.log)
    with refused("gzip", where="/set/a.mp4", kind=SourceError):
        source.read(200_000, 10)
    assert len(server.log) == asked + 4
    assert all(one.headers["accept-encoding"] == "identity" for one in server.log)


def test_modification_time_in_the_future_is_no_change(server: RangeServer, tmp_path: Path) -> None:
    """The recording robot's clock was ahead; the server's clock distinguishes this from a change
    during the run.
    """
    server.written[PATH] = time.time() + 1e6
    files = files_of(server, tmp_path)
    files.read("b")
    assert files.source("a.mp4").read(200_000, 9) == DATA[200_000:200_009]


def test_expired_redirect_is_renewed_by_two_threads(tmp_path: Path) -> None:
    """Both threads find the redirect target refused before either has dropped it."""
    both = threading.Barrier(2, timeout=240)
    with RangeServer({PATH: DATA}) as far, RangeServer({}) as near:
        near.answer = lambda asked: (302, {"Location": far.url + asked.path}, b"")
        source = files_of(near, tmp_path).source("a.mp4")
        refused = 0

        def answer(asked: Asked) -> tuple[int, dict[str, str], bytes] | None:
            nonlocal refused
            refused += 1
            if refused > 2:
                return None
            both.wait()
            return 403, {}, b""

        far.answer = answer
        found: list[bytes] = []
        ask = [
            threading.Thread(target=lambda o=o: found.append(source.read(o, 9)))
            for o in (100_000, 200_000)
        ]
        for thread in ask:
            thread.start()
        for thread in ask:
            thread.join()
        assert sorted(found) == sorted([DATA[100_000:100_009], DATA[200_000:200_009]])


def test_connection_is_reused_by_other_threads(server: RangeServer, tmp_path: Path) -> None:
    connected: list[object] = []
    process = server.http.process_request

    def counted(*arguments: Any) -> None:
        connected.append(arguments)
        process(*arguments)

    server.http.process_request = counted  # type: ignore[method-assign]
    source = files_of(server, tmp_path).source("a.mp4")
    for i in range(6):
        thread = threading.Thread(target=source.read, args=(100_000 + 1_000 * i, 10))
        thread.start()
        thread.join()
    assert len(connected) == 1


@pytest.mark.parametrize("what", ["claims", "count", "notes"])
def test_cache_that_turns_read_only_returns_every_byte(
    what: str, server: RangeServer, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A disk fills up or turns read-only during the run. (File modes do not stop tests that run as
    root.)
    """
    source = files_of(server, tmp_path).source("a.mp4")
    open_ = os.open
    pwrite = os.pwrite

    def refused(path: str, flags: int, *mode: int, **more: int) -> int:
        if (
            flags & os.O_CREAT
            and str(tmp_path) in str(path)
            and (what == "claims" or "/known/" in str(path))
        ):
            raise OSError(30, "Read-only file system")
        return open_(path, flags, *mode, **more)

    def full(*_: object) -> int:
        raise OSError(28, "No space left on device")

    monkeypatch.setattr(os, "open", refused)
    if what == "count":
        monkeypatch.setattr(os, "pwrite", full)
    with warnings.catch_warnings(record=True) as caught_warnings:
        warnings.simplefilter("always")
        assert source.read(100_000, 10_000) == DATA[100_000:110_000]
        assert files_of(server, tmp_path).read("b") == b"b"
        source.prefetch(np.array([[200_000, 100]]))
        assert source.read(200_000, 100) == DATA[200_000:200_100]
    assert any("cannot be written" in str(one.message) for one in caught_warnings) == (
        what != "notes"
    )
    monkeypatch.setattr(os, "open", open_)
    monkeypatch.setattr(os, "pwrite", pwrite)
    assert source.read(150_000, 10) == DATA[150_000:150_010]


def test_disk_cache_refuses_a_read_only_folder(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    DiskCache(str(tmp_path), 1)
    monkeypatch.setattr(os, "access", lambda path, mode: False)
    with pytest.raises(DatasetError) as caught:
        DiskCache(str(tmp_path), 1)
    assert (caught.value.where, "cache=" in caught.value.fix) == (str(tmp_path), True)


def test_damaged_span_that_cannot_be_removed_is_ignored(
    server: RangeServer, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    files_of(server, tmp_path).source("a.mp4").read(100_000, 1_000)
    (path,) = tmp_path.glob(f"v1/objects/*/*/{100_000:x}-*")
    path.write_bytes(bytes(1_000))
    unlink = os.unlink

    def kept(name: str) -> None:
        if str(name) == str(path):
            raise PermissionError(1, "not yours")
        unlink(name)

    monkeypatch.setattr(os, "unlink", kept)
    source = files_of(server, tmp_path).source("a.mp4")
    begun = time.monotonic()
    with pytest.warns(UserWarning, match="damaged"):
        assert source.read(100_000, 1_000) == DATA[100_000:101_000]
    assert time.monotonic() - begun < QUICK.deadline  # it does not retry until the deadline


def test_pins_of_one_process_are_limited(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Each pin is an open file; their number is limited over all videos."""
    monkeypatch.setattr(disk_cache, "MAX_PINS", 20)
    many = {f"/set/{i}": DATA[:90_000] for i in range(12)}
    with RangeServer(many) as server:
        files = files_of(server, tmp_path)
        sources = [files.source(str(i)) for i in range(12)]
        before = len(os.listdir("/proc/self/fd"))
        for source in sources:
            assert isinstance(source, RemoteSource)
            source.prefetch(np.array([[70_000 + 100 * i, 90] for i in range(10)]))
        until = time.monotonic() + 240
        while files.remote_files.fetcher._jobs or files.remote_files.fetcher._idle < len(
            files.remote_files.fetcher._threads
        ):
            assert time.monotonic() < until
            time.sleep(0.005)
        pinned = [
            name
            for name in map(_target, os.listdir("/proc/self/fd"))
            if str(tmp_path) in name and "/objects/" in name
        ]
        assert len(pinned) == 20
        entries = files.remote_files.cache._entries.values()
        assert sum(len(entry.pins) for entry in entries) == 20, "released spans may be pinned again"
        connections = 2 * files.remote_files.options.num_threads  # both ends of each
        assert len(os.listdir("/proc/self/fd")) - before < 20 + connections + 20
        newest = sources[-1]
        assert any(newest.key in name for name in pinned), (
            "the oldest pins are released, the newest kept"
        )  # type: ignore[attr-defined]
        files.close()
        assert not [
            name
            for name in map(_target, os.listdir("/proc/self/fd"))
            if str(tmp_path) in name and "/objects/" in name
        ]


def _target(number: str) -> str:
    try:
        return os.readlink(f"/proc/self/fd/{number}")
    except OSError:
        return ""


def test_reads_leave_no_file_open(server: RangeServer, tmp_path: Path) -> None:
    source = files_of(server, tmp_path).source("a.mp4")
    before = len(os.listdir("/proc/self/fd"))
    for i in range(600):
        assert source.read(70_000 + 300 * i, 7) == DATA[70_000 + 300 * i : 70_007 + 300 * i]
    assert len(os.listdir("/proc/self/fd")) - before <= 4
