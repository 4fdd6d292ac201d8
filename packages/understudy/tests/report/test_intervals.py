"""Intervals by hand and from published tables, and paired differences of losses."""

import math
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest

from understudy.report.intervals import (
    loss_interval,
    paired_difference,
    success_difference,
    t_quantile,
)
from understudy.train.checkpoint.run_dir import RunDir
from understudy.train.track import metrics_file
from understudy.train.validation.episode_sums import EpisodeSums
from understudy_kit.intervals import Z95


@pytest.mark.parametrize(
    ("degrees", "quantile"),
    [
        (1, 12.7062),
        (2, 4.3027),
        (3, 3.1824),
        (4, 2.7764),
        (5, 2.5706),
        (10, 2.2281),
        (29, 2.0452),
        (120, 1.9799),
    ],
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


# -- paired differences by hand, and of the files of a run ----------


def sums(
    values: list[float], counts: list[float] | None = None, digest: str = "same"
) -> EpisodeSums:
    """One term `flow`, an episode a value; the last episode is of the source `b`."""
    count = len(values)
    return EpisodeSums(
        names=("a", "b"),
        source=np.array([0] * (count - 1) + [1]),
        episode=np.arange(count),
        samples=np.ones(count, int),
        sums={"flow": np.array(values)},
        counts={"flow": np.array(counts or [1.0] * count)},
        weights={"flow": 1.0},
        digest=digest,
    )


def test_paired_difference_by_hand() -> None:
    """Losses 3 and 2. The residuals (-2, -1, 3)/3 and (-2, 0, 2)/3 differ by (0, -1, 1)/3: se^2 =
    3/2 * 2/9 = 1/3.
    """
    difference, interval = paired_difference(sums([1, 2, 6]), sums([0, 2, 4])) or (0, None)
    assert difference == pytest.approx(1)
    half = 4.302653 * 3**-0.5
    assert interval == pytest.approx([1 - half, 1 + half], abs=1e-6)


def test_paired_difference_of_a_constant_has_no_width() -> None:
    """The same hard episodes in both runs, one of them worse by 1 per element."""
    one = sums([2, 40, 9], [1, 2, 3])
    other = sums([1, 38, 6], [1, 2, 3])
    assert paired_difference(one, other) == (pytest.approx(1), pytest.approx([1, 1]))


def test_paired_difference_of_a_source_or_an_episode() -> None:
    one = sums([1, 2, 6])
    other = sums([0, 2, 4])
    assert paired_difference(one, other, "a") is not None
    assert paired_difference(one, other, "b") == (2, None)
    assert one.loss("a") == 1.5
    assert paired_difference(one, other, "c") is None


def test_paired_difference_needs_the_same_samples_and_terms() -> None:
    one = sums([1, 2, 6])
    assert paired_difference(one, sums([0, 2, 4], digest="other")) is None
    assert paired_difference(one, replace(one, weights={"flow": 2.0})) is None


def test_a_run_keeps_the_sums_of_its_validations(compared: Path) -> None:
    records = metrics_file.read(RunDir(compared).metrics, "val")
    assert len(records) == 2
    for record in records:
        found = EpisodeSums.read(RunDir(compared).episode_losses(record["step"]))
        assert found is not None
        assert found.loss() == pytest.approx(record["loss"], rel=1e-12)
        assert (len(found.episode), found.samples.sum()) == (record["episodes"], record["samples"])
        assert found.losses().min() < record["loss"] < found.losses().max()
