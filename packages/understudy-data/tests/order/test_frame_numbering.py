"""Layout: every selected frame has one place in the line, and clips cut at key frames are read
without waste.
"""

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from understudy_base.testing.refusals import refused
from understudy_data.order import Order
from understudy_data.order.frame_numbering import (
    check_segments,
    fingerprint,
    make_finder,
    make_layout,
)
from understudy_data.testing.order_sources import Source, episodes, sources


@given(sources(), st.integers(0, 20))
def test_the_line_holds_every_frame_once_and_back(source, stretch):
    layout = make_layout(source.segments, stretch)
    assert layout.frames == len(source.frames)
    episode, frame = layout.locate(np.arange(layout.frames, dtype=np.uint64))
    found = list(zip(episode.tolist(), frame.tolist()))
    assert sorted(found) == sorted(source.frames)
    if not stretch:
        assert found == source.frames
    for row, (e, start, stop) in enumerate(source.segments.tolist()):
        for f in range(start, stop):
            assert found[layout.line_number(row, f)] == (e, f)


@given(sources(), st.integers(1, 20))
def test_whole_stretches_come_first_and_are_clips(source, stretch):
    layout = make_layout(source.segments, stretch)
    episode, frame = layout.locate(np.arange(layout.frames, dtype=np.uint64))
    for clip in range(layout.rows.total):
        rows = slice(clip * stretch, (clip + 1) * stretch)
        assert len(set(episode[rows].tolist())) == 1
        assert frame[rows].tolist() == list(range(frame[rows][0], frame[rows][0] + stretch))
        assert frame[rows][0] % stretch == 0


def decoded(order: Order, gop: int, lanes: int) -> int:
    """Frames decoded in epoch 0 by a reader that keeps one decoder per lane and starts anew at key
    frames only.
    """
    frames = order.spec.sources[0].frames
    _, episode, frame = order.locate(np.arange(frames))
    total = 0
    for lane in range(lanes):
        e = episode[lane::lanes]
        f = frame[lane::lanes]
        goes_on = np.zeros(len(e), bool)
        goes_on[1:] = (e[1:] == e[:-1]) & (f[1:] == f[:-1] + 1)
        total += int(np.where(goes_on, 1, f % gop + 1).sum())
    return total


def test_a_long_gop_is_not_read_three_times():
    """Clips of 64 with a key frame every 250 decode three frames for one; clips cut at key frames
    do not.
    """
    rng = np.random.default_rng(0)
    source = episodes(*rng.integers(300, 3000, 400).tolist(), gop=250)
    frames = len(source.frames)
    derived = Order.from_datasets([source], batch_size=64, frames_in_flight=20_000)
    settled = derived.spec.sources[0]
    assert (settled.cut, settled.clip % 250) == ("keyframe", 0)
    assert decoded(derived, 250, settled.lanes) < 1.15 * frames
    plain = Order.from_datasets([source], batch_size=64, clip=64, lanes=256)
    assert decoded(plain, 250, 256) > 2.5 * frames


@given(st.lists(st.integers(0, 40), min_size=1, max_size=200), st.booleans())
def test_the_guided_search_is_the_plain_search(lengths, skewed):
    if skewed:
        lengths[len(lengths) // 2] += 10**12
    ends = np.cumsum(np.array([*lengths, 1], np.int64))
    finder = make_finder(ends)
    near = np.concatenate([ends - 1, ends, ends // 2, [0]])
    numbers = near[(near >= 0) & (near < ends[-1])]
    assert np.array_equal(finder.find(numbers), np.searchsorted(ends, numbers, side="right"))


def test_even_lengths_use_the_guide_and_skewed_ones_do_not():
    even = np.cumsum(np.full(10_000, 300))
    assert len(make_finder(even).guide) >= 5_000
    skewed = np.cumsum(np.array([1] * 1000 + [10**9]))
    assert len(make_finder(skewed).guide) == 0


def test_the_fingerprint_is_of_the_rows_and_their_order():
    rows = episodes(5, 6, 7).segments
    assert (
        fingerprint(rows) == fingerprint(np.asfortranarray(rows)) == fingerprint(rows.astype(">i8"))
    )
    assert len({fingerprint(x) for x in (rows, rows[::-1], rows[:2], rows + 1)}) == 4


@pytest.mark.parametrize(
    ("segments", "words"),
    [
        (np.zeros((3, 2), np.int64), ["shape", (3, 2)]),
        (np.zeros((0, 3), np.int64), ["frames"]),
        ([], ["frames"]),
        ([[0, 4, 4]], ["frames"]),
        ([[0, 0, 5], [1, 7, 3]], [1, [1, 7, 3]]),
        ([[0, -1, 5]], [0, [0, -1, 5]]),
        ([[0.0, 0.0, 5.0]], ["float64"]),
        ([[0, 0, 2**62]], ["2**62"]),
        ([[0, 0, 2**61], [1, 0, 2**61]], ["2**62"]),
    ],
)
def test_bad_segments_are_refused_by_name(segments, words):
    with refused("'mine'", *words, kind=ValueError):
        check_segments(segments, "mine")


def test_segments_are_not_copied():
    rows = episodes(3, 4).segments
    assert check_segments(rows, "x")[0] is rows


def test_narrow_integers_are_taken():
    source = Source(episodes(3, 4).segments.astype(np.int32))
    assert Order.from_datasets([source], batch_size=2).spec.sources[0].frames == 7
