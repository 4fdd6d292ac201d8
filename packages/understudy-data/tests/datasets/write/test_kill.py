"""EpisodeWriter under kill -9 at any file operation: the folder holds the saved episodes and can be
resumed.
"""

import os
import signal
import subprocess
import sys
import time
from collections.abc import Callable
from functools import cache
from pathlib import Path

import numpy as np
import pyarrow.parquet as pq
import pytest

from understudy_base import EmptyDatasetError
from understudy_data.datasets.dataset import EpisodeDataset
from understudy_data.datasets.format.catalog import Catalog
from understudy_data.datasets.write import dataset_files
from understudy_data.testing import recording
from understudy_data.video.reader import open_video


def start(*arguments: str) -> subprocess.Popen[bytes]:
    environment = os.environ | {
        "PYTHONPATH": os.pathsep.join(path for path in sys.path if path),
        "OMP_NUM_THREADS": "1",
    }
    return subprocess.Popen([sys.executable, recording.__file__, *arguments], env=environment)


def episodes_in(root: Path) -> int:
    """How many episodes our reader finds."""
    try:
        return len(Catalog.open(root).episodes)
    except EmptyDatasetError:
        return 0


def check(root: Path, episodes: int) -> Catalog | None:
    """The folder is a dataset of exactly the first `episodes` episodes, each with its own values
    and images.
    """
    if episodes == 0:
        assert episodes_in(root) == 0
        return None
    data = EpisodeDataset(root)
    assert data.catalog.episodes.ids.tolist() == list(range(episodes))
    assert data.catalog.episodes.lengths.tolist() == [recording.length(e) for e in range(episodes)]
    assert len(data) == sum(recording.length(e) for e in range(episodes))
    for i, item in enumerate(data.__getitems__(range(len(data)))):
        episode = int(item["episode_index"])
        frame = int(item["frame_index"])
        assert int(item["index"]) == i
        assert item["task"] == recording.task(episode)
        assert item["observation.state"].tolist() == recording.state(episode, frame).tolist()
        for camera, key in enumerate(["observation.images.top", "observation.images.wrist"]):
            picture = item[key].numpy().astype(int)
            assert abs(picture.mean() - recording.shade(episode, frame, camera)) < 4, (
                episode,
                frame,
                key,
            )
    return data.catalog


def check_leftovers(root: Path) -> None:
    """Of a finished recording only packed files are there, and videos hold exactly their
    episodes.
    """
    assert not [name for name in files(root) if "/." in name or name.startswith(".")]
    tables = [pq.read_table(path) for path in sorted((root / "meta/episodes").rglob("*.parquet"))]
    frames = sum(int(np.sum(table.column("length").to_numpy())) for table in tables)
    named = {
        f"file-{number:03d}"
        for table in tables
        for number in dataset_files.file_numbers(table, "data")
    }
    assert {path.stem for path in (root / "data").rglob("*.parquet")} == named
    for key in recording.FEATURES:
        if "images" in key:
            videos = sorted((root / "videos" / key).rglob("*.mp4"))
            assert {path.stem for path in videos} == named
            assert sum(open_video(path).count for path in videos) == frames


def files(root: Path) -> set[str]:
    return {str(path.relative_to(root)) for path in root.rglob("*") if path.is_file()}


@pytest.fixture(scope="module")
def whole(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The recording that was never killed."""
    root = tmp_path_factory.mktemp("whole") / "data"
    limit = dataset_files.MAX_EPISODES
    dataset_files.MAX_EPISODES = 2
    with recording.open_writer(root) as writer:
        recording.record(writer, range(recording.EPISODES))
    dataset_files.MAX_EPISODES = limit
    check(root, recording.EPISODES)
    return root


@pytest.fixture(scope="module")
def kill(tmp_path_factory: pytest.TempPathFactory) -> Callable[[int], list[Path]]:
    """Make one folder for every `every`-th file operation of the recording, killed just before it;
    the last was not killed.
    """

    @cache
    def kill(every: int) -> list[Path]:
        folder = tmp_path_factory.mktemp("points")
        assert start("points", str(folder), str(every)).wait() == 0
        return sorted(path for path in folder.iterdir() if path.is_dir())

    return kill


@pytest.mark.long
def test_kill_there_are_as_many_points_as_file_operations(
    kill: Callable[[int], list[Path]], whole: Path
) -> None:
    killed = kill(1)
    assert len(killed) > 40
    saved = [root.with_suffix(".saved").stat().st_size for root in killed]
    assert saved == sorted(saved)
    assert set(saved) == set(range(recording.EPISODES + 1))
    assert files(killed[-1]) == files(whole)


@pytest.mark.short("5")
@pytest.mark.parametrize("every", [5, 1])
def test_kill_every_point_opens_with_what_was_saved_and_goes_on(
    every: int,
    kill: Callable[[int], list[Path]],
    whole: Path,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(dataset_files, "MAX_EPISODES", 2)
    unreported = 0
    assert Catalog.open(whole).report() == []
    tasks, stats = (
        (whole / "meta" / name).read_bytes() for name in ("tasks.parquet", "stats.json")
    )
    for root in kill(every):
        saved = root.with_suffix(".saved").stat().st_size
        found = episodes_in(root)
        # killed between the commit and the return of save_episode
        assert found in (saved, saved + 1), root
        unreported += found - saved
        check(root, found)
        with recording.open_writer(root, resume=True) as writer:
            assert writer.episodes == found
            assert writer.tasks == list(dict.fromkeys(recording.task(e) for e in range(found)))
            recording.record(writer, range(found, recording.EPISODES))
        catalog = check(root, recording.EPISODES)
        check_leftovers(root)
        assert catalog is not None
        assert catalog.report() == []
        assert (root / "meta/tasks.parquet").read_bytes() == tasks
        assert (root / "meta/stats.json").read_bytes() == stats
    assert unreported > 0 or every > 1


@pytest.mark.long
@pytest.mark.parametrize("seed", range(2))
def test_killed_at_random_instants_again_and_again(
    seed: int, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    root = tmp_path / "data"
    rng = np.random.default_rng(seed)
    found = 0
    for _ in range(2):
        before = episodes_in(root) if root.exists() else 0
        child = start("endless", str(root))
        progress = root.with_suffix(".saved")
        reported = progress.stat().st_size if progress.exists() else 0
        while (
            not progress.exists() or progress.stat().st_size < reported + 3
        ):  # well under way, however slow it is here
            assert child.poll() is None
            time.sleep(0.002)
        time.sleep(float(rng.random()) * 0.1)
        child.send_signal(signal.SIGKILL)
        child.wait()
        found = episodes_in(root)
        saved = progress.stat().st_size
        assert found >= before + 3
        assert found >= saved
        check(root, found)
    monkeypatch.setattr(dataset_files, "MAX_EPISODES", 2)
    with recording.open_writer(root, resume=True) as writer:
        recording.record(writer, range(found, found + 1))
    check(root, found + 1)
