"""The host's cache: each byte is fetched once, the budget holds, leftovers of kills and bad disks
are not trusted.
"""

import errno
import os
import signal
import threading
import time
import warnings
from collections.abc import Callable, Iterator
from pathlib import Path

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from understudy_base import DatasetError
from understudy_base.testing.refusals import warned
from understudy_data.storage import locks
from understudy_data.storage.cache_budget import Span, Spans
from understudy_data.storage.dataset_root import Files
from understudy_data.storage.remote_options import RemoteOptions, RetryPolicy, default_cache_folder
from understudy_data.storage.remote_source import RemoteSource
from understudy_data.testing.servers import RangeServer, change_retry_policy

DATA = np.random.default_rng(1).integers(0, 256, 400_000, np.uint8).tobytes()
HEAD = 65_536  # bytes fetched when a file is opened
PATH = "/set/a.mp4"
QUICK = RetryPolicy(deadline=120.0, stall=60.0, initial_backoff=0.001, max_backoff=0.004)


@pytest.fixture
def server() -> Iterator[RangeServer]:
    with RangeServer({PATH: DATA, "/set/b.mp4": DATA[::-1]}) as server:
        yield server


def reader(
    server: RangeServer, cache: Path, budget: int = 1 << 30, retry: RetryPolicy = QUICK
) -> RemoteSource:
    """Open the source as another process of the host would: only the folder is shared."""
    source = Files(
        server.url + "/set", RemoteOptions(cache=str(cache), cache_bytes=budget, retry=retry)
    ).source("a.mp4")
    assert isinstance(source, RemoteSource)
    return source


def spans_in(cache: Path) -> list[Path]:
    return [path for path in cache.glob("v1/objects/*/*/*") if path.suffix != ".claim"]


def kept(cache: Path) -> int:
    return sum(path.stat().st_size for path in spans_in(cache))


def until(met: Callable[[], bool]) -> None:
    """Wait for a condition; the test's time limit ends the wait."""
    while not met():
        time.sleep(0.002)


def child(act: Callable[[], bool]) -> int:
    """Run `act` in a forked process and return its id; exit code 0 if `act` was true, 3 on
    Ctrl-C.
    """
    pid = os.fork()
    if pid == 0:
        code = 1
        try:
            code = 0 if act() else 1
        except KeyboardInterrupt:
            code = 3
        finally:
            os._exit(code)
    return pid


def exit_code(pid: int) -> int:
    return os.waitstatus_to_exitcode(os.waitpid(pid, 0)[1])


def union(spans: list[tuple[int, int]]) -> int:
    held = np.zeros(len(DATA), bool)
    for offset, size in spans:
        held[offset : offset + size] = True
    return int(held.sum())


SPANS = st.tuples(st.integers(0, len(DATA) - 1), st.integers(0, 60_000)).map(
    lambda s: (s[0], min(s[1], len(DATA) - s[0]))
)


@settings(max_examples=25)
@given(reads=st.lists(st.tuples(st.integers(0, 1), SPANS), min_size=1, max_size=12))
def test_cache_fetches_each_byte_once(
    reads: list[tuple[int, tuple[int, int]]], tmp_path_factory: pytest.TempPathFactory
) -> None:
    cache = tmp_path_factory.mktemp("once")
    with RangeServer({PATH: DATA}) as server:
        both = [reader(server, cache), reader(server, cache)]
        for who, (offset, size) in reads:
            assert both[who].read(offset, size) == DATA[offset : offset + size]
        asked = union([(0, HEAD), *(span for _, span in reads)])
        assert server.sent == asked
        assert kept(cache) == asked


@settings(max_examples=25)
@given(
    reads=st.lists(st.tuples(st.integers(0, 1), SPANS, st.booleans()), min_size=1, max_size=12),
    budget=st.integers(0, 150_000),
)
def test_cache_budget_holds_and_changes_no_byte(
    reads: list[tuple[int, tuple[int, int], bool]],
    budget: int,
    tmp_path_factory: pytest.TempPathFactory,
) -> None:
    cache = tmp_path_factory.mktemp("budget")
    with RangeServer({PATH: DATA}) as server:
        both = [reader(server, cache, budget), reader(server, cache, budget)]
        for who, (offset, size), ahead in reads:
            if ahead:
                both[who].prefetch(np.array([[offset, size]]))
            assert both[who].read(offset, size) == DATA[offset : offset + size]
            assert kept(cache) <= budget
        for one in both:
            one.root.remote_files.close()
        assert kept(cache) <= budget


