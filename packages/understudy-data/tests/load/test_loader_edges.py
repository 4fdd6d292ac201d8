"""Edge cases of the loader: forks, pickles, interrupts, errors in the middle, and other users of
its memory.
"""

import copy
import itertools
import os
import pickle
import signal
import threading
import time
from collections import Counter
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch

from understudy_base import parse_bytes
from understudy_base.testing.refusals import refused
from understudy_data.datasets.dataset import EpisodeDataset
from understudy_data.datasets.read import video_frames
from understudy_data.load.images import buffer_pool as buffers_
from understudy_data.load.images.buffer_pool import BufferPool
from understudy_data.load.images.clip_reader import ClipReader, SampleImages, Timings
from understudy_data.load.images.decoded_cache import DecodedImages, keep_decoded
from understudy_data.load.loader import Loader
from understudy_data.load.loader_threads import WorkerPool
from understudy_data.order import ClipOrder, Order
from understudy_data.order.sample_random import SampleRng
from understudy_data.storage.byte_source import ByteSource
from understudy_data.storage.cancel import Cancelled, cancel_when
from understudy_data.testing.batches import batches, least_memory, same
from understudy_data.testing.datasets import Spec, episode_pictures, write_dataset, write_video
from understudy_data.video import packets
from understudy_data.video.decoder import FrameDecoder
from understudy_data.video.index import PacketRun
from understudy_data.video.mp4 import UnknownLayout
from understudy_data.video.packets import open_packets
from understudy_data.video.reader import VideoReader, open_video

TOP = "observation.images.top"
BATCH = 6


@pytest.fixture(scope="module")
def root(tmp_path_factory: pytest.TempPathFactory) -> Path:
    path = tmp_path_factory.mktemp("edges") / "dataset"
    write_dataset(path, Spec(lengths=(11, 1, 9, 130), gop=125))
    return path


@pytest.fixture
def data(root: Path) -> EpisodeDataset:
    return EpisodeDataset(root, delta_timestamps={"action": [0.0, 0.1]}, frame_cache_bytes=0)


@pytest.fixture
def order(data: EpisodeDataset) -> Order:
    return Order.from_datasets([data], batch_size=BATCH, seed=5, clip=4, lanes=BATCH)


@pytest.fixture(autouse=True)
def no_thread_is_left() -> Iterator[None]:
    before = set(threading.enumerate())
    yield
    for thread in set(threading.enumerate()) - before:
        thread.join(60)  # of a loader that was not closed
        assert not thread.is_alive(), thread


# -- other processes --------------------


def in_a_fork(act: Callable[[], bool]) -> bool:
    """Result of `act` in a forked child, which is ended when it hangs."""
    child = os.fork()
    if child == 0:
        code = 3
        try:
            signal.signal(signal.SIGALRM, signal.SIG_DFL)
            signal.alarm(60)
            code = 0 if act() else 1
        finally:
            os._exit(code)
    return os.waitpid(child, 0)[1] == 0


@pytest.mark.filterwarnings("ignore:This process.*is multi-threaded")
def test_loader_raises_in_a_forked_child(data: EpisodeDataset, order: Order) -> None:
    expected = batches(data, order, 3)
    with Loader([data], order=order, num_threads=2) as loader:
        next(loader)
        workers = loader._workers
        assert workers is not None

        def child() -> bool:
            with refused(f"position={BATCH}", "EpisodeStream", kind=RuntimeError):
                next(loader)
            loader.close()
            with refused(f"position={BATCH}", "EpisodeStream", kind=RuntimeError):
                next(loader)
            workers.ask_to_stop()  # as the end of a program does
            return all(map(same, batches(data, order, 3, num_threads=2), expected))

        with workers._change:  # as a thread may hold it at the moment of the fork
            assert in_a_fork(child)
        assert same(next(loader), expected[1])  # the parent's loader continues

    assert not in_a_fork(lambda: False)  # the negative control


def test_loader_refuses_copies_and_pickles(data: EpisodeDataset, order: Order) -> None:
    with Loader([data], order=order) as loader:
        for begun in (False, True):
            for act in (pickle.dumps, copy.copy, copy.deepcopy):
                with refused("Loader", "position=loader.position", kind=TypeError):
                    act(loader)
            if not begun:
                next(loader)


# -- errors and interrupts --------------------


