"""Summaries: a pool has the statistics of all its rows, in any order of the sources."""

from pathlib import Path

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from understudy_base import ACTION, STATE
from understudy_base.testing.refusals import refused
from understudy_data.datasets.dataset import EpisodeDataset
from understudy_data.datasets.stats import summary
from understudy_data.datasets.stats.summary import (
    DELTA,
    Summary,
    SummaryBuilder,
    pool,
    quantile_stride,
    summarize,
)
from understudy_data.parts import Workers
from understudy_data.testing.datasets import Spec, write_dataset


def of(rows: np.ndarray, stride: int = 1, cuts: tuple[int, ...] = ()) -> Summary:
    """The summary of rows that come in parts."""
    builder = SummaryBuilder(len(rows), stride)
    for part in np.split(rows, sorted(cuts)):
        builder.add(part)
    return builder.summary()


def bits(figures: object) -> list[bytes]:
    return [np.asarray(value).tobytes() for value in vars(figures).values()]


def drawn(seed: int, lengths: list[int], dtype: str = "float32") -> list[np.ndarray]:
    """Sources that differ in place and scale by orders of magnitude; one dimension never
    changes.
    """
    rng = np.random.default_rng(seed)
    out = []
    for n in lengths:
        place = rng.normal(0, 10, 3)
        scale = 10.0 ** rng.uniform(-2, 2, 3)
        rows = rng.normal(place, scale, (n, 3))
        rows[:, 2] = 0.1
        out.append(rows.astype(dtype))
    return out


@given(
    n=st.integers(1, 300),
    cuts=st.lists(st.integers(0, 300), max_size=5),
    dtype=st.sampled_from(["float32", "float64", "int64", "bool"]),
    seed=st.integers(0, 99),
)
def test_summary_one_source_has_numpys_own_figures_bit_for_bit(
    n: int, cuts: list[int], dtype: str, seed: int
) -> None:
    rows = drawn(seed, [n], dtype)[0]
    got = pool([of(rows, cuts=tuple(c for c in cuts if c <= n))])
    assert got.count == n
    for dim in range(3):
        x = np.ascontiguousarray(rows[:, dim]).astype(np.float64)
        assert (got.mean[dim], got.std[dim], got.min[dim], got.max[dim]) == (
            x.mean(),
            x.std(),
            x.min(),
            x.max(),
        )
        assert (got.q01[dim], got.q99[dim]) == tuple(np.quantile(x, [0.01, 0.99]))


@given(
    lengths=st.lists(st.integers(1, 60), min_size=2, max_size=6),
    seed=st.integers(0, 999),
    data=st.data(),
)
def test_summary_a_pool_equals_its_rows_and_no_sequence_shows(
    lengths: list[int], seed: int, data: st.DataObject
) -> None:
    sources = drawn(seed, lengths)
    parts = [of(rows) for rows in sources]
    got = pool(parts)
    rows = np.concatenate(sources).astype(np.float64)
    assert got.count == len(rows)
    np.testing.assert_allclose(got.mean, rows.mean(0), rtol=1e-12, atol=1e-12 * np.abs(rows).max())
    np.testing.assert_allclose(got.std[:2] ** 2, rows.var(0)[:2], rtol=1e-12)
    np.testing.assert_array_equal([got.min, got.max], [rows.min(0), rows.max(0)])
    np.testing.assert_array_equal([got.q01, got.q99], np.quantile(rows, [0.01, 0.99], axis=0))
    shuffled = data.draw(st.permutations(parts))
    assert bits(pool(shuffled)) == bits(got)


@pytest.mark.parametrize("whole", [True, False])
def test_summary_the_mean_of_quantiles_is_no_quantile(whole: bool) -> None:
    """The control: two sources, one shifted by a hundred deviations; weighting their quantiles by
    rows misses both.
    """
    rng = np.random.default_rng(3)
    sources = [rng.normal(0, 1, (4000, 1)), rng.normal(100, 1, (4000, 1))]
    rows = np.concatenate(sources)
    truth = np.quantile(rows, [0.01, 0.99])
    if whole:
        got = pool([of(source) for source in sources])
        assert [got.q01[0], got.q99[0]] == truth.tolist()
        return
    each = [pool([of(source)]) for source in sources]
    wrong = np.mean([[s.q01[0], s.q99[0]] for s in each], axis=0)
    assert np.abs(wrong - truth).min() > 45  # of a range of 105
    # nor the mean of the variances the variance
    spread = np.mean([s.std[0] ** 2 for s in each]) ** 0.5
    assert spread < 0.03 * rows.std()


