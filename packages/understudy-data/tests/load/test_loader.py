"""The loader: its batches depend on the order alone, not on threads, memory, ranks or restarts."""

import os
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from understudy_base import parse_bytes
from understudy_base.testing.refusals import refused
from understudy_data.datasets.dataset import EpisodeDataset
from understudy_data.load.images.decoded_cache import decoded_bytes
from understudy_data.load.loader import Loader
from understudy_data.order import Order
from understudy_data.testing.batches import least_memory
from understudy_data.testing.datasets import Spec, identity, write_dataset
from understudy_data.video.native.ffmpeg import PYAV_MAJOR

TOP = "observation.images.top"
BATCH = 6


@pytest.fixture(scope="module")
def root(tmp_path_factory: pytest.TempPathFactory) -> Path:
    path = tmp_path_factory.mktemp("loader") / "dataset"
    write_dataset(path, Spec(lengths=(11, 7, 9, 13), gop=4))
    return path


@pytest.fixture(scope="module")
def twin(root: Path) -> Path:
    """The same dataset under another name, as the sources of a mixture must have."""
    path = root.with_name("twin")
    path.symlink_to(root)
    return path


DELTAS = {"action": [0.0, 0.1, 0.2]}


def opened(root: Path, **options: Any) -> EpisodeDataset:
    return EpisodeDataset(root, delta_timestamps=DELTAS, **options)


def order_of(*sources: EpisodeDataset, batch: int = BATCH) -> Order:
    return Order.from_datasets(sources, batch_size=batch, seed=5, frames_in_flight=24)


def take(loader: Loader, count: int) -> list[dict[str, Any]]:
    with loader:
        return [next(loader) for _ in range(count)]


@pytest.mark.parametrize(
    ("options", "words"),
    [
        ({}, ["order", "batch_size=32"]),
        ({"order": True, "batch_size": 8}, ["order", "batch_size 6"]),
        ({"order": True, "seed": 0}, ["order", "seed 5"]),
    ],
)
def test_loader_needs_an_order_or_a_batch_size(
    root: Path, options: dict[str, Any], words: list[Any]
) -> None:
    data = opened(root)
    if options.get("order"):
        options = {**options, "order": order_of(data)}
    with refused(*words, kind=ValueError):
        Loader(data, **options)


def test_loader_names_the_least_memory(root: Path) -> None:
    data = opened(root)
    order = order_of(data)
    enough = least_memory(data, order=order)
    Loader([data], order=order, memory=enough).close()
    with refused("memory", enough - 1, enough, kind=ValueError):
        Loader([data], order=order, memory=enough - 1)


