"""Rows of several batches at once equal those of each batch, in memory of their own."""

from typing import Any

import numpy as np
import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st

from understudy_base import DatasetError
from understudy_data.datasets.dataset import EpisodeDataset
from understudy_data.load.mixed_batches import Mixture, RowBatches, read_rows
from understudy_data.order import Order
from understudy_data.testing.datasets import Spec, write_dataset

WINDOWS = {"action": [0.0, 0.1, 0.2]}
SPECS = {
    "arm": Spec(lengths=(30, 24, 1, 41), cameras=()),
    "hand": Spec(lengths=(9, 1, 17), action_dim=5, state_dim=7, version="v2.1", cameras=()),
}


@pytest.fixture(scope="module")
def datasets(tmp_path_factory: pytest.TempPathFactory) -> list[EpisodeDataset]:
    path = tmp_path_factory.mktemp("tables")
    for name, spec in SPECS.items():
        write_dataset(path / name, spec)
    return [EpisodeDataset(path / name, delta_timestamps=WINDOWS) for name in SPECS]


def asked(datasets: list[EpisodeDataset], count: int, size: int, start: int) -> list[np.ndarray]:
    """positions, source, episode, frame of `count` batches: int64 (count, size) each."""
    order = Order.from_datasets(datasets, batch_size=size, seed=1, clip=4, lanes=8)
    positions = np.arange(start * size, (start + count) * size)
    return [part.reshape(count, size) for part in (positions, *order.locate(positions))]


def equal(one: dict[str, Any], other: dict[str, Any]) -> bool:
    return one.keys() == other.keys() and all(
        torch.equal(value, other[key]) if isinstance(value, torch.Tensor) else value == other[key]
        for key, value in one.items()
    )


@given(
    count=st.integers(1, 6),
    size=st.integers(1, 9),
    start=st.integers(0, 50),
    mixed=st.booleans(),
    data=st.data(),
)
def test_row_batches_equal_single_batches(
    datasets: list[EpisodeDataset],
    count: int,
    size: int,
    start: int,
    mixed: bool,
    data: st.DataObject,
) -> None:
    sources = datasets if mixed else datasets[:1]
    mixture = Mixture.from_datasets(sources)
    parts = asked(sources, count, size, start)
    tables = RowBatches(sources, mixture, *parts)
    starts = set[int]()
    ends = set[int]()
    taken = []
    for at in data.draw(st.permutations(range(count))):
        made = tables.take(at)
        assert equal(made, read_rows(sources, mixture, *(part[at] for part in parts)))
        for value in made.values():
            if isinstance(value, torch.Tensor):
                assert value.untyped_storage().nbytes() == value.nbytes
                value.fill_(0)  # the consumer's own
                starts |= {value.data_ptr()} if value.nbytes else set()
                ends.add(value.data_ptr() + value.nbytes)
        taken.append(made)
    assert not starts & ends  # parts of one memory would follow one another


def test_row_batches_raise_for_the_bad_batch_only(datasets: list[EpisodeDataset]) -> None:
    parts = asked(datasets[:1], 5, 4, 0)
    bad = int(parts[2][3, 1]), int(parts[3][3, 1])

    class Torn(EpisodeDataset):
        def row_batch(self, episodes: np.ndarray, frames: np.ndarray) -> dict[str, Any]:
            if bad in zip(episodes.tolist(), frames.tolist()):
                raise DatasetError("torn")
            return super().row_batch(episodes, frames)

    mixture = Mixture.from_datasets(datasets[:1])
    expected = [read_rows(datasets[:1], mixture, *(part[at] for part in parts)) for at in range(5)]
    tables = RowBatches([Torn(datasets[0].catalog, delta_timestamps=WINDOWS)], mixture, *parts)
    for at in range(5):
        if at == 3:
            with pytest.raises(DatasetError, match="torn"):
                tables.take(at)
        else:
            assert equal(tables.take(at), expected[at])
