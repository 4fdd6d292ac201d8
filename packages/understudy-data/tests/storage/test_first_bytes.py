"""The first requests for a file on a server: its index comes with its version, and the version is
asked for once.
"""

import threading
from collections.abc import Callable
from pathlib import Path

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from understudy_base import SourceError
from understudy_base.testing.refusals import refused
from understudy_data.datasets.format.catalog import Catalog
from understudy_data.storage.dataset_root import Files
from understudy_data.storage.remote_options import RemoteOptions, RetryPolicy
from understudy_data.storage.remote_store import HEAD
from understudy_data.testing.datasets import Spec, write_dataset
from understudy_data.testing.servers import FAULTS, Asked, RangeServer, folder

DATA = np.random.default_rng(0).integers(0, 256, 2_000_000, np.uint8).tobytes()
TABLES = {f"/set/data/{name}.parquet": DATA for name in "abc"}
VIDEOS = {f"/set/videos/{name}.mp4": DATA for name in "abc"}
QUICK = RetryPolicy(deadline=120.0, stall=60.0, initial_backoff=0.001, max_backoff=0.004)


def files_of(server: RangeServer, cache: Path, retry: RetryPolicy = QUICK) -> Files:
    return Files(f"{server.url}/set", RemoteOptions(cache=str(cache), retry=retry))


def test_the_end_of_a_table_comes_with_its_version(tmp_path: Path) -> None:
    with RangeServer(TABLES) as server:
        source = files_of(server, tmp_path).source("data/a.parquet")
        assert source.size == len(DATA)
        assert source.read(len(DATA) - HEAD, HEAD) == DATA[-HEAD:]
        assert len(server.log) == 1
        assert source.read(0, 10) == DATA[:10]
        assert server.sent == HEAD + 10


@pytest.mark.parametrize("size", [0, 5, HEAD])
def test_a_small_table_comes_whole(size: int, tmp_path: Path) -> None:
    with RangeServer({"/set/a.parquet": DATA[:size]}) as server:
        source = files_of(server, tmp_path).source("a.parquet")
        assert source.read(0, source.size) == DATA[:size]
        assert len(server.log) == 1


def refuses(status: int) -> Callable[[Asked], tuple[int, dict[str, str], bytes] | None]:
    return lambda asked: (
        (status, {}, b"no") if asked.headers["range"].startswith("bytes=-") else None
    )


@pytest.mark.parametrize("status", [400, 416, 501, 200, 206])
def test_a_server_that_knows_no_ranges_from_the_end_is_asked_once(
    status: int, tmp_path: Path
) -> None:
    """Some refuse such a range, send the whole file, or send its start."""

    def whole(asked: Asked) -> tuple[int, dict[str, str], bytes] | None:
        if not asked.headers["range"].startswith("bytes=-"):
            return None
        part = {"Content-Range": f"bytes 0-{HEAD - 1}/{len(DATA)}"} if status == 206 else {}
        return status, {"ETag": '"x"'} | part, DATA[:HEAD] if status == 206 else DATA

    with RangeServer(TABLES) as server:
        server.answer = whole if status in (200, 206) else refuses(status)
        files = files_of(server, tmp_path)
        for name in "abc":
            source = files.source(f"data/{name}.parquet")
            assert source.read(len(DATA) - 9, 9) == DATA[-9:]
        assert (
            len([asked for asked in server.log if asked.headers["range"].startswith("bytes=-")])
            == 1
        )


@settings(max_examples=25)
@given(faults=st.lists(st.sampled_from(FAULTS), max_size=3))
def test_a_table_is_met_on_a_faulty_server(
    faults: list[str], tmp_path_factory: pytest.TempPathFactory
) -> None:
    silent = RetryPolicy(deadline=240.0, stall=0.15, initial_backoff=0.001, max_backoff=0.004)
    with RangeServer(
        TABLES, lambda n, asked: faults[n] if n < len(faults) else "", stall=0.3
    ) as server:
        source = files_of(server, tmp_path_factory.mktemp("lies"), silent).source("data/a.parquet")
        assert source.size == len(DATA)
        for offset, size in ((len(DATA) - 70_000, 70_000), (0, 70_000), (len(DATA) - 8, 8)):
            assert source.read(offset, size) == DATA[offset : offset + size]


