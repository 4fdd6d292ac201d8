"""Philox4x32-10 in numpy: 128 random bits for each value of a counter, in any order, on any platform.

Salmon, Moraes, Dror, Shaw: "Parallel random numbers: as easy as 1, 2, 3" (SC 2011). The generator is a function of
(key, counter) without state, so sample p can be drawn without samples 0..p-1. It is implemented here because the bits
are part of the project's contract, and no library promises to keep its own. The tests check it against the authors'
published vectors.
"""

from typing import Any

import numpy as np

Words = np.ndarray[Any, np.dtype[np.uint64]]

CHUNK = 16384
"""Counters per pass: few enough for the temporaries of a pass to stay in the second-level cache."""

_LOW = np.uint64(0xFFFFFFFF)
_32 = np.uint64(32)
_MULTIPLY_0, _MULTIPLY_1 = np.uint64(0xD2511F53), np.uint64(0xCD9E8D57)
_WEYL_0, _WEYL_1 = 0x9E3779B9, 0xBB67AE85
_ROUNDS = 10


def philox(key: int, low: Words, high: Words) -> tuple[Words, Words]:
    """Random bits, 128 per counter, as two uint64 arrays.

    `key` is a 64-bit int; the counter is (`low`, `high`), two uint64 arrays of one shape, its 32-bit words being low's
    two halves and then high's, least significant first. With output words o0..o3 the result is
    (o0 + 2^32 o1, o2 + 2^32 o3).
    """
    c0, c1, c2, c3 = low & _LOW, low >> _32, high & _LOW, high >> _32
    k0, k1 = key & 0xFFFFFFFF, (key >> 32) & 0xFFFFFFFF
    for _ in range(_ROUNDS):
        product_0 = c0 * _MULTIPLY_0
        product_1 = c2 * _MULTIPLY_1
        c1 ^= np.uint64(k0)
        c3 ^= np.uint64(k1)
        np.right_shift(product_1, _32, out=c0)
        np.right_shift(product_0, _32, out=c2)
        c0 ^= c1
        c2 ^= c3
        np.bitwise_and(product_1, _LOW, out=c1)
        np.bitwise_and(product_0, _LOW, out=c3)
        k0, k1 = (k0 + _WEYL_0) & 0xFFFFFFFF, (k1 + _WEYL_1) & 0xFFFFFFFF
    c1 <<= _32
    c3 <<= _32
    c0 |= c1
    c2 |= c3
    return c0, c2