@pytest.mark.parametrize("when", ["before", "after"])
def test_loader_loses_no_batch_to_an_interrupt(
    data: EpisodeDataset, order: Order, monkeypatch: pytest.MonkeyPatch, when: str
) -> None:
    """A notebook's user presses stop and later asks for the next batch."""
    expected = batches(data, order, 4)
    plain = WorkerPool.take
    armed = [True]

    def interrupted(self: WorkerPool) -> dict[str, Any]:
        batch = plain(self) if when == "after" else {}
        if self._taken >= 2 and armed.pop():
            armed.append(False)
            raise KeyboardInterrupt
        return batch or plain(self)

    with Loader([data], order=order, num_threads=2) as loader:
        monkeypatch.setattr(WorkerPool, "take", interrupted)
        found = []
        while len(found) < 4:
            position = loader.position
            try:
                found.append(next(loader))
            except KeyboardInterrupt:
                assert loader.position == position == BATCH * len(found)
                armed[:] = [False]
                monkeypatch.setattr(WorkerPool, "take", plain)
        assert all(map(same, found, expected))
    assert armed == [False]


def test_loader_ends_its_threads_if_one_cannot_start(
    data: EpisodeDataset, order: Order, monkeypatch: pytest.MonkeyPatch
) -> None:
    before = threading.active_count()
    plain = threading.Thread.start

    def start(self: threading.Thread) -> None:
        if self.name == "understudy-loader-2":
            raise RuntimeError("can't start new thread")
        plain(self)

    monkeypatch.setattr(threading.Thread, "start", start)
    loader = Loader([data], order=order, num_threads=4)
    with refused("thread", kind=RuntimeError):
        next(loader)
    assert threading.active_count() == before
    monkeypatch.setattr(threading.Thread, "start", plain)
    assert same(next(loader), batches(data, order, 1)[0])
    loader.close()


@pytest.mark.parametrize("memory", ["4GB", "least"])
def test_loader_raises_the_first_error_at_its_batch(
    data: EpisodeDataset, order: Order, memory: str
) -> None:
    """Several threads fail at different batches, some of them ahead of the first that the consumer
    must meet.
    """
    bad = {31: "late", 22: "early", 33: "later"}  # positions: batches 5, 3 and 5

    def failing(pictures: dict[str, torch.Tensor], rng: Any) -> None:
        if (position := asked[rng_key(rng)]) in bad:
            raise ArithmeticError(bad[position])

    def rng_key(rng: Any) -> int:
        return int(rng.integers(0, 1 << 31))

    asked = {rng_key(SampleRng(order.seed, "augment", p)): p for p in range(200)}
    expected = batches(data, order, 4)
    for threads in (1, 2, 5):
        given = (
            least_memory(data, order=order) + 200_000 if memory == "least" else parse_bytes(memory)
        )
        with Loader(
            [data], order=order, num_threads=threads, memory=given, augment=failing
        ) as loader:
            assert all(same(next(loader), expected[n]) for n in range(3))
            for _ in range(2):  # and again when it is asked for again
                with pytest.raises(ArithmeticError, match="early"):
                    next(loader)
                assert loader.position == 3 * BATCH
            saved = bad.pop(22)
            assert same(next(loader), expected[3])
            bad[22] = saved


def test_loader_preprocesses_whole_batches_in_its_threads(
    data: EpisodeDataset, order: Order
) -> None:
    names: set[str] = set()

    def preprocess(batch: dict[str, Any]) -> dict[str, Any]:
        names.add(threading.current_thread().name)
        return {**batch, "words": [len(text.split()) for text in batch["task"]]}

    expected = batches(data, order, 3)
    found = batches(data, order, 3, num_threads=2, preprocess=preprocess)
    for one, two in zip(expected, found, strict=True):
        words = two.pop("words")
        assert same(one, two)
        assert words == [len(text.split()) for text in one["task"]]
    assert all(name.startswith("understudy-loader") for name in names)