@given(lengths=st.lists(st.integers(1, 900), min_size=1, max_size=6), seed=st.integers(0, 99))
def test_summary_beyond_the_bound_moments_stay_and_quantiles_are_of_rows(
    lengths: list[int], seed: int
) -> None:
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(summary, "ROWS", 256)
        sources = drawn(seed, lengths)
        rows = np.concatenate(sources).astype(np.float64)
        stride = quantile_stride(len(rows))
        parts = [of(source, stride, cuts=(len(source) // 3,)) for source in sources]
        kept = sum(len(part.rows) for part in parts)
        assert min(len(rows), 128) <= kept <= 256 + len(parts)
        for source, part in zip(sources, parts):  # over the blocks, too
            np.testing.assert_array_equal(part.rows, source[::stride])
        got = pool(parts)
        np.testing.assert_allclose(
            got.mean, rows.mean(0), rtol=1e-10, atol=1e-12 * np.abs(rows).max()
        )
        np.testing.assert_allclose(got.std[:2] ** 2, rows.var(0)[:2], rtol=1e-12)
        assert (got.min == rows.min(0)).all()
        assert (got.max == rows.max(0)).all()
        assert bits(pool(parts[::-1])) == bits(got)


@given(total=st.integers(1, 1 << 40), period=st.integers(1, 200))
def test_summary_strides_meet_every_place_of_a_run_and_nest(total: int, period: int) -> None:
    stride = quantile_stride(total, period)
    assert np.gcd(stride, period) == 1
    assert total <= stride * summary.ROWS
    # at least a seventh of the bound is kept
    assert stride == 1 or total > stride * summary.ROWS // 7
    larger = quantile_stride(total * 3, period)
    assert larger % stride == 0


def test_summary_a_stride_that_divides_the_run_sees_one_place_of_it() -> None:
    """The control of the test above: of runs of 16 that count 0..15, every 8th row shows two of the
    values.
    """
    rows = np.tile(np.arange(16.0), 1000)[:, None]
    assert len(np.unique(of(rows, 8).rows)) == 2
    assert len(np.unique(of(rows, 9).rows)) == 16


def test_summary_thinned_equals_coarse_summary() -> None:
    rows = drawn(0, [100])[0]
    np.testing.assert_array_equal(of(rows, 2).thinned(8).rows, of(rows, 8).rows)
    assert of(rows, 2).thinned(0).rows.shape == (0, 3)


def test_summary_figures_that_do_not_follow_are_nan() -> None:
    a, b = drawn(1, [50, 70])
    without = of(a).thinned(0)
    got = pool([without, of(b)])
    both = np.concatenate([a, b]).astype(np.float64)
    np.testing.assert_allclose(got.std[:2], both.std(0)[:2], rtol=1e-12)
    assert np.isnan([got.q01, got.q99]).all()
    unknown = Summary(0, without.mean, without.std, without.min, without.max, without.rows, 0)
    got = pool([unknown, of(b)])
    assert np.isnan([got.mean, got.std]).all()
    assert (got.max == both.max(0)).all()


def test_summary_misuse_is_refused() -> None:
    builder = SummaryBuilder(5, 1)
    builder.add(np.zeros((3, 2)))
    with refused(3, 5, kind=ValueError):
        builder.summary()
    a = drawn(1, [50])[0]
    with refused("strides", [1, 2], kind=ValueError):
        pool([of(a), of(a, 2)])


def test_summaries_of_a_source_are_equal_for_any_number_of_processes(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    write_dataset(tmp_path / "d", Spec("v2.1", lengths=(6, 9, 30, 5, 8), cameras=(), action_dim=3))
    windows = {ACTION: [0.0, 0.1, 0.2]}
    data = EpisodeDataset(tmp_path / "d", windows, keys=[ACTION, STATE])
    counts = list[int]()

    def summaries(workers: Workers | None = None) -> dict[str, Summary]:
        return summarize(data, (0, 2), 3, {ACTION: 4, STATE: 1, DELTA: 5}, counts.append, workers)

    whole = summaries()
    monkeypatch.setattr(summary, "PART_FRAMES", 12)  # three parts
    cut = summaries()
    with Workers(2, folder=tmp_path / "work") as workers:
        divided = summaries(workers)
    assert len(list((tmp_path / "work").glob("*.part"))) == 3
    assert counts == [58, 15, 30, 13, *counts[4:]]
    assert sorted(counts[4:]) == [13, 15, 30]
    with Workers(folder=tmp_path / "work") as workers:
        continued = summaries(workers)
    for key in (ACTION, STATE, DELTA):
        assert bits(cut[key]) == bits(divided[key]) == bits(continued[key])
        assert cut[key].rows.tobytes() == whole[key].rows.tobytes()
        assert cut[key].count == whole[key].count
        np.testing.assert_allclose(cut[key].std, whole[key].std, rtol=1e-12)
        np.testing.assert_array_equal(
            [cut[key].min, cut[key].max], [whole[key].min, whole[key].max]
        )
