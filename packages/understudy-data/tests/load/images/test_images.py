"""Decoding in the loader: the same images as one by one, for any video, and each frame once."""

from collections import Counter
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st

from understudy_data.datasets.dataset import EpisodeDataset
from understudy_data.load.batch_request import BatchRequest
from understudy_data.load.images.buffer_pool import BufferPool
from understudy_data.load.images.clip_reader import (
    ClipReader,
    Cursors,
    DecodePolicy,
    Timings,
    first_runs,
)
from understudy_data.load.images.decoded_cache import decoded_bytes, keep_decoded
from understudy_data.load.images.source_facts import read_facts
from understudy_data.load.loader import Batch, Loader
from understudy_data.load.loader_threads import WorkerPool
from understudy_data.load.memory_plan import MemoryPlan, plan_memory, rank_policies
from understudy_data.order import Order
from understudy_data.testing.batches import least_memory
from understudy_data.testing.datasets import Spec, write_dataset
from understudy_data.video.color import Converter
from understudy_data.video.decoder import FrameDecoder
from understudy_data.video.native.ffmpeg import PYAV_MAJOR
from understudy_data.video.packets import Mp4Packets

TOP = "observation.images.top"
SIDE = "observation.images.side"
SPECS = {
    "gop 1": Spec(lengths=(30, 24, 41), gop=1),
    "gop 2": Spec(lengths=(30, 24, 41), gop=2, per_video_file=3),
    "gop 12 with B-frames": Spec(lengths=(30, 24, 41), gop=12, b_frames=2, cameras=(TOP, SIDE)),
    "gop 250 with B-frames": Spec(lengths=(60, 90, 41), gop=250, b_frames=2, per_video_file=3),
    "av1, a file each": Spec(version="v2.1", lengths=(30, 24, 41), gop=2, codec="libsvtav1"),
}
WINDOWS = {
    "none": {},
    "history": {TOP: [-0.2, -0.1, 0.0]},
    "sparse": {TOP: [-1.5, 0.0]},
    "ahead": {TOP: [0.0, 0.3], "action": [0.0, 0.1]},
}
LARGE = 10**9


@pytest.fixture(scope="module")
def roots(tmp_path_factory: pytest.TempPathFactory) -> dict[str, Path]:
    path = tmp_path_factory.mktemp("pictures")
    for number, spec in enumerate(SPECS.values()):
        write_dataset(path / str(number), spec)
    return {name: path / str(number) for number, name in enumerate(SPECS)}


def opened(root: Path, window: str = "none", **options: Any) -> EpisodeDataset:
    return EpisodeDataset(root, delta_timestamps=WINDOWS[window], frame_cache_bytes=0, **options)


def equal(batch: Batch, plain: Batch) -> bool:
    return all(
        torch.equal(batch[key], value) if isinstance(value, torch.Tensor) else batch[key] == value
        for key, value in plain.items()
    )


def batches(
    data: EpisodeDataset, order: Order, policy: DecodePolicy, count: int, **changes: Any
) -> Iterator[Batch]:
    """Batches of clip readers with a given policy, independent of memory."""
    plan = MemoryPlan(LARGE, (), 2, 2, (False,), (policy,), (0,), ())
    workers = WorkerPool(BatchRequest(order, (data,), **changes), plan, BufferPool(5, False))
    try:
        for _ in range(count):
            yield workers.take()
    finally:
        workers.stop()


@given(
    name=st.sampled_from(list(SPECS)),
    window=st.sampled_from(list(WINDOWS)),
    mode=st.sampled_from(["clips", "clips", "clips", "uniform", "sequential", "permuted"]),
    batch=st.integers(2, 7),
    clip=st.integers(2, 20),
    lanes=st.integers(1, 4),
    threads=st.sampled_from([1, 2, 3, 16]),
    extra=st.sampled_from([0, 50_000, 300_000, 10**6, LARGE]),
    start=st.integers(0, 400),
    world=st.integers(1, 2),
)
def test_loader_images_equal_those_of_the_dataset(  # type: ignore[no-untyped-def]
    roots, name, window, mode, batch, clip, lanes, threads, extra, start, world
) -> None:
    if SIDE in SPECS[name].cameras and window == "sparse":
        window = "history"
    data = opened(roots[name], window)
    options: dict[str, Any] = (
        {"mode": mode}
        if mode in ("uniform", "sequential")
        else {"clip": clip, "lanes": lanes * batch}
    )
    if mode == "permuted":
        options["inside"] = "permuted"
    order = Order.from_datasets([data], batch_size=batch, seed=3, **options)
    for rank in range(world):
        place: dict[str, Any] = {"rank": rank, "world_size": world, "allow_uneven": True}
        memory = extra + least_memory(data, order=order, **place)
        with Loader(
            [data], order=order, num_threads=threads, memory=memory, position=start, **place
        ) as loader:
            for _ in range(6):
                found = next(loader)
                _, episode, frame = order.locate(found["position"].numpy())
                assert equal(found, data.batch(episode, frame))


