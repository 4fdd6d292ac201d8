"""Order: exactly once, random access, the inverse, schedules, all settings of the one function."""

import pickle
from itertools import pairwise
from pathlib import Path

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from understudy_base.testing.refusals import refused
from understudy_data.order import Order
from understudy_data.testing.order_sources import Source, episodes, sources

modes = st.sampled_from(["clips", "uniform", "episodes", "sequential"])


@st.composite
def orders(draw: st.DrawFn) -> tuple[Order, Source]:
    source = draw(sources())
    mode = draw(modes)
    chosen: dict[str, int | str] = {}
    if mode in ("clips", "episodes"):
        chosen["inside"] = draw(st.sampled_from(["sequential", "permuted"]))
        if draw(st.booleans()):
            chosen["lanes"] = draw(st.integers(1, 40))
            chosen |= {"clip": draw(st.integers(1, 70))} if mode == "clips" else {}
    order = Order.from_datasets(
        [source],
        batch_size=draw(st.integers(1, 12)),
        seed=draw(st.integers(0, 2**64 - 1)),
        frames_in_flight=draw(st.integers(1, 500)),
        mode=mode,
        **chosen,
    )
    return order, source


@given(orders(), st.integers(0, 2**32))
def test_every_epoch_holds_every_frame_once(made, epoch):
    order, source = made
    n = len(source.frames)
    which, episode, frame = order.locate(np.arange(epoch * n, (epoch + 1) * n))
    assert not which.any()
    assert sorted(zip(episode.tolist(), frame.tolist())) == sorted(source.frames)


@given(orders(), st.lists(st.integers(0, 2**63 - 1), min_size=1, max_size=20))
def test_random_access_is_sequential_access_and_has_an_inverse(made, far):
    order, source = made
    n = len(source.frames)
    positions = [p % (3 * n) for p in far] + far
    found = list(zip(*(x.tolist() for x in order.locate(positions))))
    walked = list(zip(*(x.tolist() for x in order.locate(np.arange(3 * n)))))
    assert found[: len(far)] == [walked[p] for p in positions[: len(far)]]
    for position, (d, episode, frame) in zip(far, found[len(far) :]):
        epoch = position // n
        assert order.positions_of(d, episode, frame, range(epoch, epoch + 1)).tolist() == [position]


def test_positions_of_finds_a_frame():
    order = Order.from_datasets([episodes(30, 40, 50)], batch_size=4, frames_in_flight=60)
    _, episode, frame = order.locate(np.arange(120 * 5))
    expected = np.flatnonzero((episode == 1) & (frame == 17))
    assert order.positions_of(0, 1, 17, range(5)).tolist() == expected.tolist()
    assert order.positions_of(0, 1, 17, range(2, 4)).tolist() == expected[2:4].tolist()
    with refused(40, 1, "'source'", kind=ValueError):
        order.positions_of(0, 1, 40)
    with refused("source", 1, kind=ValueError):
        order.positions_of(1, 1, 4)
    with refused("epochs", range(-1, 2), kind=ValueError):
        order.positions_of(0, 1, 4, range(-1, 2))


def test_sequential_is_storage_order_and_the_others_are_not():
    source = episodes(30, 40, 50)
    for mode in ("sequential", "uniform", "clips", "episodes"):
        _, episode, frame = Order.from_datasets(
            [source], batch_size=4, mode=mode, frames_in_flight=60
        ).locate(np.arange(120))
        assert (list(zip(episode.tolist(), frame.tolist())) == source.frames) == (
            mode == "sequential"
        )


def test_episodes_reads_runs_as_long_as_an_episode():
    source = episodes(*[50] * 40)
    order = Order.from_datasets([source], batch_size=4, mode="episodes", lanes=8)
    _, episode, frame = order.locate(np.arange(2000))
    lane = list(zip(episode[3::8].tolist(), frame[3::8].tolist()))
    breaks = sum(b != (a[0], a[1] + 1) for a, b in pairwise(lane))
    assert breaks <= 2000 // 8 // 50 + 1


@pytest.mark.parametrize("lengths", [(1,), (3,), (1, 1), (10,)])
def test_fewer_frames_than_a_batch(lengths):
    order = Order.from_datasets([episodes(*lengths)], batch_size=256)
    _, episode, frame = order.locate(np.arange(256))
    counts = np.bincount(episode * 10 + frame)
    counts = counts[counts > 0]
    assert len(counts) == sum(lengths)
    assert counts.max() - counts.min() <= 1


