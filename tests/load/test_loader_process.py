"""The loader as a process: memory as planned, and an end within a second whatever is under way."""

import itertools
import json
import os
import signal
import subprocess
import sys
import time
from pathlib import Path

import pytest

from support.videos import moving_pictures
from understudy.data.write import EpisodeWriter

SCRIPT = Path(__file__).parents[1] / "support" / "loader_process.py"
FEATURES = {
    "observation.images.top": {"dtype": "video", "shape": (480, 640, 3)},
    "observation.state": {"dtype": "float32", "shape": (2,), "names": ["x", "y"]},
}


def record(root: Path, gop: int, episodes: int, length: int) -> Path:
    """Episodes of 640x480 pictures."""
    pictures = itertools.cycle(moving_pictures(8, 480, 640))
    with EpisodeWriter(root, fps=10, features=FEATURES, codec="libx264", gop=gop, crf=40) as writer:
        for _ in range(episodes):
            for frame in range(length):
                values = {"observation.images.top": next(pictures), "observation.state": [frame, 1]}
                writer.add_frame(values, task="move")
            writer.save_episode()
    return root


@pytest.fixture(scope="module")
def short_groups(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return record(tmp_path_factory.mktemp("process") / "gop2", 2, 4, 180)


@pytest.fixture(scope="module")
def one_group(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return record(tmp_path_factory.mktemp("process") / "gop250", 250, 1, 240)


def run(*words: str | int | Path) -> subprocess.Popen[str]:
    environment = {**os.environ, "OMP_NUM_THREADS": "1"}
    command = [sys.executable, str(SCRIPT), *map(str, words)]
    return subprocess.Popen(command, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True, env=environment)


@pytest.mark.parametrize(
    ("megabytes", "lanes", "way"),
    [(290, 16, "16 lanes, runs of 16 pictures"), (130, 16, "16 lanes, runs of 8 pictures"), (1500, 16, "all of them")],
)
def test_memory_is_as_planned(short_groups: Path, megabytes: int, lanes: int, way: str) -> None:
    told, errors = run("measure", short_groups, megabytes * 10**6, lanes, 45, 100).communicate(timeout=300)
    assert told, errors
    found = json.loads(told)
    assert way in found["plan"]
    assert found["planned"] <= megabytes * 10**6
    assert 0.9 <= found["grown"] / found["planned"] <= 1.1, found


def test_an_interrupt_ends_what_is_under_way(one_group: Path) -> None:
    """While the groups of sixteen lanes are decoded, which takes seconds: the first batch is not waited for."""
    process = run("forever", one_group, 200 * 10**6)
    assert process.stdout is not None
    assert process.stdout.readline() == "begun\n"
    time.sleep(0.2)
    process.send_signal(signal.SIGINT)
    told, errors = process.communicate(timeout=60)
    assert "KeyboardInterrupt" in errors
    assert process.returncode == -signal.SIGINT
    assert told.splitlines() == ["threads 1"], "a batch was made after the interrupt, or a thread is left"
