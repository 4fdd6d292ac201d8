"""Reading over HTTP from servers that lie, stall, fail and restart: right bytes, or one clear
error.
"""

import errno
import os
import pickle
import random
import socket
import threading
import time
import warnings
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from understudy_base import MissingFileError, SourceError
from understudy_base.testing.refusals import refused
from understudy_data.storage.dataset_root import Files
from understudy_data.storage.remote_options import (
    RemoteOptions,
    RetryPolicy,
    TransientError,
    call_with_retries,
)
from understudy_data.storage.remote_store import WebStore, web_store
from understudy_data.testing.servers import FAULTS, Asked, RangeServer, change_retry_policy

DATA = np.random.default_rng(0).integers(0, 256, 300_000, np.uint8).tobytes()
QUICK = RetryPolicy(deadline=120.0, stall=60.0, initial_backoff=0.001, max_backoff=0.004)
# on a busy machine correct responses are late, too
SILENT = replace(QUICK, deadline=240.0, stall=0.15)
PATH = "/set/videos/a.mp4"


def files_of(
    server: RangeServer,
    cache: Path,
    retry: RetryPolicy = QUICK,
    under: str = "/set",
    **more: object,
) -> Files:
    options = RemoteOptions(cache=str(cache), retry=retry, **more)  # type: ignore[arg-type]
    return Files(server.url + under, options)


@st.composite
def plans(draw: st.DrawFn) -> tuple[list[str], list[tuple[int, int]]]:
    """Draw faults of the first requests, at most three in a row, and reads."""
    faults: list[str] = []
    for group in draw(
        st.lists(st.lists(st.sampled_from(FAULTS), min_size=1, max_size=3), max_size=4)
    ):
        faults += [*group, ""]
    offsets = st.one_of(st.integers(0, 5), st.integers(0, len(DATA)), st.integers(65_500, 65_600))
    reads = draw(st.lists(st.tuples(offsets, st.integers(0, 90_000)), min_size=1, max_size=4))
    return faults, [(offset, min(size, len(DATA) - offset)) for offset, size in reads]


@settings(max_examples=25)
@given(plan=plans())
def test_remote_source_reads_right_bytes_from_a_faulty_server(
    plan: tuple[list[str], list[tuple[int, int]]], tmp_path_factory: pytest.TempPathFactory
) -> None:
    faults, reads = plan
    with RangeServer(
        {PATH: DATA}, lambda n, asked: faults[n] if n < len(faults) else "", stall=0.3
    ) as server:
        source = files_of(server, tmp_path_factory.mktemp("lies"), SILENT).source("videos/a.mp4")
        assert source.size == len(DATA)
        for offset, size in reads:
            assert source.read(offset, size) == DATA[offset : offset + size]


@pytest.mark.parametrize("fault", FAULTS)
def test_remote_source_recovers_from_each_fault(fault: str, tmp_path: Path) -> None:
    """A single fault is retried; the faulty response is not used."""
    requests: list[Asked] = []

    def once(n: int, asked: Asked) -> str:
        if asked.first != 200_000:
            return ""
        requests.append(asked)
        return fault if len(requests) == 1 else ""

    with RangeServer({PATH: DATA}, once, stall=1.5) as server:
        quick = replace(QUICK, stall=0.5)
        source = files_of(server, tmp_path, quick).source("videos/a.mp4")
        assert source.read(200_000, 70_000) == DATA[200_000:270_000]
        assert requests
        if fault != "whole":  # of a whole file the range is used
            assert (
                len([asked for asked in server.log if asked.first and asked.first >= 200_000]) >= 2
            )


@pytest.mark.parametrize("fault", FAULTS)
def test_permanent_fault_raises_one_source_error(fault: str, tmp_path: Path) -> None:
    silent = fault in ("stall", "silence")
    slow = fault in ("short", "truncate", "stall", "whole")
    # ends after a number of attempts, not by the deadline
    permanent = fault in ("416", "elsewhere", "unsaid")
    deadline = 120.0 if slow or permanent else 0.6
    quick = RetryPolicy(
        deadline=deadline, stall=0.2 if silent else 10.0, initial_backoff=0.001, max_backoff=0.01
    )
    with RangeServer(
        {PATH: DATA}, lambda n, asked: fault if asked.first else "", stall=0.5
    ) as server:
        files = files_of(server, tmp_path)
        source = files.source("videos/a.mp4")
        change_retry_policy(files, quick)
        opened = len(server.log)
        if slow:  # each response has some bytes: slow, but complete
            assert source.read(200_000, 700) == DATA[200_000:200_700]
            return
        with pytest.raises(SourceError) as caught:  # which no other sample may replace
            source.read(200_000, 700)
    assert str(caught.value).startswith(f"{server.url}/set/videos/a.mp4: ")
    assert caught.value.fix
    if permanent:
        assert len(server.log) == opened + 4, "a server that always does so is given up early"


