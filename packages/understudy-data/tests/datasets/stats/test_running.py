"""Running statistics: parts give the figures of the whole, quantiles included."""

import pickle

import numpy as np
from hypothesis import given
from hypothesis import strategies as st

from understudy_base.testing.refusals import refused
from understudy_data.datasets.stats.running import (
    NAMES,
    QUANTILES,
    ImageStatistics,
    RunningStatistics,
    counted_images,
)

LEVELS = list(QUANTILES.values())


def plain(values: np.ndarray) -> dict[str, np.ndarray]:
    wide = values.astype(np.float64)
    figures = {"min": wide.min(0), "max": wide.max(0), "mean": wide.mean(0), "std": wide.std(0)}
    return figures | dict(zip(QUANTILES, np.quantile(wide, LEVELS, axis=0)))


@given(
    parts=st.lists(st.integers(0, 40), min_size=1, max_size=6).filter(any),
    shape=st.sampled_from([(1,), (3,), (2, 2)]),
    dtype=st.sampled_from(["float32", "float64", "int64", "uint8", "bool"]),
    seed=st.integers(0, 99),
)
def test_running_parts_equal_the_whole(
    parts: list[int], shape: tuple[int, ...], dtype: str, seed: int
) -> None:
    rng = np.random.default_rng(seed)
    chunks = [(rng.normal(40, 30, (n, *shape)).clip(0, 200)).astype(dtype) for n in parts]
    total = RunningStatistics(shape)
    for chunk in chunks:
        total.add(chunk)
    got = total.result()
    expected = plain(np.concatenate(chunks))
    assert set(got) == set(NAMES)
    assert got["count"].tolist() == [sum(parts)]
    for name, figure in expected.items():
        assert got[name].shape == shape
        np.testing.assert_allclose(got[name], figure, rtol=1e-12, atol=1e-12, err_msg=name)


def test_running_variance_survives_a_large_mean() -> None:
    values = np.random.default_rng(0).normal(0, 1, (4000, 1)) + 1e9
    total = RunningStatistics((1,))
    for chunk in np.array_split(values, 50):
        total.add(chunk)
    np.testing.assert_allclose(total.result()["std"], values.std(0), rtol=1e-6)


def test_running_beyond_limit_quantiles_close_moments_exact() -> None:
    rng = np.random.default_rng(1)
    # parts unlike each other
    values = np.concatenate([rng.normal(k, 1 + k, (2000, 2)) for k in range(6)])
    total = RunningStatistics((2,), keep=1000)
    for chunk in np.array_split(values, 7):
        total.add(chunk)
    assert len(pickle.dumps(total)) < 40_000, "1000 rows of 16 bytes are kept, not 12,000"
    got = total.result()
    expected = plain(values)
    for name in ("min", "max", "mean", "std"):
        np.testing.assert_allclose(got[name], expected[name], rtol=1e-10)
    for name, level in QUANTILES.items():
        rank = (values < got[name]).mean(0)
        assert np.abs(rank - level).max() < 0.03, name


def test_running_ignores_non_finite() -> None:
    values = np.array([[1.0, np.nan], [3.0, np.inf], [2.0, np.nan]])
    total = RunningStatistics((2,))
    total.add(values)
    got = total.result()
    assert got["mean"][0] == 2.0
    assert got["q50"][0] == 2.0
    assert all(np.isnan(got[name][1]) for name in NAMES if name != "count")
    assert got["count"].tolist() == [3]


def test_running_refuses_wrong_shapes_and_no_rows() -> None:
    with refused((2,), (3,), kind=ValueError):
        RunningStatistics((3,)).add(np.zeros((4, 2)))
    with refused(1, 0, kind=ValueError):
        ImageStatistics().merge(ImageStatistics(first=1))
    with refused("rows", kind=ValueError):
        RunningStatistics((3,)).result()
    with refused("images", kind=ValueError):
        ImageStatistics().result()


def test_running_images_channel_by_channel() -> None:
    pictures = np.random.default_rng(0).integers(10, 240, (9, 20, 30, 3)).astype(np.uint8)
    total = ImageStatistics()
    half = ImageStatistics(first=4)
    for picture in pictures[:4]:
        total.add(picture)
    for picture in pictures[4:]:
        half.add(picture)
    total.merge(half)
    got = total.result()
    pixels = pictures.reshape(-1, 3) / 255.0
    for name, figure in plain(pixels).items():
        assert got[name].shape == (3, 1, 1)
        # between two levels we take the lower one
        tolerance = 1 / 255 if name in QUANTILES else 1e-12
        np.testing.assert_allclose(got[name].reshape(3), figure, atol=tolerance)
    assert got["count"].tolist() == [9]


@given(
    parts=st.lists(st.integers(0, 30), min_size=1, max_size=5).filter(any), keep=st.integers(2, 40)
)
def test_running_counted_images_follow_from_numbers(parts: list[int], keep: int) -> None:
    """However they come: in parts that are merged, or passing over those that are not to count."""
    pictures = (
        np.random.default_rng(sum(parts)).integers(0, 256, (sum(parts), 4, 5, 3)).astype(np.uint8)
    )
    total = ImageStatistics(keep=keep)
    sparse = ImageStatistics(keep=keep)
    first = 0
    for count in parts:
        part = ImageStatistics(first=first, keep=keep)
        for picture in pictures[first : first + count]:
            part.add(picture)
        total.merge(part)
        first += count
    counted = counted_images(0, len(pictures), keep)
    assert len(pictures) <= keep or keep / 2 <= len(counted) <= keep
    for number in counted:
        sparse.skip(number - sparse.images)
        sparse.add(pictures[number])
    sparse.skip(len(pictures) - sparse.images)
    pixels = pictures[:: counted.step].reshape(-1, 3) / 255
    for name, figure in sparse.result().items():
        assert np.array_equal(total.result()[name], figure), name
    np.testing.assert_allclose(total.result()["mean"].reshape(3), pixels.mean(0))
    assert np.array_equal(total.result()["min"].reshape(3), pixels.min(0))
    assert total.result()["count"].tolist() == [len(counted)]


def test_running_large_images_are_strided() -> None:
    picture = np.zeros((480, 640, 3), np.uint8)
    picture[::4, ::4] = 255  # only these are in a stride of 640 // 150 = 4
    total = ImageStatistics()
    total.add(picture)
    assert total.result()["mean"].reshape(3).tolist() == [1.0] * 3
    small = ImageStatistics()
    small.add(picture[:200, :200])
    assert small.result()["mean"].reshape(3).tolist() == [1 / 16] * 3
