"""Draws inside a sample: random numbers that depend on (seed, purpose, position) alone.

    sample_uniform(seed, "flow time", positions)             float32 (n,)        in [0, 1)
    sample_normal(seed, "flow noise", positions, (50, 7))    float32 (n, 50, 7)  standard normal
    sample_words(seed, "augment", positions, 3)              uint64  (n, 3)      random bits
    sample_rng(seed, "augment", position)                    the same numbers for one position, call
                                                             by call

The numbers of a position are the same alone or among others, on any platform and with any numpy:
the bits are Philox counters (position, block), and only operations that IEEE 754 rounds exactly (+
- * / sqrt) follow, never a libm function. Nothing here reads or advances a global generator, so a
checkpoint stores none.
"""

from collections.abc import Iterator
from dataclasses import dataclass
from math import prod
from typing import Any

import numpy as np

from understudy_data.order.random import COUNTERS_PER_PASS, Words, make_key, permutation, philox

Floats = np.ndarray[Any, np.dtype[np.float32]]


def sample_words(seed: int, purpose: str, positions: Any, n: int) -> Words:
    """Random words uint64 (len(positions), n): n integers in [0, 2^64) for each position."""
    numbers = _positions(positions)
    blocks = (n + 1) // 2
    out = np.empty((len(numbers), 2 * blocks), np.uint64)
    for part, words in _blocks(make_key(seed, purpose), numbers, 0, blocks):
        out.reshape(-1, 2)[part] = words
    return out[:, :n]


def sample_uniform(seed: int, purpose: str, positions: Any, shape: tuple[int, ...] = ()) -> Floats:
    """Uniform float32 (len(positions), *shape) in [0, 1): multiples of 2^-24."""
    return _draw(seed, purpose, positions, shape, _uniform)


def sample_normal(seed: int, purpose: str, positions: Any, shape: tuple[int, ...] = ()) -> Floats:
    """Standard normal float32 (len(positions), *shape): the inverse of the normal distribution at
    32 random bits.

    The largest magnitude is 6.3; the approximation of the inverse is good to about 1e-7.
    """
    return _draw(seed, purpose, positions, shape, normal_from_bits)


