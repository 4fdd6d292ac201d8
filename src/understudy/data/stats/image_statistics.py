"""Statistics of uint8 images, from 256-bin histograms per channel."""

import numpy as np

from understudy.data.stats.running import QUANTILES

_LEVELS = 40


class ImageStatistics:
    """Statistics of uint8 images (H, W, C) of any size, per channel.

    All figures follow exactly from the histograms. Beyond `keep` images every 2nd, 4th, ... one counts. Their numbers
    alone decide which, so an interrupted recording has the figures of an uninterrupted one. Large images are strided to
    about 150 pixels first, as in LeRobot. Values are in [0, 1], shapes (C, 1, 1).

    Args:
        channels: channels of an image.
        first: number of the first image to add.
        keep: most images that count.
    """

    def __init__(self, channels: int = 3, first: int = 0, keep: int = 4096) -> None:
        self.first, self.images, self.keep = first, 0, max(2, keep)
        self._histograms = np.zeros((_LEVELS, channels, 256), np.int64)  # by the powers of 2 in an image's number

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
            raise ValueError(f"images from number {other.first} on, expected {self.first + self.images}")
        self._histograms += other._histograms
        self.images += other.images

    def result(self) -> dict[str, np.ndarray]:
        """Return float64 (C, 1, 1) in [0, 1], and `count` int64 (1,): the images that count."""
        if self.images == 0:
            raise ValueError("no images were added")
        counted = counted_images(self.first, self.images, self.keep)
        histograms = self._histograms[_level(counted.step) :].sum(axis=0)
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


def image_step(height: int, width: int) -> int:
    """Step between the measured images of an episode: 1 for small ones, larger where decoding is costly."""
    return max(1, round(height * width / 2**16))


def counted_images(first: int, images: int, keep: int) -> range:
    """Numbers of the images that count, from number `first` on: all, or every 2nd, 4th, ..., at most `keep`."""
    every = 1
    while len(found := range(-(-first // every) * every, first + images, every)) > keep:
        every *= 2
    return found


def _level(number: int) -> int:
    """Exponent of 2 in a number."""
    return min((number & -number).bit_length() - 1, _LEVELS - 1) if number else _LEVELS - 1


def _pixel_step(height: int, width: int) -> int:
    """Step between counted pixels: 300 pixels and more come down to about 150 along the longer side."""
    longest = max(height, width)
    return 1 if longest < 300 else longest // 150
