"""Statistics of columns and pictures, gathered as the values pass by: min, max, mean, std, count and five quantiles.

- `RunningStatistics` for numbers. Mean and variance are exact, by the parallel formula of Chan, Golub & LeVeque (1979):
  M2 = M2a + M2b + d^2 * na * nb / n with d the difference of the means. Quantiles come from the rows themselves: all of
  them up to `keep`, beyond that every 2nd, 4th, ... row, so they are exact for any one episode and never the mean or
  the envelope of the parts' quantiles.
- `PictureStatistics` for uint8 pictures: 256-bin histograms per channel, from which every figure follows exactly. The
  pictures are numbered, and beyond `keep` of them every 2nd, 4th, ... counts. Which ones count follows from their
  numbers alone, so a recording that was interrupted has the figures of one that was not. Large pictures are strided to
  about 150 pixels first, as LeRobot does; values are in [0, 1], shapes (C, 1, 1).
"""

from __future__ import annotations

import numpy as np

QUANTILES = {"q01": 0.01, "q10": 0.10, "q50": 0.50, "q90": 0.90, "q99": 0.99}
NAMES = ("min", "max", "mean", "std", "count", *QUANTILES)
_LEVELS = 40


class RunningStatistics:
    """Statistics over the first axis of arrays (n, *shape) of numbers or bools, without what is not finite.

    keep: rows from which quantiles are exact.
    """

    def __init__(self, shape: tuple[int, ...], keep: int = 1 << 16) -> None:
        self.shape, self.keep, self.rows = shape, max(2, keep), 0
        self._n = np.zeros(shape, np.int64)
        self._mean, self._m2 = np.zeros(shape), np.zeros(shape)
        self._min, self._max = np.full(shape, np.inf), np.full(shape, -np.inf)
        self._kept: list[np.ndarray] = []
        self._held, self._stride = 0, 1

    def add(self, values: np.ndarray) -> None:
        """Count rows in: values (n, *shape)."""
        values = np.asarray(values)
        if values.shape[1:] != self.shape:
            raise ValueError(f"rows of shape {values.shape[1:]}, expected {self.shape}")
        if len(values) == 0:
            return
        wide = values.astype(np.float64)
        good = np.isfinite(wide)
        n = good.sum(axis=0)
        mean = np.where(good, wide, 0.0).sum(axis=0) / np.maximum(n, 1)
        m2 = np.where(good, (np.where(good, wide, 0.0) - mean) ** 2, 0.0).sum(axis=0)
        low, high = np.where(good, wide, np.inf).min(axis=0), np.where(good, wide, -np.inf).max(axis=0)
        first = -self.rows % self._stride  # rows 0, stride, 2 * stride, ... of all that ever came are kept
        kept = values[first :: self._stride].copy()
        self._combine(len(values), n, mean, m2, low, high, kept)

    def _combine(
        self,
        rows: int,
        n: np.ndarray,
        mean: np.ndarray,
        m2: np.ndarray,
        low: np.ndarray,
        high: np.ndarray,
        kept: np.ndarray,
    ) -> None:
        total = self._n + n
        share = n / np.maximum(total, 1)
        delta = mean - self._mean
        self._mean = self._mean + delta * share
        self._m2 = self._m2 + m2 + delta**2 * self._n * share
        self._min, self._max = np.minimum(self._min, low), np.maximum(self._max, high)
        self._n, self.rows = total, self.rows + rows
        self._kept.append(kept)
        self._held += len(kept)
        while self._held > self.keep:
            self._thin()

    def _thin(self) -> None:
        """Keep every second row of those kept."""
        rows = np.concatenate(self._kept)[::2] if self._kept else np.zeros((0, *self.shape))
        self._kept, self._held, self._stride = [rows], len(rows), self._stride * 2

    def result(self) -> dict[str, np.ndarray]:
        """float64 arrays of `shape` ((1,) for scalars), `count` int64 (1,); NaN where no value was finite."""
        if self.rows == 0:
            raise ValueError("no rows were counted")
        some = self._n > 0
        rows = np.concatenate(self._kept).astype(np.float64)
        finite = np.isfinite(rows)
        held = finite.any(axis=0)  # a column may have lost its few finite values to thinning
        safe = np.where(held, np.where(finite, rows, np.nan), self._mean)
        figures = {
            "min": np.where(some, self._min, np.nan),
            "max": np.where(some, self._max, np.nan),
            "mean": np.where(some, self._mean, np.nan),
            "std": np.where(some, np.sqrt(self._m2 / np.maximum(self._n, 1)), np.nan),
            "count": np.array([self.rows], np.int64),
        }
        quantile = np.quantile if finite.all() else np.nanquantile  # the second is some ten times slower
        quantiles = quantile(safe, list(QUANTILES.values()), axis=0)
        figures |= {name: np.where(some, row, np.nan) for name, row in zip(QUANTILES, quantiles)}
        return {
            name: figure.reshape(self.shape or (1,)) if name != "count" else figure for name, figure in figures.items()
        }