class SampleRng:
    """Random numbers of one sample and purpose, call by call.

    The first call returns the same numbers as the bulk function of that kind does for the position.
    Each later call continues with blocks that no earlier call used.
    """

    def __init__(self, seed: int, purpose: str, position: int) -> None:
        self._key = make_key(seed, purpose)
        self._position = _positions([position])
        self._block = 0

    def words(self, n: int) -> Words:
        """Random words uint64 (n,)."""
        blocks = (n + 1) // 2
        out = np.empty((blocks, 2), np.uint64)
        for part, words in _blocks(self._key, self._position, self._block, blocks):
            out[part] = words
        self._block += blocks
        return out.reshape(-1)[:n]

    def random(self, shape: tuple[int, ...] = ()) -> Floats:
        """Uniform float32 of `shape` in [0, 1)."""
        return _uniform(self._bits(prod(shape))).reshape(shape)

    def normal(self, shape: tuple[int, ...] = ()) -> Floats:
        """Standard normal float32 of `shape`."""
        return normal_from_bits(self._bits(prod(shape))).reshape(shape)

    def integers(
        self, low: int, high: int, shape: tuple[int, ...] = ()
    ) -> "np.ndarray[Any, np.dtype[np.int64]]":
        """Integers int64 of `shape` in [low, high), 1 to 2^31 values.

        No value is likelier than another by more than (high - low) / 2^32.
        """
        if not 1 <= high - low <= 1 << 31:
            raise ValueError(f"integers in [{low}, {high}): need 1 to 2**31 values")
        scaled = (self._bits(prod(shape)).astype(np.uint64) * np.uint64(high - low)) >> np.uint64(
            32
        )
        return (scaled.view(np.int64) + low).reshape(shape)

    def _bits(self, n: int) -> "np.ndarray[Any, np.dtype[np.uint32]]":
        return _halves(self.words((n + 1) // 2))[:n]


def sample_rng(seed: int, purpose: str, position: int) -> SampleRng:
    """Random numbers of the sample at `position` for `purpose`, shared with nothing else in the
    run.
    """
    return SampleRng(seed, purpose, position)


@dataclass(frozen=True)
class KeyedDraws:
    """All random numbers of a run: functions of (seed, purpose, position), without any state."""

    seed: int
    """In [0, 2^64)."""

    def key(self, purpose: str, *numbers: int) -> int:
        """Return the 64-bit key of a purpose and numbers in [0, 2^64) (`random.make_key`), as the
        seed of another generator.
        """
        return make_key(self.seed, purpose, *numbers)

    def uniform(self, purpose: str, positions: Any, shape: tuple[int, ...] = ()) -> Floats:
        """Uniform float32 (len(positions), *shape) in [0, 1) (`sample_uniform`)."""
        return sample_uniform(self.seed, purpose, positions, shape)

    def normal(self, purpose: str, positions: Any, shape: tuple[int, ...] = ()) -> Floats:
        """Standard normal float32 (len(positions), *shape) (`sample_normal`)."""
        return sample_normal(self.seed, purpose, positions, shape)

    def choose(self, count: int, total: int, purpose: str) -> "np.ndarray[Any, np.dtype[np.int64]]":
        """Choose `count` different ones of the numbers 0..total - 1, int64 (count,)."""
        shuffled = permutation(total, self.key(purpose))
        return shuffled.forward(np.arange(count, dtype=np.uint64)).astype(np.int64)


def normal_from_bits(bits: "np.ndarray[Any, np.dtype[np.uint32]]") -> Floats:
    """Standard normal float32 (n,) from uint32 (n,).

    The inverse of the normal distribution at (bits + 1/2) / 2^32, by Wichura, "Algorithm AS 241:
    the percentage points of the normal distribution", Applied Statistics 37 (1988), routine PPND7,
    evaluated in float64. Its third branch (beyond 7.9 standard deviations) cannot occur with 32
    bits.
    """
    q = (bits.astype(np.float64) + 0.5) * 2.0**-32 - 0.5
    r = 0.180625 - q * q
    upper = ((59.109374720 * r + 159.29113202) * r + 50.434271938) * r + 3.3871327179
    lower = ((67.187563600 * r + 78.757757664) * r + 17.895169469) * r + 1.0
    value = q * upper / lower
    far = np.flatnonzero(np.abs(q) > 0.425)
    tail = 0.5 - np.abs(q[far])
    r = np.sqrt(-natural_log(tail)) - 1.6
    upper = ((0.17023821103 * r + 1.3067284816) * r + 2.7568153900) * r + 1.4234372777
    lower = (0.12021132975 * r + 0.73700164250) * r + 1.0
    value[far] = np.copysign(upper / lower, q[far])
    return value.astype(np.float32)


def natural_log(
    x: "np.ndarray[Any, np.dtype[np.float64]]",
) -> "np.ndarray[Any, np.dtype[np.float64]]":
    """Natural logarithm of finite x > 0, float64 (n,), to about 1e-15, by exactly rounded
    operations only.

    x = m 2^e with m in [sqrt(1/2), sqrt 2); log m = 2 artanh(s) with s = (m - 1) / (m + 1), |s| <
    0.1716, as a series.
    """
    mantissa, exponent = np.frexp(x)
    small = mantissa < 0.7071067811865476
    m = np.where(small, mantissa * 2.0, mantissa)
    e = exponent - small
    s = (m - 1.0) / (m + 1.0)
    square = s * s
    series = np.full_like(s, 1.0 / 19.0)
    for odd in (17.0, 15.0, 13.0, 11.0, 9.0, 7.0, 5.0, 3.0, 1.0):
        series = series * square + 1.0 / odd
    return e * 0.6931471805599453 + 2.0 * s * series


def _draw(seed: int, purpose: str, positions: Any, shape: tuple[int, ...], kind: Any) -> Floats:
    numbers = _positions(positions)
    count = prod(shape)
    blocks = -(-count // 4)
    out = np.empty((len(numbers), 4 * blocks), np.float32)
    for part, words in _blocks(make_key(seed, purpose), numbers, 0, blocks):
        out.reshape(-1, 4)[part] = kind(_halves(words.reshape(-1))).reshape(-1, 4)
    return out[:, :count].reshape(len(numbers), *shape)


def _uniform(bits: "np.ndarray[Any, np.dtype[np.uint32]]") -> Floats:
    return (bits >> np.uint32(8)).astype(np.float32) * np.float32(2.0**-24)


def _blocks(key: int, numbers: Words, first: int, blocks: int) -> Iterator[tuple[slice, Words]]:
    """Words (m, 2) of blocks first, first + 1, ... of each position, position after position, chunk
    by chunk.

    The slice gives their rows in the (len(at) * blocks, 2) result.
    """
    total = len(numbers) * blocks
    for start in range(0, total, COUNTERS_PER_PASS):
        part = slice(start, min(start + COUNTERS_PER_PASS, total))
        row = np.arange(part.start, part.stop, dtype=np.uint64)
        index = row // np.uint64(blocks)
        block = row - index * np.uint64(blocks) + np.uint64(first)
        yield part, np.stack(philox(key, numbers[index.view(np.int64)], block), axis=1)


def _halves(words: Words) -> "np.ndarray[Any, np.dtype[np.uint32]]":
    """Halves uint32 (2n,) of words uint64 (n,): low, then high, on machines of any byte order."""
    return words.astype("<u8", copy=False).view("<u4").astype(np.uint32, copy=False)


def _positions(positions: Any) -> Words:
    array = np.atleast_1d(np.asarray(positions))
    if array.ndim != 1 or (array.size and array.dtype.kind not in "iu"):
        raise ValueError(
            f"positions: need integers of shape (n,), got {array.dtype} of shape {array.shape}"
        )
    if array.dtype.kind == "i" and array.size and array.min() < 0:
        raise ValueError(f"position {array.min()}: positions start at 0")
    return array.astype(np.uint64)
