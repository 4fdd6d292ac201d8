"""Keyed pseudo-random functions in numpy, the same on every platform: keys, random bits, and
permutations.

Keys: 64 bits from (seed, purpose, numbers), different for each purpose.

Every random decision of the order and of the draws inside a sample starts from such a key. A key
absorbs its parts one after the other, so that seed 0, epoch 1 and seed 1, epoch 0 have nothing in
common (their sums would be equal). The finaliser is that of SplitMix64 (Steele, Lea, Flood: "Fast
splittable pseudorandom number generators", OOPSLA 2014; constants of Stafford's variant 13).

Philox4x32-10 in numpy: 128 random bits for each value of a counter, in any order, on any platform.

Salmon, Moraes, Dror, Shaw: "Parallel random numbers: as easy as 1, 2, 3" (SC 2011). The generator
is a function of (key, counter) without state, so sample p can be drawn without samples 0..p-1. It
is implemented here because the bits are part of the project's contract, and no library promises to
keep its own. The tests check it against the authors' published vectors.

Keyed permutations of [0, n): the image of one index without the images of the others, and the
inverse.

    permutation(n, key).forward(x)  ->  y, permutation(n, key).inverse(y)  ->  x    n from 1 to 2^63

Above 4096 elements it is a mixed-radix Feistel network: write x = L*b + R with a = ceil(sqrt n), b
= ceil(n/a), and add a keyed hash of one half to the other, modulo a or b, eight times. Each round
is invertible, so the network is a bijection of [0, a*b). Results at or above n pass through it
again until they fall below n ("cycle-walking": Black and Rogaway, "Ciphers with arbitrary finite
domains", CT-RSA 2002), which keeps it a bijection of [0, n) and is rare, as a*b exceeds n by less
than sqrt(n) + 1. Four rounds fail our statistical tests, five pass them; we use eight.

Up to 4096 elements it is the order of n random 64-bit words: uniform over all n! orders, where a
Feistel network over five to seven elements measurably is not.
"""

import threading
from collections.abc import Callable
from dataclasses import dataclass
from functools import lru_cache
from math import isqrt
from operator import index
from typing import Any

import numpy as np

ORDER_VERSION = 1
"""Version of every rule that determines the sample of a position; part of every key and of every
saved spec.
"""

_MASK = (1 << 64) - 1
_GAMMA = 0x9E3779B97F4A7C15


def mix64(value: int) -> int:
    """SplitMix64 finaliser: a bijection of 64-bit integers in which every input bit reaches every
    output bit.
    """
    value &= _MASK
    value = ((value ^ (value >> 30)) * 0xBF58476D1CE4E5B9) & _MASK
    value = ((value ^ (value >> 27)) * 0x94D049BB133111EB) & _MASK
    return value ^ (value >> 31)


def make_key(seed: int, purpose: str, *numbers: int) -> int:
    """Make a 64-bit key for `purpose`, e.g. `make_key(seed, "clip", source, epoch)`.

    `seed` and `numbers` are integers in [0, 2^64). The purpose is absorbed as UTF-8, eight bytes at
    a time, behind its length, so that no two different (purpose, numbers) are the same sequence of
    words.

    Raises:
        ValueError: a seed or number outside that range.
    """
    text = purpose.encode()
    words = [ORDER_VERSION, check_seed(seed), len(text)]
    words += [int.from_bytes(text[i : i + 8], "little") for i in range(0, len(text), 8)]
    words.append(len(numbers))
    words += [check_seed(number) for number in numbers]
    state = 0
    for word in words:
        state = mix64((state + _GAMMA) ^ mix64(word + _GAMMA))
    return state


def check_seed(seed: int) -> int:
    """Seed as a plain int.

    Raises:
        ValueError: no integer in [0, 2^64).
    """
    try:
        if isinstance(seed, bool):
            raise TypeError
        value = index(seed)
    except TypeError:
        raise ValueError(f"seed {seed!r} is not an integer: give an int in [0, 2**64)") from None
    if not 0 <= value <= _MASK:
        raise ValueError(f"seed {value} is outside [0, 2**64): give a non-negative 64-bit integer")
    return value


Words = np.ndarray[Any, np.dtype[np.uint64]]

COUNTERS_PER_PASS = 16384
"""Counters per pass: few enough for the temporaries of a pass to stay in the second-level cache."""

