"""Rows of a source beside its figures: the same for a key, and corrections where they are due."""

from pathlib import Path

import numpy as np

from understudy_base import ACTION, STATE
from understudy_data.datasets.dataset import EpisodeDataset
from understudy_data.load.row_sample import RowSample
from understudy_data.testing.datasets import Spec, write_dataset

NAMES = {ACTION: ["lift", "grip"]}


def test_rows_are_those_of_the_key(tmp_path: Path) -> None:
    write_dataset(tmp_path / "d", Spec(lengths=(30, 40, 50, 60), cameras=()))
    data = EpisodeDataset(tmp_path / "d", keys=[ACTION, STATE])
    first = RowSample.read(data, (), 4, 5, 40, 3)
    assert first.rows[ACTION].shape == (39, 2)
    assert first.rows[STATE].shape == (39, 3)
    again = RowSample.read(data, (), 4, 5, 40, 3)
    other = RowSample.read(data, (), 4, 6, 40, 3)
    assert np.array_equal(first.rows[ACTION], again.rows[ACTION])
    assert not np.array_equal(first.rows[ACTION], other.rows[ACTION])
    both = RowSample.joined([first, other])
    assert np.array_equal(both.rows[STATE], np.concatenate([first.rows[STATE], other.rows[STATE]]))


def test_a_tiny_spread_gives_way_to_the_range() -> None:
    """A gripper that is 0 but for 1 % of the rows, with the spread of its noise."""
    rows = np.zeros((1000, 2))
    rows[:, 0] = np.linspace(-1, 1, 1000)
    rows[:10, 1] = 1.0
    sample = RowSample({ACTION: rows}, NAMES)
    offset = np.zeros(2)
    mended = sample.mended(ACTION, offset, np.array([1.0, 1e-4]), may_rest=False)
    assert mended.ranged.tolist() == [False, True]
    assert mended.spread.tolist() == [1.0, 0.5]
    assert mended.offset.tolist() == [0.0, 0.5]
    assert sample.name(ACTION, np.flatnonzero(mended.ranged)) == "action[1] (grip)"
    sound = sample.mended(ACTION, offset, np.array([1.0, 0.2]), may_rest=False)
    assert not sound.ranged.any()
    assert sound.spread.tolist() == [1.0, 0.2]


def test_a_dimension_that_rests_elsewhere_takes_its_value() -> None:
    rows = np.stack([np.linspace(-1, 1, 100), np.full(100, 3.0)], axis=1)
    sample = RowSample({ACTION: rows}, NAMES)
    mended = sample.mended(ACTION, np.zeros(2), np.array([1.0, 0.0]), may_rest=False)
    assert mended.constant.tolist() == [False, True]
    assert (mended.offset[1], mended.spread[1]) == (3.0, 0.0)
    fit = sample.confront(ACTION, np.zeros(2), np.array([1.0, 1e-3]))
    assert fit.far.tolist() == [False, True]
