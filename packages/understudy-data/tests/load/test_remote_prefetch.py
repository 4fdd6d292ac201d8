"""Loader over a server: the batches of a local folder, each byte once, few bytes before the first,
no thread left.
"""

import contextlib
import itertools
import multiprocessing
import threading
import time
from collections import Counter
from collections.abc import Iterable
from pathlib import Path

import numpy as np
import pytest
import torch

from understudy_base import SourceError, is_wrong_input
from understudy_base.testing.refusals import refused
from understudy_data.datasets.dataset import EpisodeDataset
from understudy_data.datasets.format.catalog import Catalog
from understudy_data.load.batch_builder import BatchInProgress
from understudy_data.load.images.clip_reader import Timings
from understudy_data.load.images.source_facts import read_facts
from understudy_data.load.loader import Batch, Loader
from understudy_data.load.loader_threads import WorkerPool
from understudy_data.load.remote_prefetch import Prefetcher
from understudy_data.order import Order
from understudy_data.storage import remote_store
from understudy_data.storage.byte_source import LocalSource
from understudy_data.storage.remote_options import RemoteOptions, RetryPolicy
from understudy_data.storage.remote_source import RemoteSource
from understudy_data.testing.datasets import Spec, identity, write_dataset
from understudy_data.testing.servers import Asked, RangeServer, change_retry_policy, folder
from understudy_data.video import mp4
from understudy_data.video.reader import open_video

TOP = "observation.images.top"


@pytest.fixture(scope="module")
def root(tmp_path_factory: pytest.TempPathFactory) -> Path:
    path = tmp_path_factory.mktemp("ahead") / "d"
    write_dataset(path, Spec(version="v3.0", lengths=(60, 45, 70, 55), gop=6, per_video_file=2))
    return path


@pytest.fixture(autouse=True)
def small_steps(monkeypatch: pytest.MonkeyPatch) -> None:
    """Read little when a file is opened: the default would be all of these small videos."""
    monkeypatch.setattr(remote_store, "HEAD", 512)
    monkeypatch.setattr(mp4, "FIRST_READ", 512)


def opened(server: RangeServer, cache: Path, patience: RetryPolicy | None = None) -> EpisodeDataset:
    remote = RemoteOptions(cache=str(cache), retry=patience or RetryPolicy(initial_backoff=0.001))
    return EpisodeDataset(
        Catalog.open(f"{server.url}/set", remote), delta_timestamps={TOP: [-0.1, 0]}
    )


def loader(data: EpisodeDataset, start: int = 0) -> Loader:
    order = Order.from_datasets([data], batch_size=8, seed=1, frames_in_flight=100)
    return Loader([data], order=order, num_threads=2, memory="2MB", position=start)


def first_of(there: Loader, monkeypatch: pytest.MonkeyPatch) -> Batch:
    """The first batch, without prefetching for the batches that the loader's threads make
    meanwhile.

    Otherwise the number of bytes would depend on the time that this thread takes to continue.
    """
    with monkeypatch.context() as patch:
        patch.setattr(Prefetcher, "advance", lambda self, number: None)
        return next(there)


def names() -> list[str]:
    return [thread.name for thread in threading.enumerate() if thread.name.startswith("understudy")]


def test_prefetch_fetches_each_byte_once(root: Path, tmp_path: Path) -> None:
    local = EpisodeDataset(root, delta_timestamps={TOP: [-0.1, 0]})
    count = len(local) // 8 + 2
    with RangeServer(folder(root, "/set"), latency=0.002) as server:
        for _ in range(2):  # the second time from the cache
            with loader(local) as here, loader(opened(server, tmp_path)) as there:
                for _ in range(count):
                    one = next(here)
                    other = next(there)
                    assert one.keys() == other.keys()
                    assert all(
                        torch.equal(one[k], other[k])
                        for k in one
                        if isinstance(one[k], torch.Tensor)
                    )
            assert server.sent <= sum(map(len, folder(root).values()))
        assert any(asked.status == 304 for asked in server.log)
    assert not names()


