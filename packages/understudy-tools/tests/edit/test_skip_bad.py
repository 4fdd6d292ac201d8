"""`edit --skip-bad`: bad episodes are left out and named, and the output is that of an edit without
them.
"""

import json
import os
import sys
from pathlib import Path
from typing import Any

import pytest

from understudy_base.testing.refusals import refused
from understudy_data.parts import Workers
from understudy_data.testing.datasets import Spec, write_dataset
from understudy_kit.cli import main
from understudy_tools.edit import videos, write_set
from understudy_tools.testing.edited import content, edit
from understudy_tools.testing.part_work import DeadlyEncoding, DeadlyJoin, DeadlyRowFiles

TOP = "observation.images.top"
ENCODED: dict[str, Any] = {"codec": "libx264", "gop": 3}


@pytest.fixture(scope="module")
def sources(tmp_path_factory: pytest.TempPathFactory) -> dict[str, Path]:
    """A sound set, and the same one with faults in the episodes 1 to 4 of 6."""
    root = tmp_path_factory.mktemp("bad")
    for name in ("sound", "bad"):
        write_dataset(
            root / name, Spec("v2.1", lengths=(12, 9, 14, 7, 11, 8), cameras=(TOP,), gop=4)
        )
    files = {path.name: path for path in (root / "bad").rglob("episode_*")}
    cut = files["episode_000001.mp4"]
    damaged = files["episode_000004.mp4"]
    cut.write_bytes(cut.read_bytes()[:200])
    files["episode_000002.mp4"].unlink()
    files["episode_000003.parquet"].write_bytes(b"not parquet")
    content_of = bytearray(damaged.read_bytes())
    start = content_of.index(b"mdat") + 4
    content_of[start : start + 400] = bytes(400)
    damaged.write_bytes(content_of)
    return {name: root / name for name in ("sound", "bad")}


@pytest.fixture(autouse=True)
def small_parts(monkeypatch: pytest.MonkeyPatch) -> None:
    """Parts of two episodes and files of three, and `support` in the processes."""
    monkeypatch.setattr(videos, "PART_IMAGES", 20)
    monkeypatch.setattr(write_set, "DATA_MB", 0.004)
    monkeypatch.setenv("PYTHONPATH", os.pathsep.join(path for path in sys.path if path))


def without_origin(root: Path) -> dict[str, bytes]:
    return {name: data for name, data in content(root).items() if name != "origin"}


@pytest.mark.parametrize("settings", [{}, ENCODED], ids=["copied", "encoded"])
@pytest.mark.parametrize("kept", [False, True])
def test_output_is_that_of_an_edit_without_the_bad_episodes(
    sources: dict[str, Path], tmp_path: Path, settings: dict[str, Any], kept: bool
) -> None:
    with Workers(folder=tmp_path / "work" if kept else None) as workers:
        written = edit(
            sources["bad"], tmp_path / "out", workers=workers, skip_bad=True, **settings
        )[""]
    assert [bad["episode"] for bad in written.skipped] == [1, 2, 3, 4]
    edit(sources["bad"], tmp_path / "chosen", exclude_episodes=("1-4",), **settings)
    assert without_origin(tmp_path / "out") == without_origin(tmp_path / "chosen")
    origin = json.loads((tmp_path / "out/meta/edit.json").read_text())
    assert origin["skipped"] == written.skipped
    assert (
        origin["sources"] == json.loads((tmp_path / "chosen/meta/edit.json").read_text())["sources"]
    )
    assert [entry[1] for entry in origin["episodes"]] == [0, 5]


@pytest.mark.short("DeadlyRowFiles")
@pytest.mark.parametrize("deadly", [DeadlyEncoding, DeadlyRowFiles, DeadlyJoin])
def test_an_episode_that_ends_its_processes_is_left_out(
    sources: dict[str, Path], tmp_path: Path, monkeypatch: pytest.MonkeyPatch, deadly: type
) -> None:
    room = write_set if deadly is DeadlyRowFiles else videos
    monkeypatch.setattr(room, deadly.__base__.__name__, deadly)
    with Workers(1, apart=True, folder=tmp_path / "work") as workers:
        written = edit(
            sources["sound"], tmp_path / "out", workers=workers, skip_bad=True, **ENCODED
        )[""]
    assert [bad["episode"] for bad in written.skipped] == [3]
    edit(sources["sound"], tmp_path / "chosen", exclude_episodes=("3",), **ENCODED)
    assert without_origin(tmp_path / "out") == without_origin(tmp_path / "chosen")


def test_command_names_bad_episodes_and_exits_with_1(
    sources: dict[str, Path], tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    out = [str(sources["bad"]), str(tmp_path / "out")]
    with refused(where="bad", fix="--skip-bad"):
        edit(sources["bad"], tmp_path / "out")
    assert main.main(["edit", *out, "--skip-bad", "--json"]) == 1
    printed = json.loads(capsys.readouterr().out)
    assert [bad["episode"] for bad in printed["skipped"]] == [1, 2, 3, 4]
    assert printed["episodes"] == 2


@pytest.mark.parametrize("episodes", ["1-4", "2,3", "2"])
def test_an_output_of_bad_episodes_alone_is_refused_with_their_ids(
    sources: dict[str, Path], tmp_path: Path, episodes: str
) -> None:
    named = episodes.replace(",", ", ")
    with refused(named):
        edit(sources["bad"], tmp_path / "out", episodes=(episodes,), skip_bad=True)
    with refused("val", named):
        edit(
            sources["bad"], tmp_path / "out", split=("train=0,5", f"val={episodes}"), skip_bad=True
        )
    assert list(tmp_path.iterdir()) == []


@pytest.mark.parametrize("settings", [{}, ENCODED], ids=["copied", "encoded"])
def test_a_damaged_packet_is_named_with_its_file_and_episode(
    sources: dict[str, Path], tmp_path: Path, settings: dict[str, Any]
) -> None:
    with refused("frame", where="episode_000004.mp4 (episode 4)"):
        edit(sources["bad"], tmp_path / "out", episodes=("0", "4"), **settings)
