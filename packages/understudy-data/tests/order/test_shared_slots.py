"""Exact shares: each source has that of its weight, in lanes that keep their slots, and no frame is
lost.
"""

import json
import pickle
from collections import Counter
from fractions import Fraction
from pathlib import Path

import numpy as np
import pytest
from hypothesis import example, given, settings
from hypothesis import strategies as st

from understudy_base.testing.refusals import refused
from understudy_data.order import Order
from understudy_data.order.shared_slots import MOST_OFF, count_lanes, count_lanes_within, make_round
from understudy_data.order.shares import share_slots
from understudy_data.order.spec import EXACT_VERSION, UNIT, Spec
from understudy_data.testing.order_sources import Source, episodes, sources

weights = st.floats(0.01, 10)


@st.composite
def mixtures(draw: st.DrawFn) -> tuple[Order, list[Source]]:
    """Two to five small sources with weights that slots do not meet, in lanes, one by one or in
    sequence.
    """
    number = draw(st.integers(2, 5))
    some = [draw(sources(name=f"s{d}", most=20)) for d in range(number)]
    shares = [draw(weights) for _ in some]
    shares[0] = 3 * shares[1] / 7.1  # whatever the others are, no period of few slots has this
    options: dict[str, object] = {
        "batch_size": draw(st.integers(1, 6)),
        "seed": draw(st.integers(0, 3)),
    }
    mode = draw(st.sampled_from(["clips", "clips", "clips", "uniform", "sequential"]))
    if mode == "clips":
        options |= {"clip": draw(st.integers(2, 9)), "lanes": draw(st.integers(1, 20))}
        options["inside"] = draw(st.sampled_from(["sequential", "permuted"]))
    order = Order.from_datasets(some, weights=shares, mode=mode, **options)
    return order, some


def changed(
    order: Order, some: list[Source], at: list[int], data: st.DataObject
) -> tuple[Order, list[Source]]:
    """The order with other shares from these positions on, of sources that leave, return and
    join.
    """
    some = list(some)
    for position in at:
        joining = (
            [data.draw(sources(name=f"s{len(some)}", most=20))] if data.draw(st.booleans()) else []
        )
        some += joining
        staying = data.draw(
            st.lists(st.sampled_from(some), min_size=1, unique_by=lambda one: one.name)
        )
        named = {one.name: data.draw(weights) for one in [*staying, *joining]}
        order = order.with_weights(position, named, add=joining)
    return order, some