def test_seeds_and_positions_matter_and_nothing_else():
    source = episodes(*[100] * 50)
    rows = {
        Order.from_datasets([source], batch_size=8, seed=seed).locate(np.arange(500))[1].tobytes()
        for seed in range(20)
    }
    assert len(rows) == 20
    order = Order.from_datasets([source], batch_size=8)
    before = order.locate(np.arange(700, 900))
    order.locate(np.arange(10_000))
    np.random.default_rng(0).random(5)
    assert all(np.array_equal(a, b) for a, b in zip(before, order.locate(np.arange(700, 900))))
    again = pickle.loads(pickle.dumps(order))
    assert all(np.array_equal(a, b) for a, b in zip(before, again.locate(np.arange(700, 900))))


def test_a_trillion_frames():
    half = 5 * 10**11
    order = Order.from_datasets(
        [Source(np.array([[4, 0, half], [9, 100, half + 100]]))], batch_size=256
    )
    for start in (0, half, 2 * half - 128, 10**15, 2**63 - 256):
        positions = np.arange(start, start + 256, dtype=np.uint64)
        _, episode, frame = order.locate(positions)
        assert set(episode.tolist()) == {4, 9}
        assert ((frame >= 0) & (frame < half + 100)).all()
        for p, e, f in list(zip(positions.tolist(), episode.tolist(), frame.tolist()))[::50]:
            epoch = p // (2 * half)
            assert order.positions_of(0, e, f, range(epoch, epoch + 1)).tolist() == [p]


@pytest.mark.parametrize("positions", [[-1], [0.5], [[1, 2]], ["a"]])
def test_bad_positions_are_refused(positions):
    with pytest.raises(ValueError, match="position"):
        Order.from_datasets([episodes(5)], batch_size=2).locate(positions)


def test_positions_may_be_one_number_or_none():
    order = Order.from_datasets([episodes(5)], batch_size=2)
    assert [x.shape for x in order.locate(3)] == [(1,)] * 3
    assert [x.shape for x in order.locate([])] == [(0,)] * 3


@pytest.mark.parametrize(
    ("kwargs", "words"),
    [
        ({"mode": "random"}, ["mode", "'random'"]),
        ({"batch_size": 0}, ["batch_size", 0]),
        ({"frames_in_flight": 0}, ["frames_in_flight", 0]),
        ({"clip": 0}, ["clip", 0]),
        ({"lanes": -1}, ["lanes", -1]),
        ({"seed": -1}, ["seed", -1]),
        ({"batch_size": 2.5}, ["batch_size", 2.5]),
        ({"lanes": "8"}, ["lanes", "'8'"]),
        ({"inside": "backwards"}, ["inside", "'backwards'"]),
        ({"mode": "uniform", "clip": 2}, ["clip", 2, "mode", "'uniform'"]),
        ({"mode": "uniform", "inside": "permuted"}, ["inside", "'permuted'", "mode", "'uniform'"]),
        ({"mode": "sequential", "lanes": 2}, ["lanes", 2, "mode", "'sequential'"]),
        ({"mode": "episodes", "clip": 2}, ["clip", 2, "mode", "'episodes'"]),
    ],
)
def test_bad_settings_are_refused(kwargs, words):
    with refused(*words, kind=ValueError):
        Order.from_datasets([episodes(5)], **{"batch_size": 2, **kwargs})


def test_bad_sources_are_refused_by_name():
    with refused("sources", kind=ValueError):
        Order.from_datasets([], batch_size=2)
    with refused("'empty'", "frames", kind=ValueError):
        Order.from_datasets([episodes(5), episodes(name="empty")], batch_size=2)
    with refused("'source'", "gop", 0, kind=ValueError):
        Order.from_datasets([episodes(5, gop=0)], batch_size=2)
    with refused("reach", (-1, 0), kind=ValueError):
        Order.from_datasets([episodes(5, reach=(-1, 0))], batch_size=2)


def test_one_source_needs_no_list():
    alone = episodes(5, 9)
    order = Order.from_datasets(alone, batch_size=2, seed=3)
    assert (
        order.spec
        == Order.from_datasets([alone], batch_size=2, seed=3).spec
        == Order.from_json(order.spec, alone).spec
    )
    assert order.spec == Order.from_datasets((one for one in [alone]), batch_size=2, seed=3).spec


