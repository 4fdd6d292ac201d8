"""Moments, extremes and quantiles of rows that arrive in parts, in bounded memory.

Mean and variance are exact. Parts are merged by the parallel formula of Chan, Golub & LeVeque
(1979), M2 = M2a + M2b + d^2 * na * nb / n with d the difference of the means. Quantiles are
computed from a sample of the rows, never from quantiles of the parts.

Statistics of uint8 images follow from histograms of 256 bins per channel. Images that are numbers
of the rows have statistics per channel, too, as rows of their pixels.
"""

from collections.abc import Sequence
from dataclasses import dataclass
from functools import cache, reduce
from typing import Any

import numpy as np

from understudy_data.plain_values import storable

QUANTILES = {"q01": 0.01, "q10": 0.10, "q50": 0.50, "q90": 0.90, "q99": 0.99}
NAMES = ("min", "max", "mean", "std", "count", *QUANTILES)


@storable
@dataclass(frozen=True)
class Moments:
    """Moments of the finite values of some rows; `m2` is the sum of squared differences to the
    mean.
    """

    count: np.ndarray
    mean: np.ndarray
    m2: np.ndarray
    min: np.ndarray
    max: np.ndarray

    @property
    def std(self) -> np.ndarray:
        """Population standard deviation, float64."""
        return np.asarray(np.sqrt(self.m2 / np.maximum(self.count, 1)))


def compute_moments(rows: np.ndarray) -> Moments:
    """Compute moments over the first axis of numbers or bools, in float64, ignoring values that are
    not finite.
    """
    wide = rows.astype(np.float64)
    finite = np.isfinite(wide)
    count = finite.sum(axis=0)
    if finite.all():
        low = wide.min(axis=0)
        high = wide.max(axis=0)
        zeroed = wide
    else:
        low = np.where(finite, wide, np.inf).min(axis=0)
        high = np.where(finite, wide, -np.inf).max(axis=0)
        zeroed = np.where(finite, wide, 0.0)
    mean = zeroed.sum(axis=0) / np.maximum(count, 1)
    squares = (zeroed - mean) ** 2
    if zeroed is not wide:
        squares = np.where(finite, squares, 0.0)
    m2 = squares.sum(axis=0)
    return Moments(count, mean, m2, low, high)


def merge_moments(a: Moments, b: Moments) -> Moments:
    """Merge the moments of disjoint rows."""
    count = a.count + b.count
    share = b.count / np.maximum(count, 1)
    delta = b.mean - a.mean
    m2 = a.m2 + b.m2 + delta**2 * a.count * share
    return Moments(
        count, a.mean + delta * share, m2, np.minimum(a.min, b.min), np.maximum(a.max, b.max)
    )


@cache
def _no_moments(shape: tuple[int, ...]) -> Moments:
    zero = np.zeros(shape)
    return Moments(
        np.zeros(shape, np.int64), zero, zero, np.full(shape, np.inf), np.full(shape, -np.inf)
    )


class RowSample:
    """Rows 0, stride, 2 * stride, ... of all rows added.

    Args:
        stride: 0 keeps no rows.
        limit: most rows to keep. Beyond it the stride doubles. None: no limit.
        seen: rows before the first one that is added.
    """

    def __init__(self, stride: int = 1, limit: int | None = None, seen: int = 0) -> None:
        self.stride = stride
        self.limit = limit
        self._seen = seen
        self._size = 0
        self._parts: list[np.ndarray] = []

    def __len__(self) -> int:
        return self._size

    def add(self, rows: np.ndarray) -> None:
        """Sample the next rows. With stride 1 the array itself is kept, not a copy."""
        part = rows
        if self.stride == 0:
            part = rows[:0].copy()
        elif self.stride != 1:
            part = rows[-self._seen % self.stride :: self.stride].copy()
        self._seen += len(rows)
        self._parts.append(part)
        self._size += len(part)
        while self.limit is not None and self._size > self.limit:
            self._parts = [np.concatenate(self._parts)[::2]]
            self._size = len(self._parts[0])
            self.stride = self.stride * 2

    def rows(self) -> np.ndarray:
        """Return the sampled rows."""
        return self._parts[0] if len(self._parts) == 1 else np.concatenate(self._parts)