@pytest.mark.parametrize(
    ("status", "words", "kind"),
    [
        (404, [], MissingFileError),
        (403, [403], SourceError),
        (401, [401], SourceError),
        (400, [400], SourceError),
    ],
)
def test_permanent_status_raises_without_retry(
    status: int, words: list[int], kind: Any, tmp_path: Path
) -> None:
    with RangeServer({PATH: DATA}) as server:
        server.answer = lambda asked: (status, {}, b"no")
        with refused(*words, where="/set/videos/a.mp4", kind=kind) as caught:
            files_of(server, tmp_path).source("videos/a.mp4")
        assert caught.value.fix
        assert len(server.log) == 1


def test_unreachable_server_raises_dataset_error(tmp_path: Path) -> None:
    with socket.socket() as silent:
        silent.bind(("127.0.0.1", 0))  # reserves a port without a listener
        port = silent.getsockname()[1]
        files = Files(
            f"http://127.0.0.1:{port}/set",
            RemoteOptions(
                cache=str(tmp_path), retry=RetryPolicy(deadline=0.2, initial_backoff=0.01)
            ),
        )
        with refused(f"[Errno {errno.ECONNREFUSED}]", where="/set/x", kind=SourceError):
            files.read("x")


def test_server_without_ranges_serves_small_files(tmp_path: Path) -> None:
    with RangeServer({"/set/info.json": b"{}", PATH: DATA * 8}, lambda n, asked: "whole") as server:
        files = files_of(server, tmp_path)
        assert files.read("info.json") == b"{}"
        source = files.source("videos/a.mp4")
        # near the start of the file
        assert source.read(600_000, 100) == (DATA * 8)[600_000:600_100]
        with refused("whole", where="/set/videos/a.mp4", kind=SourceError):
            source.read(len(DATA) * 7, 100)


def test_read_continues_after_a_server_restart(tmp_path: Path) -> None:
    server = RangeServer({PATH: DATA})
    source = files_of(server, tmp_path).source("videos/a.mp4")
    server.stop()
    back = threading.Timer(0.3, server.start)
    back.start()
    try:
        assert source.read(100_000, 100_000) == DATA[100_000:200_000]
    finally:
        back.join()
        server.stop()


def test_retry_after_is_obeyed(tmp_path: Path) -> None:
    times: list[float] = []

    def answer(asked: Asked) -> tuple[int, dict[str, str], bytes] | None:
        times.append(time.monotonic())
        return (429, {"Retry-After": "1"}, b"") if len(times) == 2 else None

    with RangeServer({PATH: DATA}) as server:
        server.answer = answer
        quick = RetryPolicy(
            deadline=0.5, stall=1.0, initial_backoff=0.001, max_backoff=0.002
        )  # shorter than Retry-After
        source = files_of(server, tmp_path, quick).source("videos/a.mp4")
        with warnings.catch_warnings(record=True) as said:
            warnings.simplefilter("always")
            assert source.read(100_000, 10) == DATA[100_000:100_010]
        assert times[2] - times[1] >= 1.0
        assert any("429" in str(one.message) for one in said)
        server.answer = lambda asked: (503, {"Retry-After": "86400"}, b"")
        with refused(503, "86400 s", where="/set/videos/a.mp4", kind=SourceError):
            source.read(150_000, 10)


class _Fails:
    def __init__(self, times: int) -> None:
        self.left = times

    def __call__(self) -> str:
        self.left -= 1
        if self.left >= 0:
            raise TransientError("no")
        return "yes"


def test_retry_policy_pauses_grow_without_global_random_state() -> None:
    retry = RetryPolicy(initial_backoff=0.1, max_backoff=3.0)
    before = random.getstate()
    for failures in range(1, 40):
        base = min(3.0, 0.1 * 2 ** (failures - 1))
        pauses = [retry.pause(failures) for _ in range(20)]
        assert all(base / 2 <= pause <= base for pause in pauses)
        assert len(set(pauses)) > 10
    assert random.getstate() == before
    assert (
        call_with_retries(_Fails(3), "x", RetryPolicy(initial_backoff=0.001), threading.Event())
        == "yes"
    )


# One version of each file


def test_file_changed_during_the_run_raises_source_error(tmp_path: Path) -> None:
    other = bytes(255 - byte for byte in DATA)
    with RangeServer({PATH: DATA, "/set/b": b"b"}) as server:
        files = files_of(server, tmp_path)
        source = files.source("videos/a.mp4")
        before = source.read(100_000, 10)
        server.files[PATH] = other  # type: ignore[index]
        assert source.read(100_000, 10) == before, "cached bytes belong to the old version"
        with refused("changed", where="/set/videos/a.mp4", kind=SourceError):
            source.read(200_000, 10)
        with refused("changed", where="/set/videos/a.mp4", kind=SourceError):
            # the copy is pinned to the same version
            pickle.loads(pickle.dumps(source)).read(100_000, 10)
        server.files[PATH] = other[:-1]  # type: ignore[index]
        with refused("changed", where="/set/videos/a.mp4", kind=SourceError):
            source.read(200_000, 10)
        assert (
            files_of(server, tmp_path).source("videos/a.mp4").read(100_000, 10)
            == other[100_000:100_010]
        )


