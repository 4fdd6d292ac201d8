"""Permutations: one-to-one on every domain, undone by the inverse, defined up to 2^63."""

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from understudy_base.testing.refusals import refused
from understudy_data.order.random import (
    INDICES_PER_PASS,
    Feistel,
    Sorted,
    feistel,
    permutation,
    permute_each,
    sorted_words,
    unpermute_each,
)

NEAR_POWERS = sorted(
    {2**k + d for k in range(1, 18) for d in (-1, 0, 1)} | {4**8 + 1, 4**9 + 1, 4096, 4097}
)


def is_permutation(p: Sorted | Feistel, n: int) -> bool:
    x = np.arange(n, dtype=np.uint64)
    y = p.forward(x)
    return bool((np.bincount(y.astype(np.int64), minlength=n) == 1).all()) and np.array_equal(
        p.inverse(y), x
    )


def test_every_domain_up_to_2000_by_either_method():
    for n in range(1, 2001):
        assert is_permutation(sorted_words(n, n), n), n
        assert is_permutation(feistel(n, n), n), n


@pytest.mark.parametrize("n", NEAR_POWERS)
def test_domains_around_powers_of_two_and_four(n):
    assert is_permutation(permutation(n, 5), n)
    assert is_permutation(feistel(n, 6), n)


def test_the_method_changes_at_4096():
    assert isinstance(permutation(4096, 0), Sorted)
    assert isinstance(permutation(4097, 0), Feistel)


@given(
    st.integers(4097, 2**63),
    st.integers(0, 2**64 - 1),
    st.lists(st.integers(0, 2**63), min_size=1, max_size=50),
)
def test_inverse_on_any_domain_up_to_2_to_the_63(n, key, values):
    x = np.array([value % n for value in values], np.uint64)
    y = permutation(n, key).forward(x)
    assert (y < np.uint64(n)).all()
    assert np.array_equal(permutation(n, key).inverse(y), x)


def test_no_two_of_many_indices_meet_at_the_largest_domain():
    x = np.arange(1 << 17, dtype=np.uint64) + np.uint64(2**63 - (1 << 17))
    assert len(np.unique(permutation(2**63, 9).forward(x))) == len(x)


def test_an_image_does_not_depend_on_what_is_asked_with_it():
    p = permutation(10**7, 3)
    # over the edges of two passes
    x = np.arange(INDICES_PER_PASS - 5, 2 * INDICES_PER_PASS + 7, dtype=np.uint64)
    together = p.forward(x)
    for i in range(0, len(x), 500):
        assert p.forward(x[i : i + 1]) == together[i]
    assert np.array_equal(p.forward(x.reshape(-1, 4)), together.reshape(-1, 4))
    assert p.forward(x[:0]).shape == (0,)


def test_keys_give_different_permutations():
    x = np.arange(5000, dtype=np.uint64)
    rows = {permutation(5000, key).forward(x).tobytes() for key in range(64)}
    assert len(rows) == 64


@given(st.lists(st.integers(1, 300), min_size=1, max_size=20), st.integers(0, 2**64 - 1))
def test_ranges_each_with_a_key_of_its_own(sizes, key):
    size = np.repeat(np.array(sizes, np.uint64), sizes)
    keys = np.repeat(np.arange(len(sizes), dtype=np.uint64) + np.uint64(key % 2**63), sizes)
    x = np.concatenate([np.arange(n, dtype=np.uint64) for n in sizes])
    y = permute_each(x, size, keys)
    for part in np.split(y, np.cumsum(sizes)[:-1]):
        assert np.array_equal(np.sort(part), np.arange(len(part), dtype=np.uint64))
    assert np.array_equal(unpermute_each(y, size, keys), x)


@pytest.mark.parametrize("n", [0, -1, 2**63 + 1])
def test_a_domain_outside_1_to_2_to_the_63_is_refused(n):
    with refused(n, kind=ValueError):
        permutation(n, 0)