_LOW = np.uint64(0xFFFFFFFF)
_32 = np.uint64(32)
_MULTIPLY_0 = np.uint64(0xD2511F53)
_MULTIPLY_1 = np.uint64(0xCD9E8D57)
_WEYL_0 = 0x9E3779B9
_WEYL_1 = 0xBB67AE85
_ROUNDS = 10


def philox(key: int, low: Words, high: Words) -> tuple[Words, Words]:
    """Random bits, 128 per counter, as two uint64 arrays.

    `key` is a 64-bit int; the counter is (`low`, `high`), two uint64 arrays of one shape, its
    32-bit words being low's two halves and then high's, least significant first. With output words
    o0..o3 the result is (o0 + 2^32 o1, o2 + 2^32 o3).
    """
    c0 = low & _LOW
    c1 = low >> _32
    c2 = high & _LOW
    c3 = high >> _32
    k0 = key & 0xFFFFFFFF
    k1 = (key >> 32) & 0xFFFFFFFF
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
        k0 = (k0 + _WEYL_0) & 0xFFFFFFFF
        k1 = (k1 + _WEYL_1) & 0xFFFFFFFF
    c1 <<= _32
    c3 <<= _32
    c0 |= c1
    c2 |= c3
    return c0, c2


ROUNDS = 8
SORTED_UP_TO = 4096
LARGEST = 1 << 63
INDICES_PER_PASS = 32768
"""Indices per pass: few enough for the second-level cache, and enough to spread numpy's cost per
call.
"""

_own = threading.local()
_HASH_1 = np.uint64(0x9E3779B97F4A7C15)
_HASH_2 = np.uint64(0xD6E8FEB86659FD93)


@dataclass(frozen=True)
class Sorted:
    """Permutation as two tables of n <= 4096 entries."""

    table: Words
    back: Words

    def forward(self, x: Words) -> Words:
        """Images of uint64 indices, any shape."""
        return self.table[x]

    def inverse(self, y: Words) -> Words:
        """Indices of uint64 images, any shape."""
        return self.back[y]


@dataclass(frozen=True)
class Feistel:
    """Permutation of [0, n) as its round keys; `a` and `b` are the two radices."""

    n: int
    a: int
    b: int
    keys: tuple[int, ...]

    def forward(self, x: Words) -> Words:
        """Images of uint64 indices below n, any shape; about 20 ns each in bulk."""
        return self._walk(x, self._encrypt)

    def inverse(self, y: Words) -> Words:
        """Indices of uint64 images, any shape."""
        return self._walk(y, self._decrypt)

    def _walk(self, x: Words, network: Callable[..., None]) -> Words:
        """Pass x through the network, chunk by chunk, and images at n or above again."""
        flat = x.reshape(-1)
        out = np.empty(flat.shape, np.uint64)
        spare = _working_space()
        for start in range(0, len(flat), INDICES_PER_PASS):
            y = out[start : start + INDICES_PER_PASS]
            network(flat[start : start + INDICES_PER_PASS], y, *spare[:, : len(y)])
            outside = np.flatnonzero(y >= np.uint64(self.n))
            while len(outside):
                again = y[outside]
                network(again.copy(), again, *spare[:, : len(again)])
                y[outside] = again
                outside = outside[again >= np.uint64(self.n)]
        return out.reshape(x.shape)

    def _encrypt(self, x: Words, left: Words, right: Words, scratch: Words, spare: Words) -> None:
        """Set `left` to the network's image of x. The other three are working space. All have one
        length.
        """
        a = np.uint64(self.a)
        b = np.uint64(self.b)
        self._halves(x, left, right, b)
        for number, key in enumerate(self.keys):
            half, other, radix = (left, right, a) if number % 2 == 0 else (right, left, b)
            _hash(other, np.uint64(key), radix, scratch, spare)
            half += scratch
            np.subtract(half, radix, out=spare)
            # below the radix, half - radix wraps to a huge number
            np.minimum(half, spare, out=half)
        left *= b
        left += right

    def _decrypt(self, y: Words, left: Words, right: Words, scratch: Words, spare: Words) -> None:
        """Set `left` to the network's inverse of y. The other three are working space."""
        a = np.uint64(self.a)
        b = np.uint64(self.b)
        self._halves(y, left, right, b)
        for number in range(len(self.keys) - 1, -1, -1):
            half, other, radix = (left, right, a) if number % 2 == 0 else (right, left, b)
            _hash(other, np.uint64(self.keys[number]), radix, scratch, spare)
            half -= scratch
            np.add(half, radix, out=spare)
            np.minimum(half, spare, out=half)  # a negative half has wrapped to a huge number
        left *= b
        left += right

    @staticmethod
    def _halves(x: Words, left: Words, right: Words, b: np.uint64) -> None:
        """Set `left` and `right` to divmod(x, b)."""
        np.floor_divide(x, b, out=left)
        np.multiply(left, b, out=right)
        np.subtract(x, right, out=right)


