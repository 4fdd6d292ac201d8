"""Datasets of which something is missing: an error before the first step, or left out by name and
for good.
"""

import json
import os
import re
import shutil
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import Any

import pyarrow.parquet as pq
import pytest

from understudy.config.data import DataConfig
from understudy.config.train import TrainConfig
from understudy.testing.ranks import in_ranks
from understudy.testing.runs import final_tensors, series, tiny_config
from understudy.train.checkpoint.run_dir import RunDir
from understudy.train.data.run_data import RunData, open_data
from understudy.train.run import evaluate_checkpoint, resume, train
from understudy_base import DatasetError
from understudy_base.testing.refusals import refused
from understudy_data.datasets.format.catalog import Catalog
from understudy_data.testing.datasets import Spec, edit_json, write_dataset
from understudy_kit import SourceConfig

TOP = "observation.images.top"
WRIST = "observation.images.wrist"
LENGTHS = (9, 7, 11, 8, 6, 10, 9, 7, 8, 12)
Make = Callable[..., Path]


@pytest.fixture(scope="module")
def written(tmp_path_factory: pytest.TempPathFactory) -> Path:
    root = tmp_path_factory.mktemp("incomplete")
    for version in ("v2.1", "v3.0"):
        spec = Spec(version=version, lengths=LENGTHS, cameras=(TOP, WRIST), gop=4, foreign=False)
        write_dataset(root / version, spec)
    return root


@pytest.fixture
def copy(written: Path, tmp_path: Path) -> Make:
    def make(version: str = "v2.1") -> Path:
        shutil.copytree(written / version, tmp_path / version)
        return tmp_path / version

    return make


def lose(root: Path, camera: str, *episodes: int) -> None:
    """Videos of episodes of a v2.1 dataset, put aside."""
    for episode in episodes:
        [video] = (root / "videos").glob(f"*/{camera}/episode_{episode:06d}.mp4")
        video.rename(root / f"{camera}-{episode}.mp4")


def opened(root: Path, **settings: Any) -> RunData:
    config = tiny_config(root, root)
    return open_data(replace(config, data=replace(config.data, **settings)))


def pasted(message: str) -> dict[str, tuple[int, ...]]:
    """The settings that a message says to paste."""
    flags = re.findall(r"--data\.([a-z-]+)((?: \d+)+)", message)
    return {name.replace("-", "_"): tuple(map(int, ids.split())) for name, ids in flags}


def skipped_of(data: RunData) -> tuple[tuple[int, ...], ...]:
    return tuple(source.skipped for source in data.sources)


def used(data: RunData) -> set[int]:
    parts = (*data.training, *(part for part in data.validation if part is not None))
    return {int(episode) for part in parts for episode in part.segments[:, 0]}


@pytest.mark.parametrize("version", ["v2.1", "v3.0"])
def test_train_refuses_a_camera_without_files(copy: Make, tmp_path: Path, version: str) -> None:
    root = copy(version)
    (root / "videos").rename(root / "video")
    with refused(TOP, WRIST, "video/", where=str(root), fix="--data.cameras"):
        train(tiny_config(root, tmp_path / "run"))
    assert not (tmp_path / "run/config.yaml").exists()
    assert opened(root, cameras=("none",)).cameras == ()
    path = json.loads((root / "meta/info.json").read_text())["video_path"].replace(
        "videos/", "video/"
    )
    assert opened(root, video_path=path).cameras == (TOP, WRIST)


def test_train_accepts_a_camera_left_out_by_name(copy: Make) -> None:
    root = copy()
    lose(root, WRIST, *range(10))
    with refused(WRIST, where=str(root), fix=f"--data.cameras {TOP}"):
        opened(root)
    assert opened(root, cameras=(TOP,)).cameras == (TOP,)
    with pytest.raises(DatasetError, match=WRIST):
        opened(root, cameras=(WRIST,))
    several = DataConfig(chunk_size=3, sources=(SourceConfig(root=str(root), cameras={TOP: TOP}),))
    assert open_data(replace(tiny_config(root, root), data=several)).cameras == (TOP,)
    several = replace(several, sources=(SourceConfig(root=str(root)),))
    with pytest.raises(DatasetError, match=WRIST):
        open_data(replace(tiny_config(root, root), data=several))


