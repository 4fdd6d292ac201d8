"""Facts about the videos of many small datasets: kept for a second start, never those of another
video.
"""

import os
import shutil
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest

import many_sources
from understudy_base import DatasetError
from understudy_data.datasets.episode_arrays import EpisodeArrays
from understudy_data.load.images.source_facts import SourceFacts, read_facts, read_facts_of_all
from understudy_data.testing.opened_files import opened_below
from understudy_data.testing.videos import encode_video

SOURCES = 70


@pytest.fixture(autouse=True)
def cache(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """An empty cache of the host."""
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path / "xdg"))


@pytest.fixture(scope="module")
def written(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Small datasets with a video each."""
    folder = tmp_path_factory.mktemp("many") / "sets"
    many_sources.write(folder, SOURCES, with_videos=True)
    return folder


@pytest.fixture
def folder(written: Path, tmp_path: Path) -> Path:
    """A copy of the datasets that the test may change."""
    shutil.copytree(written, tmp_path / "sets")
    return tmp_path / "sets"


def opened(folder: Path) -> list[EpisodeArrays]:
    return [EpisodeArrays(root) for root in sorted(folder.iterdir())]


def facts_of_all(folder: Path) -> tuple[list[SourceFacts], list[str]]:
    """Facts of the datasets, and the videos that were opened for them."""
    datasets = opened(folder)
    with opened_below(folder) as paths:
        facts = read_facts_of_all(datasets)
    return facts, [path for path in paths if path.endswith(".mp4")]


def video_of(folder: Path, number: int) -> Path:
    return next((folder / f"source-{number:05d}").rglob("*.mp4"))


def test_a_second_start_opens_no_video(written: Path) -> None:
    first, videos = facts_of_all(written)
    assert len(set(videos)) == SOURCES
    second, videos = facts_of_all(written)
    assert videos == []
    assert second == first == [read_facts(dataset) for dataset in opened(written)]


def with_other_keys(path: Path) -> None:
    """A video of as many frames with other key frames."""
    images = np.zeros(
        (sum(many_sources.LENGTHS), many_sources.SIDE, many_sources.SIDE, 3), np.uint8
    )
    encode_video(path, images, many_sources.FPS, codec="libx264", gop=12)


def touched(path: Path) -> None:
    """The same bytes, written again."""
    path.write_bytes(path.read_bytes())


def in_place(path: Path) -> None:
    """Another codec's video of the same size in bytes, with the time of modification set back."""
    status = path.stat()
    with_other_keys(path)
    path.write_bytes(path.read_bytes().ljust(status.st_size, b"\0")[: status.st_size])
    os.utime(path, ns=(status.st_atime_ns, status.st_mtime_ns))


@pytest.mark.parametrize("change", [with_other_keys, touched, in_place])
def test_a_changed_video_is_opened_again(change: Callable[[Path], None], folder: Path) -> None:
    before, _ = facts_of_all(folder)
    change(video_of(folder, 3))
    after, videos = facts_of_all(folder)
    assert str(video_of(folder, 3).relative_to(folder)) in videos
    assert after == [read_facts(dataset) for dataset in opened(folder)]
    assert (after[3] == before[3]) == (change is touched)


def test_a_video_of_too_few_frames_is_refused_at_each_start(folder: Path) -> None:
    facts_of_all(folder)
    images = np.zeros((5, many_sources.SIDE, many_sources.SIDE, 3), np.uint8)
    encode_video(video_of(folder, 3), images, many_sources.FPS, codec="libx264", gop=4)
    for _ in range(2):
        with pytest.raises(DatasetError) as refused:
            facts_of_all(folder)
        assert str(video_of(folder, 3)) in str(refused.value.where)


def test_metadata_that_contradicts_a_known_video_is_noticed(folder: Path) -> None:
    facts_of_all(folder)
    dataset = EpisodeArrays(folder / "source-00003")
    (camera,) = dataset.video_keys
    facts = dataset.video_frames.facts(camera, 0)
    with pytest.raises(DatasetError):
        dataset.video_frames.keep_facts(camera, 0, replace(facts, count=facts.count - 1))
    assert dataset.video_frames.facts(camera, 0) == facts