def _working_space() -> Words:
    """Working space of this thread, uint64 (3, INDICES_PER_PASS), since fresh memory costs time."""
    if not hasattr(_own, "space"):
        _own.space = np.empty((3, INDICES_PER_PASS), np.uint64)
    space: Words = _own.space
    return space


def _hash(
    half: Words, key: np.uint64 | Words, radix: np.uint64 | Words, out: Words, spare: Words
) -> None:
    """Set `out` to a hash of (half + key) in [0, radix): 32 bits, reduced by multiply and shift
    (radix < 2^32).
    """
    np.add(half, key, out=out)
    out *= _HASH_1
    np.right_shift(out, _32, out=spare)
    out ^= spare
    out *= _HASH_2
    out >>= _32
    out *= radix
    out >>= _32


@lru_cache(maxsize=64)
def permutation(n: int, key: int) -> Sorted | Feistel:
    """Permutation of [0, n) of a key (64 bits).

    Raises:
        ValueError: unless 1 <= n <= 2^63.
    """
    if not 1 <= n <= LARGEST:
        raise ValueError(f"cannot permute {n} elements: the domain must have 1 to 2**63")
    check_seed(key)
    if n <= SORTED_UP_TO:
        return sorted_words(n, key)
    return feistel(n, key)


def sorted_words(n: int, key: int) -> Sorted:
    """Permutation that sorts n words drawn under `key`, stable in ties."""
    counters = np.arange((n + 1) // 2, dtype=np.uint64)
    words = np.stack(philox(key, counters, np.zeros_like(counters)), axis=1).reshape(-1)[:n]
    table = np.argsort(words, kind="stable").astype(np.uint64)
    back = np.empty_like(table)
    back[table] = np.arange(n, dtype=np.uint64)
    table.flags.writeable = back.flags.writeable = False  # shared through the cache
    return Sorted(table, back)


def feistel(n: int, key: int, rounds: int = ROUNDS) -> Feistel:
    """Feistel permutation of [0, n); `rounds` is for the tests, which show that fewer are not
    enough.
    """
    a = isqrt(n - 1) + 1
    return Feistel(
        n, a, -(-n // a), tuple(mix64(key + (number + 1) * _GAMMA) for number in range(rounds))
    )


def permute_each(x: Words, sizes: Words, keys: Words) -> Words:
    """Permute element-wise: x[i] in [0, sizes[i]) under keys[i], all uint64 (m,), sizes below 2^32.

    For many short ranges (the frames inside each clip). Always the Feistel network.
    """
    return _each(x, sizes, keys, forward=True)


def unpermute_each(y: Words, sizes: Words, keys: Words) -> Words:
    """Inverse of `permute_each`."""
    return _each(y, sizes, keys, forward=False)


def _each(x: Words, sizes: Words, keys: Words, forward: bool) -> Words:
    # exact: below 2^32, and IEEE 754 rounds sqrt exactly
    a = np.sqrt(sizes.astype(np.float64)).astype(np.uint64)
    a += a * a < sizes
    b = (sizes + a - np.uint64(1)) // a
    y = x.copy()
    outside = np.arange(len(x))  # images not yet in the domain
    while len(outside):
        image = y[outside]
        radix_a = a[outside]
        radix_b = b[outside]
        key = keys[outside]
        left = image // radix_b
        right = image - left * radix_b
        scratch = np.empty_like(left)
        spare = np.empty_like(left)
        numbers = range(ROUNDS) if forward else range(ROUNDS)[::-1]
        for number in numbers:
            round_key = key ^ np.uint64(mix64((number + 1) * _GAMMA))
            half, other, radix = (
                (left, right, radix_a) if number % 2 == 0 else (right, left, radix_b)
            )
            _hash(other, round_key, radix, scratch, spare)
            if forward:
                half += scratch
                np.subtract(half, radix, out=spare)
            else:
                half -= scratch
                np.add(half, radix, out=spare)
            np.minimum(half, spare, out=half)
        image = left * radix_b + right
        y[outside] = image
        outside = outside[image >= sizes[outside]]
    return y
