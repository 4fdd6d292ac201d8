"""Keys: parts are absorbed, never added, and every part matters."""

import pytest

from understudy_base.testing.refusals import refused
from understudy_data.order.random import make_key, mix64


def test_no_two_of_many_keys_are_equal():
    keys = {
        make_key(seed, purpose, *numbers)
        for seed in range(40)
        for purpose in ("", "clip", "shift", "clip ")
        for numbers in ((), (0,), (1,), (0, 0), (0, 1), (1, 0))
    }
    assert len(keys) == 40 * 4 * 6


def test_seed_and_epoch_do_not_trade_places():
    assert make_key(0, "clip", 0, 1) != make_key(1, "clip", 0, 0)


def test_a_purpose_is_not_cut_and_its_end_is_no_number():
    assert make_key(0, "a" * 8) != make_key(0, "a" * 9)
    assert make_key(0, "a" * 8, 97) != make_key(0, "a" * 9)


def test_the_finaliser_is_one_to_one_and_spreads_single_bits():
    flips = [bin(mix64(1 << bit) ^ mix64(0)).count("1") for bit in range(64)]
    assert min(flips) > 15
    assert len({mix64(value) for value in range(100_000)}) == 100_000


@pytest.mark.parametrize("seed", [-1, 2**64, 0.5, "7", None])
def test_a_seed_that_is_no_64_bit_integer_is_refused(seed):
    with refused("seed", repr(seed), kind=ValueError):
        make_key(seed, "clip")
