"""Mixtures: every prefix has each source's exact share to within one sample, for thousands of
sources.
"""

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from understudy_base.testing.refusals import refused
from understudy_data.order import Order
from understudy_data.order.defaults import choose_slots
from understudy_data.order.shares import are_met, make_period, share_errors, share_slots
from understudy_data.testing.order_sources import Source, episodes, sources


def worst_deviation(counts: tuple[int, ...]) -> float:
    """Largest |samples of d among the first x - x m_d / M| over all x and d."""
    period = make_period(counts)
    total = sum(counts)
    worst = 0.0
    for d, count in enumerate(counts):
        at = period.slots_of[d]
        # just before a slot the source is most behind, just after it most ahead
        done = np.arange(count)
        worst = max(worst, float(np.max(at * count / total - done, initial=0)))
        worst = max(worst, float(np.max(done + 1 - (at + 1) * count / total, initial=0)))
    return worst


@given(st.lists(st.integers(0, 60), min_size=1, max_size=12).filter(any))
def test_every_prefix_is_within_one_sample(counts):
    assert worst_deviation(tuple(counts)) < 1


@pytest.mark.parametrize("number", [2, 37, 1000, 4000])
def test_every_prefix_is_within_one_sample_for_many_sources(number):
    weights = np.random.default_rng(number).lognormal(0, 1, number).tolist()
    counts = choose_slots(weights, 256, 16_000)
    assert min(counts) >= 1
    assert sum(counts) % 256 == 0
    assert worst_deviation(counts) < 1


def test_a_period_places_every_slot_once():
    period = make_period((3, 0, 5, 1))
    assert np.bincount(period.source, minlength=4).tolist() == [3, 0, 5, 1]
    for d in range(4):
        assert (period.source[period.slots_of[d]] == d).all()
        assert period.before[period.slots_of[d]].tolist() == list(range(int(period.counts[d])))


def test_sampling_at_random_would_fail_the_same_measure():
    """The negative control: a multinomial mixture is tens of samples off."""
    drawn = np.random.default_rng(0).random(6144) < 0.5
    deviation = np.abs(np.cumsum(drawn) - 0.5 * np.arange(1, 6145)).max()
    assert deviation > 10
    assert worst_deviation((3072, 3072)) < 1


@given(
    st.lists(st.floats(0.01, 100), min_size=1, max_size=12),
    st.integers(12, 4096),
    st.floats(1e-9, 1),
)
def test_shares_are_met_where_no_source_is_off(weights, slots, tolerance):
    shares = share_slots(weights, slots)
    assert are_met(shares, weights, tolerance) == (not share_errors(shares, weights, tolerance))


def test_largest_remainder():
    assert share_slots([0.5, 0.3, 0.2], 10) == (5, 3, 2)
    assert share_slots([1, 1, 1], 10) == (4, 3, 3)  # a tie goes to the earlier source
    assert share_slots([1, 1.009], 2009) == (1000, 1009)
    assert sum(share_slots([0.1] * 7, 100)) == 100


def test_slots_come_near_the_weights():
    weights = [0.5, 0.3, 0.15, 0.0497, 0.0003]
    counts = choose_slots(weights, 256, 6144)
    assert max(abs(c / sum(counts) - w) for c, w in zip(counts, weights)) < 1e-3
    assert choose_slots([1, 3], 8, 64) == (16, 48)
    # errors are relative to each share
    assert choose_slots([0.7, 0.29, 0.01], 8, 128) == (73, 30, 1)


def test_a_weight_too_small_for_any_period_is_refused():
    with pytest.raises(ValueError, match="1e-09"):
        choose_slots([1, 1e-9], 256, 4096)


@given(st.data())
def test_each_source_is_read_once_per_its_own_epoch(data):
    number = data.draw(st.integers(2, 4))
    given_sources = [data.draw(sources(name=f"s{d}", most=12)) for d in range(number)]
    weights = data.draw(st.lists(st.integers(1, 5), min_size=number, max_size=number))
    batch = data.draw(st.integers(1, 6))
    order = Order.from_datasets(
        given_sources,
        weights=weights,
        batch_size=batch,
        seed=3,
        frames_in_flight=data.draw(st.integers(1, 400)),
    )
    source, episode, frame = order.locate(np.arange(1500))
    for d, one in enumerate(given_sources):
        seen = list(zip(episode[source == d].tolist(), frame[source == d].tolist()))
        n = len(one.frames)
        for start in range(0, len(seen) - n + 1, n):
            assert sorted(seen[start : start + n]) == sorted(one.frames)


