"""State dicts: a position and its order, for torch's checkpoints; the state of another order is
refused.
"""

import json
from pathlib import Path
from typing import Any

import pytest
import torch
from torch.distributed import checkpoint as dcp
from torch.distributed.checkpoint.stateful import Stateful
from torch.utils.data import DataLoader

from understudy_base import ConfigError
from understudy_base.testing.refusals import refused
from understudy_data.datasets.dataset import EpisodeDataset
from understudy_data.load.dataloader.episode_stream import EpisodeStream
from understudy_data.load.loader import Loader
from understudy_data.order import Order
from understudy_data.testing.batches import same
from understudy_data.testing.datasets import Spec, write_dataset

BATCH = 4


@pytest.fixture(scope="module")
def data(tmp_path_factory: pytest.TempPathFactory) -> EpisodeDataset:
    path = tmp_path_factory.mktemp("state") / "data"
    write_dataset(path, Spec(lengths=(11, 7, 9, 13), gop=4))
    return EpisodeDataset(path)


def batches(data: EpisodeDataset, count: int) -> list[dict[str, Any]]:
    with Loader(data, batch_size=BATCH, seed=1) as loader:
        return [next(loader) for _ in range(count)]


def test_load_state_dict_continues_behind_the_last_batch(data: EpisodeDataset) -> None:
    expected = batches(data, 6)
    with Loader(data, batch_size=BATCH, seed=1, num_threads=2) as loader:
        for _ in range(3):
            next(loader)
        state = json.loads(json.dumps(loader.state_dict()))
        assert state["position"] == loader.position == 3 * BATCH
        for _ in range(2):
            next(loader)
        loader.load_state_dict(state)  # while its threads are at work
        assert all(same(next(loader), batch) for batch in expected[3:])
    with Loader(data, batch_size=BATCH, seed=1) as other:
        other.load_state_dict(state)
        assert same(next(other), expected[3])


def test_load_state_dict_refuses_another_order_and_names_both(data: EpisodeDataset) -> None:
    loader = Loader(data, batch_size=BATCH, seed=1)
    next(loader)
    state = loader.state_dict()
    prints = [loader.order.spec.fingerprint[:12]]
    for options in ({"seed": 2}, {"episodes": [0, 1]}):
        other = Loader(data.catalog, batch_size=BATCH, **{"seed": 1, **options})
        before = other.position
        with pytest.raises(ConfigError) as error:
            other.load_state_dict(state)
        assert all(
            name in str(error.value) for name in (*prints, other.order.spec.fingerprint[:12])
        )
        assert other.position == before
        other.close()
    odd = [{**state, "position": value} for value in (-4, 1.5, True, "x", None)]
    for wrong in ({}, {"position": 8}, *odd, {**state, "order": 3}, {**state, "more": 1}):
        with refused("position", "order", kind=ConfigError):
            loader.load_state_dict(wrong)
    loader.close()


def test_load_state_dict_accepts_other_threads_ranks_and_batch_sizes(data: EpisodeDataset) -> None:
    order = Order.from_datasets(data, batch_size=BATCH, seed=1)
    state = {"position": 3 * BATCH, "order": order.to_json()}
    with Loader(data, order=order.with_batch_size(6), rank=1, world_size=2) as loader:
        loader.load_state_dict(state)
        assert next(loader)["position"].tolist() == [15, 16, 17]


def test_distributed_checkpoint_saves_and_restores_a_loader(
    data: EpisodeDataset, tmp_path: Path, recwarn: pytest.WarningsRecorder
) -> None:
    expected = batches(data, 5)
    weight = torch.full((3,), 7.0)
    with Loader(data, batch_size=BATCH, seed=1) as loader:
        assert isinstance(loader, Stateful)
        for _ in range(4):
            next(loader)
        dcp.save(
            {"model": {"weight": weight}, "loader": loader}, checkpoint_id=tmp_path, no_dist=True
        )
    restored = torch.zeros(3)
    with Loader(data, batch_size=BATCH, seed=1) as loader:
        dcp.load(
            {"model": {"weight": restored}, "loader": loader}, checkpoint_id=tmp_path, no_dist=True
        )
        assert torch.equal(restored, weight)
        assert loader.position == 4 * BATCH
        assert same(next(loader), expected[4])
    with Loader(data, batch_size=BATCH, seed=2) as loader, pytest.raises(ConfigError):
        dcp.load({"loader": loader}, checkpoint_id=tmp_path, no_dist=True)


def test_episode_stream_continues_behind_a_batch_and_shares_states_with_the_loader(
    data: EpisodeDataset,
) -> None:
    expected = batches(data, 5)
    stream = EpisodeStream(data, batch_size=BATCH, seed=1)
    found = iter(DataLoader(stream, batch_size=None, num_workers=2))
    seen = [next(found) for _ in range(3)]
    assert all(map(same, seen, expected))
    state = stream.state_after(seen[-1])
    with Loader(data, batch_size=BATCH, seed=1) as loader:
        loader.load_state_dict(state)
        assert same(next(loader), expected[3])
    stream.load_state_dict(state)
    assert same(next(iter(DataLoader(stream, batch_size=None))), expected[3])
    with pytest.raises(ConfigError):
        EpisodeStream(data, batch_size=BATCH, seed=5).load_state_dict(state)
