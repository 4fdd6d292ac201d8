"""Placement: ranks share a batch and never change it, and a lane stays with its rank."""

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from understudy_base.testing.refusals import refused
from understudy_data.order import Order, batch_positions, rank_positions, rank_slice
from understudy_data.testing.order_sources import episodes


@pytest.mark.parametrize("world", range(1, 65))
@pytest.mark.parametrize("batch", [64, 100, 256])
def test_the_global_batch_is_the_same_on_any_number_of_ranks(world, batch):
    for step in (0, 1, 10**9):
        shares = [rank_positions(step, batch, rank, world) for rank in range(world)]
        assert np.concatenate(shares).tolist() == list(range(step * batch, (step + 1) * batch))
        sizes = [len(share) for share in shares]
        assert max(sizes) - min(sizes) <= 1
        assert min(sizes) >= 1


@given(st.data())
def test_any_stops_worlds_and_batches_give_the_same_samples(data):
    """A run that stops anywhere and continues with other ranks and another batch size keeps its
    position only.
    """
    order = Order.from_datasets(
        [episodes(*range(20, 60))],
        batch_size=16,
        frames_in_flight=300,
        seed=data.draw(st.integers(0, 99)),
    )
    position = 0
    seen = []
    for _ in range(data.draw(st.integers(1, 6))):
        world = data.draw(st.integers(1, 64))
        batch = data.draw(st.integers(world, 130))
        for _ in range(data.draw(st.integers(0, 5))):
            for rank in data.draw(st.permutations(range(world))) if world < 5 else range(world):
                at = batch_positions(position, batch, rank, world)
                seen += [
                    (int(p), *sample)
                    for p, *sample in zip(at, *(x.tolist() for x in order.locate(at)))
                ]
            position += batch
    together = zip(range(position), *(x.tolist() for x in order.locate(np.arange(position))))
    assert sorted(seen) == list(together)


@pytest.mark.parametrize("world", [1, 2, 8, 64])
def test_a_lane_stays_with_one_rank(world):
    order = Order.from_datasets([episodes(*[300] * 400)], batch_size=64, frames_in_flight=20_000)
    lanes = order.spec.sources[0].lanes
    assert lanes % 64 == 0
    owner = {}
    for step in range(0, 1000, 7):
        for rank in range(world):
            for lane in (rank_positions(step, 64, rank, world) % lanes).tolist():
                assert owner.setdefault(lane, rank) == rank


@pytest.mark.parametrize("weights", [None, (3, 1), (0.37, 0.63), (1, 2**0.5)])
def test_a_lane_of_a_mixture_stays_with_one_rank(weights):
    """Whether its weights are whole numbers of slots (3 to 1) or not."""
    pair = [episodes(*[300] * 400, name="a"), episodes(*[300] * 100, name="b")]
    order = Order.from_datasets(pair, weights=weights, batch_size=64, frames_in_flight=20_000)
    positions = np.arange(20_000)  # within the first epoch of both
    source, lane = order.lanes(positions)
    assert [len(np.unique(lane[source == d])) for d in (0, 1)] == [
        s.lanes for s in order.spec.sources
    ]
    owner = {}
    for d, one, offset in zip(source.tolist(), lane.tolist(), (positions % 64).tolist()):
        assert owner.setdefault((d, one), offset) == offset


@pytest.mark.parametrize(
    ("batch", "rank", "world", "words"),
    [
        (0, 0, 1, ["batch", 0]),
        (8, 0, 9, ["ranks", 9, 8]),
        (8, 0, 0, ["ranks", 0]),
        (8, 2, 2, ["rank", 2]),
        (8, -1, 2, ["rank", -1]),
    ],
)
def test_impossible_placements_are_refused(batch, rank, world, words):
    with refused(*words, kind=ValueError):
        rank_slice(batch, rank, world)


def test_negative_steps_and_positions_are_refused():
    with refused("step", -1, kind=ValueError):
        rank_positions(-1, 8)
    with refused("position", -8, kind=ValueError):
        batch_positions(-8, 8)
