"""Spec: a saved order is restored, and every difference is named with its effect."""

import json
from dataclasses import replace

import numpy as np
from hypothesis import given
from hypothesis import strategies as st

from understudy_base.testing.refusals import refused
from understudy_data.order import Order, Spec, compare
from understudy_data.testing.order_sources import Source, episodes, sources


def pair(**changes: object) -> list[Source]:
    return [episodes(*[50] * 30, name="a", gop=12), episodes(*[70] * 9, name="b", **changes)]


@given(
    st.lists(sources(), min_size=1, max_size=3),
    st.integers(0, 2**64 - 1),
    st.sampled_from(["clips", "uniform"]),
)
def test_json_round_trip(given_sources, seed, mode):
    named = [Source(s.segments, f"s{d}", s.gop, s.reach) for d, s in enumerate(given_sources)]
    order = Order.from_datasets(named, batch_size=4, seed=seed, mode=mode, frames_in_flight=100)
    text = order.to_json()
    assert Spec.from_json(text) == order.spec
    again = Order.from_json(json.loads(text), named)
    assert again.spec == order.spec
    assert again.spec.fingerprint == order.spec.fingerprint
    for old, new in zip(order.locate(np.arange(300)), again.locate(np.arange(300))):
        assert np.array_equal(old, new)


def test_a_schedule_is_saved_too():
    order = Order.from_datasets(pair(), batch_size=8).with_weights(100, {"a": 1, "b": 7})
    again = Order.from_json(order.to_json(), pair())
    for old, new in zip(order.locate(np.arange(500)), again.locate(np.arange(500))):
        assert np.array_equal(old, new)


def test_a_saved_order_does_not_follow_later_defaults():
    """Key frames, reach and names may differ; the saved clips and lanes hold."""
    order = Order.from_datasets(pair(), batch_size=8, frames_in_flight=200)
    other = [Source(s.segments, s.name + "2", 250, (9, 9)) for s in pair()]
    for old, new in zip(
        order.locate(np.arange(500)), Order.from_json(order.to_json(), other).locate(np.arange(500))
    ):
        assert np.array_equal(old, new)


def test_from_json_names_changed_data():
    order = Order.from_datasets(pair(), batch_size=8)
    fewer = [pair()[0], episodes(*[70] * 8, name="b")]
    with refused("(b)", 630, 560, kind=ValueError):
        Order.from_json(order.to_json(), fewer)
    turned = [pair()[0], Source(pair()[1].segments[::-1], "b")]
    with refused("(b)", "order", kind=ValueError):
        Order.from_json(order.to_json(), turned)
    with refused(2, kind=ValueError):
        Order.from_json(order.to_json(), pair()[:1])


def test_compare_names_each_difference_and_its_effect():
    spec = Order.from_datasets(pair(), weights=[1, 3], batch_size=8, frames_in_flight=500).spec
    a, b = spec.sources
    first = spec.schedule[0]

    def differences(new: Spec) -> list[tuple[str, bool]]:
        return [(difference.what, difference.changes_order) for difference in compare(spec, new)]

    assert differences(spec) == []
    assert differences(replace(spec, seed=1)) == [("seed", True)]
    assert differences(replace(spec, batch=16)) == [("batch", False)]
    assert differences(replace(spec, sources=(replace(a, name="z"), b))) == [
        ("source 0 (a) name", False)
    ]
    assert differences(replace(spec, sources=(a, replace(b, data="0" * 32)))) == [
        ("source 1 (b) selected frames", True)
    ]
    for field, words in (("clip", "frames per clip"), ("lanes", "lanes")):
        new = replace(spec, sources=(replace(a, **{field: 5}), b))
        assert differences(new) == [(f"source 0 (a) {words}", True)]
    assert differences(replace(spec, sources=(replace(a, inside="permuted"), b)))[0][0].endswith(
        "order inside a clip"
    )
    assert differences(replace(spec, sources=(a, b), schedule=(replace(first, slots=(1, 1)),))) == [
        ("schedule", True)
    ]
    later = replace(first, position=999, slots=(1, 3))
    (difference,) = compare(spec, replace(spec, schedule=(first, later)))
    assert "from position 999 on; nothing before it changes" in str(difference)
    assert "a 1, b 3 of 4" in str(difference)
    c = replace(b, name="c")
    words = [
        str(d)
        for d in compare(
            spec,
            replace(spec, sources=(a, b, c), schedule=(first, replace(later, slots=(1, 1, 1)))),
        )
    ]
    assert "source 2: None -> c: it joins at position 999" in words


