"""Recordings of rerun: refused early without the package, written in one step with it."""

import importlib.util
import subprocess
import sys
from pathlib import Path

import pytest

from understudy_base import ConfigError, DatasetError
from understudy_base.testing.refusals import refused
from understudy_data.datasets.format.catalog import Catalog
from understudy_data.testing.datasets import Spec, write_dataset
from understudy_kit.cli import main
from understudy_tools.report.view.rerun_log import check_recording, write_recording

INSTALLED = importlib.util.find_spec("rerun") is not None


def test_recording_is_a_new_file(tmp_path: Path) -> None:
    (tmp_path / "old.rrd").write_bytes(b"mine")
    for name in ("old.rrd", "new.txt", "none/new.rrd"):
        with refused(kind=ConfigError):
            check_recording(tmp_path / name)
    check_recording(tmp_path / "new.rrd")


@pytest.mark.skipif(INSTALLED, reason="rerun is installed")
def test_view_names_the_extra(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    words = ["view", str(tmp_path), "--rerun", str(tmp_path / "new.rrd"), "--episodes", "0"]
    assert main.main(words) == main.WRONG_INPUT
    assert "pip install 'understudy-tools[rerun]'" in capsys.readouterr().err


@pytest.mark.skipif(not INSTALLED, reason="rerun is not installed")
def test_recording_has_all_frames_and_columns(tmp_path: Path) -> None:
    write_dataset(tmp_path / "set", Spec(version="v2.1", lengths=(3, 40), rich=True))
    catalog = Catalog.open(tmp_path / "set")
    path = tmp_path / "new.rrd"
    write_recording(catalog, [1], path)
    done = subprocess.run(
        [sys.executable, "-m", "rerun", "rrd", "print", "-v", str(path)],
        capture_output=True,
        text=True,
    )
    assert done.returncode == 0, done.stderr
    for key in ("observation.images.top", "observation.state", "action", "note", "task"):
        assert (
            f"/episode_1/{key}".replace(".", "\\.") in done.stdout
            or f"/episode_1/{key}" in done.stdout
        ), key
    assert "episode_0" not in done.stdout
    [video] = (tmp_path / "set").rglob("episode_000000.mp4")
    video.write_bytes(b"no video")
    with pytest.raises(DatasetError):
        write_recording(catalog, [0], tmp_path / "broken.rrd")
    assert sorted(path.name for path in tmp_path.iterdir()) == ["new.rrd", "set"]
