"""Figures of all other rows, computed at once for every row: equal to those row by row."""

import numpy as np
import pytest

from understudy_tools.check.rules import signals


@pytest.mark.parametrize("count", [2, 3, 4, 9, 10, 31])
@pytest.mark.parametrize("values", ["distinct", "ties", "all equal"])
def test_figures_of_the_other_rows(count: int, values: str) -> None:
    table = np.random.default_rng(count).standard_normal((count, 3))
    table = {"distinct": table, "ties": np.round(table), "all equal": np.ones((count, 3))}[values]
    least, most = signals._bounds_of_others(table)
    nearest = signals._nearest_other(table)
    median = signals._median_of_others(table)
    for row in range(count):
        others = np.delete(table, row, axis=0)
        assert np.array_equal(least[row], others.min(axis=0))
        assert np.array_equal(most[row], others.max(axis=0))
        assert np.array_equal(nearest[row], np.abs(others - table[row]).min(axis=0))
        assert np.array_equal(median[row], np.median(others, axis=0))