class RunningStatistics:
    """Statistics over the first axis of arrays (n, *shape) of numbers or bools, ignoring values
    that are not finite.

    Quantiles are exact up to `keep` rows, so for any one episode. Beyond it every 2nd, 4th, ... row
    counts.

    Args:
        shape: shape of one row.
        keep: most rows to keep for quantiles.
    """

    def __init__(self, shape: tuple[int, ...], keep: int = 1 << 16) -> None:
        self.shape = shape
        self.rows = 0
        self._moments = _no_moments(shape)
        self._sample = RowSample(limit=max(2, keep))

    def add(self, values: np.ndarray) -> None:
        """Add rows (n, *shape)."""
        values = np.asarray(values)
        if values.shape[1:] != self.shape:
            raise ValueError(f"rows of shape {values.shape[1:]}, expected {self.shape}")
        if len(values) == 0:
            return
        self.merge(compute_moments(values), len(values), self.sample(values))

    def sample(self, values: np.ndarray) -> np.ndarray:
        """Return the rows of values (n, *shape) that count for quantiles: a copy."""
        return values.copy()

    @property
    def moments(self) -> Moments:
        """Moments of all rows."""
        return self._moments

    def merge(self, moments: Moments, rows: int, sample: np.ndarray) -> None:
        """Add the next rows by their moments, their number and those that count for quantiles
        (`sample_stride`).
        """
        self._moments = merge_moments(self._moments, moments) if self.rows else moments
        self._sample.add(sample)
        self.rows += rows

    def result(self) -> dict[str, np.ndarray]:
        """Return float64 arrays of `shape` ((1,) for scalars) and `count` int64 (1,); NaN without
        finite values.
        """
        if self.rows == 0:
            raise ValueError("no rows were added")
        some = self._moments.count > 0
        rows = self._sample.rows().astype(np.float64)
        quantile = np.quantile
        finite = np.isfinite(rows)
        if not finite.all():
            quantile = np.nanquantile  # some ten times slower
            sampled = finite.any(axis=0)  # sampling may drop the few finite values of a column
            rows = np.where(sampled, np.where(finite, rows, np.nan), self._moments.mean)
        figures = {name: getattr(self._moments, name) for name in ("min", "max", "mean", "std")}
        figures |= dict(zip(QUANTILES, quantile(rows, list(QUANTILES.values()), axis=0)))
        shaped = {
            name: np.where(some, figure, np.nan).reshape(self.shape or (1,))
            for name, figure in figures.items()
        }
        ordered = {name: shaped[name] for name in ("min", "max", "mean", "std")}
        return (
            ordered
            | {"count": np.array([self.rows], np.int64)}
            | {name: shaped[name] for name in QUANTILES}
        )


_PIXELS = 127  # of an image count for quantiles: odd, so that a stride meets all of them
_FRAMES = 64  # images whose moments are computed at once


class PixelStatistics(RunningStatistics):
    """Statistics per channel of images that are numbers of the rows, (n, *shape).

    Values are divided by `unit`: 255 gives those of uint8 in [0, 1], as of encoded images. Large
    images are strided as theirs. Quantiles are those of some pixels of each image, always the same
    ones.

    Args:
        shape: shape of the figures, with 1 for height and width.
        axes: axes of height and width in a value.
        unit: divisor of the values.
    """

    def __init__(self, shape: tuple[int, ...], axes: tuple[int, int], unit: float = 1.0) -> None:
        super().__init__(shape)
        self._axes = (axes[0] + 1, axes[1] + 1)
        self._unit = unit

    def add(self, values: np.ndarray) -> None:
        """Add rows (n, *shape)."""
        if len(values) == 0:
            return
        pixels = self._pixels(values)
        parts = [
            compute_moments(self._scaled(pixels[first : first + _FRAMES]))
            for first in range(0, len(pixels), _FRAMES)
        ]
        self.merge(reduce(merge_moments, parts), len(values), self.sample(values))

    def sample(self, values: np.ndarray) -> np.ndarray:
        """Return some pixels of values (n, *shape), (k, C)."""
        pixels = self._pixels(values)
        flat = pixels.reshape(len(pixels), -1, pixels.shape[-1])
        places = np.random.default_rng(0).permutation(flat.shape[1])[:_PIXELS]
        return self._scaled(flat[:, places])

    def _pixels(self, values: np.ndarray) -> np.ndarray:
        """View of values as (n, height, width, C), strided."""
        turned = np.moveaxis(np.asarray(values), self._axes, (1, 2))
        step = _pixel_step(*turned.shape[1:3])
        return turned.reshape(*turned.shape[:3], -1)[:, ::step, ::step]

    def _scaled(self, pixels: np.ndarray) -> np.ndarray:
        return pixels.reshape(-1, pixels.shape[-1]) / self._unit