@given(
    name=st.sampled_from(list(SPECS)),
    window=st.sampled_from(list(WINDOWS)),
    policy=st.builds(DecodePolicy, st.sampled_from([1, 3, 8, 16]), st.booleans()),
    inside=st.sampled_from(["sequential", "permuted"]),
    clip=st.integers(2, 40),
    lanes=st.integers(1, 7),
    start=st.integers(0, 200),
)
def test_clip_reader_images_do_not_depend_on_the_policy(
    roots, name, window, policy, inside, clip, lanes, start
) -> None:  # type: ignore[no-untyped-def]
    if SIDE in SPECS[name].cameras and window == "sparse":
        window = "history"
    data = opened(roots[name], window)
    order = Order.from_datasets([data], batch_size=4, seed=1, clip=clip, lanes=lanes, inside=inside)
    for found in batches(data, order, policy, 8, position=start):
        _, episode, frame = order.locate(found["position"].numpy())
        assert equal(found, data.batch(episode, frame))


def counted(monkeypatch: pytest.MonkeyPatch) -> tuple[list[int], list[int]]:
    """(frames that decoders give, packets that they are fed) from now on, one entry each."""
    given_: list[int] = []
    fed: list[int] = []
    runs = FrameDecoder.runs
    packet = Mp4Packets.packet
    several = Mp4Packets.run

    def giving(self: FrameDecoder, wanted: np.ndarray, at_once: int = 1) -> Iterator[Any]:
        left = wanted.tolist()
        for run in runs(self, wanted, at_once):
            given_.extend(left[: len(run)])
            left = left[len(run) :]
            yield run

    def feeding(self: Mp4Packets, i: int, until: int) -> Any:
        fed.append(i)
        return packet(self, i, until)

    def feeding_several(self: Mp4Packets, first: int, stop: int, until: int) -> Any:
        coded = several(self, first, stop, until)
        fed.extend(range(first, first + coded.stop - coded.first))
        return coded

    monkeypatch.setattr(FrameDecoder, "runs", giving)
    monkeypatch.setattr(Mp4Packets, "packet", feeding)
    monkeypatch.setattr(Mp4Packets, "run", feeding_several)
    return given_, fed


@pytest.mark.parametrize(
    ("name", "policy"),
    [
        ("gop 2", DecodePolicy(16, False)),
        ("gop 2", DecodePolicy(1, True)),
        ("gop 250 with B-frames", DecodePolicy(8, True)),
    ],
)
@pytest.mark.parametrize("window", ["none", "history", "sparse"])
def test_clip_reader_decodes_each_frame_once(
    roots: dict[str, Path],
    monkeypatch: pytest.MonkeyPatch,
    name: str,
    policy: DecodePolicy,
    window: str,
) -> None:
    data = opened(roots[name], window)
    order = Order.from_datasets([data], batch_size=2, seed=1, clip=19, lanes=2)
    steps = len(data) // 2  # one epoch
    # one file holds all episodes, so a frame is known by its number there
    first = data.catalog.videos(TOP).first

    def pictures(episode: np.ndarray, frame: np.ndarray) -> list[int]:
        """Those that samples of a clip need, each once."""
        rows, frames = data.frames_to_decode(episode, frame)
        return np.unique(first[rows][:, None] + frames[TOP].reshape(len(frame), -1)).tolist()

    # The batches made ahead depend on the threads: `batches` allows 3 batches beyond those that
    # were taken, into the next epoch. A reader may have decoded its whole clip, or no more than the
    # samples that were taken.
    taken = 2 * steps
    until = 2 * (steps + 3)
    chains = 0
    least = Counter[int]()
    most = Counter[int]()
    for lane in (0, 1):  # chain by chain
        position = lane
        while position < until:
            positions, episode, frame = order.rest_of_clip(position, 99)
            chains += 1
            most.update(pictures(episode, frame))
            if position < taken:
                least.update(pictures(episode[positions < taken], frame[positions < taken]))
            position = int(positions[-1]) + 2
    given_, fed = counted(monkeypatch)
    for _ in batches(data, order, policy, steps):
        pass
    assert least <= Counter(given_) <= most
    if name == "gop 2":
        assert len(fed) <= len(given_) + 2 * chains
    halo = least.total() - taken
    (halo > 0) == (window != "none") or pytest.fail(
        "the windows of this test share frames, or do not"
    )


