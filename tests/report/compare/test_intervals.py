"""Intervals by hand and from published tables."""

import math

import pytest

from understudy.report.compare.intervals import loss_interval, success_difference, t_quantile
from understudy.rollout.result import Z95


@pytest.mark.parametrize(
    ("degrees", "quantile"),
    [(1, 12.7062), (2, 4.3027), (3, 3.1824), (4, 2.7764), (5, 2.5706), (10, 2.2281), (29, 2.0452), (120, 1.9799)],
)
def test_t_quantile_is_that_of_the_tables(degrees: int, quantile: float) -> None:
    assert t_quantile(degrees) == pytest.approx(quantile, abs=6e-5)


def test_t_quantile_approaches_the_normal_one() -> None:
    assert t_quantile(2000) == pytest.approx(Z95, abs=1.3e-3)
    assert t_quantile(10**9) == pytest.approx(Z95, abs=1e-12)


def test_loss_interval_counts_episodes() -> None:
    """Three episodes have two degrees of freedom."""
    low, high = loss_interval(2.0, 0.5, 3) or (0, 0)
    assert (low, high) == pytest.approx((2 - 4.302653 * 0.5, 2 + 4.302653 * 0.5), abs=1e-6)
    assert loss_interval(2.0, None, 1) is None
    assert loss_interval(None, 0.5, 3) is None


def test_success_difference_is_newcombes_example() -> None:
    """56/70 - 48/80, method 10 of Newcombe (1998), table II."""
    difference, interval = success_difference((56, 70), (48, 80))
    assert difference == pytest.approx(0.2)
    assert interval == pytest.approx((0.0524, 0.3339), abs=5e-5)
    swapped, other = success_difference((48, 80), (56, 70))
    assert (swapped, *other) == pytest.approx((-0.2, -interval[1], -interval[0]))


def test_success_difference_of_equal_extremes_is_no_point() -> None:
    """Ten of ten against ten of ten: the textbook interval has no width."""
    difference, (low, high) = success_difference((10, 10), (10, 10))
    assert difference == 0
    assert low < -0.2 < 0.2 < high
    with pytest.raises(ValueError, match="0"):
        success_difference((0, 0), (1, 2))
    assert not math.isnan(low)
