"""EpisodeStream in torch's DataLoader gives the Loader's batches, for any workers, ranks and
restarts.
"""

import pickle
from itertools import islice
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
import torch
from torch.utils.data import DataLoader

from understudy_base.testing.refusals import refused
from understudy_data.datasets.dataset import EpisodeDataset
from understudy_data.load.dataloader.episode_stream import EpisodeStream
from understudy_data.order import Order
from understudy_data.order.sample_random import SampleRng
from understudy_data.testing.batches import all_same, batches
from understudy_data.testing.datasets import Spec, write_dataset

BATCH = 6


@pytest.fixture(scope="module")
def root(tmp_path_factory: pytest.TempPathFactory) -> Path:
    path = tmp_path_factory.mktemp("stream") / "dataset"
    write_dataset(path, Spec(lengths=(11, 7, 9, 13), gop=4))
    return path


@pytest.fixture(scope="module")
def data(root: Path) -> EpisodeDataset:
    return EpisodeDataset(root, delta_timestamps={"action": [0.0, 0.1, 0.2]})


@pytest.fixture(scope="module")
def order(data: EpisodeDataset) -> Order:
    return Order.from_datasets([data], batch_size=BATCH, seed=5, clip=4, lanes=BATCH)


def test_episode_stream_takes_one_dataset(data: EpisodeDataset, order: Order) -> None:
    given = by_stream(EpisodeStream(data, order=order), 3)
    assert all_same(given, by_stream(EpisodeStream([data], order=order), 3))


def by_stream(stream: EpisodeStream, count: int, workers: int = 0) -> list[dict[str, Any]]:
    passing = iter(DataLoader(stream, batch_size=None, num_workers=workers))
    return list(islice(passing, count))


@pytest.mark.filterwarnings("ignore:This DataLoader will create")
@pytest.mark.parametrize("workers", [0, 1, 2, 3])
def test_episode_stream_equals_the_loader_after_any_restart(
    data: EpisodeDataset, order: Order, workers: int
) -> None:
    expected = batches(data, order, 12)
    stream = EpisodeStream([data], order=order)
    got = by_stream(stream, 7, workers)
    assert all_same(got, expected[:7])
    assert [stream.position_after(batch) for batch in got] == [BATCH * (k + 1) for k in range(7)]
    stream.position = stream.position_after(got[3])  # batches made ahead of that one are made again
    other = (workers + 2) % 4
    assert all_same(by_stream(stream, 8, other), expected[4:])


@pytest.mark.parametrize("world", [2, 4])  # four ranks do not share six samples evenly
def test_episode_stream_ranks_share_batches(data: EpisodeDataset, order: Order, world: int) -> None:
    for rank in range(world):
        place = {"rank": rank, "world_size": world, "allow_uneven": True}
        stream = EpisodeStream([data], order=order, position=BATCH, **place)
        got = by_stream(stream, 4, workers=2 if rank == 1 else 0)
        assert all_same(got, batches(data, order, 4, position=BATCH, **place))
        assert [stream.position_after(batch) for batch in got] == [
            BATCH * (k + 2) for k in range(4)
        ]


def darken(pictures: dict[str, torch.Tensor], draws: SampleRng) -> None:
    for picture in pictures.values():
        picture //= int(draws.integers(2, 9))


def test_episode_stream_passes_sample_options_on(
    data: EpisodeDataset, order: Order, tmp_path: Path
) -> None:
    options = {
        "image_size": (32, 48),
        "augment": darken,
        "on_bad_frame": "substitute",
        "journal": tmp_path / "journal",
    }
    got = by_stream(EpisodeStream([data], order=order, **options), 4, workers=2)
    assert got[0]["observation.images.top"].shape == (BATCH, 3, 32, 48)
    assert all_same(got, batches(data, order, 4, **options))
    assert not all_same(got, batches(data, order, 4, image_size=(32, 48)))


def test_episode_stream_in_spawned_workers(data: EpisodeDataset, order: Order) -> None:
    stream = pickle.loads(pickle.dumps(EpisodeStream([data], order=order, position=3 * BATCH)))
    assert all_same(by_stream(stream, 3), batches(data, order, 3, position=3 * BATCH))


def test_episode_stream_gives_lanes_to_one_worker_each(
    data: EpisodeDataset, monkeypatch: pytest.MonkeyPatch
) -> None:
    """With as many lanes as all workers' batches hold together, no clip is open in two workers."""
    lanes_of: dict[int, list[set[int]]] = {}
    for lanes in (BATCH, 2 * BATCH):  # the first is the negative control
        order = Order.from_datasets([data], batch_size=BATCH, clip=2, lanes=lanes)
        lanes_of[lanes] = []
        for worker in range(2):  # played one after the other, in this process
            info = SimpleNamespace(id=worker, num_workers=2)
            monkeypatch.setattr("torch.utils.data.get_worker_info", lambda info=info: info)
            batches = islice(iter(EpisodeStream([data], order=order)), 3)
            lanes_of[lanes].append(
                {p % lanes for batch in batches for p in batch["position"].tolist()}
            )
    assert lanes_of[BATCH][0] & lanes_of[BATCH][1]
    assert not lanes_of[2 * BATCH][0] & lanes_of[2 * BATCH][1]


def test_episode_stream_refuses_impossible_arguments_at_once(
    root: Path, data: EpisodeDataset, order: Order, tmp_path: Path
) -> None:
    write_dataset(tmp_path / "other", Spec(lengths=(4, 3)))
    with pytest.raises(ValueError, match="order"):
        EpisodeStream([EpisodeDataset(tmp_path / "other")], order=order)
    for options in (
        {"position": -1},
        {"rank": 2, "world_size": 2},
        {"memory": "lots"},
        {"world_size": 7, "rank": 0},
    ):
        with pytest.raises(ValueError):
            EpisodeStream([data], order=order, **options)  # type: ignore[arg-type]


def test_episode_stream_raises_errors_of_its_workers(tmp_path: Path) -> None:
    write_dataset(tmp_path / "data", Spec(lengths=(8, 8)))
    data = EpisodeDataset(tmp_path / "data")
    order = Order.from_datasets([data], batch_size=4)
    for video in (tmp_path / "data/videos").rglob("*.mp4"):
        video.unlink()
    with refused("FileNotFoundError", fix=None):
        by_stream(EpisodeStream([data], order=order), 1, workers=1)