def test_clip_reader_cost_does_not_depend_on_the_gop(
    roots: dict[str, Path], monkeypatch: pytest.MonkeyPatch
) -> None:
    _, fed = counted(monkeypatch)

    def cost(name: str, policy: DecodePolicy) -> float:
        """Packets per sample of one lane in a clip that begins at a key frame."""
        data = opened(roots[name])
        orders = [
            Order.from_datasets([data], batch_size=1, seed=seed, clip=250, lanes=1)
            for seed in range(9)
        ]
        starts = [int(order.positions_of(0, 0, 0)[0]) for order in orders]
        count, start, order = max(
            ((len(o.rest_of_clip(s, 250)[0]) - 20, s, o) for o, s in zip(orders, starts)),
            key=lambda one: one[0],
        )  # the last 20 of the clip are made ahead
        fed.clear()
        for _ in batches(data, order, policy, count, position=start):
            pass
        return len(fed) / count

    assert cost("gop 2", DecodePolicy(16, False)) < 1.4
    assert cost("gop 250 with B-frames", DecodePolicy(8, True)) < 1.4
    data = opened(roots["gop 250 with B-frames"])
    fed.clear()
    for _ in batches(
        data,
        Order.from_datasets([data], batch_size=3, seed=1, clip=250, lanes=3),
        DecodePolicy(0, False),
        20,
    ):
        pass
    assert len(fed) > 15 * 60  # the negative control: half a group for each sample