@pytest.mark.parametrize(
    ("files", "is_tail"), [(TABLES, True), (VIDEOS, False)], ids=["tables", "videos"]
)
def test_the_index_of_another_file_of_the_kind_comes_with_its_version(
    files: dict[str, bytes], is_tail: bool, tmp_path: Path
) -> None:
    """Where that of a first one took more bytes."""
    size = 3 * HEAD
    spans = [(0, HEAD), (HEAD, 2 * HEAD)]
    if is_tail:
        spans = [(len(DATA) - offset - count, count) for offset, count in spans]
    other = "other_camera/a.parquet" if is_tail else "other_camera/a.mp4"
    with RangeServer(files | {f"/set/{other}": DATA}) as server:
        there = files_of(server, tmp_path)
        first, second, _ = (path.removeprefix("/set/") for path in files)
        with there.opening(first) as source:
            for number, (offset, count) in enumerate(spans, start=1):
                assert source.read(offset, count) == DATA[offset : offset + count]
                assert len(server.log) == number
            source.note_index()
            source.read(1_000_000, 10)  # no part of it
        before = len(server.log), server.sent
        with there.opening(second) as source:
            start = len(DATA) - size if is_tail else 0
            assert source.read(start, size) == DATA[start : start + size]
        assert (len(server.log) - before[0], server.sent - before[1]) == (1, size)
        sent = server.sent
        there.source(other)
        assert server.sent - sent == HEAD


def test_what_is_known_of_a_file_takes_one_file_of_the_cache(tmp_path: Path) -> None:
    with RangeServer(TABLES) as server:
        for _ in range(2):
            for name in "abc":
                files_of(server, tmp_path).source(f"data/{name}.parquet")
        assert len(list((tmp_path / "v1/known").iterdir())) == 3
        assert [asked.status for asked in server.log] == [206] * 3 + [304] * 3


@pytest.mark.parametrize("kept", [0, 1, 9])
def test_a_note_that_a_killed_process_left_is_written_again(kept: int, tmp_path: Path) -> None:
    with RangeServer(TABLES) as server:
        files_of(server, tmp_path).source("data/a.parquet")
        (note,) = (tmp_path / "v1/known").iterdir()
        whole = note.read_bytes()
        note.write_bytes(whole[:kept])
        source = files_of(server, tmp_path).source("data/a.parquet")
        assert source.read(len(DATA) - 9, 9) == DATA[-9:]
        assert note.read_bytes() == whole


@pytest.mark.parametrize("has_changed", [False, True])
def test_processes_meet_a_file_at_the_same_time(has_changed: bool, tmp_path: Path) -> None:
    """One fetches its first bytes, unless an earlier version of it is known."""
    with RangeServer(dict(TABLES)) as server:
        if has_changed:
            files_of(server, tmp_path).source("data/a.parquet")
            server.files["/set/data/a.parquet"] = DATA[::-1]  # type: ignore[index]
            server.log.clear()
        # as processes: they share the cache alone
        readers = [files_of(server, tmp_path) for _ in range(4)]
        ends: list[bytes] = []

        def read(files: Files) -> None:
            source = files.source("data/a.parquet")
            ends.append(source.read(len(DATA) - 9, 9))

        threads = [threading.Thread(target=read, args=(files,)) for files in readers]
        for thread in threads:
            thread.start()
        for thread in threads:
            thread.join()
        assert ends == [DATA[::-1][-9:] if has_changed else DATA[-9:]] * 4
        if not has_changed:
            assert server.sent == HEAD


