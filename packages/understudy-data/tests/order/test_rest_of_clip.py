"""The rest of a clip, which a reader decodes in one go, against the order looked up position by
position.
"""

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from understudy_data.order import Order
from understudy_data.order.lanes import Lanes, _epoch
from understudy_data.testing.order_sources import episodes, sources


def brute_force(order: Order, position: int, span: int) -> list[int]:
    """Positions from `position` on in its source, epoch, lane and clip, each looked up alone."""
    same = np.ones(span, bool)
    for one in whereabouts(order, np.arange(position, position + span)):
        same &= one == one[0]
    return (position + np.flatnonzero(same)).tolist()


def whereabouts(order: Order, positions: np.ndarray) -> tuple[np.ndarray, ...]:
    _, index = order.streams(positions)
    source, epoch, line = order.lines(positions)
    _, lane = order.lanes(positions)
    clip = np.empty_like(source)
    turn = np.zeros_like(source)
    for d in np.unique(source):
        own = source == d
        spec = order.spec.sources[d]
        clip[own] = line[own] // spec.clip if spec.shuffle else 0
        # behind the end of the rotated line it continues at its beginning: a clip cut there is two
        if spec.shuffle:
            lanes = Lanes(order.seed, int(d), spec.frames, spec.clip, spec.lanes, True, spec.inside)
            shift = np.array([_epoch(lanes, int(e)).shift for e in epoch[own]])
            p = index[own].view(np.int64) % spec.frames
            if order.spec.version == 1:  # there, stream indices go across the lanes
                length, longer = divmod(spec.frames, spec.lanes)
                p = lane[own] * length + np.minimum(lane[own], longer) + p // spec.lanes
            turn[own] = (p + shift) // spec.frames
    return source, epoch, clip, lane, turn


@pytest.mark.long
@given(
    one=sources("one"),
    two=sources("two"),
    mixed=st.sampled_from([None, (1, 1), (0.37, 0.63), (1, 1e-3)]),
    clip=st.integers(2, 9),
    lanes=st.integers(1, 8),
    inside=st.sampled_from(["sequential", "permuted"]),
    position=st.integers(0, 500),
)
def test_rest_of_clip_equals_single_lookups(  # type: ignore[no-untyped-def]
    one, two, mixed, clip, lanes, inside, position
) -> None:
    data = [one, two] if mixed else [one]
    order = Order.from_datasets(
        data, weights=mixed, batch_size=3, seed=1, clip=clip, lanes=max(lanes, 2), inside=inside
    )
    positions, episode, frame = order.rest_of_clip(position, 1000)
    assert positions.tolist() == brute_force(order, position, 2000)
    _, expected_episode, expected_frame = order.locate(positions)
    assert (episode == expected_episode).all()
    assert (frame == expected_frame).all()
    assert order.rest_of_clip(position, 2)[0].tolist() == positions[:2].tolist()


@given(
    lengths=st.tuples(st.integers(1, 60), st.integers(1, 60), st.integers(1, 60)),
    weights=st.tuples(*[st.integers(1, 5) | st.floats(0.1, 5)] * 3),
    changed=st.integers(1, 400),
    position=st.integers(0, 1 << 40),
)
def test_the_lane_of_one_position_is_that_of_many(  # type: ignore[no-untyped-def]
    lengths, weights, changed, position
) -> None:
    one, two, three = (episodes(n, name=str(d)) for d, n in enumerate(lengths))
    order = Order.from_datasets([one, two], weights=weights[:2], batch_size=3, clip=4, lanes=5)
    order = order.with_weights(changed, {"1": weights[1], "2": weights[2]}, add=[three])
    positions = [*range(changed + 40), position]
    assert [order.lane(p) for p in positions] == order.lanes(positions)[1].tolist()


@pytest.mark.parametrize("mode", ["uniform", "sequential"])
def test_without_clips(mode: str) -> None:
    order = Order.from_datasets([episodes(5, 8)], batch_size=3, mode=mode)
    expected = [20] if mode == "uniform" else [20, 21, 22, 23, 24, 25]  # the epoch ends there
    assert order.rest_of_clip(20, 100)[0].tolist() == expected


def test_it_ends_where_the_source_leaves() -> None:
    order = Order.from_datasets(
        [episodes(40, name="one"), episodes(40, name="two")], batch_size=4, clip=8, lanes=4
    )
    changed = order.with_weights(30, {"two": 1.0})
    for position in range(22, 30):
        wanted = [p for p in order.rest_of_clip(position, 100)[0].tolist() if p < 30]
        found = changed.rest_of_clip(position, 100)[0].tolist()
        if order.streams([position])[0][0] == 0:
            assert found == wanted
        else:  # it continues, with every slot its own
            assert found[0] == position
            assert (changed.streams(found)[0] == 1).all()
