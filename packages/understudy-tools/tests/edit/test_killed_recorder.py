"""A dataset whose recorder was killed: named by `publish` and `push` before anything is written,
and by `check`.
"""

import re
import shutil
from pathlib import Path
from typing import Any

import pyarrow.parquet as pq
import pytest

from understudy_base import ConfigError, DatasetError
from understudy_base.testing.refusals import warned
from understudy_data.datasets.episode_arrays import EpisodeArrays
from understudy_data.datasets.format.catalog import Catalog
from understudy_data.testing.datasets import (
    Spec,
    edit_column,
    episode_pictures,
    write_dataset,
    write_video,
)
from understudy_data.testing.killed_recorder import cut, gap, packed_cut, v2
from understudy_kit import main
from understudy_tools.check.examine import check_dataset
from understudy_tools.cli.hub import PushConfig, push
from understudy_tools.edit.publish import publish

CAMERA = "observation.images.top"
FAR = 1_764_000_000_000


def missing(root: Path) -> None:
    v2(root)
    (root / f"videos/chunk-000/{CAMERA}/episode_000005.mp4").unlink()


@pytest.mark.long
@pytest.mark.parametrize("fault", [gap, cut, packed_cut, missing])
def test_killed_recorder_is_named_and_nothing_is_published(tmp_path: Path, fault: Any) -> None:
    root = tmp_path / "arm"
    out = tmp_path / "out"
    fault(root)
    sound = (
        write_dataset(tmp_path / "other", Spec(lengths=(6, 6), foreign=False))
        and tmp_path / "other"
    )
    assert main(["publish", str(sound), str(root), str(out)]) == 2
    assert not out.exists()
    with pytest.raises(ConfigError):
        push(PushConfig(path=str(root), to="hf://datasets/somebody/arm"))
    rules = {finding.rule for finding in check_dataset(root).findings}
    assert rules & {"files.orphan", "files.missing"}
    assert main(["edit", str(root), str(tmp_path / "copy"), "--skip-bad"]) in (0, 1)
    assert main(["publish", str(tmp_path / "copy"), str(out)]) == 0


@pytest.mark.parametrize("fault", [gap, cut, packed_cut])
def test_killed_recorder_is_named_by_readers(tmp_path: Path, fault: Any) -> None:
    root = tmp_path / "arm"
    fault(root)
    with warned(root, "files"):
        EpisodeArrays(root)
    with warned(root, "files"):
        assert main(["select", str(root), "some", "--exclude-episodes", "0"]) == 0


def test_sound_and_partial_datasets_are_read_without_a_word(
    tmp_path: Path, recwarn: pytest.WarningsRecorder
) -> None:
    EpisodeArrays(v2(tmp_path / "whole"))
    part = v2(tmp_path / "part", keep={0, 1, 4, 5})
    for path in [*part.rglob("episode_000002.*"), *part.rglob("episode_000003.*")]:
        path.unlink()
    EpisodeArrays(part)
    other = v2(tmp_path / "other") / "data/chunk-000"
    shutil.copy(other / "episode_000000.parquet", other / "copy.parquet")
    EpisodeArrays(tmp_path / "other")
    assert not recwarn.list


def test_removed_lines_of_meta_are_not_called_a_kill(tmp_path: Path) -> None:
    """The same files are left by both: the message claims neither."""
    gap(tmp_path / "arm")
    with pytest.raises(DatasetError) as error:
        publish([str(tmp_path / "arm")], tmp_path / "out")
    assert "2-3" in error.value.what
    assert not re.search(
        r"recorder was killed(?!, of files of two recordings, or after lines)", error.value.what
    )


def exchanged(root: Path) -> None:
    """Exchange the data files of two episodes, but not their videos."""
    v2(root)
    files = root / "data/chunk-000"
    (files / "episode_000001.parquet").rename(files / "kept.parquet")
    (files / "episode_000002.parquet").rename(files / "episode_000001.parquet")
    (files / "kept.parquet").rename(files / "episode_000002.parquet")


def stale(root: Path) -> None:
    path = v2(root) / "meta/episodes.jsonl"
    path.write_text(path.read_text().replace('"length": 6', '"length": 7', 2))


def short_video(root: Path) -> None:
    videos = v2(root) / f"videos/chunk-000/{CAMERA}"
    spec = Spec(version="v2.1", lengths=(6,) * 6, chunks_size=1000, foreign=False)
    write_video(videos / "episode_000003.mp4", episode_pictures(spec, 0, 3)[:4], spec)


@pytest.mark.parametrize("fault", [exchanged, stale, short_video])
def test_contradicting_rows_and_videos_are_not_pushed(tmp_path: Path, fault: Any) -> None:
    root = tmp_path / "arm"
    fault(root)
    with pytest.raises(ConfigError, match="episode"):
        push(PushConfig(path=str(root), to="hf://datasets/somebody/arm"))
    if fault is not short_video:  # a view is made by the rows alone
        with pytest.warns(UserWarning, match="episode"):
            assert main(["select", str(root), "some", "--exclude-episodes", "0"]) == 0