def test_loader_returns_batches_before_an_error(data: EpisodeDataset, order: Order) -> None:
    """One thread fails at the second batch while another is still at work on the first."""
    second = {
        int(SampleRng(order.seed, "augment", p).integers(0, 1 << 31))
        for p in range(BATCH, 2 * BATCH)
    }
    first = int(SampleRng(order.seed, "augment", 0).integers(0, 1 << 31))

    def failing(pictures: dict[str, torch.Tensor], rng: Any) -> None:
        key = int(rng.integers(0, 1 << 31))
        if key in second:
            failed.set()
            raise ArithmeticError("second")
        if key == first:
            failed.wait(30)
            time.sleep(0.2)  # until the error is known to the loader

    failed = threading.Event()
    expected = batches(data, order, 1)[0]
    with Loader([data], order=order, num_threads=2, augment=failing) as loader:
        assert same(next(loader), expected)
        with pytest.raises(ArithmeticError, match="second"):
            next(loader)


def test_decoded_images_decodes_a_frame_once_for_two_threads(data: EpisodeDataset) -> None:
    pictures = keep_decoded(data).video_frames
    assert isinstance(pictures, DecodedImages)
    shape = pictures._episode(TOP, 3).shape
    outs = [np.empty((1, *shape), np.uint8) for _ in range(2)]
    spent = [Timings(), Timings()]
    episode = pictures._episode(TOP, 3)
    threads = [
        threading.Thread(target=pictures.read_into, args=(TOP, 3, [5], out, one))
        for out, one in zip(outs, spent)
    ]
    with episode.filling:  # both have seen that it is not there
        for thread in threads:
            thread.start()
        threading.Event().wait(0.2)
    for thread in threads:
        thread.join()
    assert sorted(one.frames > 0 for one in spent) == [False, True]
    assert (outs[0] == outs[1]).all()


def test_loader_ends_its_threads_when_it_is_dropped(data: EpisodeDataset, order: Order) -> None:
    """No close, no with: the threads still end (`no_thread_is_left`)."""
    loader = Loader([data], order=order, num_threads=3)
    next(loader)
    del loader


@pytest.mark.parametrize("at_once", [1, 4, 32])
def test_picture_decoder_stops_within_a_group(at_once: int, tmp_path: Path) -> None:
    """A single frame at the end of a long GOP: after some packets, not after all of them."""
    video = tmp_path / "long.mp4"
    spec = Spec(lengths=(60,), gop=250)
    write_video(video, episode_pictures(spec, 0, 0), spec)
    packets = open_packets(str(video))
    target = packets.index.count - 1
    fed = []
    assert packets.index.keys.tolist() == [0]
    one = packets.packet
    several = packets.run

    def another(i: int, until: int) -> Any:
        fed.append(i)
        return one(i, until)

    def more(first: int, stop: int, until: int) -> PacketRun:
        coded = several(first, stop, until)
        fed.extend(range(first, first + coded.stop - coded.first))
        return coded

    packets.packet = another  # type: ignore[method-assign]
    packets.run = more  # type: ignore[method-assign]
    ended: list[str] = []

    def reading() -> None:
        cancel_when(lambda: len(fed) >= 5)
        try:
            next(iter(FrameDecoder(packets, "here").frames(np.asarray([target]), at_once)))
        except Cancelled:
            ended.append("stopped")

    thread = threading.Thread(target=reading)
    thread.start()
    thread.join()
    assert ended == ["stopped"]
    assert 5 <= len(fed) < 5 + 8
    found, _ = next(iter(FrameDecoder(packets, "here").frames(np.asarray([target]), at_once)))
    assert found == target  # not stopped
    assert len(fed) > 20
    packets.close()


# -- settings --------------------


def test_loader_devices(data: EpisodeDataset, order: Order) -> None:
    expected = batches(data, order, 3)
    assert all(map(same, batches(data, order, 3, device="cpu"), expected))
    meta = batches(data, order, 1, device="meta", host_keys=["position"])[0]
    assert meta[TOP].device.type == meta["action"].device.type == "meta"
    assert meta["position"].device.type == "cpu"
    assert meta["task"] == expected[0]["task"]
    if not torch.cuda.is_available():
        with refused("device", "'cuda'", kind=ValueError):
            Loader([data], order=order, device="cuda")
        with refused("pin", kind=ValueError):
            Loader([data], order=order, pin=True)


