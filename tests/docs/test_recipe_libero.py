"""recipes/libero/README.md, word for word: its commands run in sequence on a small dataset with
LIBERO's schema.

The rollouts play an environment with LIBERO's keys;
`packages/understudy-robot/tests/envs/test_libero.py` tests the simulator.
"""

import json
import re
from pathlib import Path
from typing import Any, ClassVar

import numpy as np
import pytest

from understudy import EpisodeWriter
from understudy.config.rollout import RolloutConfig
from understudy.testing.docs import ROOT, code, expand, settings_of
from understudy_kit.cli import main
from understudy_robot.envs import registry
from understudy_robot.envs.env import Outcome, image_feature, vector_feature

PAGE = (ROOT / "recipes/libero/README.md").read_text()
FEATURES = {
    "observation.images.image": image_feature(32),
    "observation.images.image2": image_feature(32),
    "observation.state": vector_feature([f"state_{index}" for index in range(8)]),
    "action": vector_feature([f"action_{index}" for index in range(7)]),
}


class Twin:
    """An environment with LIBERO's keys: nothing moves, and no task is completed."""

    name = "twin"
    fps = 20
    max_steps = 6
    episodes = 2
    one_scene = False
    noise = 0.0
    tasks = ("open the drawer",)
    conditions: ClassVar[dict[str, str]] = {}
    features = FEATURES

    def __init__(self, name: str) -> None:
        self.name = name

    def reset(self, seed: int, task: str) -> dict[str, np.ndarray]:
        self.steps = 0
        return observation(seed % 50)

    def step(self, action: np.ndarray) -> tuple[dict[str, np.ndarray], Outcome]:
        assert action.shape == (7,)
        self.steps += 1
        return observation(self.steps), Outcome(None, self.steps == self.max_steps)


def observation(frame: int) -> dict[str, np.ndarray]:
    image = np.full((32, 32, 3), 3 * frame, np.uint8)
    state = np.linspace(0, 1, 8, dtype=np.float32) * np.float32(np.sin(frame))
    return {
        "observation.images.image": image,
        "observation.images.image2": 255 - image,
        "observation.state": state,
    }


def write_twin(root: Path) -> None:
    with EpisodeWriter(
        root, fps=10, features=FEATURES, robot_type="panda", codec="libx264"
    ) as writer:
        for episode in range(4):
            for frame in range(20):
                action = np.full(7, np.cos(frame + episode), np.float32)
                writer.add_frame(
                    {**observation(frame), "action": action}, task=f"open drawer {episode}"
                )
            writer.save_episode()


def commands(variables: dict[str, str]) -> list[list[str]]:
    return expand("".join(code(PAGE, "sh")), variables)


def test_recipe_trains_the_published_settings_and_plays_the_published_protocol() -> None:
    words = commands({})
    config = settings_of(next(words for words in words if words[0] == "torchrun"))
    assert (config.steps, config.batch_size, config.data.chunk_size, config.optim.lr) == (
        30_000,
        256,
        10,
        5e-5,
    )
    assert config.schedule.warmup_steps == 10_000
    plays = [main.read_settings("rollout", line[2:]) for line in words if line[1] == "rollout"]
    assert all(
        isinstance(play, RolloutConfig) and play.action_steps == 5 and play.episodes is None
        for play in plays
    )
    assert [play.env for play in plays] == [
        "libero_spatial",
        "libero_object",
        "libero_goal",
        "libero_10",
    ]
    assert {play.env for play in plays} <= set(registry.ENVS)


@pytest.mark.long
def test_recipe_runs_word_for_word(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    pytest.importorskip("sentencepiece", reason="the extra `pi05` is not installed")
    write_twin(tmp_path / "libero")
    run = tmp_path / "runs/libero"
    rehearsal = dict(re.findall(r"(\w+)=(\w+|\"[^\"]*\")", re.findall(r"laptop: `(.*)`", PAGE)[0]))
    variables = {
        name: value.strip('"').replace("runs/libero", str(run)) for name, value in rehearsal.items()
    }
    monkeypatch.chdir(ROOT)
    opened: list[str] = []

    def open_twin(name: str, *arguments: Any) -> Twin:
        opened.append(name)
        return Twin(name)

    monkeypatch.setattr(registry, "open_env", open_twin)
    for words in commands(variables | {"DATASET": str(tmp_path / "libero"), "RUN": str(run)}):
        # one process: torchrun differs in nothing else
        start = words.index("train") if words[0] == "torchrun" else 1
        assert main.main(words[start:]) == 0, words
    results = [
        json.loads(path.read_text()) for path in sorted((run / "rollouts").glob("libero_*.json"))
    ]
    assert [result["world"] for result in results] == [
        "libero_10",
        "libero_goal",
        "libero_object",
        "libero_spatial",
    ]
    assert all(result["protocol"]["action steps"] == "5" for result in results)
    assert (run / "report.html").is_file()
    assert len(opened) == 8, "two environments a suite"