@pytest.mark.skipif(
    PYAV_MAJOR < 17, reason="budgets for decoders of FFmpeg 8.1; those before take more memory"
)
def test_plan_keeps_decoded_images_within_memory(root: Path, twin: Path) -> None:
    data = opened(root)
    size = len(data) * 64 * 64 * 3
    assert decoded_bytes(data) == size
    assert decoded_bytes(opened(root, keys=["action"])) == 0
    both = [data, opened(twin)]
    order = order_of(*both)
    seen = set()
    for memory in range(least_memory(*both, order=order), 40 * size, size // 4):
        with Loader(both, order=order, memory=memory) as loader:
            assert loader.plan.bytes + loader.spare_bytes == memory
            assert sum(size for stays in loader.plan.keeps_decoded if stays) <= memory
            seen.add(loader.plan.keeps_decoded)
    assert seen == {(False, False), (True, False), (True, True)}  # the first is kept first


def test_loader_makes_no_more_batches_ahead_than_planned(root: Path) -> None:
    made: list[int] = []

    def counted(batch: dict[str, Any]) -> dict[str, Any]:
        made.append(int(batch["position"][0]))
        return batch

    order = order_of(opened(root))
    for memory, ahead in ((10**9, 8), (least_memory(opened(root), order=order), 0)):
        made.clear()
        with Loader(
            [opened(root)], order=order, memory=memory, num_threads=2, preprocess=counted
        ) as loader:
            assert loader.plan.batches_ahead == ahead
            for step in range(1, 9):
                next(loader)
                assert step <= len(made) <= step + ahead + 1  # and one that is in the making


@pytest.mark.parametrize(
    ("size", "count"),
    [("4GB", 4 * 10**9), ("1.5 kib", 1536), (17, 17), ("64", 64), ("2TiB", 2**41)],
)
def test_parse_bytes(size: int | str, count: int) -> None:
    assert parse_bytes(size) == count


@pytest.mark.parametrize("size", ["", "GB", "four GB", "-1", 0, "1 XB", "1e9", None, True])
def test_parse_bytes_refuses_other_text(size: Any) -> None:
    with refused("memory", kind=ValueError):
        parse_bytes(size)


def test_loader_refuses_datasets_of_another_order(root: Path, tmp_path: Path) -> None:
    write_dataset(tmp_path / "other", Spec(lengths=(4, 3)))
    one = opened(root)
    two = opened(tmp_path / "other")
    for order, given in (
        (order_of(one, two), [one]),
        (order_of(one), [one, two]),
        (order_of(one, two), [two, one]),
    ):
        with pytest.raises(ValueError, match="order"):
            Loader(given, order=order)


def test_loader_refuses_impossible_arguments(root: Path) -> None:
    data = [opened(root)]
    order = order_of(data[0])
    for options in (
        {"position": -1},
        {"rank": 2, "world_size": 2},
        {"num_threads": 0},
        {"memory": "lots"},
        {"world_size": 7, "rank": 0},
        {"world_size": 4, "rank": 0},  # six samples are no multiple
        {"world_size": 2},
        {"rank": 0},
    ):
        with pytest.raises(ValueError):
            Loader(data, order=order, **options)  # type: ignore[arg-type]


@pytest.mark.parametrize("world", [1, 2, 3])
def test_loader_ranks_share_a_mixture_of_divided_slots(root: Path, twin: Path, world: int) -> None:
    sources = [opened(root), opened(twin)]
    order = Order.from_datasets(
        sources, weights=[0.37, 0.63], batch_size=BATCH, seed=5, clip=4, lanes=2 * BATCH
    )
    order = order.with_weights(5 * BATCH, {"dataset": 1.0, "twin": 2**0.5})
    assert order.spec.version == 2
    assert min(source.lanes for source in order.spec.sources) > 1
    loaders = [
        Loader(sources, order=order, rank=rank, world_size=world, num_threads=2)
        for rank in range(world)
    ]
    parts = [take(loader, 9) for loader in loaders]
    for step, shares in enumerate(zip(*parts)):
        source, episode, frame = (
            of.tolist() for of in order.locate(np.arange(step * BATCH, (step + 1) * BATCH))
        )
        assert [s for share in shares for s in share["source"].tolist()] == source
        seen = [identity(p)[1:] for share in shares for p in share[TOP].numpy()]
        assert seen == list(zip(episode, frame))


def test_loader_shares_the_cores_among_the_ranks_of_a_host(
    root: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(os, "sched_getaffinity", lambda _: set(range(6)), raising=False)
    alone = Loader(root, batch_size=4, rank=0, world_size=2)
    monkeypatch.setenv("LOCAL_WORLD_SIZE", "2")
    shared = Loader(root, batch_size=4, rank=0, world_size=2)
    assert (alone.plan.num_threads, shared.plan.num_threads) == (6, 3)
    assert shared.state_dict() == alone.state_dict()  # the same order
    monkeypatch.setenv("LOCAL_WORLD_SIZE", "100")
    assert Loader(root, batch_size=4).plan.num_threads == 1
    assert Loader(root, batch_size=4, num_threads=5).plan.num_threads == 5
