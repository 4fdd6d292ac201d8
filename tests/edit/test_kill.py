"""Kills and interrupts of an edit: nothing or the whole output; the short form of `benchmarks/soak_edit.py`."""

import json
import os
import signal
import subprocess
import sys
import time
from pathlib import Path

import numpy as np
import pytest

from support.datasets import Spec, write_dataset
from support.edited import edit
from understudy.atomic import create_folder
from understudy.video.encode import VideoEncoder

SCRIPT = Path(__file__).parents[2] / "benchmarks/soak_edit.py"


@pytest.mark.slow
def test_kill_leaves_nothing_or_the_whole_output() -> None:
    done = subprocess.run([sys.executable, SCRIPT, "--kills", "4", "--json"], capture_output=True, text=True)
    assert done.returncode == 0, done.stderr
    counts = json.loads(done.stdout)
    assert counts["kills"] == 4
    assert counts["nothing"] + counts["whole"] == 4
    assert counts["wrong"] == counts["folders_left_at_the_end"] == 0


def test_create_folder_shows_nothing_before_the_end_and_keeps_another(tmp_path: Path) -> None:
    out = tmp_path / "deep" / "out"
    with create_folder(out) as draft:
        (draft / "file").write_text("content")
        assert not out.exists()
    assert (out / "file").read_text() == "content"
    with pytest.raises(FileExistsError), create_folder(out):
        raise AssertionError("the block must not run")
    late = tmp_path / "late"

    def meet_another() -> None:
        with create_folder(late) as draft:
            (draft / "file").write_text("ours")
            late.mkdir()
            (late / "file").write_text("theirs")

    with pytest.raises(FileExistsError):
        meet_another()
    assert (late / "file").read_text() == "theirs"
    with pytest.raises(ValueError), create_folder(tmp_path / "failed"):
        raise ValueError
    assert sorted(path.name for path in tmp_path.iterdir()) == ["deep", "late"]


def test_edit_interrupt_ends_the_encoding_of_an_episode(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    added = []

    class Slow(VideoEncoder):
        def add(self, image: np.ndarray) -> None:
            added.append(1)
            if len(added) == 20:
                os.kill(os.getpid(), signal.SIGINT)
            time.sleep(0.01)
            super().add(image)

    monkeypatch.setattr("understudy.edit.videos.VideoEncoder", Slow)
    write_dataset(tmp_path / "source", Spec("v3.0", lengths=(250,)))
    with pytest.raises(KeyboardInterrupt):
        edit(tmp_path / "source", tmp_path / "out", gop=4)
    assert len(added) < 125
    assert [path.name for path in tmp_path.iterdir()] == ["source"]
