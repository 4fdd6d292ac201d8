"""PSNR and SSIM against their definitions."""

from math import inf, log10

import numpy as np
import pytest

from understudy_data.video.quality import compare_images, structural_similarity


def test_quality_of_known_differences() -> None:
    image = np.full((2, 16, 16, 3), 100, np.uint8)
    assert (compare_images(image, image).psnr, compare_images(image, image).ssim) == (inf, 1.0)
    brighter = image + np.uint8(5)
    found = compare_images(image, brighter)
    assert found.psnr == pytest.approx(10 * log10(255**2 / 25))
    c1 = (0.01 * 255) ** 2  # without variance only the luminance term is left
    assert found.ssim == pytest.approx((2 * 100 * 105 + c1) / (100**2 + 105**2 + c1))


def test_ssim_of_each_window_by_the_formula() -> None:
    rng = np.random.default_rng(0)
    a, b = rng.uniform(0, 255, (2, 10, 12))
    c1 = (0.01 * 255) ** 2
    c2 = (0.03 * 255) ** 2
    values = []
    for y in range(0, 3, 2):
        for x in range(0, 5, 2):
            p = a[y : y + 8, x : x + 8]
            q = b[y : y + 8, x : x + 8]
            both = ((p - p.mean()) * (q - q.mean())).mean()
            top = (2 * p.mean() * q.mean() + c1) * (2 * both + c2)
            values.append(top / ((p.mean() ** 2 + q.mean() ** 2 + c1) * (p.var() + q.var() + c2)))
    assert structural_similarity(a, b) == pytest.approx(np.mean(values))