def sample_stride(rows: int, keep: int = 1 << 16) -> int:
    """Return the stride of the rows that count for quantiles in the end, among `rows` in all."""
    return 1 << max(0, (-(-rows // max(2, keep)) - 1).bit_length())


_LEVELS = 40


@storable
class ImageStatistics:
    """Statistics of uint8 images (H, W, C) of any size, per channel.

    All figures follow exactly from the histograms. Beyond `keep` images every 2nd, 4th, ... one
    counts. Their numbers alone decide which, so an interrupted recording has the figures of an
    uninterrupted one. Large images are strided to about 150 pixels first, as in LeRobot. Values are
    in [0, 1], shapes (C, 1, 1).

    Args:
        channels: channels of an image.
        first: number of the first image to add.
        keep: most images that count.
    """

    def __init__(self, channels: int = 3, first: int = 0, keep: int = 4096) -> None:
        self.first = first
        self.images = 0
        self.keep = max(2, keep)
        # by the powers of 2 in an image's number
        self._histograms = np.zeros((_LEVELS, channels, 256), np.int64)

    @staticmethod
    def step(size: Sequence[int] | None) -> int:
        """Step between the images of an episode that are measured, by their (height, width): 1 for
        small ones and where the size is unknown, larger where decoding is costly.
        """
        height, width = size or (1, 1)
        return max(1, round(height * width / 2**16))

    def add(self, image: np.ndarray) -> None:
        """Add the next image."""
        step = _pixel_step(image.shape[0], image.shape[1])
        for channel, histogram in enumerate(self._histograms[_level(self.first + self.images)]):
            histogram += np.bincount(image[::step, ::step, channel].reshape(-1), minlength=256)
        self.images += 1

    def skip(self, images: int) -> None:
        """Skip the next images, which must not count in the end (see `counted_images`)."""
        self.images += images

    def merge(self, other: "ImageStatistics") -> None:
        """Add everything that `other` counted; its first image must be the next one here."""
        if other.first != self.first + self.images:
            raise ValueError(
                f"images from number {other.first} on, expected {self.first + self.images}"
            )
        self._histograms += other._histograms
        self.images += other.images

    def __getstate__(self) -> dict[str, Any]:
        levels = np.flatnonzero(self._histograms.any(axis=(1, 2)))
        return {**vars(self), "_histograms": (levels, self._histograms[levels])}

    def __setstate__(self, state: dict[str, Any]) -> None:
        levels, histograms = state["_histograms"]
        vars(self).update(state)
        self._histograms = np.zeros((_LEVELS, *histograms.shape[1:]), np.int64)
        self._histograms[levels] = histograms

    def result(self) -> dict[str, np.ndarray]:
        """Return float64 (C, 1, 1) in [0, 1], and `count` int64 (1,): the images that count."""
        if self.images == 0:
            raise ValueError("no images were added")
        counted = counted_images(self.first, self.images, self.keep)
        histograms = self._histograms[_level(counted.step) :].sum(axis=0)
        levels = np.arange(256) / 255.0
        total = histograms.sum(axis=1)
        mean = histograms @ levels / total
        variance = (histograms * (levels - mean[:, None]) ** 2).sum(axis=1) / total
        cumulative = histograms.cumsum(axis=1)
        figures = {
            "min": np.array([levels[h > 0].min() for h in histograms]),
            "max": np.array([levels[h > 0].max() for h in histograms]),
            "mean": mean,
            "std": np.sqrt(variance),
        }
        for name, q in QUANTILES.items():  # the order statistic at rank q * (N - 1), counted from 0
            ranks = np.floor(q * (total - 1))
            figures[name] = np.array(
                [levels[np.searchsorted(c, r, side="right")] for c, r in zip(cumulative, ranks)]
            )
        shaped = {name: figure.reshape(-1, 1, 1) for name, figure in figures.items()}
        return {**shaped, "count": np.array([len(counted)], np.int64)}


def counted_images(first: int, images: int, keep: int) -> range:
    """Numbers of the images that count, from number `first` on: all, or every 2nd, 4th, ..., at
    most `keep`.
    """
    every = 1
    while len(numbers := range(-(-first // every) * every, first + images, every)) > keep:
        every *= 2
    return numbers


def _level(number: int) -> int:
    """Exponent of 2 in a number."""
    return min((number & -number).bit_length() - 1, _LEVELS - 1) if number else _LEVELS - 1


def _pixel_step(height: int, width: int) -> int:
    """Step between counted pixels: 300 pixels and more come down to about 150 along the longer
    side.
    """
    longest = max(height, width)
    return 1 if longest < 300 else longest // 150
