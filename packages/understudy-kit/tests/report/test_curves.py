"""Thinned curves keep their peaks and stay small."""

import numpy as np

from understudy_kit.report.curves import POINTS, thin


def test_thin_keeps_extremes_and_leaves_out_what_is_not_finite() -> None:
    values = np.ones(100_000)
    values[77_123], values[5], values[6] = 50.0, -3.0, np.nan
    curve = thin(np.arange(1, 100_001), values)
    assert len(curve["step"]) == POINTS
    assert (max(curve["high"]), min(curve["low"])) == (50.0, -3.0)
    assert curve["step"][-1] == 100_000
    at = curve["high"].index(50.0)
    assert curve["step"][at - 1] < 77_124 <= curve["step"][at]


def test_thin_of_a_short_curve_has_every_value() -> None:
    curve = thin(np.array([1, 2, 3]), np.array([1.0, 5.0, 3.0]))
    assert curve["step"] == [1, 2, 3]
    assert curve["low"] == curve["high"] == [1.0, 5.0, 3.0]
    assert curve["value"] == [3.0, 3.0, 4.0]  # a moving mean over three
    assert thin(np.array([1]), np.array([np.nan]))["step"] == []
