"""Areas of pixels, averaged: against a naive loop."""

import numpy as np
import pytest

from understudy_data.video.color import AreaResize


@pytest.mark.parametrize(
    ("shape", "size"),
    [((6, 9), (3, 3)), ((7, 5), (3, 2)), ((4, 6), (8, 4)), ((5, 5), (5, 5)), ((600, 2), (2, 1))],
)
def test_each_pixel_is_the_mean_of_its_area(shape: tuple[int, int], size: tuple[int, int]) -> None:
    """Pixel (y, x) has the pixels whose areas it touches, each with the same weight."""
    height, width = shape
    high, wide = size
    planes = np.random.default_rng(0).integers(0, 256, (3, height, width)).astype(np.uint8)
    resized = np.empty((3, high, wide), np.uint8)
    AreaResize(height, width, size)(planes, resized)
    for y in range(high):
        rows = slice(y * height // high, -(-(y + 1) * height // high))
        for x in range(wide):
            columns = slice(x * width // wide, -(-(x + 1) * width // wide))
            mean = planes[:, rows, columns].mean((1, 2), np.float64)
            assert resized[:, y, x].tolist() == np.rint(mean).tolist()


def test_a_size_without_pixels_is_refused() -> None:
    with pytest.raises(ValueError):
        AreaResize(4, 4, (0, 2))