def check_epochs(order: Order, some: list[Source], count: int) -> None:
    """Among the first positions, that each source's samples are its frames, each once per epoch,
    and epochs one after the other.
    """
    source, episode, frame = order.locate(np.arange(count))
    _, epoch = order.epochs(np.arange(count))
    for d, one in enumerate(some):
        own = source == d
        seen = list(zip(episode[own].tolist(), frame[own].tolist()))
        n = len(one.frames)
        assert epoch[own].tolist() == [i // n for i in range(len(seen))]
        for start in range(0, len(seen) - n + 1, n):
            assert Counter(seen[start : start + n]) == Counter(one.frames)
        assert max(Counter(seen[len(seen) // n * n :]).values(), default=1) <= max(
            Counter(one.frames).values()
        )


@settings(max_examples=20)
@given(mixtures())
def test_each_source_is_read_once_per_its_own_epoch(mixture: tuple[Order, list[Source]]) -> None:
    check_epochs(*mixture, 1500)


@pytest.mark.long
@settings(max_examples=25)
@given(mixtures(), st.lists(st.integers(1, 900), min_size=1, max_size=3, unique=True), st.data())
def test_so_it_is_across_changes_of_the_shares(
    mixture: tuple[Order, list[Source]], at: list[int], data: st.DataObject
) -> None:
    before, _ = mixture
    order, some = changed(*mixture, sorted(at), data)
    check_epochs(order, some, 1800)
    past = np.arange(min(at))
    assert all((a == b).all() for a, b in zip(order.locate(past), before.locate(past)))


@given(mixtures(), st.lists(st.integers(1, 400), max_size=2, unique=True), st.data())
def test_the_inverse_and_positions_asked_alone(
    mixture: tuple[Order, list[Source]], at: list[int], data: st.DataObject
) -> None:
    order, _ = changed(*mixture, sorted(at), data)
    source, episode, frame = order.locate(np.arange(600))
    _, epoch = order.epochs(np.arange(600))
    for p in data.draw(st.lists(st.integers(0, 599), min_size=1, max_size=12)):
        d, e, f, turn = (int(of[p]) for of in (source, episode, frame, epoch))
        assert p in order.positions_of(d, e, f, range(turn, turn + 1)).tolist()
        assert [int(of[0]) for of in order.locate([p])] == [d, e, f]
    far = data.draw(st.integers(0, 1 << 61))
    d, e, f = (int(of[0]) for of in order.locate([far]))
    turn = int(order.epochs([far])[1][0])
    assert far in order.positions_of(d, e, f, range(turn, turn + 1)).tolist()


@given(
    mixtures(),
    st.lists(st.integers(1, 400), max_size=2, unique=True),
    st.integers(0, 600),
    st.data(),
)
def test_the_rest_of_a_clip_is_read_where_it_comes_up(
    mixture: tuple[Order, list[Source]], at: list[int], position: int, data: st.DataObject
) -> None:
    order, _ = changed(*mixture, sorted(at), data)
    positions, episode, frame = order.rest_of_clip(position, 12)
    assert positions[0] == position
    assert (np.diff(positions) > 0).all()
    _, expected_episode, expected_frame = order.locate(positions)
    assert (episode.tolist(), frame.tolist()) == (
        expected_episode.tolist(),
        expected_frame.tolist(),
    )
    source, lane = order.lanes(positions)
    assert len(set(source.tolist())) == len(set(lane.tolist())) == 1
    spec = order.spec.sources[int(source[0])]
    if spec.shuffle:
        assert len(set((order.lines(positions)[2] // spec.clip).tolist())) == 1


def worst(order: Order, count: int) -> float:
    """Largest |samples of a source among the first x - x times the share asked for| over all
    sources and x <= count.
    """
    source, _ = order.streams(np.arange(count))
    slots = order.spec.schedule[0].slots
    found = 0.0
    for d, part in enumerate(slots):
        at = np.flatnonzero(source == d)
        done = np.arange(len(at))
        share = part / sum(slots)
        found = max(
            found,
            float(np.max(at * share - done, initial=0)),
            float(np.max(done + 1 - (at + 1) * share)),
        )
    return found


@st.composite
def extreme_weights(draw: st.DrawFn) -> list[float]:
    """Weights of 2 to 3,000 sources over six decades: of a few large ones, equal ones, or of
    any.
    """
    number = draw(st.integers(2, 40) | st.sampled_from([300, 3000]))
    random = np.random.default_rng(draw(st.integers(0, 2**32)))
    spread = draw(st.sampled_from([0.0, 1.0, 6.0]))
    weights = 10 ** random.uniform(0, spread, number)
    weights[: draw(st.integers(0, 2))] *= 10 ** draw(st.integers(0, 3))
    return (weights.clip(weights.sum() / (1 << 19)) / 7.1).tolist()


@pytest.mark.long
@given(extreme_weights(), st.sampled_from([1, 3, 8, 64, 2048]), st.data())
@settings(max_examples=60)
def test_no_count_is_off_by_the_bound(
    weights: list[float], slots: int, data: st.DataObject
) -> None:
    """Of `MOST_OFF`, which docs/mixtures.md states, after few positions and after 10 to the
    13th.
    """
    parts = share_slots(weights, slots * UNIT)
    assert abs(np.array(parts) - np.array(weights) / sum(weights) * slots * UNIT).max() < 1.01
    round_ = make_round(parts)
    near = data.draw(st.lists(st.integers(0, 50 * slots * len(weights)), min_size=1, max_size=3))
    far = data.draw(st.integers(0, 10**13))
    for position in (*near, far):
        for d in range(0, len(parts), max(1, len(parts) // 200)):
            exact = Fraction(position * parts[d], slots * UNIT)
            assert abs(int(round_.visits(d, position).sum()) - exact) < MOST_OFF


def test_the_worst_tree_stays_within_the_bound() -> None:
    """Members of halves of the rest: the deepest tree, and all visits of its leaves."""
    rests = [UNIT >> n for n in range(1, 21)]
    round_ = make_round((*rests, UNIT - sum(rests)))
    visits = np.arange(200_000)
    for d, part in enumerate(round_.parts):
        leaf = np.full(len(visits), round_.leaves_of[d][0])
        assert abs(round_._count(leaf, visits) - visits * part / UNIT).max() < 2.5


@pytest.mark.parametrize("number", [2, 3, 37, 400])
@pytest.mark.parametrize("batch", [8, 256])
def test_every_prefix_is_within_a_few_samples_of_the_weights_themselves(
    number: int, batch: int
) -> None:
    draw = np.random.default_rng(number)
    shares = (10 ** draw.uniform(-1, 1, number)).tolist()
    order = Order.from_datasets(
        [episodes(40, name=f"s{d}") for d in range(number)], weights=shares, batch_size=batch
    )
    assert order.spec.version == EXACT_VERSION
    slots = np.array(order.spec.schedule[0].slots)
    assert np.allclose(slots / slots.sum(), np.array(shares) / sum(shares), rtol=1e-4, atol=1e-9)
    assert worst(order, 60_000) < 3


@given(
    st.lists(st.integers(0, 3 * UNIT), min_size=1, max_size=12),
    st.integers(0, 4),
    st.integers(0, 4),
)
def test_lanes_within_a_part_of_a_batch_are_those_of_the_round(
    given_parts: list[int], low: int, more: int
) -> None:
    total = -(-(sum(given_parts) + 1) // (4 * UNIT)) * 4 * UNIT
    parts = (*given_parts, total - sum(given_parts))  # whole batches of 4
    expected = [
        int(np.isin(places % 4, range(low, low + more)).sum())
        for places in make_round(parts).slots_of
    ]
    assert count_lanes_within(parts, low, low + more, 4) == expected


@given(st.lists(st.integers(0, 3 * UNIT), min_size=1, max_size=12), st.integers(0, 2**40))
@example([UNIT, 0, UNIT - 1, 1], 5)
@example([UNIT // 3] * 3 + [1], 2**40)
def test_round_inverts_its_counts(given_parts: list[int], x: int) -> None:
    parts = (*given_parts, -sum(given_parts) % UNIT or UNIT)
    round_ = make_round(parts)
    assert round_.slots * UNIT == sum(parts)
    assert tuple(map(len, round_.slots_of)) == count_lanes(parts)
    at = np.arange(x, x + 3 * round_.slots)
    source, lane, visit, index = round_.locate(at)
    for d, part in enumerate(parts):
        own = source == d
        first = round_.visits(d, x)
        behind = round_.visits(d, x + len(at))
        assert int(behind.sum() - first.sum()) == own.sum()
        assert index[own].tolist() == list(range(int(first.sum()), int(behind.sum())))
        assert abs(int(first.sum()) - x * part / sum(parts)) < 4
        for position, i in zip(at[own].tolist()[:2], index[own].tolist()):
            assert round_.find(d, i) == position
    for position, d, one, n in zip(at.tolist()[:9], source.tolist(), lane.tolist(), visit.tolist()):
        assert round_.positions(d, one, np.array([n])).tolist() == [position]


def test_after_a_million_million_samples_each_source_has_its_share() -> None:
    shares = np.random.default_rng(0).uniform(0.1, 10, 400).tolist()
    parts = share_slots(shares, 4096 * UNIT)
    round_ = make_round(parts)
    had = np.array([int(round_.visits(d, 10**12).sum()) for d in range(400)])
    assert had.sum() == 10**12
    assert abs(had - np.array(parts) / sum(parts) * 10**12).max() < 4
    assert abs(had / 10**12 / (np.array(shares) / sum(shares)) - 1).max() < 1e-5


def test_weights_that_slots_meet_keep_the_first_version() -> None:
    pair = [episodes(*[30] * 20, name="a"), episodes(*[30] * 10, name="b")]
    for shares in ([1, 1], [3, 1], [0.7, 0.3], None):
        assert Order.from_datasets(pair, weights=shares, batch_size=30).spec.version == 1
    assert Order.from_datasets(pair[0], batch_size=30).spec.version == 1
    kept = Order.from_datasets(pair, weights=[3, 1], batch_size=30).with_weights(
        90, {"a": 1, "b": 2**0.5}
    )
    assert kept.spec.version == 1  # a run continues in the version that it began with


def test_exact_order_is_saved_distinguished_and_pickled() -> None:
    pair = [episodes(*[300] * 200, name="a"), episodes(*[300] * 100, name="b")]
    order = Order.from_datasets(pair, weights=[0.37, 0.63], batch_size=16, frames_in_flight=4000)
    assert all(source.lanes > 1 for source in order.spec.sources)
    again = Order.from_json(order.to_json(), pair)
    at = np.arange(0, 10**9, 10**7 + 1)
    for other in (again, pickle.loads(pickle.dumps(order))):
        assert other.spec == order.spec
        assert all((a == b).all() for a, b in zip(other.locate(at), order.locate(at)))
    assert order.spec.round % 16 == 0
    with refused("schedule", 0, kind=ValueError):
        Spec.from_json(order.to_json().replace(str(order.spec.schedule[0].slots[0]), "12345"))
    assert not order.share_errors([0.37, 0.63])


def test_golden_numbers() -> None:
    """The contract of version 2, frozen: saved runs must find their samples again (see
    test_contract.py).
    """
    golden = json.loads((Path(__file__).parent / "golden" / "order_v2.json").read_text())
    order = Order.from_json(golden["spec"], [SOURCE_A, SOURCE_B, SOURCE_LONG])
    assert [of.tolist() for of in order.locate(GOLDEN_POSITIONS)] == golden["samples"]
    assert order.lanes(GOLDEN_POSITIONS)[1].tolist() == golden["lanes"]


SOURCE_A = episodes(*range(100, 400), name="a")
SOURCE_B = episodes(*[33] * 50, name="b", gop=30)
SOURCE_LONG = Source(
    np.array([[3, 10, 5000], [4, 0, 7777], [3, 6000, 9001]]), "long", gop=250, reach=(2, 0)
)
GOLDEN_POSITIONS = [0, 1, 2, 63, 64, 1000, 4999, 5000, 12_345, 10**9 + 7, 2**62]


def golden() -> str:
    """Content of the file; written only for a new version."""
    order = Order.from_datasets(
        [SOURCE_A, SOURCE_B, SOURCE_LONG],
        weights=[5, 2.1, 1],
        batch_size=32,
        seed=5,
        frames_in_flight=8000,
    )
    order = order.with_weights(5000, {"a": 1, "long": 3.3})
    samples = [of.tolist() for of in order.locate(GOLDEN_POSITIONS)]
    lanes = order.lanes(GOLDEN_POSITIONS)[1].tolist()
    return json.dumps(
        {"spec": json.loads(order.to_json()), "samples": samples, "lanes": lanes}, indent=1
    )
