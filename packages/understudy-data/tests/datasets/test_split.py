"""Training and validation episodes of a dataset: no common one, and none of the skipped ones."""

from pathlib import Path

import numpy as np
import pytest

from understudy_base import DatasetError
from understudy_base.testing.refusals import refused
from understudy_data.datasets.episode_arrays import EpisodeArrays
from understudy_data.datasets.format.catalog import Catalog
from understudy_data.datasets.selection.select import Selection, split_episodes
from understudy_data.datasets.split import EpisodeSplit
from understudy_data.testing.datasets import Spec, write_dataset

IDS = np.arange(12)
SKIPPED = np.array([3, 8])


@pytest.fixture(scope="module")
def root(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("split") / "d"
    write_dataset(folder, Spec(lengths=(4,) * 12))
    return folder


def test_chosen_episodes_are_validated_on() -> None:
    parts = EpisodeSplit.by_ids(IDS, (8, 5, 1), SKIPPED)
    assert parts.validation.tolist() == [1, 5]
    assert parts.training.tolist() == [0, 2, 4, 6, 7, 9, 10, 11]


def test_a_share_is_that_of_the_hashes_of_ids(root: Path) -> None:
    catalog = Catalog.open(root)
    left = np.setdiff1d(IDS, SKIPPED)
    parts = EpisodeSplit.by_fraction(catalog, IDS, 0.3, skipped=SKIPPED, spread=False)
    for part, wanted in zip((parts.training, parts.validation), split_episodes(left, 0.3)):
        assert np.array_equal(part, wanted)
    spread = EpisodeSplit.by_fraction(catalog, IDS, 0.3)
    assert len(np.intersect1d(spread.training, spread.validation)) == 0
    assert len(spread.training) + len(spread.validation) == 12
    of_tasks = []
    for part in (spread.training, spread.validation):
        rows = catalog.episodes.rows_of(part).tolist()
        of_tasks.append({task for row in rows for task in catalog.episodes.tasks_of(row).tolist()})
    assert of_tasks[0] == of_tasks[1]
    with refused(2, kind=DatasetError):
        EpisodeSplit.by_fraction(catalog, IDS, 2)


def test_an_episode_of_one_source_is_not_trained_on_in_another(root: Path) -> None:
    first = [EpisodeArrays(root, episodes=ids) for ids in ([0, 1], [2])]
    second = [EpisodeArrays(root, episodes=ids) for ids in ([3, 4], [5])]
    EpisodeSplit.check_disjoint(("a", "b"), (first[0], second[0]), (first[1], second[1]))
    with refused("a", "b", 2, where=str(root)):
        leaking = EpisodeArrays(root, episodes=[2, 4])
        EpisodeSplit.check_disjoint(("a", "b"), (first[0], leaking), (first[1], None))


def test_episodes_with_a_sample(root: Path) -> None:
    catalog = Catalog.open(root)
    select = Selection(exclude_episodes=[0], drop_n_first_frames=3)
    ids, notes = select.find_episodes(catalog, {"action": [0, 0.1]}, ["action"])
    assert ids.tolist() == list(range(1, 12))
    assert notes == ()
    with refused("'gripper'"):
        select.find_episodes(catalog, {"gripper": [0]}, ["action"])
    assert select.lacks(catalog, [3, 20, 12, 3]).tolist() == [12, 20]
    assert Selection(where="episode > 5").lacks(catalog, [5, 6, 7]).tolist() == [5]
