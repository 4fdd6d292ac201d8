"""Keyed permutations of [0, n): the image of one index without the images of the others, and the inverse.

    permutation(n, key).forward(x)  ->  y,  permutation(n, key).inverse(y)  ->  x        n from 1 to 2^63

Above 4096 elements it is a mixed-radix Feistel network: write x = L*b + R with a = ceil(sqrt n), b = ceil(n/a), and
add a keyed hash of one half to the other, modulo a or b, eight times. Each round is invertible, so the network is a
bijection of [0, a*b). Results at or above n pass through it again until they fall below n ("cycle-walking": Black and
Rogaway, "Ciphers with arbitrary finite domains", CT-RSA 2002), which keeps it a bijection of [0, n) and is rare,
as a*b exceeds n by less than sqrt(n) + 1. Four rounds fail our statistical tests, five pass them; we use eight.

Up to 4096 elements it is the order of n random 64-bit words: uniform over all n! orders, where a Feistel network over
five to seven elements measurably is not.
"""

import threading
from collections.abc import Callable
from dataclasses import dataclass
from functools import lru_cache
from math import isqrt

import numpy as np

from understudy.order.random.keys import check_seed, mix64
from understudy.order.random.philox import Words, philox

ROUNDS = 8
SORTED_UP_TO = 4096
LARGEST = 1 << 63
CHUNK = 32768
"""Indices per pass: few enough for the second-level cache, and enough to spread numpy's cost per call."""

_own = threading.local()
_32 = np.uint64(32)
_HASH_1, _HASH_2 = np.uint64(0x9E3779B97F4A7C15), np.uint64(0xD6E8FEB86659FD93)
_GAMMA = 0x9E3779B97F4A7C15


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
        for start in range(0, len(flat), CHUNK):
            y = out[start : start + CHUNK]
            network(flat[start : start + CHUNK], y, *spare[:, : len(y)])
            outside = np.flatnonzero(y >= np.uint64(self.n))
            while len(outside):
                again = y[outside]
                network(again.copy(), again, *spare[:, : len(again)])
                y[outside] = again
                outside = outside[again >= np.uint64(self.n)]
        return out.reshape(x.shape)

    def _encrypt(self, x: Words, left: Words, right: Words, scratch: Words, spare: Words) -> None:
        """Set `left` to the network's image of x. The other three are working space. All have one length."""
        a, b = np.uint64(self.a), np.uint64(self.b)
        self._halves(x, left, right, b)
        for number, key in enumerate(self.keys):
            half, other, radix = (left, right, a) if number % 2 == 0 else (right, left, b)
            _hash(other, np.uint64(key), radix, scratch, spare)
            half += scratch
            np.subtract(half, radix, out=spare)
            np.minimum(half, spare, out=half)  # below the radix, half - radix wraps to a huge number
        left *= b
        left += right

    def _decrypt(self, y: Words, left: Words, right: Words, scratch: Words, spare: Words) -> None:
        """Set `left` to the network's inverse of y. The other three are working space."""
        a, b = np.uint64(self.a), np.uint64(self.b)
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
    """Working space uint64 (3, CHUNK) of this thread: fresh memory for each call would cost a tenth of the time."""
    if not hasattr(_own, "space"):
        _own.space = np.empty((3, CHUNK), np.uint64)
    space: Words = _own.space
    return space


def _hash(half: Words, key: np.uint64 | Words, radix: np.uint64 | Words, out: Words, spare: Words) -> None:
    """Set `out` to a hash of (half + key) in [0, radix): 32 bits, reduced by multiply and shift (radix < 2^32)."""
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
    """Feistel permutation of [0, n); `rounds` is for the tests, which show that fewer are not enough."""
    a = isqrt(n - 1) + 1
    return Feistel(n, a, -(-n // a), tuple(mix64(key + (number + 1) * _GAMMA) for number in range(rounds)))


def permute_each(x: Words, sizes: Words, keys: Words) -> Words:
    """Permute element-wise: x[i] in [0, sizes[i]) under keys[i], all uint64 (m,), sizes below 2^32.

    For many short ranges (the frames inside each clip). Always the Feistel network.
    """
    return _each(x, sizes, keys, forward=True)


def unpermute_each(y: Words, sizes: Words, keys: Words) -> Words:
    """Inverse of `permute_each`."""
    return _each(y, sizes, keys, forward=False)


def _each(x: Words, sizes: Words, keys: Words, forward: bool) -> Words:
    a = np.sqrt(sizes.astype(np.float64)).astype(np.uint64)  # exact: below 2^32, and IEEE 754 rounds sqrt exactly
    a += a * a < sizes
    b = (sizes + a - np.uint64(1)) // a
    y = x.copy()
    outside = np.arange(len(x))  # images not yet in the domain
    while len(outside):
        image, radix_a, radix_b, key = y[outside], a[outside], b[outside], keys[outside]
        left = image // radix_b
        right = image - left * radix_b
        scratch, spare = np.empty_like(left), np.empty_like(left)
        for number in range(ROUNDS) if forward else reversed(range(ROUNDS)):
            round_key = key ^ np.uint64(mix64((number + 1) * _GAMMA))
            half, other, radix = (left, right, radix_a) if number % 2 == 0 else (right, left, radix_b)
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
