"""Draws: the same alone or in bulk, the published generator, and the right distributions."""

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from scipy import special, stats

from understudy_base.testing.refusals import refused
from understudy_data.order import (
    KeyedDraws,
    sample_normal,
    sample_rng,
    sample_uniform,
    sample_words,
)
from understudy_data.order.random import make_key, philox
from understudy_data.order.sample_random import natural_log, normal_from_bits

shapes = st.lists(st.integers(0, 5), max_size=3).map(tuple)
positions = st.lists(st.integers(0, 2**63 - 1), min_size=1, max_size=12)


@pytest.mark.parametrize(
    ("counter", "key", "output"),
    [  # the known-answer vectors of the authors' library Random123, philox4x32-10
        ((0,) * 4, (0,) * 2, (0x6627E8D5, 0xE169C58D, 0xBC57AC4C, 0x9B00DBD8)),
        ((0xFFFFFFFF,) * 4, (0xFFFFFFFF,) * 2, (0x408F276D, 0x41C83B0E, 0xA20BC7C6, 0x6D5451FD)),
        (
            (0x243F6A88, 0x85A308D3, 0x13198A2E, 0x03707344),
            (0xA4093822, 0x299F31D0),
            (0xD16CFE09, 0x94FDCCEB, 0x5001E420, 0x24126EA1),
        ),
    ],
)
def test_the_published_vectors(counter, key, output):
    low, high = (np.array([counter[i] | counter[i + 1] << 32], np.uint64) for i in (0, 2))
    first, second = philox(key[0] | key[1] << 32, low, high)
    assert (int(first[0]), int(second[0])) == (
        output[0] | output[1] << 32,
        output[2] | output[3] << 32,
    )


@given(st.integers(0, 2**64 - 1), st.text(max_size=12), positions, shapes)
def test_alone_is_as_in_bulk(seed, purpose, at, shape):
    for bulk, one in ((sample_uniform, "random"), (sample_normal, "normal")):
        together = bulk(seed, purpose, at, shape)
        assert together.shape == (len(at), *shape)
        assert together.dtype == np.float32
        for row, position in zip(together, at):
            assert bulk(seed, purpose, [position], shape)[0].tobytes() == row.tobytes()
            assert (
                getattr(sample_rng(seed, purpose, position), one)(shape).tobytes() == row.tobytes()
            )
    words = sample_words(seed, purpose, at, 5)
    for row, position in zip(words, at):
        assert sample_rng(seed, purpose, position).words(5).tolist() == row.tolist()


def test_bulk_over_many_passes_is_alone():
    at = np.arange(5000)
    together = sample_normal(1, "noise", at, (7, 3))
    for position in (0, 1, 2730, 2731, 4999):
        assert np.array_equal(sample_rng(1, "noise", position).normal((7, 3)), together[position])


def test_a_longer_draw_begins_like_a_shorter_one():
    """A chunk padded to another length must not change the noise of the steps both have."""
    short = sample_normal(0, "noise", [5, 6], (10,))
    long = sample_normal(0, "noise", [5, 6], (25,))
    assert np.array_equal(short, long[:, :10])


def test_calls_follow_one_another_without_repeating():
    rng = sample_rng(0, "augment", 3)
    values = np.concatenate(
        [rng.random((9,)), rng.random((3,)), rng.random((1,)), rng.random((3,))]
    )
    assert len(np.unique(values)) == 16
    again = sample_rng(0, "augment", 3)
    assert np.array_equal(again.random((9,)), values[:9])
    assert isinstance(rng.random().item(), float)


def test_seed_purpose_and_position_all_matter():
    rows = {
        sample_words(seed, purpose, [position], 2).tobytes()
        for seed in range(10)
        for purpose in ("time", "noise", "augment")
        for position in range(20)
    }
    assert len(rows) == 600


