"""Datasets that understudy writes, for the doctors and readers of others: recorded and edited."""

import json
from pathlib import Path

import numpy as np
import pytest

from shared import explain
from understudy_data.datasets.format.catalog import Catalog
from understudy_data.datasets.write.writer import EpisodeWriter
from understudy_kit import main

EPISODES = 12
FRAMES = 220
SIDE = 64
CAMERA = "observation.images.front"
NAMES = (
    "demonstrated",
    "recorded",
    "edited",
    "merged",
    "split/train",
    "split/val",
    "transcoded",
    "segmented",
)
FEATURES = {
    "observation.state": {"dtype": "float32", "shape": (4,), "names": ["x", "y", "z", "gripper"]},
    "action": {"dtype": "float32", "shape": (4,), "names": ["x", "y", "z", "gripper"]},
    CAMERA: {"dtype": "video", "shape": (SIDE, SIDE, 3), "names": ["height", "width", "channels"]},
}


def run(*words: str) -> None:
    assert main(list(words)) in (0, None), words


def record_arm(root: Path) -> None:
    """Record an arm that never rests, in episodes as long as the doctors ask for."""
    rng = np.random.default_rng(0)
    with EpisodeWriter(
        root, fps=30, features=FEATURES, robot_type="arm", codec="libx264"
    ) as writer:
        for episode in range(EPISODES):
            speeds = rng.uniform(0.5, 1.5, 4)
            phases = rng.uniform(0, 6, 4)
            for frame in range(FRAMES + 5 * episode):
                state, goal = (
                    np.sin(speeds * (frame + ahead) / 15 + phases).astype(np.float32)
                    for ahead in (0, 2)
                )
                image = rng.integers(0, 40, (SIDE, SIDE, 3), np.uint8)
                x, y = ((state[:2] + 1) / 2 * (SIDE - 9)).astype(int)
                image[y : y + 8, x : x + 8] = 200
                writer.add_frame(
                    {"observation.state": state, "action": goal, CAMERA: image}, task="draw a curve"
                )
            writer.save_episode()


def write_outputs(folder: Path) -> None:
    """Write all of NAMES into a folder."""
    run(
        "record",
        "--output-dir",
        str(folder / "demonstrated"),
        "--episodes",
        "12",
        "--codec",
        "libx264",
    )
    record_arm(folder / "recorded")
    recorded = str(folder / "recorded")
    selected = ["--exclude-episodes", "1", "5", "--drop-n-first-frames", "1"]
    run("edit", recorded, str(folder / "edited"), *selected)
    run("segment", recorded, str(folder / "segmented"), *halves(folder))
    run("edit", str(folder / "edited"), str(folder / "segmented"), str(folder / "merged"))
    run("edit", recorded, str(folder / "split"), "--split", "train=0.75", "val=0.25")
    run(
        "edit",
        recorded,
        str(folder / "transcoded"),
        "--size",
        "96",
        "--codec",
        "libx265",
        "--gop",
        "8",
    )


def halves(folder: Path) -> list[str]:
    """Options of `understudy segment` that cut each episode into two."""
    lengths = Catalog.open(folder / "recorded").episodes.lengths.tolist()
    times = {
        str(episode): [[0, length // 2], [length // 2, length]]
        for episode, length in enumerate(lengths)
    }
    (folder / "times.json").write_text(json.dumps(times))
    return ["--times", str(folder / "times.json"), "--unit", "frames"]


@pytest.fixture(scope="session")
def outputs() -> Path:
    folder = Path("outputs").resolve()
    if not folder.exists():
        folder.mkdir()
        write_outputs(folder)
    return folder


def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    explain(items, FAILURES)


SCRIPTED = (
    "a scripted expert: its gripper is open or closed, it waits for it, and its episodes "
    "are shorter than a chunk"
)
FAILURES = {
    f"test_lerobot_doctor_finds_nothing[demonstrated-{check}]": SCRIPTED
    for check in ("actions", "anomalies", "episodes", "per_episode", "training")
} | {
    f"test_gate_of_lerobot_doctor_opens[demonstrated-{p}]": SCRIPTED
    for p in ("act", "diffusion", "pi0", "smolvla")
}