def marked(server: RangeServer, cache: Path) -> Files:
    """Files of one version, with a first one that was opened, for which all marks were asked."""
    files = files_of(server, cache)
    files.pin_version(["meta/info.json", "meta/stats.json"])
    files.source("data/a.parquet")
    server.log.clear()
    return files


META = {"/set/meta/info.json": b"{}", "/set/meta/stats.json": b"{ }"}


def test_files_that_are_opened_beside_each_other_share_the_question_for_the_version(
    tmp_path: Path,
) -> None:
    with RangeServer(TABLES | VIDEOS | META) as server:
        files = marked(server, tmp_path)
        with files.opening("videos/a.mp4") as one, files.opening("videos/b.mp4") as two:
            with files.opening("data/b.parquet") as three:
                assert not [asked for asked in server.log if "/meta/" in asked.path]
            assert len([asked for asked in server.log if "/meta/" in asked.path]) == 1
            assert one.read(0, 5) == two.read(0, 5) == three.read(0, 5)
        assert len([asked for asked in server.log if "/meta/" in asked.path]) == 1
        with files.opening("videos/c.mp4"):
            pass
        assert len([asked for asked in server.log if "/meta/" in asked.path]) == 2


@pytest.mark.parametrize("fails", [False, True], ids=["", "its index is broken"])
def test_a_file_of_another_version_is_refused_behind_its_index(fails: bool, tmp_path: Path) -> None:
    """Also where the index of the other file cannot be read: that is not the fault to name."""
    with RangeServer(TABLES | VIDEOS | META) as server:
        server.headers["Last-Modified"] = ""
        files = marked(server, tmp_path)
        for name in META:
            server.files[name] += b" "  # type: ignore[index]

        def open_video() -> None:
            with files.opening("videos/a.mp4") as source:
                source.read(0, 5)
                if fails:
                    source.read(len(DATA), 1)

        for _ in range(2):
            with refused(where="/set", fix="", kind=SourceError) as caught:
                open_video()
            assert "meta/" in caught.value.what
        with refused(where="/set", fix="", kind=SourceError):
            files.source("videos/a.mp4")


def beside(server: RangeServer, count: int, ask: Callable[[Asked], bool]) -> Callable[[], bool]:
    """Hold the requests that `ask` accepts until so many are there; returns whether they were."""
    lock = threading.Lock()
    here = list[str]()
    all_here = threading.Event()

    def hold(number: int, asked: Asked) -> str:
        if ask(asked):
            with lock:
                here.append(asked.path)
            if len(set(here)) >= count:
                all_here.set()
            all_here.wait(20)
        return ""

    server.fault = hold
    return all_here.is_set


def test_all_marks_are_asked_beside_each_other(tmp_path: Path) -> None:
    with RangeServer(TABLES | META) as server:
        files = files_of(server, tmp_path)
        files.pin_version(["meta/info.json", "meta/stats.json"])
        were_beside = beside(server, 2, lambda asked: "/meta/" in asked.path)
        files.source("data/a.parquet")
        assert were_beside()


@pytest.mark.parametrize("version", ["v2.1", "v3.0"])
def test_meta_files_are_asked_for_beside_each_other(version: str, tmp_path: Path) -> None:
    write_dataset(tmp_path / "d", Spec(version=version, lengths=(4, 3)))
    with RangeServer(folder(tmp_path / "d", "/set")) as server:
        were_beside = beside(
            server, 3, lambda asked: "/meta/" in asked.path and "info.json" not in asked.path
        )
        catalog = Catalog.open(
            f"{server.url}/set", RemoteOptions(cache=str(tmp_path / "cache"), retry=QUICK)
        )
        assert were_beside()
        assert catalog.num_episodes == 2
        asked = [asked.path for asked in server.log if asked.status == 206]
        assert len(asked) == len(set(asked))
        catalog.files.close()
