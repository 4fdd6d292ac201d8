"""The permutation passes for random at its eight rounds, and the same tests see that three or four
are not enough.
"""

import numpy as np
import pytest
from scipy import stats

from understudy_data.order.random import feistel, make_key, permute_each, sorted_words
from understudy_data.testing.shuffle_battery import battery, two_sided

FAIL = 1e-4


def images(n: int, rounds: int, keys: int, start: int = 0, count: int | None = None) -> np.ndarray:
    x = np.arange(start, start + (count or n), dtype=np.uint64)
    # Keys as the order makes them, for consecutive epochs: the battery is also one of the key
    # derivation.
    return np.stack(
        [feistel(n, make_key(0, "clip", 0, e), rounds).forward(x) for e in range(keys)]
    ).astype(np.int64)


@pytest.mark.parametrize(("n", "keys"), [(4099, 128), (10007, 64), (65537, 24)])
def test_eight_rounds_pass(n, keys):
    failed = {name: p for name, p in battery(images(n, 8, keys), n).items() if p < FAIL}
    assert not failed


@pytest.mark.long
@pytest.mark.parametrize("rounds", [3, 4])
@pytest.mark.parametrize(("n", "keys"), [(4099, 128), (10007, 64), (65537, 24)])
def test_fewer_rounds_fail(n, keys, rounds):
    failed = [name for name, p in battery(images(n, rounds, keys), n).items() if p < FAIL]
    assert len(failed) >= 3, failed


@pytest.mark.parametrize("n", [27_000_000, 10**9, 1 << 30, 3 * 10**9 + 7])
def test_a_window_of_a_large_domain_passes(n):
    failed = {
        name: p for name, p in battery(images(n, 8, 8, n // 3, 1 << 16), n).items() if p < FAIL
    }
    assert not failed


def test_over_keys_every_place_is_equally_likely_for_an_index():
    n = 10007
    keys = 4000
    bins = 50
    x = np.array([0, 1, n // 2, n - 1], np.uint64)
    rows = np.stack(
        [feistel(n, make_key(seed, "clip", 0, 0)).forward(x) for seed in range(keys)]
    ).astype(np.int64)
    for column in rows.T:
        counts = np.bincount(column * bins // n, minlength=bins)
        assert (
            two_sided(
                float(np.sum((counts - keys / bins) ** 2) / (keys / bins)), stats.chi2(bins - 1)
            )
            > FAIL
        )


def test_sorted_words_pass_too():
    x = np.arange(1009, dtype=np.uint64)
    rows = np.stack(
        [sorted_words(1009, make_key(0, "clip", 0, e)).forward(x) for e in range(400)]
    ).astype(np.int64)
    assert not {name: p for name, p in battery(rows, 1009).items() if p < FAIL}


def test_a_constant_shift_fails_everything_that_looks_at_neighbors():
    rows = np.stack([(np.arange(1009) + 37 * e) % 1009 for e in range(400)])
    result = battery(rows, 1009)
    assert all(result[f"difference, lag {lag}"] < FAIL for lag in (1, 2, 4, 16, 64, 256))


@pytest.mark.parametrize("n", [2, 3, 4, 5, 6])
def test_tiny_domains_reach_every_order_equally_often(n):
    x = np.arange(n, dtype=np.uint64)
    orders = 24 if n < 5 else 720 if n == 6 else 120
    rows = [
        tuple(sorted_words(n, make_key(e, "tiny")).forward(x).tolist()) for e in range(orders * 12)
    ]
    _, counts = np.unique(rows, axis=0, return_counts=True)
    factorial = int(np.prod(np.arange(1, n + 1)))
    assert len(counts) == factorial
    expected = len(rows) / factorial
    assert (
        two_sided(float(np.sum((counts - expected) ** 2) / expected), stats.chi2(factorial - 1))
        > FAIL
    )


@pytest.mark.parametrize("n", [2, 3, 4, 5, 6, 7, 16, 64])
def test_inside_short_ranges_every_place_is_equally_likely(n):
    keys = np.arange(20_000, dtype=np.uint64) * np.uint64(0x9E3779B97F4A7C15)
    sizes = np.full(len(keys), n, np.uint64)
    for x in {0, n // 2, n - 1}:
        counts = np.bincount(
            permute_each(np.full(len(keys), x, np.uint64), sizes, keys).astype(int), minlength=n
        )
        expected = len(keys) / n
        assert (
            two_sided(float(np.sum((counts - expected) ** 2) / expected), stats.chi2(n - 1)) > FAIL
        )
