"""Statistics come from the training episodes alone, and every way of normalising survives odd columns."""

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from hypothesis.extra import numpy as hnp

from understudy.data.errors import DatasetError
from understudy.data.normalize import from_json, offset_and_spread, statistics, to_json

MODES = ["mean_std", "min_max", "quantile"]


def _applied(x: np.ndarray, mode: str) -> np.ndarray:
    found = statistics({"x": x}, np.zeros(len(x), dtype=np.int64), [0])["x"]
    numbers = offset_and_spread(found, mode)  # type: ignore[arg-type]
    spread = numbers["spread"].astype(np.float64)
    return np.where(spread == 0, 0, (x - numbers["offset"]) / np.where(spread == 0, 1, spread))


def test_held_out_episodes_do_not_count() -> None:
    episode = np.array([0, 0, 1, 1, 7, 7])
    x = np.array([1.0, 2.0, 1e6, -1e6, 3.0, 4.0], dtype=np.float32)
    found = statistics({"x": x}, episode, [0, 7])["x"]
    assert (found.count, found.mean[0], found.min[0], found.max[0]) == (4, 2.5, 1.0, 4.0)
    everything = statistics({"x": x}, episode, [0, 1, 7])["x"]
    assert everything.max[0] == 1e6  # the test would notice


def test_agrees_with_the_definitions() -> None:
    x = np.random.default_rng(0).normal(size=(501, 3)) * [1, 10, 0.1] + [0, 5, -3]
    found = statistics({"x": x}, np.zeros(501, dtype=int), [0])["x"]
    np.testing.assert_allclose(found.mean, x.mean(0), rtol=1e-12)
    np.testing.assert_allclose(found.std, x.std(0), rtol=1e-12)
    np.testing.assert_array_equal(found.q99, np.quantile(x, 0.99, axis=0))
    z = _applied(x, "mean_std")
    np.testing.assert_allclose(z.mean(0), 0, atol=1e-5)
    np.testing.assert_allclose(z.std(0), 1, rtol=1e-5)
    assert abs(np.abs(_applied(x, "min_max")).max() - 1) < 1e-5
    np.testing.assert_allclose(np.quantile(_applied(x, "quantile"), [0.01, 0.99]), [-1, 1], atol=0.1)


def test_integers_bools_scalars_and_nested_columns() -> None:
    columns = {"count": np.arange(4), "flag": np.array([True, False, True, True]), "grid": np.ones((4, 2, 3))}
    found = statistics(columns, np.zeros(4, dtype=int), [0])
    assert {key: s.mean.shape for key, s in found.items()} == {"count": (1,), "flag": (1,), "grid": (6,)}
    assert found["flag"].mean[0] == 0.75


@pytest.mark.parametrize("mode", MODES)
def test_a_constant_dimension_becomes_zero(mode: str) -> None:
    # 0.1 a thousand times: the mean rounds, so the deviation comes out as 1e-17 rather than 0.
    x = np.stack([np.full(1000, 0.1, dtype=np.float32), np.arange(1000, dtype=np.float32)], axis=1)
    numbers = offset_and_spread(statistics({"x": x}, np.zeros(1000, dtype=int), [0])["x"], mode)  # type: ignore[arg-type]
    assert numbers["spread"][0] == 0
    assert numbers["offset"][0] == np.float32(0.1)
    assert numbers["spread"][1] > 0


def test_quantiles_do_not_lose_a_rare_event() -> None:
    x = np.zeros(1000)
    x[500] = 1
    z = _applied(x[:, None], "quantile")[:, 0]
    assert z[0] == -1
    assert z[500] == 1


@pytest.mark.parametrize("mode", MODES)
@settings(max_examples=25)
@given(
    hnp.arrays(np.float32, st.tuples(st.integers(1, 30), st.integers(1, 3)), elements=st.floats(-1e3, 1e3, width=32))
)
def test_normal_values_are_finite_and_bounded(mode: str, x: np.ndarray) -> None:
    z = _applied(x, mode)
    assert np.isfinite(z).all()
    if mode == "min_max":
        assert np.abs(z).max() <= 1 + 1e-3


@settings(max_examples=25)
@given(hnp.arrays(np.float64, st.tuples(st.integers(1, 9), st.integers(1, 3)), elements=st.floats(-1e300, 1e300)))
def test_json_keeps_every_bit(x: np.ndarray) -> None:
    with np.errstate(over="ignore", invalid="ignore"):
        before = statistics({"a.b": x, "c": x[:, :1]}, np.zeros(len(x), dtype=int), [0])
    after = from_json(to_json(before))
    assert list(after) == list(before)
    for key in before:
        assert after[key].count == before[key].count
        for name in ("mean", "std", "min", "max", "q01", "q99"):
            np.testing.assert_array_equal(getattr(after[key], name), getattr(before[key], name))


def test_a_value_that_is_not_finite_is_refused_by_name() -> None:
    x = np.zeros((6, 2))
    x[4, 1] = np.nan
    with pytest.raises(DatasetError, match=r"episode 2: action\[1\] is nan \(1 such values\)"):
        statistics({"action": x}, np.array([0, 0, 1, 1, 2, 2]), [0, 1, 2])
    statistics({"action": x}, np.array([0, 0, 1, 1, 2, 2]), [0, 1])  # not among the training episodes


@pytest.mark.parametrize("text", ["[]", "{", '{"x": {"count": 1}}', '{"x": 3}'])
def test_what_is_no_statistics_is_refused(text: str) -> None:
    with pytest.raises(DatasetError):
        from_json(text)


def test_no_rows_and_unknown_modes_are_refused() -> None:
    with pytest.raises(DatasetError, match="no rows"):
        statistics({"x": np.zeros(3)}, np.zeros(3, dtype=int), [9])
    found = statistics({"x": np.zeros(3)}, np.zeros(3, dtype=int), [0])["x"]
    with pytest.raises(ValueError, match="minmax"):
        offset_and_spread(found, "minmax")  # type: ignore[arg-type]