@pytest.mark.parametrize(
    ("given", "words"),
    [
        ("runs/demo/dataset", ["str", "'runs/demo/dataset'"]),
        (Path("runs/demo"), ["PosixPath", "'runs/demo'"]),
        (["runs/demo"], ["source", 0, "str", "'runs/demo'"]),
        ([episodes(5), 7], ["source", 1, "int", "'7'"]),
        ({"a": episodes(5)}, ["dict", "segments"]),
        (None, ["NoneType", "segments"]),
    ],
)
def test_order_names_an_argument_that_is_no_source(given, words):
    with refused(*words, kind=ValueError):
        Order.from_datasets(given, batch_size=2)


def test_a_change_of_weights_leaves_the_past_alone_and_every_epoch_whole():
    pair = [episodes(*[20] * 10, name="a"), episodes(*[20] * 4, name="b")]
    before = Order.from_datasets(pair, weights=[1, 1], batch_size=8, frames_in_flight=100)
    third = episodes(7, 9, name="c")
    after = before.with_weights(1003, {"a": 3, "b": 1, "c": 1}, add=[third]).with_weights(
        2500, {"a": 1, "c": 1}
    )
    for old, new in zip(before.locate(np.arange(1003)), after.locate(np.arange(1003))):
        assert np.array_equal(old, new)
    source, episode, frame = after.locate(np.arange(4000))
    for d, one in enumerate([*pair, third]):
        seen = list(zip(episode[source == d].tolist(), frame[source == d].tolist()))
        n = len(one.frames)
        assert len(seen) > 2 * n
        for start in range(0, len(seen) - n + 1, n):
            assert sorted(seen[start : start + n]) == sorted(one.frames)
    assert abs(np.mean(source[1003:2500] == 0) - 0.6) < 0.01
    assert not (source[:1003] == 2).any()
    assert not (source[2500:] == 1).any()


def test_another_batch_is_the_same_order():
    order = Order.from_datasets([episodes(*[100] * 50)], batch_size=8, frames_in_flight=900)
    larger = order.with_batch_size(64)
    assert (order.batch_size, larger.batch_size) == (8, 64)
    assert larger.spec.fingerprint == order.spec.fingerprint
    for old, new in zip(order.locate(np.arange(9000)), larger.locate(np.arange(9000))):
        assert np.array_equal(old, new)
    with refused("batch", 0, kind=ValueError):
        order.with_batch_size(0)


def test_numbers_of_numpy_are_numbers():
    eight = np.int64(8)
    order = Order.from_datasets(
        [episodes(*[100] * 50)], batch_size=eight, seed=np.uint64(3), clip=eight, lanes=eight
    )
    order = order.with_weights(np.int64(77), {"source": np.float32(1)}).with_batch_size(
        np.int32(16)
    )
    plain = Order.from_datasets(
        [episodes(*[100] * 50)], batch_size=8, seed=3, clip=8, lanes=8
    ).with_weights(77, {"source": 1})
    assert order.to_json() == plain.with_batch_size(16).to_json()


def test_the_inverse_follows_the_schedule():
    pair = [episodes(*[20] * 3, name="a"), episodes(*[20] * 2, name="b")]
    order = (
        Order.from_datasets(pair, batch_size=8, frames_in_flight=30)
        .with_weights(333, {"a": 1, "b": 5})
        .with_weights(700, {"a": 1})
    )
    source, episode, frame = order.locate(np.arange(1500))
    for d, e, f in ((0, 1, 7), (1, 0, 19)):
        expected = np.flatnonzero((source == d) & (episode == e) & (frame == f)).tolist()
        assert [p for p in order.positions_of(d, e, f, range(60)).tolist() if p < 1500] == expected


def test_a_change_must_come_after_the_last_and_name_its_sources():
    order = Order.from_datasets(
        [episodes(5, name="a"), episodes(5, name="b")], batch_size=2
    ).with_weights(10, {"a": 1})
    with refused(10, kind=ValueError):
        order.with_weights(10, {"b": 1})
    with refused("'x'", kind=ValueError):
        order.with_weights(20, {"x": 1})
    with refused("weights", ["a", "b"], kind=ValueError):
        order.with_weights(20, {})
    with refused("position", 20.5, kind=ValueError):
        order.with_weights(20.5, {"a": 1})
    with refused("'c'", kind=ValueError):
        order.with_weights(20, {"a": 1}, add=[episodes(5, name="c")])
    with refused("'a'", kind=ValueError):
        order.with_weights(20, {"a": 1}, add=[episodes(5, name="a")])
