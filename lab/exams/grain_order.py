"""Tests of Grain with our orders underneath: its shuffle, mixtures, samplers and elastic iterator.

Grain itself is installed. `index_shuffle` is answered by a uniform `Order`, the places of a mixture
by `Order.streams`, the records of a sampler by `Order.locate`, and the batches of the elastic
iterator by `batch_positions`.
"""

import sys
from collections.abc import Iterator, Sequence
from functools import lru_cache
from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest
from grain._src.core import sharding
from grain._src.python import record, samplers
from grain._src.python.dataset import elastic_iterator
from grain._src.python.dataset.transformations import mix, shuffle

from shared import explain
from understudy import Order, sample_rng
from understudy_data.order import SampleRng, batch_positions


@lru_cache(maxsize=64)
def order_of(
    lengths: tuple[int, ...], seed: int, mode: str, weights: tuple[float, ...] | None = None
) -> Order:
    """Order of datasets of these lengths."""
    sources = [
        SimpleNamespace(name=str(number), segments=np.array([[0, 0, length]]), gop=1, reach=(0, 0))
        for number, length in enumerate(lengths)
    ]
    return Order.from_datasets(sources, weights=weights, batch_size=1, seed=seed, mode=mode)


def index_shuffle(index: int, max_index: int, seed: int, rounds: int) -> int:
    if not 0 <= index <= max_index:
        raise ValueError("index must be in [0, max_index]")
    return int(
        permutation(max_index + 1, seed)[index]
        if max_index < _KEPT
        else locate(max_index + 1, seed, [index])[0]
    )


# length of a permutation that is computed in one go, because the tests ask one index at a time
_KEPT = 1 << 17


@lru_cache(maxsize=16)
def permutation(length: int, seed: int) -> np.ndarray:
    return locate(length, seed, np.arange(length))


def locate(length: int, seed: int, positions: Any) -> np.ndarray:
    return order_of((length,), seed, "uniform").locate(positions)[2]


class SelectionMap(mix.SelectionWithProportionsMap):
    """Their map of a mixture; the source of each position and its place there are ours."""

    def __init__(self, parents: Sequence[Any], proportions: Sequence[float] | None = None) -> None:
        super().__init__(parents, proportions)
        lengths = tuple(min(len(parent), 1 << 40) for parent in parents)
        self._order = order_of(lengths, 0, "sequential", tuple(map(float, self._proportions)))

    def __getitem__(self, index: int) -> tuple[int, int]:
        source, place = self._order.streams([index])
        return int(source[0]), int(place[0])


class Random:
    """Numbers of a sample, as Python's floats; `SampleRng.random` returns an array."""

    def __init__(self, rng: SampleRng) -> None:
        self._rng = rng

    def random(self) -> float:
        return float(self._rng.random())


class IndexSampler:
    """Records of an order; position i of the order belongs to shard i % shard_count."""

    def __init__(
        self,
        num_records: int,
        shard_options: sharding.ShardOptions | None = None,
        shuffle: bool = False,
        num_epochs: int | None = None,
        seed: int | None = None,
    ) -> None:
        if num_records <= 0 or (num_epochs is not None and num_epochs <= 0):
            raise ValueError("num_records and num_epochs must be positive")
        if shuffle and not isinstance(seed, int):
            raise TypeError(f"seed is {seed!r}")
        if seed is not None and not 0 <= seed < 2**32:
            raise ValueError(f"seed is {seed}")
        self._seed = seed
        self._order = order_of((num_records,), seed or 0, "uniform" if shuffle else "sequential")
        shards = shard_options.shard_count if shard_options else 1
        dropped = num_records % shards if shard_options and shard_options.drop_remainder else 0
        self._stop = None if num_epochs is None else num_epochs * (num_records - dropped)

    def __getitem__(self, index: int) -> record.RecordMetadata:
        if index < 0 or (self._stop is not None and index >= self._stop):
            raise IndexError(index)
        key = int(self._order.locate([index])[2][0])
        rng = None if self._seed is None else Random(sample_rng(self._seed, "record", index))
        return record.RecordMetadata(index=index, record_key=key, rng=rng)


class SequentialSampler(IndexSampler):
    def __init__(
        self,
        num_records: int,
        shard_options: sharding.ShardOptions | None = None,
        seed: int | None = None,
    ) -> None:
        super().__init__(num_records, shard_options, num_epochs=1, seed=seed)


class ElasticIterator:
    """Batches of one shard; the state is a position in the order of all samples."""

    def __init__(
        self, ds: Any, global_batch_size: int, shard_options: sharding.ShardOptions, **readers: Any
    ) -> None:
        self._data = ds
        self._batch = global_batch_size
        self._shard = shard_options
        self._position = 0

    def __iter__(self) -> Iterator[np.ndarray]:
        return self

    def __next__(self) -> np.ndarray:
        if self._position + self._batch > len(self._data):
            raise StopIteration
        positions = batch_positions(
            self._position, self._batch, self._shard.shard_index, self._shard.shard_count
        )
        self._position += self._batch
        return np.array(self._data._getitems(positions.tolist()))

    def get_state(self) -> dict[str, int]:
        return {"position": self._position}

    def set_state(self, state: dict[str, int]) -> None:
        self._position = state["position"]


shuffle.index_shuffle = SimpleNamespace(index_shuffle=index_shuffle)
sys.modules[
    "grain._src.python.experimental.index_shuffle.python.index_shuffle_module"
].index_shuffle = index_shuffle
mix.SelectionWithProportionsMap = SelectionMap
samplers.IndexSampler = IndexSampler
samplers.SequentialSampler = SequentialSampler
elastic_iterator.ElasticIterator = ElasticIterator

SHARDS = (
    "a shard of theirs has records of its own; here all ranks share one order, and a rank has "
    "every n-th position"
)
LITERAL = "the numbers of their shuffle, literally; the order here is another permutation"
FAILURES = {
    **dict.fromkeys(
        (
            "test_sharding_no_shuffle_drop_remainder_multi_epoch",
            "test_sharding_no_shuffle_drop_remainder_single_epoch",
            "test_sharding_no_shuffle_no_drop_remainder_multi_epoch",
            "test_sharding_no_shuffle_no_drop_remainder_single_epoch",
        ),
        SHARDS,
    ),
    **dict.fromkeys(
        (
            "test_shuffle_and_sharding_drop_remainder_multi_epoch",
            "test_shuffle_and_sharding_drop_remainder_single_epoch",
            "test_shuffle_and_sharding_no_drop_remainder_multi_epoch",
            "test_shuffle_and_sharding_no_drop_remainder_single_epoch",
            "test_shuffle_no_sharding",
            "test_cross_version_determinism",
        ),
        LITERAL,
    ),
    **dict.fromkeys(
        (
            "test_getitems_mixing_integer_proportions",
            "MixedMapDatasetTest::test_mixing_with_integer_proportions",
        ),
        "the same shares, spread as evenly; of weights 1 and 2 the heavier source comes first "
        "here, the lighter there",
    ),
    "test_produces_correct_elements2": "a rank's part of a batch is contiguous: (5, 6) of eight, "
    "not (3, 7)",
}
SKIPS = {
    **dict.fromkeys(
        ("test_index_shuffle_invalid_rounds", "test_index_shuffle_rounds_too_large"),
        "the rounds are no parameter",
    ),
    "test_filter_raises_error": "no samples are filtered while they are read, so nothing is "
    "refused",
}


def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    explain(items, FAILURES, SKIPS)
