"""Outliers: values too far from all others to normalize."""

import numpy as np
import pytest

from understudy_base import DatasetError
from understudy_data.datasets.stats.norm_heads import check_outliers
from understudy_data.datasets.stats.summary import Statistics


def known(column: np.ndarray) -> Statistics:
    q01, q99 = np.quantile(column, [0.01, 0.99])
    figures = (column.mean(), column.std(), column.min(), column.max(), q01, q99)
    return Statistics(len(column), *(np.array([figure]) for figure in figures))


@pytest.mark.parametrize("level", [1.0, 4096.0, -101_325.0])
@pytest.mark.parametrize("rest", [0.0, 7.0])
def test_outliers_a_sensor_that_rests_nearly_always_is_no_error(level: float, rest: float) -> None:
    column = np.full(5000, rest)
    column[2000:2040] = level
    of = known(column)
    check_outliers("observation.state", of, of.min, of.max, [])


def test_outliers_one_absurd_value_among_equal_ones_is() -> None:
    column = np.zeros(5000)
    column[7] = 1e9
    of = known(column)
    with pytest.raises(DatasetError):
        check_outliers("observation.state", of, of.min, of.max, [])