@pytest.mark.parametrize("start", [2**31, 2**40, 2**62 - 100])
@pytest.mark.parametrize("mode", ["clips", "uniform", "sequential"])
def test_loader_far_positions_and_large_batches(
    data: EpisodeDataset, start: int, mode: str
) -> None:
    order = Order.from_datasets([data], batch_size=200, seed=1, mode=mode)  # more than all frames
    with Loader([data], order=order, position=start) as loader:
        for batch in itertools.islice(loader, 2):
            _, episode, frame = order.locate(batch["position"].numpy())
            plain = data.batch(episode, frame)
            assert same({k: batch[k] for k in plain}, plain)
    assert loader.position == start + 400
    with pytest.raises(ValueError, match=str(2**62)):
        Loader([data], order=order, position=2**62)


@pytest.mark.parametrize("memory", ["4GB", "least"])
def test_loader_timings(data: EpisodeDataset, order: Order, memory: str) -> None:
    given = least_memory(data, order=order) if memory == "least" else memory
    with Loader([data], order=order, memory=given, num_threads=1) as loader:
        assert loader.plan.keeps_decoded == (memory == "4GB",)
        for _ in range(8):
            next(loader)
        now = loader.timings
        assert min(now.fetch, now.decode, now.convert, now.assemble) > 0
        assert now.frames >= 40
        assert now.decode > now.fetch  # the file is in memory
        loader.close()
        next(loader)
        assert loader.timings.decode >= now.decode


# -- memory that is used again --------------------


KEEPERS: dict[str, Callable[[torch.Tensor], Any]] = {
    "the tensor": lambda t: t,
    "a slice": lambda t: t[1:2],
    "one sample": lambda t: t[3],
    "a view": lambda t: t.reshape(len(t), -1).T,
    "a numpy array": lambda t: t.numpy(),
    "a slice of a numpy array": lambda t: t.numpy()[2, 0],
    "a buffer": lambda t: memoryview(t.numpy()),
    "a storage": lambda t: t.untyped_storage(),
    "through dlpack": lambda t: np.from_dlpack(t[2:]),
}


def content(kept: Any) -> bytes:
    if isinstance(kept, torch.UntypedStorage):
        kept = torch.tensor([], dtype=torch.uint8).set_(kept)
    return (kept.numpy() if isinstance(kept, torch.Tensor) else np.asarray(kept)).tobytes()


@pytest.mark.parametrize("keep", KEEPERS)
def test_buffer_pool_never_reuses_kept_memory(
    data: EpisodeDataset, order: Order, keep: str
) -> None:
    held = []
    whole = []
    addresses = []
    with Loader([data], order=order, num_threads=2) as loader:
        for _ in range(14):
            batch = next(loader)
            addresses.append(batch[TOP].data_ptr())
            held.append(KEEPERS[keep](batch[TOP]))
            whole.append(content(held[-1]))
            del batch
    assert [content(kept) for kept in held] == whole
    assert len(set(addresses)) == len(addresses)


def test_buffer_pool_reuses_released_memory(data: EpisodeDataset, order: Order) -> None:
    addresses = set()
    with Loader([data], order=order, num_threads=2) as loader:
        for _ in range(20):
            addresses.add(next(loader)[TOP].data_ptr())
        assert len(addresses) <= loader.plan.batches_ahead + 2
    buffers = BufferPool(2, pin=False)
    one = buffers.take((4, 4))
    two = buffers.take((4, 4))
    assert buffers.take((4, 3)) is not one
    address = two.ctypes.data
    del two
    assert buffers.take((4, 4)).ctypes.data == address  # the freed one, not the one that is held