class PictureStatistics:
    """Statistics of uint8 pictures (H, W, C), any sizes, per channel.

    first: number of the first picture to come; keep: pictures up to which all of them count.
    """

    def __init__(self, channels: int = 3, first: int = 0, keep: int = 4096) -> None:
        self.first, self.pictures, self.keep = first, 0, max(2, keep)
        self._levels = np.zeros((_LEVELS, channels, 256), np.int64)  # by how often 2 divides the picture's number

    def add(self, picture: np.ndarray) -> None:
        """Count in the next picture."""
        step, histograms = _stride(picture.shape[0], picture.shape[1]), self._levels[_level(self.first + self.pictures)]
        for channel, histogram in enumerate(histograms):
            histogram += np.bincount(picture[::step, ::step, channel].reshape(-1), minlength=256)
        self.pictures += 1

    def skip(self, pictures: int) -> None:
        """Pass over so many pictures, none of which is to count in the end (`counting`)."""
        self.pictures += pictures

    def merge(self, other: PictureStatistics) -> None:
        """Count in everything that `other` counted; its first picture is the next one here."""
        if other.first != self.first + self.pictures:
            raise ValueError(f"pictures from number {other.first} on, expected {self.first + self.pictures}")
        self._levels += other._levels
        self.pictures += other.pictures

    def result(self) -> dict[str, np.ndarray]:
        """float64 (C, 1, 1) in [0, 1]; `count` int64 (1,) pictures that count."""
        if self.pictures == 0:
            raise ValueError("no pictures were counted")
        counted = counting(self.first, self.pictures, self.keep)
        histograms = self._levels[_level(counted.step) :].sum(axis=0)
        levels, total = np.arange(256) / 255.0, histograms.sum(axis=1)
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
            figures[name] = np.array([levels[np.searchsorted(c, r, side="right")] for c, r in zip(cumulative, ranks)])
        shaped = {name: figure.reshape(-1, 1, 1) for name, figure in figures.items()}
        return {**shaped, "count": np.array([len(counted)], np.int64)}


def picture_step(height: int, width: int) -> int:
    """Every how many pictures of an episode are measured: all that are small, fewer where decoding them costs more."""
    return max(1, round(height * width / 2**16))


def counting(first: int, pictures: int, keep: int) -> range:
    """Numbers of those that count among so many pictures, from number `first` on: all, or every 2nd, 4th, ..., at most
    `keep`."""
    every = 1
    while len(found := range(-(-first // every) * every, first + pictures, every)) > keep:
        every *= 2
    return found


def _level(number: int) -> int:
    """How often 2 divides it."""
    return min((number & -number).bit_length() - 1, _LEVELS - 1) if number else _LEVELS - 1


def _stride(height: int, width: int) -> int:
    """Every how many pixels are counted: 300 pixels and more come down to about 150 along the longer side."""
    longest = max(height, width)
    return 1 if longest < 300 else longest // 150