@given(
    ends=st.lists(st.tuples(st.integers(0, 60), st.integers(1, 30)), max_size=20),
    gone=st.sets(st.integers(0, 19)),
    asked=st.tuples(st.integers(0, 90), st.integers(0, 40)),
)
def test_spans_overlapping_returns_them_by_start(
    ends: list[tuple[int, int]], gone: set[int], asked: tuple[int, int]
) -> None:
    spans = [Span(start, start + size, str(i), 0) for i, (start, size) in enumerate(ends)]
    some = Spans()
    start = asked[0]
    end = asked[0] + asked[1]
    for left in ([], gone):
        for span in spans:
            some.add(span)
        some.remove([str(i) for i in left])
        near = some.overlapping(start, end)
        assert [span.start for span in near] == sorted(span.start for span in near)
        wanted = {
            span.name
            for i, span in enumerate(spans)
            if i not in left and span.start < end and start < span.end
        }
        assert {span.name for span in near} == wanted
        assert len(near) == len(wanted)


def test_entry_lists_its_folder_only_after_claims_of_others(
    server: RangeServer, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    source = reader(server, tmp_path)
    other = reader(server, tmp_path)
    looks = 0
    plain = os.listdir

    def counted(path: str) -> list[str]:
        nonlocal looks
        looks += 1
        return plain(path)

    monkeypatch.setattr(os, "listdir", counted)
    for who, offset, most in (
        (source, 100_000, 1),
        (source, 110_000, 1),
        (other, 120_000, 2),
        (other, 130_000, 2),
    ):
        who.read(offset, 5_000)
        assert looks <= most
    sent = server.sent
    source.read(120_000, 15_000)
    assert server.sent == sent + 5_000
    entry = other.entry
    claims, _ = entry.claim(140_000, 5_000, 1 << 20)
    mine = source.entry
    for _ in range(2):  # another process is fetching it
        assert mine.claim(140_000, 5_000, 1 << 20) == ([], True)
    assert source.root.remote_files.cache.budget.reserve(5_000)
    entry.store(claims[0], DATA[140_000:145_000])
    assert mine.claim(140_000, 5_000, 1 << 20) == ([], False)


def test_span_is_renamed_while_nobody_lists_its_folder(
    server: RangeServer, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A listing of thousands of names during a rename may have neither name: its bytes would be
    fetched twice.
    """
    source = reader(server, tmp_path)
    held = []
    plain = os.rename

    def rename(old: str, new: str) -> None:
        held.append(
            [path for path in tmp_path.glob("v1/locks/*") if locks.acquire(str(path)) is None]
        )
        plain(old, new)

    monkeypatch.setattr(os, "rename", rename)
    source.read(100_000, 5_000)
    assert [len(paths) for paths in held] == [1]


def test_cache_is_shared_by_processes(server: RangeServer, tmp_path: Path) -> None:
    places = [(i * 20_000, 25_000) for i in range(15)]

    def read_all() -> bool:
        source = reader(server, tmp_path)
        source.prefetch(np.array(places))
        return all(source.read(o, n) == DATA[o : o + n] for o, n in places)

    server.latency = 0.005
    children = [child(read_all) for _ in range(3)]
    assert [exit_code(pid) for pid in children] == [0, 0, 0]
    assert server.sent == union([(0, HEAD), *places])
    assert sum(asked.status == 304 for asked in server.log) == 2, (
        "the others ask whether the file is still the same"
    )


def test_cache_survives_a_kill_at_any_instant(server: RangeServer, tmp_path: Path) -> None:
    """Leftovers of killed processes are not trusted, block no process and are removed."""
    rng = np.random.default_rng(2)
    server.rate = 4e6

    def read_all() -> bool:
        source = reader(server, tmp_path, 300_000)
        source.prefetch(np.array([[o, 9_000] for o in range(0, 390_000, 9_000)]))
        return all(
            source.read(o, 30_000) == DATA[o : o + 30_000]
            for o in range(0, 390_000, 30_000)
            for _ in range(9)
        )

    for _ in range(12):
        pids = [child(read_all) for _ in range(2)]
        time.sleep(float(rng.uniform(0.01, 0.15)))
        for pid in pids:
            os.kill(pid, signal.SIGKILL)
            exit_code(pid)
    server.rate = 0
    source = reader(server, tmp_path, 300_000)
    assert all(source.read(o, 30_000) == DATA[o : o + 30_000] for o in range(0, 390_000, 30_000))
    assert kept(tmp_path) <= 300_000
    tight = reader(server, tmp_path, 100_000)
    assert tight.read(0, len(DATA)) == DATA
    tight.read(70_000, 90_000)  # evicts, and removes leftovers
    assert not list(tmp_path.glob("v1/objects/*/*/*.claim"))
    assert kept(tmp_path) <= 100_000


@pytest.mark.parametrize("damage", ["a bit", "shorter", "empty", "gone", "zeros"])
def test_cache_fetches_a_damaged_span_again(
    damage: str, server: RangeServer, tmp_path: Path
) -> None:
    reader(server, tmp_path).read(100_000, 50_000)
    (path,) = (path for path in spans_in(tmp_path) if path.name.startswith(f"{100_000:x}-"))
    data = bytearray(path.read_bytes())
    if damage == "a bit":
        data[777] ^= 4
    path.unlink()
    if damage != "gone":
        path.write_bytes(
            {"shorter": data[:-1], "empty": b"", "zeros": bytes(len(data))}.get(damage, bytes(data))
        )
    sent = server.sent
    with warnings.catch_warnings(record=True) as caught_warnings:
        warnings.simplefilter("always")
        assert reader(server, tmp_path).read(110_000, 20_000) == DATA[110_000:130_000]
    assert server.sent - sent == 20_000
    assert len(caught_warnings) == (damage != "gone")


def test_cache_ignores_foreign_files(server: RangeServer, tmp_path: Path) -> None:
    reader(server, tmp_path).read(100_000, 10)
    folder = spans_in(tmp_path)[0].parent
    for name in ("note.txt", "1-2", "x-y-z", "q.claim", ".DS_Store"):
        (folder / name).write_bytes(b"?")
    (tmp_path / "v1" / "used").write_bytes(b"what")
    assert reader(server, tmp_path).read(99_000, 2_000) == DATA[99_000:101_000]
    assert reader(server, tmp_path, 70_000).read(200_000, 60_000) == DATA[200_000:260_000]
    assert kept(tmp_path) <= 70_000


def test_claim_of_a_dead_process_is_free_and_of_an_idle_one_expires(
    server: RangeServer, tmp_path: Path
) -> None:
    source = reader(server, tmp_path)
    other = reader(server, tmp_path)
    change_retry_policy(source.root, RetryPolicy(deadline=1.0, stall=5.0, initial_backoff=0.001))
    entry = other.entry
    claims, busy = entry.claim(100_000, 1_000, 1 << 20)
    assert (len(claims), busy) == (1, False)
    assert entry.claim(100_500, 1_000, 1 << 20)[1], "a part of it is being fetched"
    assert source.read(100_400, 10) == DATA[100_400:100_410]  # its owner is idle
    assert all(asked.first != 100_000 for asked in server.log)
    Path(claims[0].path).rename(tmp_path / "kept")
    Path(claims[0].path).write_bytes(b"")  # as a killed process leaves it
    assert source.read(100_700, 10) == DATA[100_700:100_710]


def test_pinned_spans_are_not_evicted(server: RangeServer, tmp_path: Path) -> None:
    budget = HEAD + 100_000
    source = reader(server, tmp_path, budget)
    source.prefetch(np.array([[100_000, 30_000], [150_000, 30_000]]))
    until(lambda: kept(tmp_path) == HEAD + 60_000 and len(source.entry.pins) == 2)
    other = reader(server, tmp_path, budget)
    for offset in range(200_000, 400_000, 20_000):
        other.read(offset, 20_000)  # far more than the budget
    asked = len(server.log)
    assert source.read(150_000, 30_000) == DATA[150_000:180_000]
    assert source.read(100_000, 15_000) == DATA[100_000:115_000]
    assert len(server.log) == asked
    for offset in range(200_000, 400_000, 20_000):
        other.read(offset, 20_000)
    names = {path.name.split("-")[0] for path in spans_in(tmp_path)}
    assert f"{100_000:x}" in names, "half of it is still to be read"
    assert f"{150_000:x}" not in names, "read to its end, it may go"


def threads() -> list[threading.Thread]:
    return [thread for thread in threading.enumerate() if thread.name == "understudy-fetch"]


@pytest.mark.long
def test_prefetch_hides_latency_and_leaves_no_thread(server: RangeServer, tmp_path: Path) -> None:
    until(lambda: not threads())  # of earlier tests
    server.latency = 0.05
    source = reader(server, tmp_path)
    files = source.root
    assert isinstance(files, Files)
    assert files.latency == 0.0
    spans = np.array([[100_000 + i * 10_000, 10_000] for i in range(16)])
    counted = threading.Event()  # an early idle thread would take the next job
    server.fault = lambda n, asked: "" if counted.wait(60) else "500"
    source.prefetch(spans)
    assert len(threads()) == len(spans), "as many at once as the default allows"
    counted.set()
    for offset, size in spans.tolist():
        assert source.read(offset, size) == DATA[offset : offset + size]
    assert server.sent == HEAD + 160_000
    assert files.latency >= 0.05
    files.close()
    assert not threads()
    source.prefetch(np.array([[300_000, 10]]))  # works after `close`, too
    until(lambda: kept(tmp_path) == HEAD + 160_010)
    until(lambda: not threads())


def test_close_ends_a_stalled_transfer(server: RangeServer, tmp_path: Path) -> None:
    until(lambda: not threads())
    server.stall = 30.0
    source = reader(server, tmp_path, retry=RetryPolicy(deadline=60.0, stall=30.0))
    server.fault = lambda n, asked: "stall"
    source.prefetch(np.array([[100_000, 10_000], [200_000, 10_000]]))
    until(lambda: sum(asked.sent == 6_666 for asked in server.log) == 2)
    source.root.remote_files.close()
    assert not threads()
    assert not list(tmp_path.glob("v1/objects/*/*/*.claim"))
    server.fault = lambda n, asked: ""
    assert source.read(100_000, 10_000) == DATA[100_000:110_000]


def test_read_is_interrupted_by_ctrl_c(server: RangeServer, tmp_path: Path) -> None:
    server.stall = 200.0
    reader(server, tmp_path)
    server.fault = lambda n, asked: "silence" if asked.first else ""

    def read() -> bool:
        signal.signal(signal.SIGINT, signal.default_int_handler)
        source = reader(server, tmp_path, retry=RetryPolicy(deadline=200.0, stall=200.0))
        source.prefetch(np.array([[200_000, 10_000]]))
        source.read(200_000, 10_000)  # waits for the thread
        return True

    pid = child(read)
    until(lambda: any(asked.first == 200_000 for asked in server.log))
    os.kill(pid, signal.SIGINT)
    assert exit_code(pid) == 3


def test_cache_on_a_full_disk_returns_every_byte(
    server: RangeServer, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    source = reader(server, tmp_path)

    def full(*_: object) -> int:
        raise OSError(28, "No space left on device")

    monkeypatch.setattr(os, "write", full)
    with warned(os.strerror(errno.ENOSPC)):
        assert source.read(100_000, 10_000) == DATA[100_000:110_000]
    monkeypatch.undo()
    assert kept(tmp_path) == HEAD
    assert not list(tmp_path.glob("v1/objects/*/*/*.claim"))
    assert int((tmp_path / "v1" / "used").read_bytes()) == HEAD


def test_cache_folder_follows_xdg_and_options(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path))
    assert RemoteOptions().folder == default_cache_folder() == str(tmp_path / "understudy")
    assert RemoteOptions(cache="~/x").folder == os.path.expanduser("~/x")
    (tmp_path / "file").write_bytes(b"")
    with pytest.raises(DatasetError) as caught:
        Files("http://127.0.0.1:9/x", RemoteOptions(cache=str(tmp_path / "file"))).read("y")
    assert (caught.value.where, "cache=" in caught.value.fix) == (str(tmp_path / "file"), True)
