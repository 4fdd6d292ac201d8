"""Sets as sorted arrays agree with NumPy's."""

import numpy as np
from hypothesis import given
from hypothesis import strategies as st

from understudy_data.datasets.selection.select import common, difference, distinct

numbers = st.lists(st.integers(-5, 5) | st.integers(-(2**62), 2**62), max_size=12).map(
    lambda x: np.array(x, np.int64)
)


@given(numbers, numbers)
def test_sets_are_those_of_numpy(values: np.ndarray, others: np.ndarray) -> None:
    for found, expected in (
        (distinct(values), np.unique(values)),
        (difference(values, others), np.setdiff1d(values, others)),
        (common(values, others), np.intersect1d(values, others)),
    ):
        np.testing.assert_array_equal(found, expected)
        assert found.dtype == expected.dtype
