"""Clip lanes: the closed form is the diagram in its docstring, and keeps its promises."""

import numpy as np
import pytest
from hypothesis import example, given
from hypothesis import strategies as st
from scipy import stats

from understudy_data.order.lanes import Lanes
from understudy_data.order.random import make_key, permutation
from understudy_data.testing.shuffle_battery import two_sided


def by_definition(lanes: Lanes, epoch: int) -> list[int]:
    """One epoch as the docstring draws it, with lists."""
    n = lanes.frames
    s = lanes.clip
    clips = [list(range(start, min(start + s, n))) for start in range(0, n, s)]
    order = permutation(len(clips), make_key(lanes.seed, "clip", lanes.source, epoch))
    line = [
        v for u in order.forward(np.arange(len(clips), dtype=np.uint64)).tolist() for v in clips[u]
    ]
    shift = make_key(lanes.seed, "shift", lanes.source, epoch) % n
    line = line[shift:] + line[:shift]
    lengths = [n // lanes.lanes + (lane < n % lanes.lanes) for lane in range(lanes.lanes)]
    starts = np.cumsum([0, *lengths])
    return [line[starts[p % lanes.lanes] + p // lanes.lanes] for p in range(n)]


settings = st.builds(
    Lanes,
    seed=st.integers(0, 2**64 - 1),
    source=st.integers(0, 3),
    frames=st.integers(1, 400),
    clip=st.integers(1, 40),
    lanes=st.integers(1, 50),
    shuffle=st.just(True),
    inside=st.sampled_from(["sequential", "permuted"]),
)


@given(settings, st.integers(0, 1000))
@example(Lanes(0, 0, 7, 3, 50, True, "sequential"), 0)  # more lanes than frames
@example(Lanes(0, 0, 12, 40, 3, True, "sequential"), 5)  # one clip, longer than the source
@example(Lanes(0, 0, 60, 12, 5, True, "sequential"), 2)  # no short clip
def test_the_closed_form_is_the_definition(lanes, epoch):
    index = np.arange(epoch * lanes.frames, (epoch + 1) * lanes.frames, dtype=np.uint64)
    line = lanes.line(index)
    if lanes.inside == "sequential":
        assert line.tolist() == by_definition(lanes, epoch)
    else:  # the same clips in the same places, another order inside each
        assert (line // np.uint64(lanes.clip)).tolist() == [
            v // lanes.clip for v in by_definition(lanes, epoch)
        ]
    assert sorted(line.tolist()) == list(range(lanes.frames))
    for p in {0, lanes.frames // 2, lanes.frames - 1}:
        assert lanes.index(int(line[p]), epoch) == int(index[p])


@given(settings, st.lists(st.integers(0, 5000), min_size=1, max_size=60))
def test_any_indices_in_any_order_over_many_epochs(lanes, wanted):
    alone = [int(lanes.line(np.array([i], np.uint64))[0]) for i in wanted]
    assert lanes.line(np.array(wanted, np.uint64)).tolist() == alone


@given(settings)
def test_at_most_v_clips_are_open(lanes):
    """In any V positions in a row at most V clips, and in k*V at most V (ceil(k/S) + 1) + 2."""
    line = lanes.line(np.arange(lanes.frames, dtype=np.uint64)) // np.uint64(lanes.clip)
    for k in (1, 3):
        window = k * lanes.lanes
        most = lanes.lanes * (1 if k == 1 else -(-k // lanes.clip) + 1) + (0 if k == 1 else 2)
        for start in range(0, max(1, lanes.frames - window), max(1, window // 3)):
            assert len(np.unique(line[start : start + window])) <= most


def test_a_clip_is_opened_once_and_a_few_are_cut():
    """Opens are at most clips + lanes + the turn: each lane cut, and the shift, splits one clip."""
    lanes = Lanes(3, 0, 300_000, 67, 512, True, "sequential")
    line = lanes.line(np.arange(lanes.frames, dtype=np.uint64)).astype(np.int64)
    clips = -(-lanes.frames // lanes.clip)
    owners = np.arange(lanes.frames) % lanes.lanes
    opens = len(np.unique(owners * clips + line // lanes.clip))
    assert clips <= opens <= clips + lanes.lanes + 1
    assert opens > clips  # else nothing was cut and the bound is idle


def test_a_batch_has_as_many_clips_as_samples():
    lanes = Lanes(1, 0, 400_000, 67, 512, True, "sequential")
    clips = (lanes.line(np.arange(256 * 100, dtype=np.uint64)) // np.uint64(lanes.clip)).reshape(
        100, 256
    )
    distinct = [len(np.unique(batch)) for batch in clips]
    assert min(distinct) >= 254
    assert np.mean(distinct) > 255.5


@pytest.mark.parametrize("p", [0, 1, 17, 99])
def test_every_frame_is_equally_likely_at_every_position(p):
    """Also at the first: without the shift an epoch would more likely begin at the start of a
    clip.
    """
    lanes = [Lanes(seed, 0, 100, 7, 6, True, "sequential") for seed in range(3000)]
    counts = np.bincount(
        [int(one.line(np.array([p], np.uint64))[0]) for one in lanes], minlength=100
    )
    assert two_sided(float(np.sum((counts - 30) ** 2 / 30)), stats.chi2(99)) > 1e-4


def test_epochs_and_sources_have_orders_of_their_own():
    """Coincidences of two epochs, or of two sources of the same length, are those of chance
    (Poisson, mean 1).
    """
    n = 3000
    epochs = 120
    rows = [
        Lanes(0, source, n, 1, 1, True, "sequential")
        .line(np.arange(n * epochs, dtype=np.uint64))
        .reshape(epochs, n)
        for source in (0, 1)
    ]
    for a, b in ((rows[0][1:], rows[0][:-1]), (rows[0], rows[1])):
        total = int((a == b).sum())
        assert min(stats.poisson(len(a)).cdf(total), stats.poisson(len(a)).sf(total - 1)) > 1e-4


def test_without_shuffling_the_line_is_read_as_it_is():
    lanes = Lanes(5, 0, 10, 1, 1, False, "sequential")
    assert lanes.line(np.arange(25, dtype=np.uint64)).tolist() == [p % 10 for p in range(25)]
    assert lanes.index(7, 3) == 37


@pytest.mark.parametrize("frames", [10**12, 2**62 - 1])
def test_no_overflow_in_huge_sources(frames):
    lanes = Lanes(0, 0, frames, 65, 1536, True, "sequential")
    index = np.array([0, 1, frames - 1, frames, 2**63 - 1], np.uint64)
    line = lanes.line(index)
    assert (line < np.uint64(frames)).all()
    for i, v in zip(index.tolist(), line.tolist()):
        assert lanes.index(v, i // frames) == i