def test_processes_of_a_host_fetch_each_byte_of_an_epoch_once(tmp_path: Path) -> None:
    cameras = tuple(f"observation.images.{name}" for name in ("left", "right", "wrist"))
    write_dataset(
        tmp_path / "d", Spec(lengths=(60, 45, 70, 35), gop=6, per_video_file=2, cameras=cameras)
    )
    forked = multiprocessing.get_context("fork")
    with RangeServer(folder(tmp_path / "d", "/set"), latency=0.002) as server:
        all_have_read = forked.Barrier(3)

        def read(rank: int) -> None:
            remote = RemoteOptions(
                cache=str(tmp_path / "cache"), retry=RetryPolicy(initial_backoff=0.001)
            )
            data = EpisodeDataset(Catalog.open(f"{server.url}/set", remote))
            order = Order.from_datasets([data], batch_size=6, seed=1, frames_in_flight=60)
            with Loader(
                [data], order=order, rank=rank, world_size=3, num_threads=1, memory="3MB"
            ) as there:
                frames = [
                    frame
                    for batch in itertools.islice(there, 35)
                    for frame in batch["index"].tolist()
                ]
                all_have_read.wait(
                    240
                )  # closing it gives up spans of the next epoch, which others may need in this one
            assert len(set(frames)) == 70

        ranks = [forked.Process(target=read, args=(rank,)) for rank in range(3)]
        for process in ranks:
            process.start()
        for process in ranks:
            process.join(240)
        assert [process.exitcode for process in ranks] == [0, 0, 0]
        assert isinstance(server.files, dict)
        sizes = {path: len(data) for path, data in server.files.items()}
        sent = Counter[str]()
        for asked in server.log:
            sent[asked.path] += asked.sent
        assert {path: sent[path] for path, size in sizes.items() if sent[path] > size} == {}
        videos = [path for path in sizes if path.endswith("mp4")]
        assert len(videos) == 5
        assert sum(sent[path] for path in videos) > 0.99 * sum(sizes[path] for path in videos), (
            "all is needed"
        )