@pytest.mark.parametrize("kind", ["videos", "data"])
def test_incomplete_episodes_are_listed_ready_to_paste(copy: Make, kind: str) -> None:
    root = copy()
    if kind == "videos":
        lose(root, TOP, 2, 5)
        lose(root, WRIST, 5, 7)
    else:
        for episode in (2, 5, 7):
            [file] = (root / "data").glob(f"*/episode_{episode:06d}.parquet")
            file.unlink()
    with refused(3, 10, "2 5 7", where=str(root)) as caught:
        opened(root)
    assert re.findall(r"\d+", caught.value.what)[:2] == ["3", "10"]  # incomplete, of all
    flags = pasted(str(caught.value))
    assert flags == {"exclude_episodes": (2, 5, 7)}
    assert used(opened(root, **flags)) == {0, 1, 3, 4, 6, 8, 9}
    with pytest.raises(DatasetError) as caught:
        opened(root, exclude_episodes=(0,))
    assert used(opened(root, **pasted(str(caught.value)))) == {1, 3, 4, 6, 8, 9}


def test_suggested_flags_fit_existing_lists(copy: Make) -> None:
    root = copy()
    lose(root, TOP, 2, 5)
    with pytest.raises(DatasetError) as caught:
        opened(root, episodes=(0, 1, 2, 3, 5), val_episodes=(1, 2))
    flags = pasted(str(caught.value))
    assert flags == {"episodes": (0, 1, 3), "val_episodes": (1,)}
    data = opened(root, **flags)
    assert used(data) == {0, 1, 3}
    data = opened(root, episodes=(0, 1, 2, 3, 5), val_episodes=(1, 2), on_bad_episode="skip")
    assert (used(data), skipped_of(data)) == ({0, 1, 3}, ((2, 5),))


def test_incomplete_checks_only_used_cameras(copy: Make) -> None:
    root = copy()
    lose(root, WRIST, 2)
    assert skipped_of(opened(root, cameras=(TOP,))) == ((),)
    with pytest.raises(DatasetError):
        opened(root, cameras=(WRIST,))


def test_incomplete_packed_file_affects_all_its_episodes(copy: Make) -> None:
    """Files of the same name lie in other chunks: they hold other episodes."""
    root = copy("v3.0")
    sorted((root / "videos" / TOP).rglob("*.mp4"))[1].unlink()
    with pytest.raises(DatasetError) as caught:
        opened(root)
    assert pasted(str(caught.value)) == {"exclude_episodes": (2, 3)}


def test_on_bad_episode_per_source(copy: Make) -> None:
    root = copy()
    lose(root, TOP, 2)
    config = tiny_config(root, root)
    skips = SourceConfig(root=str(root), name="a", on_bad_episode="skip", episodes=(0, 1, 2, 3))
    errs = SourceConfig(root=str(root), name="b", episodes=(2, 4, 5), val_fraction=0)

    def of(*sources: SourceConfig, **more: Any) -> TrainConfig:
        return replace(config, data=DataConfig(chunk_size=3, sources=sources, **more))

    with refused("b", "episodes: [4, 5]", fix=None):
        open_data(of(skips, errs))
    assert skipped_of(open_data(of(skips, replace(errs, episodes=(4, 5))))) == ((2,), ())
    everywhere = of(replace(skips, on_bad_episode=None), errs, on_bad_episode="skip")
    assert skipped_of(open_data(everywhere)) == ((2,), (2,))


def test_skip_refuses_a_dataset_without_complete_episodes(copy: Make) -> None:
    root = copy()
    lose(root, TOP, 2, 5)
    with refused(2, where=str(root)):
        opened(root, episodes=(2, 5), on_bad_episode="skip")


def test_skip_leaves_out_broken_episodes(copy: Make) -> None:
    """A truncated video, rows that are no parquet, and one row less than listed: of v2.1 one
    episode each.
    """
    root = copy()
    [video] = (root / "videos").glob(f"*/{TOP}/episode_000002.mp4")
    video.write_bytes(video.read_bytes()[:500])
    [rows] = (root / "data").glob("*/episode_000005.parquet")
    rows.write_bytes(b"not parquet")
    [rows] = (root / "data").glob("*/episode_000007.parquet")
    pq.write_table(pq.read_table(rows).slice(1), rows)
    lose(root, WRIST, 8)
    data = opened(root, on_bad_episode="skip")
    assert (used(data), skipped_of(data)) == ({0, 1, 3, 4, 6, 9}, ((2, 5, 7, 8),))
    [note] = data.sources[0].notes
    assert "4 episodes" in note
    assert note.endswith("skipped 2 5 7 8")
    again = open_data(
        replace(
            tiny_config(root, root),
            data=replace(DataConfig(root=str(root)), on_bad_episode="skip", chunk_size=3),
        ),
        [{"skipped": [2, 5, 7, 8]}],
        True,
    )
    assert skipped_of(again) == skipped_of(data)
    assert again.sources[0].notes == ()