def test_uniform_is_uniform():
    values = sample_uniform(3, "time", np.arange(20_000), (5,))
    assert values.min() >= 0
    assert values.max() < 1
    assert stats.kstest(values.ravel(), "uniform").pvalue > 1e-3
    neighbors = np.corrcoef(values[:-1].ravel(), values[1:].ravel())[0, 1]
    assert abs(neighbors) < 4 / np.sqrt(values.size)


def test_normal_is_normal():
    values = sample_normal(3, "noise", np.arange(20_000), (5,)).ravel().astype(np.float64)
    assert stats.kstest(values, "norm").pvalue > 1e-3
    for power, moment in ((1, 0), (2, 1), (3, 0), (4, 3), (6, 15)):
        spread = float(np.sqrt(special.factorial2(2 * power - 1) / len(values)))
        assert abs(np.mean(values**power) - moment) < 4 * spread
    assert abs(np.corrcoef(values[:-1], values[1:])[0, 1]) < 4 / np.sqrt(len(values))


def test_the_inverse_of_the_normal_distribution_is_good_to_a_float32():
    bits = np.unique(
        np.concatenate([np.arange(2000), np.linspace(0, 2**32 - 1, 200_001).astype(np.int64)])
    )
    bits = bits.astype(np.uint32)
    exact = special.ndtri((bits + 0.5) * 2.0**-32)
    assert np.abs(normal_from_bits(bits) - exact).max() < 1e-6
    assert np.array_equal(normal_from_bits(~bits), -normal_from_bits(bits))
    assert (np.diff(normal_from_bits(bits)) >= 0).all()


def test_the_logarithm():
    x = np.concatenate([np.logspace(-300, 300, 5000), 1 + np.linspace(-1e-3, 1e-3, 1001)])
    assert np.abs(natural_log(x) - np.log(x)).max() < 2e-13
    assert np.allclose(natural_log(x), np.log(x), rtol=1e-13, atol=1e-17)


def test_integers():
    values = sample_rng(0, "pick", 9).integers(-3, 4, (70_000,))
    counts = np.bincount(values + 3, minlength=7)
    assert len(counts) == 7
    assert stats.chisquare(counts).pvalue > 1e-3
    assert sample_rng(0, "pick", 9).integers(5, 6).item() == 5
    assert sample_rng(0, "pick", 9).integers(0, 2**31, (5,)).max() > 2**20
    for low, high in ((3, 3), (4, 3), (0, 2**31 + 1)):
        with refused(low, high, kind=ValueError):
            sample_rng(0, "pick", 9).integers(low, high)


def test_no_global_generator_is_read_or_moved():
    np.random.seed(0)  # noqa: NPY002 (the point of the test)
    before = np.random.get_state()[1].tobytes()  # noqa: NPY002
    first = sample_normal(0, "noise", np.arange(10), (3,))
    assert np.random.get_state()[1].tobytes() == before  # noqa: NPY002
    np.random.seed(1)  # noqa: NPY002
    assert np.array_equal(sample_normal(0, "noise", np.arange(10), (3,)), first)


@pytest.mark.parametrize("bad", [[-1], [0.5], [[1]], [2.0]])
def test_bad_positions_are_refused(bad):
    with pytest.raises(ValueError, match="position"):
        sample_uniform(0, "time", bad)


def test_keyed_draws_are_those_of_the_functions() -> None:
    draws = KeyedDraws(3)
    at = [5, 0, 2**40]
    assert np.array_equal(draws.uniform("flow time", at), sample_uniform(3, "flow time", at))
    assert np.array_equal(draws.normal("noise", at, (4,)), sample_normal(3, "noise", at, (4,)))
    assert draws.key("clip", 1, 2) == make_key(3, "clip", 1, 2)
    chosen = draws.choose(7, 20, "sources")
    assert len(set(chosen.tolist())) == 7
    assert set(chosen.tolist()) <= set(range(20))
    assert np.array_equal(chosen, draws.choose(20, 20, "sources")[:7])
