"""Quality of encoded images: PSNR and SSIM against the images that were encoded.

PSNR = 10 log10(255^2 / MSE) in dB, over all three channels and images together. SSIM is the mean of
Wang, Bovik, Sheikh & Simoncelli (2004) on luma (BT.601), over uniform windows of 8x8 pixels at
every second pixel, with K1 = 0.01 and K2 = 0.03.
"""

from dataclasses import astuple, dataclass
from math import inf, log10

import numpy as np

from understudy_data.plain_values import storable

_WINDOW = 8
_STRIDE = 2
_C1 = (0.01 * 255) ** 2
_C2 = (0.03 * 255) ** 2


@storable
@dataclass(frozen=True)
class Quality:
    """Sums over compared images, which can be added.

    Attributes:
        images: number of images.
        values: number of compared values, three per pixel.
        squares: sum of squared differences, in steps of 255.
        similarity: sum of the images' SSIM.
    """

    images: int = 0
    values: int = 0
    squares: float = 0.0
    similarity: float = 0.0

    def add(self, other: "Quality") -> "Quality":
        """Return the sums of both."""
        return Quality(*(sum(pair) for pair in zip(astuple(self), astuple(other))))

    @property
    def psnr(self) -> float:
        """PSNR in dB; infinite for equal images."""
        return 10 * log10(255**2 * self.values / self.squares) if self.squares else inf

    @property
    def ssim(self) -> float:
        """Mean SSIM of the images."""
        return self.similarity / self.images if self.images else 1.0


def compare_images(reference: np.ndarray, decoded: np.ndarray) -> Quality:
    """Compare images uint8 (n, H, W, 3) with their decoded counterparts."""
    total = Quality()
    for image, other in zip(reference, decoded, strict=True):
        difference = image.astype(np.float64) - other
        squares = float((difference**2).sum())
        total = total.add(
            Quality(1, difference.size, squares, structural_similarity(_luma(image), _luma(other)))
        )
    return total


def _luma(image: np.ndarray) -> np.ndarray:
    return np.asarray(image.astype(np.float64) @ np.array([0.299, 0.587, 0.114]))


def structural_similarity(image: np.ndarray, other: np.ndarray) -> float:
    """SSIM of two images (H, W) of values from 0 to 255; both sides are at least 8."""
    mean_a = _means(image)
    mean_b = _means(other)
    a = _means(image * image) - mean_a**2
    b = _means(other * other) - mean_b**2
    both = _means(image * other) - mean_a * mean_b
    top = (2 * mean_a * mean_b + _C1) * (2 * both + _C2)
    return float((top / ((mean_a**2 + mean_b**2 + _C1) * (a + b + _C2))).mean())


def _means(image: np.ndarray) -> np.ndarray:
    """Means of all windows, from a summed-area table."""
    table = np.zeros((image.shape[0] + 1, image.shape[1] + 1))
    table[1:, 1:] = image.cumsum(0).cumsum(1)
    w = _WINDOW
    sums = table[w:, w:] - table[:-w, w:] - table[w:, :-w] + table[:-w, :-w]
    return np.asarray(sums[::_STRIDE, ::_STRIDE] / w**2)
