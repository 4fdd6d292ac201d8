"""Normalization: every mode survives odd columns."""

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from hypothesis.extra import numpy as hnp

from understudy_base.testing.refusals import refused
from understudy_data.datasets.stats.summary import (
    Statistics,
    SummaryBuilder,
    offset_and_spread,
    pool,
)

MODES = ["mean_std", "min_max", "quantile"]


def of(x: np.ndarray) -> Statistics:
    """Of rows (n, dim) of one source."""
    builder = SummaryBuilder(len(x), 1)
    builder.add(x)
    return pool([builder.summary()])


def _applied(x: np.ndarray, mode: str) -> np.ndarray:
    numbers = offset_and_spread(of(x), mode)  # type: ignore[arg-type]
    spread = numbers["spread"].astype(np.float64)
    return np.where(spread == 0, 0, (x - numbers["offset"]) / np.where(spread == 0, 1, spread))


@pytest.mark.parametrize("mode", MODES)
def test_normalization_a_constant_dimension_becomes_zero(mode: str) -> None:
    # 0.1 a thousand times: the mean rounds, so the deviation comes out as 1e-17 rather than 0.
    x = np.stack([np.full(1000, 0.1, dtype=np.float32), np.arange(1000, dtype=np.float32)], axis=1)
    numbers = offset_and_spread(of(x), mode)  # type: ignore[arg-type]
    assert numbers["spread"][0] == 0
    assert numbers["offset"][0] == np.float32(0.1)
    assert numbers["spread"][1] > 0


def test_normalization_quantiles_do_not_lose_a_rare_event() -> None:
    x = np.zeros(1000)
    x[500] = 1
    z = _applied(x[:, None], "quantile")[:, 0]
    assert z[0] == -1
    assert z[500] == 1


@pytest.mark.parametrize("mode", MODES)
@settings(max_examples=25)
@given(
    hnp.arrays(
        np.float32,
        st.tuples(st.integers(1, 30), st.integers(1, 3)),
        # the middle of two subnormal numbers is rounded by more than the bound below
        elements=st.floats(-1e3, 1e3, width=32, allow_subnormal=False),
    )
)
def test_normalization_normal_values_are_finite_and_bounded(mode: str, x: np.ndarray) -> None:
    z = _applied(x, mode)
    assert np.isfinite(z).all()
    if mode == "min_max":
        assert np.abs(z).max() <= 1 + 1e-3


def test_normalization_unknown_modes_are_refused() -> None:
    with refused("mode='minmax'", "min_max", kind=ValueError):
        offset_and_spread(of(np.zeros((3, 1))), "minmax")  # type: ignore[arg-type]