def test_first_runs_of_the_first_batch_are_short_and_later_ones_take_turns(
    roots: dict[str, Path],
) -> None:
    data = opened(roots["gop 2"], episodes=[2])
    rows, frames = data.frames_to_decode(np.full(41, 2), np.arange(41))
    positions = list(range(100, 141))
    reader = ClipReader(
        data,
        TOP,
        positions,
        rows,
        frames[TOP],
        DecodePolicy(16, False),
        [0, 5],
        Cursors(1),
        Converter(),
    )
    spent, complete, due = Timings(), {}, []  # type: ignore[var-annotated]
    while reader.next_position is not None:
        due.append(reader.next_position)
        reader.decode_next(complete, spent)
        assert spent.frames == len(complete)
    assert due == [100, 101, 106, 122, 138]
    assert list(complete) == positions

    order = Order.from_datasets([data], batch_size=4, seed=1, clip=9, lanes=12)
    policy = DecodePolicy(16, False)
    for position in range(5, 5 + 40):
        runs = first_runs(order, 0, policy, position, 5, gop=1)
        assert (runs[0] == 0) == (position < 5 + 4)  # the first batch is waited for
        lane = int(order.lanes([position])[1][0])
        turn = position // 12 + max(1, sum(runs) + (runs[0] == 0))
        later = next(
            p for p in range(12 * turn, 12 * turn + 12) if int(order.lanes([p])[1][0]) == lane
        )
        assert first_runs(order, 0, policy, later, 0, gop=1) == [
            16
        ]  # there a whole run begins, whenever the clip began
    ends = {first_runs(order, 0, policy, position, 0, gop=2)[0] for position in range(12, 24)}
    assert len(ends) == 12  # each lane at another time
    assert first_runs(order, 0, DecodePolicy(1, True), 5, 5, gop=250) == []
    assert first_runs(order, 0, DecodePolicy(30, False, whole_gops=True), 50, 5, gop=30) == [1]
    for position in range(12):  # while lanes open, the same turns in several runs
        (long, kept, short) = (
            first_runs(order, 0, DecodePolicy(16, keep), position, 0, gop=gop)
            for keep, gop in ((False, 17), (True, 250), (False, 3))
        )
        first = position < 4
        run = sum(long) + first
        assert long == ([0, run - 1][:run] if first else [run])
        assert kept == [0, run - 1][:run]
        assert short == [0] * first + [1] * -(-(run - first) // 3)


def made(loader: Loader, count: int) -> None:
    with loader:
        for _ in range(count):
            next(loader)


def test_lanes_open_with_one_gop_each(
    roots: dict[str, Path], monkeypatch: pytest.MonkeyPatch
) -> None:
    """The consumer waits for these batches; runs of 16 frames begin when all lanes are open."""
    given_, _ = counted(monkeypatch)
    data = opened(roots["gop 2"])
    ready = list[int]()
    order = Order.from_datasets([data], batch_size=4, seed=1, clip=9, lanes=8)

    def note(batch: Batch) -> Batch:
        ready.append(len(given_))
        return batch

    plan = MemoryPlan(LARGE, (), 1, 2, (False,), (DecodePolicy(16, False),), (0,), ())
    workers = WorkerPool(BatchRequest(order, (data,), preprocess=note), plan, BufferPool(5, False))
    try:
        for _ in range(8):
            workers.take()
    finally:
        workers.stop()
    assert ready[0] == 4
    assert ready[1] <= 4 + 2 * 4
    assert ready[7] > 8 * 4 + 8  # then they are ahead


def test_first_batch_of_decoded_images_waits_for_its_own_frames(
    roots: dict[str, Path], monkeypatch: pytest.MonkeyPatch
) -> None:
    given_, _ = counted(monkeypatch)
    for name, gop in (("gop 2", 2), ("gop 250 with B-frames", 250)):
        data = opened(roots[name], episodes=[0])
        ready = list[int]()

        def note(batch: Batch, ready: list[int] = ready) -> Batch:
            ready.append(len(given_))
            return batch

        given_.clear()
        order = Order.from_datasets([data], batch_size=3, seed=1, mode="uniform")
        made(Loader([data], order=order, memory=LARGE, num_threads=1, preprocess=note), 2)
        _, _, frame = order.locate(np.arange(6))
        assert ready[0] == len(
            {n for own in frame[:3].tolist() for n in range(own // gop * gop, own + 1)}
        )
        assert ready[1] <= len(data)


def test_rows_of_a_batch_are_read_after_its_images(
    roots: dict[str, Path], monkeypatch: pytest.MonkeyPatch
) -> None:
    """A data file takes long to read. Threads that have made their images wait for it, none that
    still could.
    """
    given_, _ = counted(monkeypatch)
    data = opened(roots["gop 2"])
    read = EpisodeDataset.row_batch
    decoded = list[int]()

    def reading(self: EpisodeDataset, episodes: np.ndarray, frames: np.ndarray) -> Any:
        decoded.append(len(given_))
        return read(self, episodes, frames)

    monkeypatch.setattr(EpisodeDataset, "row_batch", reading)
    order = Order.from_datasets([data], batch_size=4, seed=1, clip=9, lanes=8)
    made(Loader([data], order=order, memory=10**7, num_threads=1), 1)
    assert decoded[0] >= 4


def test_rank_policies_puts_the_fastest_first() -> None:
    """Runs as long as their clip allows; in storage order all is one clip, however short the order
    calls it.
    """

    def ways(
        gop: int, clip: int, shuffle: bool, lanes: float = 1.0
    ) -> list[tuple[int, bool, bool]]:
        return [
            (way.run_length, way.keep_decoder, way.whole_gops)
            for way in rank_policies(False, gop, clip, 0, False, shuffle, lanes)
        ]

    shared = [(run, False, False) for run in (8, 4)]
    kept = [(run, True, False) for run in (8, 4, 2)]
    last = [(1, True, False), (0, False, False)]
    assert ways(2, 64, True) == [*shared, *last]
    assert ways(2, 7, True) == ways(2, 3, True) == [*shared[1:], *last]
    # no run is shorter than a GOP
    assert ways(6, 64, True) == ways(6, 64, True, lanes=8.0) == [*shared[:1], *last]
    assert ways(30, 64, True) == [(30, False, True), *kept, *last]
    assert ways(250, 64, True) == [*kept, *last]
    assert ways(250, 1, False) == ways(2, 1, False) == [*kept, *last]
    # more would be decoded ahead in the first batches
    assert ways(2, 64, True, lanes=8.0) == [*shared[1:], *last]


@pytest.mark.skipif(
    PYAV_MAJOR < 17, reason="budgets for decoders of FFmpeg 8.1; those before take more memory"
)
def test_plan_decodes_middling_gops_whole_where_memory_allows(roots: dict[str, Path]) -> None:
    data = opened(roots["gop 2"])
    data.__dict__["gop"] = 30
    order = Order.from_datasets([data], batch_size=4, seed=1, clip=30, lanes=4)
    least = least_memory(data, order=order)
    plans = [
        plan_memory(
            [read_facts(data)],
            order,
            rank=0,
            world_size=1,
            num_threads=1,
            memory=least + 100_000 * i,
        )
        for i in (0, 30, 80)
    ]
    assert [(plan.policies[0], plan.keeps_decoded[0]) for plan in plans] == [
        (DecodePolicy(0, False), False),
        (DecodePolicy(30, False, whole_gops=True), False),
        (DecodePolicy(30, False, whole_gops=True), True),
    ]


def test_decoded_images_are_decoded_when_first_needed(
    roots: dict[str, Path], monkeypatch: pytest.MonkeyPatch
) -> None:
    given_, _ = counted(monkeypatch)
    data = opened(roots["gop 2"])
    order = Order.from_datasets([data], batch_size=4, seed=1, mode="uniform")
    with Loader([data], order=order, memory=LARGE, num_threads=3) as loader:
        assert loader.plan.keeps_decoded == (True,)
        next(loader)
        loader.close()
        assert len(given_) < len(data)  # not everything before the first batch
        for _ in range(len(data)):
            next(loader)
    assert len(given_) == len(data)  # four epochs, each frame once


def test_loader_resizes_cameras_and_sources_of_other_sizes(
    tmp_path: Path, roots: dict[str, Path]
) -> None:
    data = opened(roots["gop 12 with B-frames"])
    order = Order.from_datasets([data], batch_size=3, seed=1, clip=6, lanes=3)
    with Loader([data], order=order, memory=LARGE, image_size=(32, 48)) as kept:
        small = [next(kept) for _ in range(5)]
    assert small[0][TOP].shape == (3, 3, 32, 48)
    for policy in (DecodePolicy(8, False, resized=True), DecodePolicy(8, True)):
        for one, two in zip(
            batches(data, order, policy, 5, image_size=(32, 48)), small, strict=True
        ):
            assert equal(one, two)
    with Loader([data], order=order) as loader:
        whole = next(loader)
    mean = torch.nn.functional.interpolate(whole[SIDE].float(), (32, 48), mode="area")
    assert (small[0][SIDE].float() - mean).abs().max() <= 0.51


def test_loader_augments_by_the_position_alone(roots: dict[str, Path]) -> None:
    def brighter(pictures: dict[str, torch.Tensor], rng: Any) -> None:
        for picture in pictures.values():
            picture.add_(int(rng.integers(1, 9)))

    data = opened(roots["gop 2"])
    order = Order.from_datasets([data], batch_size=4, seed=1, clip=6, lanes=4)
    plain = [b[TOP] for b in batches(data, order, DecodePolicy(4, False), 6)]
    runs = []
    for threads, start, memory in ((1, 0, LARGE), (3, 8, 10**7)):
        with Loader(
            [data],
            order=order,
            num_threads=threads,
            position=start,
            memory=memory,
            augment=brighter,
        ) as loader:
            runs.append([next(loader)[TOP] for _ in range(4)])
    for late, early in zip(runs[1][:2], runs[0][2:], strict=True):
        assert torch.equal(late, early)
    added = torch.stack(runs[0]) - torch.stack(plain[:4])  # uint8, wraps around as add_ does
    per_sample = added.reshape(16, -1)
    assert (per_sample == per_sample[:, :1]).all()
    assert len(per_sample[:, 0].unique()) > 3


@pytest.mark.parametrize(("codec", "share"), [("libx264", 0.5), ("libvpx-vp9", 1.0)])
def test_images_of_unknown_pixel_format_are_planned_and_kept_as_rgb(
    codec: str, share: float, tmp_path: Path
) -> None:
    """VP9 names no format in these files: its frames may take more than those of 8-bit 4:2:0."""
    write_dataset(tmp_path, Spec(lengths=(6,), codec=codec, cameras=(TOP,)))
    data = opened(tmp_path)
    reader = data.video_frames.reader(TOP, 0)
    rgb = 6 * reader.height * reader.width * 3
    # without padding, which outweighs so small images
    reader.frame_bytes = reader.height * reader.width * 3 // 2
    assert decoded_bytes(data) == share * rgb
    images = keep_decoded(data).video_frames
    plain = data.video_frames.take(TOP, np.array([0]), np.array([3]))
    assert np.array_equal(images.take(TOP, np.array([0]), np.array([3])), plain)