def test_weights_by_name_by_temperature_and_one_epoch_of_each():
    pair = [episodes(*[100] * 9, name="large"), episodes(100, name="small")]
    even = Order.from_datasets(pair, weights={"small": 2, "large": 2}, batch_size=10)
    assert even.spec.schedule[0].slots[0] == even.spec.schedule[0].slots[1]
    for kwargs, share in (({}, 0.9), ({"temperature": 0.5}, 0.75), ({"temperature": 0.0}, 0.5)):
        slots = Order.from_datasets(pair, batch_size=8, **kwargs).spec.schedule[0].slots
        assert abs(slots[0] / sum(slots) - share) < 0.01


def test_a_mixture_keeps_to_the_frames_in_flight():
    """Each source takes its share of the memory, and of the batch: not each all of it."""
    trio = [episodes(*[300] * 3000, name=name) for name in "abc"]
    order = Order.from_datasets(trio, weights=[6, 3, 1], batch_size=64, frames_in_flight=50_000)
    held = [s.clip * s.lanes for s in order.spec.sources]
    assert 0.5 * 50_000 < sum(held) <= 1.05 * 50_000
    assert [h / sum(held) for h in held] == pytest.approx([0.6, 0.3, 0.1], abs=0.02)
    tight = Order.from_datasets(
        trio, weights=[6, 3, 1], batch_size=512, frames_in_flight=16_000
    )  # 512 clips of 64 are twice as many
    assert sum(s.clip * s.lanes for s in tight.spec.sources) <= 1.2 * 16_000


def test_one_epoch_of_each_ends_together():
    pair = [episodes(*[30] * 20, name="a"), episodes(*[30] * 10, name="b")]
    order = Order.from_datasets(pair, batch_size=9)
    _, epoch = order.epochs(np.arange(900 * 5))
    assert epoch.tolist() == [p // 900 for p in range(4500)]


@pytest.mark.parametrize("weight", [0, -1, float("nan"), float("inf"), "0.5"])
def test_a_weight_that_is_none_is_refused_by_name(weight):
    with pytest.raises(ValueError, match="'b'"):
        Order.from_datasets(
            [episodes(5, name="a"), episodes(5, name="b")], weights=[1, weight], batch_size=2
        )


def test_weights_that_do_not_fit_the_sources_are_refused():
    pair = [episodes(5, name="a"), episodes(5, name="b")]
    with refused([1e308, 1e308], kind=ValueError):
        Order.from_datasets(pair, weights=[1e308, 1e308], batch_size=2)
    with refused(3, 2, kind=ValueError):
        Order.from_datasets(pair, weights=[1, 1, 1], batch_size=2)
    with refused(["a", "c"], ["a", "b"], kind=ValueError):
        Order.from_datasets(pair, weights={"a": 1, "c": 1}, batch_size=2)
    with refused("weights", "temperature", kind=ValueError):
        Order.from_datasets(pair, weights=[1, 1], temperature=0.5, batch_size=2)
    with refused("'a'", kind=ValueError):
        Order.from_datasets([pair[0], Source(pair[1].segments, "a")], batch_size=2)


@pytest.mark.long
def test_four_thousand_sources():
    many = [episodes(40 + d % 7, name=f"s{d}") for d in range(4000)]
    order = Order.from_datasets(many, batch_size=256)
    source, episode, frame = order.locate(np.arange(20_000))
    assert len(np.unique(source)) == 4000
    d = 1234
    assert (
        order.positions_of(d, int(episode[source == d][0]), int(frame[source == d][0]))[0]
        == np.flatnonzero(source == d)[0]
    )


def test_a_refused_weight_has_the_name_of_its_source():
    pair = [episodes(50, 50, name="large"), episodes(50, 50, name="small")]
    with refused("1e-09", "small", kind=ValueError):
        Order.from_datasets(pair, weights=[1, 1e-9], batch_size=8)
