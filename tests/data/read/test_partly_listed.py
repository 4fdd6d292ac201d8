"""Packed videos with unlisted episodes: recorded times give the places of the listed ones."""

import pickle
from pathlib import Path

import numpy as np
import pyarrow.parquet as pq
import pytest

from understudy_base.testing.refusals import refused
from understudy_data.datasets.dataset import EpisodeDataset
from understudy_data.datasets.format.catalog import Catalog
from understudy_data.load.loader import Loader
from understudy_data.order import Order
from understudy_data.testing.datasets import Spec, identity, write_dataset
from understudy_tools.check.examine import check_dataset

TOP = "observation.images.top"
LENGTHS = (5, 4, 6, 3, 7)
START = f"videos/{TOP}/from_timestamp"


def partly(root: Path, keep: tuple[int, ...], late: float = 0.0) -> Path:
    """One video of five episodes; the tables list those of `keep`, their times late by `late`
    frames.
    """
    write_dataset(root, Spec(lengths=LENGTHS, per_video_file=5, per_data_file=5, foreign=False))
    for file in (root / "meta/episodes").rglob("*.parquet"):
        table = pq.read_table(file)
        chosen = [episode in keep for episode in table.column("episode_index").to_pylist()]
        at = table.column_names.index(START)
        times = np.asarray(table.column(START).to_pylist()) + late / 10
        pq.write_table(table.set_column(at, START, [times]).filter(chosen), file)
    return root


@pytest.mark.filterwarnings("ignore:.*from_timestamp gives")
@pytest.mark.parametrize("keep", [(1, 3), (0, 2, 4), (4,), (0, 1, 3), (2, 3)])
@pytest.mark.parametrize("memory", ["1GB", "2MB"])
def test_partly_listed_exact_times_say_which_images_are_meant(
    tmp_path: Path, keep: tuple[int, ...], memory: str
) -> None:
    root = partly(tmp_path / "d", keep)
    data = EpisodeDataset(root)
    assert [identity(data[i][TOP].numpy()) for i in range(len(data))] == [
        (0, e, f) for e in keep for f in range(LENGTHS[e])
    ]
    again = pickle.loads(pickle.dumps(data))
    assert identity(again[len(data) - 1][TOP].numpy()) == (0, keep[-1], LENGTHS[keep[-1]] - 1)
    order = Order.from_datasets([data], batch_size=4, seed=1)
    with Loader([EpisodeDataset(root)], order=order, memory=memory, num_threads=2) as loader:
        for _ in range(3):
            batch = next(loader)
            who = [identity(picture.numpy()) for picture in batch[TOP]]
            assert who == list(
                zip([0] * 4, batch["episode_index"].tolist(), batch["frame_index"].tolist())
            )


@pytest.mark.parametrize("late", [0.4, 1.0, -5.0, 9.0])
def test_partly_listed_times_that_may_mean_something_else_are_refused(
    tmp_path: Path, late: float
) -> None:
    """Between two frames; a gap of one; before the beginning; behind the end."""
    data = EpisodeDataset(partly(tmp_path / "d", (0, 3, 4), late))
    with refused(25, 15, where="file-000.mp4 (episode 0)"):
        data[0]


@pytest.mark.parametrize("late", [0.0, 2.0])
def test_partly_listed_a_whole_file_goes_by_order_whatever_its_clock_says(
    tmp_path: Path, late: float
) -> None:
    data = EpisodeDataset(partly(tmp_path / "d", (0, 1, 2, 3, 4), late))
    assert [identity(data[i][TOP].numpy()) for i in range(len(data))] == [
        (0, e, f) for e in range(5) for f in range(LENGTHS[e])
    ]
    assert (Catalog.open(tmp_path / "d").videos(TOP).first_by_time is None) == (late == 0)


@pytest.mark.filterwarnings("ignore:.*from_timestamp gives")
def test_partly_listed_exact_times_may_have_another_order_than_the_rows(tmp_path: Path) -> None:
    """Rows were sorted anew, and the video file was kept: times that fit its frames still place the
    episodes.
    """
    root = partly(tmp_path / "d", (1, 3))
    for file in (root / "meta/episodes").rglob("*.parquet"):
        table = pq.read_table(file)
        places = {1: 1.5, 3: 0.5}  # seconds of episodes 3 and 1 in the video
        times = [places[episode] for episode in table.column("episode_index").to_pylist()]
        pq.write_table(table.set_column(table.column_names.index(START), START, [times]), file)
    data = EpisodeDataset(root)
    shown = [identity(data[i][TOP].numpy()) for i in range(len(data))]
    assert [episode for _, episode, _ in shown] == [3, 3, 3, 4, 1, 1, 1]
    starts = [finding for finding in check_dataset(root).findings if finding.rule == "videos.start"]
    assert not starts