def test_all_that_opening_clips_decode_is_prefetched(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """GOPs are decoded whole, so the bytes behind the next samples are needed at once, too."""
    write_dataset(tmp_path / "d", Spec(lengths=(120,) * 12, gop=20))
    # batches; the loader's threads make fewer than 40 meanwhile
    taken = 4
    ahead = 40
    local = EpisodeDataset(tmp_path / "d")
    order = Order.from_datasets([local], batch_size=2, seed=1, frames_in_flight=640)
    assert (order.spec.sources[0].clip, order.spec.sources[0].lanes) == (100, 10)
    asked: list[tuple[str, int, int]] = []
    read: list[tuple[str, int, int]] = []
    fill = LocalSource.fill

    def record(self: LocalSource, offset: int, memory: memoryview) -> None:
        read.append((self.where[-12:], offset, len(memory)))
        fill(self, offset, memory)

    with monkeypatch.context() as patch:
        patch.setattr(LocalSource, "fill", record)
        for path in sorted((tmp_path / "d").rglob("*.mp4")):
            open_video(path)
        indexes = bytes_of(read)
        with Loader([local], order=order, num_threads=1, memory="60MB") as here:
            assert here.plan.policies[0].whole_gops
            for _ in range(taken):
                next(here)
    packets = bytes_of(read) - indexes
    assert packets
    with RangeServer(folder(tmp_path / "d", "/set")) as server:
        data = EpisodeDataset(opened(server, tmp_path / "cache").catalog)
        for row in range(12):
            data.video_frames.reader(TOP, row)
        with monkeypatch.context() as patch:
            patch.setattr(Prefetcher, "distance", lambda self: ahead)
            patch.setattr(
                RemoteSource,
                "prefetch",
                lambda self, spans: asked.extend(
                    (self.where[-12:], *span) for span in spans.tolist()
                ),
            )
            with Loader([data], order=order, num_threads=1, memory="60MB") as there:
                next(there)
                deadline = time.monotonic() + 60
                while not packets <= bytes_of(list(asked)) and time.monotonic() < deadline:
                    time.sleep(0.05)
    assert packets <= bytes_of(asked)


def bytes_of(spans: Iterable[tuple[str, int, int]]) -> set[tuple[str, int]]:
    """Bytes of videos, one by one."""
    return {
        (path, byte)
        for path, first, size in spans
        if path.endswith("mp4")
        for byte in range(first, first + size)
    }


def test_videos_are_opened_beside_each_other(tmp_path: Path) -> None:
    write_dataset(tmp_path / "d", Spec(version="v2.1", lengths=(5,) * 6))
    with RangeServer(folder(tmp_path / "d", "/set")) as server:
        data = opened(server, tmp_path / "cache")
        asked_for = set[str]()
        all_six = threading.Event()

        def hold(number: int, asked: Asked) -> str:
            asked_for.add(asked.path)
            if len(asked_for) == 6:
                all_six.set()
            return "" if all_six.wait(20) else "500"

        server.fault = hold
        for row in range(6):
            data.video_frames.prefetch(TOP, row, 0, 4, 4)  # returns at once
        assert all_six.wait(240)
        images = data.batch(np.arange(6), np.zeros(6, np.int64))[TOP]
        assert [identity(pixels[1].numpy())[1] for pixels in images] == list(range(6))
        paths = [
            asked.path for asked in server.log if asked.path.endswith("mp4") and asked.first == 0
        ]
        assert sorted(paths) == sorted(set(paths)), "no file is opened twice"
        data.catalog.files.close()


def test_close_ends_the_opening_of_videos(tmp_path: Path) -> None:
    write_dataset(tmp_path / "d", Spec(version="v2.1", lengths=(5,) * 6))
    with RangeServer(folder(tmp_path / "d", "/set"), stall=100.0) as server:
        data = opened(server, tmp_path / "cache", RetryPolicy(deadline=200.0, stall=100.0))
        server.fault = lambda n, asked: "silence"
        asked = len(server.log)
        for row in range(6):
            data.video_frames.prefetch(TOP, row, 0, 4, 4)
        until = time.monotonic() + 240
        while len(server.log) < asked + 6 and time.monotonic() < until:
            time.sleep(0.002)
        data.catalog.files.close()
        assert "understudy-fetch" not in names()


def test_prefetch_begins_behind_the_first_batch(
    root: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    plain = WorkerPool._wait_for_room
    may_go_on = threading.Event()

    def wait_for_room(self: WorkerPool, number: int, timings: Timings) -> BatchInProgress | None:
        assert number == 0 or may_go_on.wait(240)
        return plain(self, number, timings)

    monkeypatch.setattr(WorkerPool, "_wait_for_room", wait_for_room)
    with RangeServer(folder(root, "/set")) as server, loader(opened(server, tmp_path)) as there:
        first_of(there, monkeypatch)
        video = [asked.sent for asked in server.log if asked.path.endswith("mp4")]
        may_go_on.set()
        size = sum(len(data) for path, data in server.files.items() if path.endswith("mp4"))
        assert sum(video) < 0.6 * size  # its frames, and the index of two short files
        until = time.monotonic() + 240
        while "understudy-fetch" not in names():
            assert time.monotonic() < until, "nothing is fetched ahead"
            next(there)


@pytest.mark.parametrize("memory", ["2MB", "3MB", "20MB"])  # made alone, in runs, kept
def test_prefetch_of_the_first_batch_is_its_samples_only(
    memory: str, root: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    ahead: set[tuple[str, int]] = set()  # bytes
    read: set[tuple[str, int]] = set()
    begun = threading.Event()
    prefetch = RemoteSource.prefetch
    take = RemoteSource.fill

    def submitted(self: RemoteSource, spans: np.ndarray) -> None:
        ahead.update(
            (self.where, byte)
            for offset, size in spans.tolist()
            for byte in range(offset, offset + size)
        )
        begun.set()
        prefetch(self, spans)

    def noted(self: RemoteSource, offset: int, memory: memoryview) -> None:
        if threading.current_thread().name.startswith("understudy-loader"):
            assert begun.wait(240), "nothing is fetched ahead of the first batch"
        read.update((self.where, byte) for byte in range(offset, offset + len(memory)))
        take(self, offset, memory)

    with RangeServer(folder(root, "/set"), latency=0.01) as server:
        data = opened(server, tmp_path)
        order = Order.from_datasets([data], batch_size=8, seed=1, frames_in_flight=100)
        monkeypatch.setattr(RemoteSource, "prefetch", submitted)
        monkeypatch.setattr(RemoteSource, "fill", noted)
        monkeypatch.setattr(
            Prefetcher, "distance", lambda self: 0
        )  # or the second batch is asked for once the first is out
        with Loader([data], order=order, num_threads=2, memory=memory, position=3) as there:
            next(there)
            asked = set(ahead)
        assert len(asked - read) < 0.2 * len(asked), (
            "no more than the packets that a decoder holds back: one or two here"
        )


def test_loader_close_does_not_wait_for_a_silent_server(
    root: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    silent: list[int] = []

    def silence(number: int, asked: Asked) -> str:
        if not asked.path.endswith("mp4"):
            return ""
        silent.append(number)
        return "silence"

    with RangeServer(folder(root, "/set"), stall=100.0) as server:
        data = opened(server, tmp_path, RetryPolicy(deadline=200.0, stall=100.0))
        other = opened(server, tmp_path / "other")
        other.catalog.files.close()  # its threads would end by themselves, but later
        there = loader(data)
        first_of(there, monkeypatch)
        server.fault = silence

        def take() -> None:
            with contextlib.suppress(SourceError):  # its loader is stopped
                for _ in range(9):
                    next(there)

        waiter = threading.Thread(target=take, daemon=True)
        waiter.start()
        until = time.monotonic() + 240
        while not silent and time.monotonic() < until:
            time.sleep(0.002)
        assert silent
        there.close()
        assert not names()  # long before the server's silence ends
        waiter.join(240)
        assert not waiter.is_alive()
        server.fault = lambda n, asked: ""
        with loader(data) as again, loader(other) as fresh:
            assert torch.equal(next(again)[TOP], next(fresh)[TOP])


def test_loader_raises_for_a_dead_server_and_substitutes_nothing(
    root: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    with RangeServer(folder(root, "/set")) as server:
        data = opened(server, tmp_path)
        order = Order.from_datasets([data], batch_size=8, seed=1, frames_in_flight=100)
        with Loader(
            [data], order=order, num_threads=2, memory="2MB", on_bad_frame="substitute"
        ) as there:
            first_of(there, monkeypatch)
            server.fault = lambda n, asked: "500" if asked.path.endswith("mp4") else ""
            change_retry_policy(
                data.catalog.files,
                RetryPolicy(deadline=0.3, initial_backoff=0.01, max_backoff=0.05),
            )
            with refused(500, where=")", kind=SourceError) as caught:
                list(itertools.islice(there, 20))
            assert not is_wrong_input(caught.value), "a run ends with the exit code of an outage"
            server.fault = lambda n, asked: ""
            change_retry_policy(data.catalog.files, RetryPolicy(initial_backoff=0.001))
            position = there.position
            with loader(EpisodeDataset(root, delta_timestamps={TOP: [-0.1, 0]}), position) as local:
                assert torch.equal(next(there)[TOP], next(local)[TOP]), (
                    "it continues at its position"
                )


def test_rows_of_coming_samples_are_prefetched(
    root: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    asked = set[int]()
    all_asked = threading.Event()
    prefetch = EpisodeDataset.prefetch_rows

    def note(self: EpisodeDataset, rows: np.ndarray) -> None:
        asked.update(rows.tolist())
        if len(asked) == 4:
            all_asked.set()
        prefetch(self, rows)

    monkeypatch.setattr(EpisodeDataset, "prefetch_rows", note)
    with RangeServer(folder(root, "/set")) as server, loader(opened(server, tmp_path)) as there:
        for _ in range(12):
            next(there)
        assert all_asked.wait(240)


def test_cameras_are_opened_beside_each_other(tmp_path: Path) -> None:
    cameras = tuple(f"observation.images.{name}" for name in ("left", "right", "wrist"))
    write_dataset(tmp_path / "d", Spec(lengths=(8, 8), cameras=cameras))
    with RangeServer(folder(tmp_path / "d", "/set")) as server:
        data = EpisodeDataset(
            Catalog.open(f"{server.url}/set", RemoteOptions(cache=str(tmp_path / "cache")))
        )
        asked_for = set[str]()
        all_three = threading.Event()

        def hold(number: int, asked: Asked) -> str:
            if asked.path.endswith("mp4"):
                asked_for.add(asked.path)
                if len(asked_for) == 3:
                    all_three.set()
                return "" if all_three.wait(20) else "500"
            return ""

        server.fault = hold
        read_facts(data)
        assert all_three.is_set()
        data.catalog.files.close()