def test_skip_leaves_out_the_episodes_of_a_broken_packed_video(copy: Make) -> None:
    root = copy("v3.0")
    video = sorted((root / "videos" / TOP).rglob("*.mp4"))[1]
    video.write_bytes(video.read_bytes()[:700])
    assert skipped_of(opened(root)) == ((),)  # `error` opens no file before the first step
    assert skipped_of(opened(root, on_bad_episode="skip")) == ((2, 3),)


def test_skipped_episodes_are_recorded_with_the_run(
    copy: Make, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    """The run that skips trains as the one that excludes, continues without restored episodes, and
    not without more.
    """
    root = copy()
    lose(root, TOP, 2, 5)
    config = tiny_config(root, tmp_path / "run", steps=4, val={"every": 0})
    config = replace(config, data=replace(config.data, on_bad_episode="skip"))
    plain = replace(
        config,
        output_dir=str(tmp_path / "plain"),
        data=replace(config.data, exclude_episodes=(2, 5)),
    )
    assert train(config) == 0
    said = capsys.readouterr().err
    assert "2 episodes are incomplete or broken of 10" in said
    assert "skipped 2 5" in said
    assert train(plain) == 0
    assert series(tmp_path / "run") == series(tmp_path / "plain")
    [source] = RunDir(tmp_path / "run").read_record()["sources"]
    assert source["skipped"] == [2, 5]
    for episode in (2, 5):
        (root / f"{TOP}-{episode}.mp4").rename(
            root / f"videos/chunk-{episode // 2:03d}/{TOP}/episode_{episode:06d}.mp4"
        )
    assert (
        evaluate_checkpoint(tmp_path / "run")["samples"]
        == evaluate_checkpoint(tmp_path / "plain")["samples"]
    )
    assert resume(replace(config, steps=8)) == 0
    assert "2 5" in capsys.readouterr().err
    lose(root, TOP, 2)  # is left out anyway
    assert resume(replace(plain, steps=8)) == 0
    assert series(tmp_path / "run") == series(tmp_path / "plain")
    assert final_tensors(tmp_path / "run").keys() == final_tensors(tmp_path / "plain").keys()
    lose(root, WRIST, 3)
    with refused(1, 3, where=str(root)):
        resume(replace(config, steps=10))


def one_looks(root: Path, out: Path) -> list[int]:
    """Train, of two ranks; only rank 0 may look for files. Which episodes the run left out."""
    if os.environ["RANK"] != "0":
        Catalog.gaps = None  # type: ignore[method-assign,assignment]
    config = tiny_config(root, out, steps=2, val={"every": 0})
    assert train(replace(config, data=replace(config.data, on_bad_episode="skip"))) == 0
    [source] = RunDir(out).read_record()["sources"]
    return list(source["skipped"])


@pytest.mark.long
def test_only_rank_0_checks_files(copy: Make, tmp_path: Path) -> None:
    """A hundred thousand files are not listed by each of a thousand ranks, and all leave out the
    same episodes.
    """
    root = copy()
    lose(root, TOP, 2, 5)
    assert in_ranks(2, one_looks, root, tmp_path / "run", timeout=120) == [[2, 5], [2, 5]]


def test_train_refuses_git_lfs_pointers(copy: Make) -> None:
    root = copy()
    pointer = (
        b"version https://git-lfs.github.com/spec/v1\n"
        b"oid sha256:4d7a214614ab2935c943f9e0ff69d22e\n"
        b"size 12345\n"
    )
    videos = sorted((root / "videos").rglob(f"{TOP}/*.mp4"))
    videos[0].write_bytes(pointer)
    with refused(1, 10, where=str(root)) as caught:
        opened(root)
    assert pasted(str(caught.value)) == {"exclude_episodes": (0,)}
    for video in videos[1:]:
        video.write_bytes(pointer)
    with refused(10, where=str(root)):
        opened(root, on_bad_episode="skip")


def test_startup_summary_notes_odd_metadata(
    copy: Make, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    root = copy()
    edit_json(root / "meta/info.json", lambda info: info.update(total_frames=7, total_episodes=70))
    assert train(tiny_config(root, tmp_path / "run", steps=1, val={"every": 0})) == 0
    said = capsys.readouterr().err
    assert "total_frames is 7" in said
    assert "total_episodes is 70" in said


@pytest.mark.parametrize(
    ("settings", "meant"),
    [
        ({"action": "actions"}, "action"),
        ({"state": "observation.states"}, "observation.state"),
        ({"cameras": ("top",)}, TOP),
        ({"cameras": ("observation.image.wrist",)}, WRIST),
    ],
)
def test_unknown_camera_gets_a_suggestion(
    written: Path, settings: dict[str, Any], meant: str
) -> None:
    with refused(repr(meant), where=str(written / "v3.0")):
        opened(written / "v3.0", **settings)