def test_buffer_pool_waits_for_a_release_but_not_for_kept_batches(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    buffers = BufferPool(2, pin=False)
    waits = 0
    held = [buffers.take((4, 4)), buffers.take((4, 4))]
    address = held[1].ctypes.data

    def sleep(seconds: float) -> None:
        nonlocal waits
        waits += 1
        if waits == 3:
            held.pop()

    monkeypatch.setattr(buffers_.time, "sleep", sleep)
    held.append(buffers.take((4, 4)))
    assert (held[1].ctypes.data, waits) == (address, 3)
    held.append(buffers.take((4, 4)))
    before = waits
    assert before > 3
    held += [buffers.take((4, 4)) for _ in range(3)]
    assert waits == before  # this consumer keeps its batches
    assert len({array.ctypes.data for array in held}) == 6


def test_clip_reader_drops_frames_behind_their_last_sample(
    root: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    data = EpisodeDataset(root, delta_timestamps={TOP: [-0.2, 0.0]}, frame_cache_bytes=0)
    order = Order.from_datasets([data], batch_size=1, seed=1, clip=100, lanes=1)
    held: list[int] = []
    plain = ClipReader.decode_next

    def decode_next(self: ClipReader, ready: dict[int, SampleImages], spent: Timings) -> None:
        assert not ready  # one lane
        plain(self, ready, spent)
        waiting = set(self._held)
        for pictures in ready.values():
            waiting.update(map(id, pictures))  # type: ignore[arg-type]
        held.append(len(waiting))
        assert len(self._held) <= sum(data.reach)

    monkeypatch.setattr(ClipReader, "decode_next", decode_next)
    with Loader([data], order=order, memory=least_memory(data, order=order) + 600_000) as loader:
        assert loader.plan.keeps_decoded == (False,)
        for _ in range(120):
            next(loader)
        policy = loader.plan.policies[0]
        halo = sum(data.reach)
    assert policy.run_length >= 1
    # A run may reach on to a key frame, at most as far again.
    assert 1 <= max(held) <= 2 * policy.run_length + halo < 40


def test_ready_batches_are_delivered_while_later_samples_are_looked_up(
    data: EpisodeDataset, order: Order, monkeypatch: pytest.MonkeyPatch
) -> None:
    delivered = threading.Event()
    waits = []
    locate = ClipOrder.locate

    def slow(self: Order, positions: Any) -> Any:
        if np.min(positions) >= 4 * BATCH:
            waits.append(delivered.wait(60))
        return locate(self, positions)

    monkeypatch.setattr(ClipOrder, "locate", slow)
    with Loader(data, order=order, num_threads=2) as loader:
        for _ in range(4):  # the look-up of the fifth begins before the fourth is asked for
            next(loader)
        delivered.set()
        next(loader)
    assert waits
    assert all(waits)


def test_videos_stay_open_where_memory_allows(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Reading the index of a packed file again takes as long as decoding a clip."""
    write_dataset(tmp_path / "d", Spec(version="v2.1", lengths=(24,) * 40))
    data = EpisodeDataset(tmp_path / "d")
    order = Order.from_datasets([data], batch_size=8, seed=1, frames_in_flight=480)
    opened = Counter[str]()

    def count(source: ByteSource, *arguments: Any) -> VideoReader:
        opened[source.where] += 1
        return open_video(source, *arguments)

    park = FrameDecoder.park
    monkeypatch.setattr(video_frames, "open_video", count)
    with Loader([data], order=order, num_threads=2, memory="4MB") as batches:
        assert batches.plan.keeps_decoded == (False,)
        assert batches.plan.indexes[0] > 0
        for _ in range(2 * 960 // 8):
            next(batches)
    assert len(opened) >= 39  # the first one is open from the choice of the order on
    assert set(opened.values()) == {1}
    parked: list[FrameDecoder] = []
    monkeypatch.setattr(FrameDecoder, "park", lambda self: (parked.append(self), park(self))[1])
    for frame in range(24):
        data.batch(np.zeros(1, np.int64), np.full(1, frame))
    assert not parked, "a video that is read in a row keeps its decoder"
    images = data.batch(np.arange(40), np.zeros(40, np.int64))[TOP]
    assert len(parked) == 40 - video_frames.OPEN_FILES
    assert torch.equal(
        images, EpisodeDataset(tmp_path / "d").batch(np.arange(40), np.zeros(40, np.int64))[TOP]
    )
    assert pickle.loads(pickle.dumps(data)).video_frames.index_bytes == 0


def test_videos_with_a_file_of_their_own_do_not_stay_open(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A container that mp4.py does not describe has a descriptor for each open video."""
    write_dataset(tmp_path / "d", Spec(version="v2.1", lengths=(24,) * 40))
    monkeypatch.setattr(packets, "read_mp4", refuse_layout)
    data = EpisodeDataset(tmp_path / "d")
    order = Order.from_datasets([data], batch_size=8, seed=1, frames_in_flight=480)
    with Loader([data], order=order, num_threads=2, memory="4MB") as loader:
        for _ in range(960 // 8):
            next(loader)
        assert loader.plan.indexes == (0,)
        assert len(data.video_frames.readers) <= video_frames.OPEN_FILES


def refuse_layout(*arguments: object) -> None:
    raise UnknownLayout("not described")
