"""Choice of validation frames where there are too many: the same ones, each group's share, little
memory.
"""

import tracemalloc

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from understudy_data.load.validation_data import FEW, sample_frames, stratum_quotas


def line(lengths: list[int], first: int = 3) -> np.ndarray:
    """Segments of these lengths, of one episode each: int64 (S, 3)."""
    sizes = np.array(lengths, np.int64)
    return np.stack([np.arange(len(sizes)), np.full(len(sizes), first), first + sizes], axis=1)


LENGTHS = st.lists(st.integers(1, 60), min_size=1, max_size=40)


@given(LENGTHS, st.integers(1, 300), st.integers(1, 5))
def test_sample_frames_has_the_requested_size(lengths: list[int], most: int, groups: int) -> None:
    segments = line(lengths)
    stratum = np.arange(len(segments)) % groups
    keys = np.full(len(segments), 77)
    segment, frame = sample_frames(segments, stratum, keys, most)
    total = sum(lengths)
    assert len(segment) == min(most, total)
    pairs = list(zip(segment.tolist(), frame.tolist()))
    assert pairs == sorted(set(pairs))  # in the sequence of the line, each once
    assert (frame >= segments[segment, 1]).all()
    assert (frame < segments[segment, 2]).all()
    for other in (0, total, total + 1):  # all of them
        everything = [
            (s, f)
            for s, (_, start, stop) in enumerate(segments.tolist())
            for f in range(start, stop)
        ]
        assert (
            list(zip(*(each.tolist() for each in sample_frames(segments, stratum, keys, other))))
            == everything
        )


def test_sample_frames_gives_small_strata_a_few() -> None:
    lengths = [300] * 1000 + [200] * 500 + [40, 5]
    segments = line(lengths)
    stratum = np.repeat(np.arange(4), [1000, 500, 1, 1])
    segment, frame = sample_frames(segments, stratum, np.zeros(len(segments), np.int64), 8000)
    counts = np.bincount(stratum[segment], minlength=4)
    assert FEW <= counts[2] <= FEW + 1
    assert counts[3] == 5
    assert counts[0] / counts[1] == pytest.approx(3, rel=0.01)
    # Spread over the episodes of the group, and over each one's length.
    of_episode = np.bincount(segment, minlength=len(segments))
    assert set(of_episode[:1000].tolist()) == {6, 5}
    place = (frame - segments[segment, 1]) / np.array(lengths)[segment]
    own = place[segment < 1000]
    assert np.histogram(own, 5, (0, 1))[0] == pytest.approx(np.full(5, len(own) / 5), rel=0.15)
    for episode in (0, 7, 999):
        parts = np.floor(place[segment == episode] * of_episode[episode])
        assert parts.tolist() == list(range(of_episode[episode]))  # one in each of equal parts


def test_stratum_quotas_sum_to_the_total() -> None:
    frames = np.random.default_rng(0).integers(1, 1000, 5000)
    for most in (1, 100, 4999, 10_000, 60_000, int(frames.sum()) - 1):
        found = stratum_quotas(frames, most)
        assert found.sum() == most
        assert (found >= 0).all()
        assert (found <= frames).all()
    assert stratum_quotas(frames, 10_000).min() == 1


def test_sample_frames_depends_on_the_key_alone() -> None:
    segments = line([50] * 40)
    here = sample_frames(segments, np.zeros(40, int), np.full(40, 5), 100)
    there = sample_frames(segments, np.full(40, 9), np.full(40, 5), 100)
    assert all(np.array_equal(a, b) for a, b in zip(here, there))
    assert not np.array_equal(
        here[1], sample_frames(segments, np.zeros(40, int), np.full(40, 6), 100)[1]
    )


def test_sample_frames_needs_memory_only_for_samples() -> None:
    """Ten billion frames; as arrays of one byte they would be 10 GB."""
    segments = line([100_000] * 100_000)
    tracemalloc.start()
    segment, _ = sample_frames(
        segments, np.arange(len(segments)) % 400, np.zeros(len(segments), np.int64), 10_000
    )
    peak = tracemalloc.get_traced_memory()[1]
    tracemalloc.stop()
    assert len(segment) == 10_000
    assert peak < 100 << 20