def test_killed_recorder_file_without_a_footer_is_cut(tmp_path: Path) -> None:
    cut(tmp_path / "arm")
    finding = next(
        f
        for f in check_dataset(tmp_path / "arm").findings
        if f.rule == "files.orphan" and not f.place.camera
    )
    assert "cut" in finding.message
    assert "remove the file" not in finding.fix


@pytest.mark.parametrize("kind", ["part", "orphan"])
def test_sound_part_and_foreign_file_are_published_with_a_warning(
    tmp_path: Path, kind: str
) -> None:
    root = tmp_path / "arm"
    v2(root, keep={0, 1, 4, 5} if kind == "part" else set(range(6)))
    if kind == "part":
        for path in [*root.rglob("episode_000002.*"), *root.rglob("episode_000003.*")]:
            path.unlink()
    else:
        data = root / "data/chunk-000"
        shutil.copy(data / "episode_000000.parquet", data / "copy.parquet")
    with pytest.warns(UserWarning, match="listed" if kind == "part" else "episode"):
        assert main(["publish", str(root), str(tmp_path / "out")]) == 0


def test_part_with_ids_far_apart_is_published_without_a_list_of_the_ids_between(
    tmp_path: Path,
) -> None:
    """Ids may be times in milliseconds: a list of all that are absent would take terabytes."""
    root = v2(tmp_path / "arm", keep={0, 1})
    for path in (*root.rglob("episode_00000[1-5].*"),):
        target = path.with_name(path.name.replace("episode_000001", f"episode_{FAR}"))
        path.rename(target) if "000001" in path.name else path.unlink()
    chunk = f"chunk-{FAR // 1000:03d}"
    (root / "data" / chunk).mkdir()
    (root / "videos" / chunk / CAMERA).mkdir(parents=True)
    for path in root.rglob(f"episode_{FAR}.*"):
        path.rename(str(path).replace("chunk-000", chunk))
    edit_column(
        root / f"data/{chunk}/episode_{FAR}.parquet", "episode_index", lambda ids: ids * 0 + FAR
    )
    lines = root / "meta/episodes.jsonl"
    lines.write_text(lines.read_text().replace('"episode_index": 1', f'"episode_index": {FAR}'))
    with pytest.warns(UserWarning, match=f"1-{FAR - 1}"):
        assert main(["publish", str(root), str(tmp_path / "out")]) == 0
    assert Catalog.open(tmp_path / "out").num_episodes == 2


def test_check_names_numbers_of_files_that_are_off(tmp_path: Path) -> None:
    root = tmp_path / "data"
    write_dataset(root, Spec(lengths=(6,) * 4, foreign=False, files_per_chunk=9))
    data = root / "data/chunk-000"
    (data / "file-001.parquet").rename(data / "file-002.parquet")
    (data / "file-000.parquet").rename(data / "file-001.parquet")
    orphan = next(f for f in check_dataset(root).findings if f.rule == "files.orphan")
    assert "file numbers are off" in orphan.message
    inside = next(f for f in check_dataset(root).findings if f.rule == "rows.orphan")
    assert "file numbers are off" in inside.message


def test_check_says_that_meta_alone_is_wrong(tmp_path: Path) -> None:
    root = v2(tmp_path / "data")
    path = root / "meta/episodes.jsonl"
    path.write_text(path.read_text().replace('"length": 6', '"length": 7'))
    findings = [f for f in check_dataset(root).findings if f.rule == "rows.count"]
    assert all("only meta/ is wrong" in finding.message for finding in findings)
    assert len(findings) == 6
    edit_column(root / "data/chunk-000/episode_000000.parquet", "index", lambda values: values)
    table = pq.read_table(root / "data/chunk-000/episode_000000.parquet")
    pq.write_table(table.slice(0, 5), root / "data/chunk-000/episode_000000.parquet")
    first = next(
        f
        for f in check_dataset(root).findings
        if f.rule == "rows.count" and f.place.episodes == (0,)
    )
    assert "only meta/" not in first.message


def test_check_names_a_tail_that_is_the_start_of_the_next_episode(tmp_path: Path) -> None:
    spec = Spec(version="v2.1", lengths=(6,) * 3, chunks_size=1000, foreign=False)
    write_dataset(tmp_path / "data", spec)
    video = tmp_path / f"data/videos/chunk-000/{CAMERA}/episode_000000.mp4"
    own = episode_pictures(spec, 0, 0)
    later = episode_pictures(spec, 0, 1)
    write_video(video, [*own, *later[:3]], spec)
    finding = next(f for f in check_dataset(tmp_path / "data").findings if f.rule == "videos.count")
    assert "episode 1" in finding.message
    write_video(video, [*own, *own[:3]], spec)
    finding = next(f for f in check_dataset(tmp_path / "data").findings if f.rule == "videos.count")
    assert "episode 1" not in finding.message