def test_file_written_during_the_run_raises_when_first_opened(tmp_path: Path) -> None:
    with RangeServer({PATH: DATA, "/set/info.json": b"{}"}) as server:
        files = files_of(server, tmp_path)
        files.read("info.json")
        copy = pickle.loads(pickle.dumps(files))
        for reader in (files, copy):
            reader.remote_files.store._opened -= 10  # type: ignore[attr-defined]
        server.written[PATH] = time.time() - 5
        for reader in (files, copy):
            with refused("written", where="/set/videos/a.mp4", kind=SourceError):
                reader.source("videos/a.mp4")
        assert files_of(server, tmp_path).source("videos/a.mp4").size == len(DATA)


def test_file_without_a_version_is_refused(tmp_path: Path) -> None:
    with RangeServer({PATH: DATA}) as server:
        server.headers = {"ETag": "", "Last-Modified": ""}
        with refused("etag", where="/set/videos/a.mp4"):
            files_of(server, tmp_path).source("videos/a.mp4")
        server.headers = {"ETag": ""}
        source = files_of(server, tmp_path).source("videos/a.mp4")  # a modification time is enough
        assert source.read(70_000, 9) == DATA[70_000:70_009]
        server.written[PATH] = 1_600_000_001.0
        with refused("changed", where="/set/videos/a.mp4", kind=SourceError):
            source.read(170_000, 9)


def test_redirect_is_resolved_once_and_gets_no_credentials(tmp_path: Path) -> None:
    with RangeServer({PATH: DATA}) as far, RangeServer({}) as near:
        near.answer = lambda asked: (
            302,
            {"Location": f"{far.url}{PATH}" if "on" in asked.path else "/on#there"},
            b"",
        )
        files = files_of(
            near, tmp_path, storage_options={"headers": {"Authorization": "Bearer secret"}}
        )
        source = files.source("videos/a.mp4")
        for offset in (100_000, 200_000):
            assert source.read(offset, 10) == DATA[offset : offset + 10]
        sent = [(asked.path, asked.headers["authorization"]) for asked in near.log]
        assert sent == [(PATH, "Bearer secret"), ("/on", "Bearer secret")], (
            "a redirect on one host gets all headers"
        )
        assert all("authorization" not in asked.headers for asked in far.log)
        # the redirect has expired
        far.answer = lambda asked: (403, {}, b"") if len(far.log) == 4 else None
        assert source.read(250_000, 10) == DATA[250_000:250_010]
        assert len(near.log) == 4


def test_unchanged_files_are_asked_for_on_one_connection(tmp_path: Path) -> None:
    paths = [f"/set/{number}" for number in range(5)]
    with RangeServer(dict.fromkeys(paths, DATA[:900])) as server:
        for _ in range(2):  # the first process of a host, and the second
            before = server.http.accepted
            files = files_of(server, tmp_path)
            assert all(files.read(path.removeprefix("/set/")) == DATA[:900] for path in paths)
            assert server.http.accepted == before + 1
        assert [asked.status for asked in server.log] == [206] * 5 + [304] * 5


def test_signed_url_of_another_s3_needs_no_request(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Only Amazon has regions to look up, with a request before every signature and listing."""
    with RangeServer({PATH: DATA}) as server:
        for name in ("AWS_ENDPOINT_URL", "AWS_ENDPOINT_URL_S3"):
            with monkeypatch.context() as patch:
                patch.setenv(name, server.url)
                store = web_store("s3://set", {"key": name, "secret": "x"})
                assert isinstance(store, WebStore)
                assert store.backend.address("videos/a.mp4").url.startswith(f"{server.url}{PATH}?")
        assert not server.log


def test_read_beyond_the_end_raises_dataset_error(tmp_path: Path) -> None:
    with RangeServer({"/set/empty": b"", "/set/one": b"1"}) as server:
        files = files_of(server, tmp_path)
        assert files.read("empty") == b""
        assert files.read("one") == b"1"
        assert files.source("one").read(1, 0) == b""
        for offset, size in ((0, 2), (2, 0), (-1, 1)):
            with refused("byte 1", where="/set/one"):
                files.source("one").read(offset, size)
        assert files.exists("one")
        assert not files.exists("two")


def test_forked_child_continues_reading(tmp_path: Path) -> None:
    with RangeServer({PATH: DATA}) as server:
        source = files_of(server, tmp_path).source("videos/a.mp4")
        # threads and locks are in use
        source.prefetch(np.array([[i * 1000, 900] for i in range(100, 160)]))
        child = os.fork()
        if child == 0:
            good = source.read(100_000, 150_000) == DATA[100_000:250_000]
            os._exit(0 if good else 1)
        assert source.read(100_000, 150_000) == DATA[100_000:250_000]
        assert os.waitpid(child, 0)[1] == 0
