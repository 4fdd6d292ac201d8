"""Defaults derived from frames, batch, key frames, reach and memory, and the words for them."""

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from order_audit import as_read, audit
from understudy_data.order import Order
from understudy_data.order.cost import clips_cost
from understudy_data.order.defaults import choose_clip, choose_clips, lane_counts, shared_factor
from understudy_data.order.lanes import Lanes
from understudy_data.testing.order_sources import Source, episodes


def cost(frames, gop, reach, choice):
    return clips_cost(frames, gop, reach, clip=choice.clip, lanes=choice.lanes, cut=choice.cut)


@given(
    st.integers(1, 10**9),
    st.integers(1, 400),
    st.integers(0, 300),
    st.integers(1, 1024),
    st.integers(1_000, 10**6),
)
def test_the_rules_hold_where_they_can(frames, gop, back, batch, in_flight):
    choice = choose_clips(frames, gop, (back, 0), batch_size=batch, in_flight=in_flight)
    if choice.clip == choice.lanes == 1:
        assert frames <= in_flight
        return
    assert choice.lanes in lane_counts(batch) or choice.lanes == frames
    assert choice.clip <= max(frames // choice.lanes, gop) + 16
    if choice.cut == "keyframe":
        assert choice.clip % gop == 0
        assert 8 * gop > max(64, 8 * back)
    roomy = batch * max(64, 8 * back, gop) <= min(in_flight, frames // 10)
    if roomy:
        assert choice.clip >= max(16, back)
        assert choice.lanes * min(choice.clip, max(64, back)) <= in_flight
    others = [
        choose_clip(frames, gop, (back, 0), lanes) for lanes in lane_counts(batch) if lanes <= batch
    ]
    if cost(frames, gop, (back, 0), choice) > 1.25 and roomy:
        cheapest = min(cost(frames, gop, (back, 0), other) for other in others)
        assert cost(frames, gop, (back, 0), choice) <= 1.1 * cheapest


@pytest.mark.parametrize("frames", [2_138, 8_552, 42_760, 10**6])
@pytest.mark.parametrize("gop", [8, 30, 250])
def test_no_default_costs_more_than_a_quarter_above_decoding_in_a_row(frames, gop):
    """A set of few frames and long GOPs once had the uniform shuffle, at 127 times the cost."""
    order = Order.from_datasets([episodes(*[frames // 8] * 8, gop=gop)], batch_size=32)
    source = order.spec.sources[0]
    read, lengths = as_read(order)
    decoded = audit(
        read, lengths, 32, world_size=1, gop=gop, span=max(2**14, 2 * frames)
    ).amplification
    assert source.clip > 1
    assert (
        clips_cost(frames, gop, (0, 0), clip=source.clip, lanes=source.lanes, cut=source.cut)
        <= 1.25
    )
    assert decoded <= 1.3


def test_a_window_that_reaches_far_gets_long_clips():
    far = choose_clips(10**7, 2, (0, 240), batch_size=64, in_flight=100_000)
    near = choose_clips(10**7, 2, (1, 0), batch_size=64, in_flight=100_000)
    assert near.clip < 80
    assert far.clip >= 8 * 240
    assert any("240 frames" in reason for reason in far.reasons)


@pytest.mark.parametrize("batch", [16, 64, 256])
@pytest.mark.parametrize("gop", [2, 30])
def test_windows_lengthen_clips_and_keep_a_lane_for_each_sample(gop, batch):
    for reach in ((0, 150), (150, 0)):
        choice = choose_clips(10**7, gop, reach, batch_size=batch, in_flight=200_000)
        assert 8 * 150 <= choice.clip < 8 * 150 + 16
        assert choice.lanes >= batch
        assert cost(10**7, gop, reach, choice) <= 1.25


@pytest.mark.parametrize("gop", [2, 30, 250])
def test_six_frames_a_second_apart_decode_at_most_20_percent_more_and_mix_no_worse(gop):
    rng = np.random.Generator(np.random.PCG64(0))
    lengths = rng.integers(200, 1000, 300)

    def figures(reach, **given):
        order = Order.from_datasets(
            [episodes(*lengths, gop=gop, reach=reach)], batch_size=16, **given
        )
        source = order.spec.sources[0]
        read, ends = as_read(order)
        return source, audit(
            read, ends, 16, world_size=1, gop=gop, reach=reach, span=4 * source.lanes * source.clip
        )

    _, now = figures((0, 0))
    source, history = figures((150, 0))
    assert history.amplification <= 1.2 * now.amplification
    _, shorter = figures((150, 0), clip=601, lanes=source.lanes)
    for one, other in zip(history.deff[:2], shorter.deff[:2]):
        assert one == pytest.approx(other, rel=0.05)


FROZEN = {
    (60_000, 2, (8, 0), 16): (71, 128, "plain"),
    (60_000, 30, (1, 0), 16): (120, 64, "keyframe"),
    (60_000, 30, (0, 50), 16): (401, 64, "plain"),
    (8_552, 250, (0, 0), 32): (250, 16, "keyframe"),
    (42_760, 250, (0, 0), 32): (250, 96, "keyframe"),
    (10_000_000, 2, (0, 50), 256): (401, 1536, "plain"),
    (10_000_000, 250, (0, 16), 256): (250, 1536, "keyframe"),
}
"""(frames, GOP, reach, batch): clip, lanes and cut."""


@pytest.mark.parametrize("given", FROZEN)
def test_the_choice_for_some_sources(given):
    frames, gop, reach, batch = given
    choice = choose_clips(frames, gop, reach, batch_size=batch, in_flight=100_000)
    assert (choice.clip, choice.lanes, choice.cut) == FROZEN[given]


def test_few_frames_in_flight_shorten_clips_but_not_below_sixteen_frames():
    assert choose_clip(10**7, 2, (0, 0), 1024, most=40).clip == 40
    assert choose_clip(10**7, 2, (0, 0), 1024, most=3).clip == 16
    # a lane holds the 240 frames in any case
    assert choose_clip(10**7, 2, (0, 240), 1024, most=3).clip >= 8 * 240


def test_long_gops_are_cut_at_key_frames_and_short_ones_need_not_be():
    assert choose_clips(10**7, 2, (1, 0), batch_size=64, in_flight=100_000).cut == "plain"
    assert choose_clips(10**7, 8, (1, 0), batch_size=64, in_flight=100_000).cut == "plain"
    for gop in (12, 30, 250, 600):
        choice = choose_clips(10**7, gop, (1, 0), batch_size=64, in_flight=200_000)
        assert choice.cut == "keyframe"
        assert choice.clip % gop == 0
        assert choice.clip >= 64
    back, ahead = (
        clips_cost(10**5, 250, reach, clip=250, lanes=16, cut="keyframe")
        for reach in ((8, 0), (0, 8))
    )
    assert back > 1.2 * ahead  # a window ahead starts at the key frame


def test_few_frames_are_shuffled_one_by_one_where_that_is_cheap():
    assert choose_clips(50_000, 2, (1, 0), batch_size=64, in_flight=100_000).lanes == 1
    assert choose_clips(50_000, 250, (1, 0), batch_size=8, in_flight=100_000).lanes > 1
    # few as they are
    assert choose_clips(5_000, 250, (1, 0), batch_size=64, in_flight=100_000).lanes == 8


@pytest.mark.parametrize("gop", [2, 250])
def test_lanes_do_not_turn_over_together(gop):
    """Without care all lanes reach the end of their clip at the same step: the worst step opens
    many times the mean.
    """
    sources = [episodes(*[256] * 4000, gop=gop)]
    order = Order.from_datasets(sources, batch_size=64, frames_in_flight=50_000)
    worst, mean = turnover(order)
    assert worst <= 2 * np.ceil(mean) + 1
    careless = Order.from_datasets(sources, batch_size=64, clip=64, lanes=640)
    assert shared_factor(1_024_000, 64, 640) == 64
    worst, mean = turnover(careless)
    assert worst > 30 * mean


def turnover(order: Order) -> tuple[int, float]:
    """First touches of clips in the worst of some steps, and on average, after the lanes have
    filled.
    """
    source = order.spec.sources[0]
    lanes = Lanes(order.seed, 0, source.frames, source.clip, source.lanes, True, "sequential")
    clips = lanes.line(np.arange(64 * 2000, dtype=np.uint64)) // np.uint64(source.clip)
    _, first = np.unique(clips, return_index=True)
    steps = np.bincount(first // 64, minlength=2000)[source.lanes // 64 + 1 :]
    return int(steps.max()), float(steps.mean())


@pytest.mark.parametrize("batch", [1, 32, 256, 512])
def test_batches_of_few_ranks_have_the_defaults_they_always_had(batch):
    for table in (
        episodes(*[300] * 200),
        episodes(*[300] * 20_000),
        episodes(*[300] * 20_000, gop=30),
    ):
        assert (
            Order.from_datasets(table, batch_size=batch).spec
            == Order.from_datasets(table, batch_size=batch, frames_in_flight=100_000).spec
        )


@pytest.mark.parametrize("batch", [2048, 8192, 65_536])
def test_a_larger_batch_has_more_frames_in_flight_not_shorter_clips(batch):
    many = Source(np.array([[0, 0, 10**9]]))
    source = Order.from_datasets(many, batch_size=batch).spec.sources[0]
    assert source.clip >= 64
    assert source.lanes >= batch
    # of each rank as many, when ranks grow with the batch
    assert source.clip * source.lanes <= 1.1 * 192 * batch
    tight = Order.from_datasets(many, batch_size=batch, frames_in_flight=100_000).spec.sources[0]
    assert tight.clip < 64


def test_the_words_name_the_clips_that_were_chosen():
    choice = choose_clips(10**7, 2, (1, 0), batch_size=8192, in_flight=200_000)
    assert 16 <= choice.clip < 64
    shortened = [reason for reason in choice.reasons if "shortened" in reason]
    assert len(shortened) == 1
    assert f"shortened to {choice.clip}" in shortened[0]


def test_the_choice_is_explained():
    text = Order.from_datasets(
        [episodes(*[300] * 2000, name="door", gop=250, reach=(240, 0))], batch_size=64
    ).explain()
    assert "door: 600000 frames in 2000 segments" in text
    assert "240 frames" in text
    assert "key frames" in text
    assert "lanes" in text
    pair = [episodes(*[300] * 20, name="a"), episodes(*[300] * 60, name="b")]
    assert "from position 0: a 25.00%" in Order.from_datasets(pair, batch_size=64).explain()
    assert (
        "storage order" in Order.from_datasets(pair[:1], batch_size=4, mode="sequential").explain()
    )


def test_clips_and_lanes_can_be_given():
    order = Order.from_datasets([episodes(*[300] * 100)], batch_size=8, clip=20, lanes=24)
    assert (order.spec.sources[0].clip, order.spec.sources[0].lanes) == (20, 24)
    order = Order.from_datasets([Source(np.array([[0, 0, 10]]))], batch_size=8, clip=3, lanes=24)
    assert order.spec.sources[0].lanes == 10  # no more lanes than frames
