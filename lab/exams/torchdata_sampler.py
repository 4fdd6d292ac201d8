"""Tests of torchdata's `StatefulDataLoader`, with `EpisodeSampler` for its samplers and torch's
RandomSampler.
"""

from collections.abc import Iterator
from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest
import torch.utils.data
from torchdata.stateful_dataloader import sampler as samplers

import understudy as us
from shared import explain

MADE: list[str] = []
"""Samplers that the current test has made."""


class Indices(SimpleNamespace):
    """Dataset of some items for a sampler, as one episode."""

    def __len__(self) -> int:
        return int(self.segments[0, 2])


def indices(dataset: Any) -> Indices:
    MADE.append(type(dataset).__name__)
    return Indices(segments=np.array([[0, 0, len(dataset)]]))


class RandomSampler(us.EpisodeSampler):
    """Their constructor; the seed of the generator is that of the order."""

    def __init__(
        self, data_source: Any, generator: torch.Generator | None = None, **options: Any
    ) -> None:
        seed = 0 if generator is None else generator.initial_seed()
        super().__init__(indices(data_source), seed=seed)


class StatefulDistributedSampler(us.EpisodeSampler):
    """Their constructor; a global batch has one sample per replica."""

    def __init__(
        self,
        dataset: Any,
        num_replicas: int | None = None,
        rank: int | None = None,
        shuffle: bool = True,
        seed: int = 0,
        drop_last: bool = False,
    ) -> None:
        replicas = num_replicas or 1
        super().__init__(
            indices(dataset),
            shuffle=shuffle,
            seed=seed,
            batch_size=replicas,
            rank=rank or 0,
            world_size=replicas,
        )


@pytest.hookimpl(wrapper=True)
def pytest_runtest_call(item: pytest.Item) -> Iterator[None]:
    """Skip a test that passes without any of our samplers: it says nothing about them."""
    MADE.clear()
    yield
    if not MADE:
        pytest.skip("makes none of the samplers that are replaced")


samplers.StatefulDistributedSampler = StatefulDistributedSampler
torch.utils.data.RandomSampler = RandomSampler

STATE = "the state is a position and an order, and `yielded` is no attribute"
FAILURES = {
    **dict.fromkeys(
        (
            "test_initialization_StatefulDistributedSampler",
            "test_sampler_state_dict",
            "test_sampler_load_state_dict",
            "test_sampler_next_yielded",
        ),
        STATE,
    ),
    "test_data_order_with_shuffle": "the next pass is the next epoch, in another order; theirs "
    "needs `set_epoch`",
    "test_drop_last_effect": "a pass ends on a whole batch, filled from the next epoch; nothing is "
    "dropped",
}


def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    explain(items, FAILURES)