def test_the_fingerprint_changes_exactly_if_the_order_does():
    spec = Order.from_datasets(pair(), weights=[1, 3], batch_size=8, frames_in_flight=500).spec
    a, b = spec.sources
    same = [replace(spec, batch=16), replace(spec, sources=(replace(a, name="z"), b))]
    alone = [replace(source, gop=1, reach=(0, 0)) for source in pair()]
    few = [
        Order.from_datasets(alone, batch_size=8, inside=inside).spec
        for inside in ("sequential", "permuted")
    ]
    assert few[0].fingerprint == few[1].fingerprint  # shuffled one by one, there is no inside
    others = [
        replace(spec, seed=1),
        replace(spec, sources=(b, a)),
        replace(spec, sources=(replace(a, clip=3), b)),
        replace(spec, schedule=(replace(spec.schedule[0], slots=(1, 1)),)),
    ]
    assert {one.fingerprint for one in same} == {spec.fingerprint}
    assert len({one.fingerprint for one in [spec, *others]}) == 5


def test_a_spec_that_is_damaged_or_of_another_version_is_refused():
    saved = json.loads(Order.from_datasets(pair(), batch_size=8).to_json())
    for change, words in (
        ({"version": 3}, ["version", 3]),
        ({"extra": 1}, ["unknown", ["extra"]]),
        ({"schedule": []}, ["schedule", []]),
        ({"schedule": [{"position": 5, "slots": [1, 1]}]}, ["schedule", [5]]),
        ({"schedule": [{"position": 0, "slots": [1, -1]}]}, ["schedule", 0]),
        ({"schedule": [{"position": 0, "slots": [1, 1, 1]}]}, ["schedule", 3]),
        ({"sources": []}, ["sources"]),
        ({"sources": [saved["sources"][0]] * 2}, ["'a'", "sources"]),
        ({"sources": [{**saved["sources"][0], "clip": 0}]}, ["'a'", "clip", 0]),
        ({"seed": -3}, ["seed", -3]),
        (
            {"sources": [{**saved["sources"][0], "inside": "backwards"}]},
            ["'a'", "inside", "'backwards'"],
        ),
        ({"seed": "0"}, ["'0'", "str", "int"]),
        ({"batch": 8.0}, [8.0, "float", "int"]),
        ({"schedule": [{"position": 0, "slots": [1.5, 1]}]}, [1.5, "float", "int"]),
        ({"schedule": [{"position": 0, "slots": []}]}, ["schedule", 0]),
        ({"sources": [{**saved["sources"][0], "clip": "64"}]}, ["clip", "'64'", "str"]),
        ({"sources": [{**saved["sources"][0], "shuffle": 1}]}, ["shuffle", 1, "int", "bool"]),
        ({"sources": ["a"]}, ["'a'"]),
    ):
        with refused(*words, kind=ValueError):
            Spec.from_json({**saved, **change})
    with refused("order", "'[]'", kind=ValueError):
        Spec.from_json("[]")
    del saved["seed"]
    with refused("order", ["seed"], kind=ValueError):
        Spec.from_json(saved)


def test_a_spec_is_small_whatever_the_data():
    many = Source(
        np.stack([np.arange(100_000), np.zeros(100_000), np.full(100_000, 300)], axis=1).astype(
            np.int64
        )
    )
    assert len(Order.from_datasets([many], batch_size=256).to_json()) < 600


def test_parts_of_a_source_are_added_up() -> None:
    order = Order.from_datasets(
        [*pair(), episodes(*[50] * 3, name="a@9", gop=12)], batch_size=8, weights=[4, 2, 1]
    )
    merged = order.spec.merged([0, 1, 0], 2)
    assert [source.name for source in merged.sources] == ["a", "b"]
    before = order.spec.schedule[0].slots
    assert merged.schedule[0].slots == (before[0] + before[2], before[1])
