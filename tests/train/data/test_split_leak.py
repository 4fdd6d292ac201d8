"""Validation takes whole episodes: a split by frames leaks, which a nearest neighbour shows on recorded motion.

A model that remembers the training frames, and answers with the action of the nearest one, looks excellent on
validation frames of trained episodes, since the frames before and behind are there. On new episodes it does not. The
tested split is the one that a run makes.
"""

from dataclasses import dataclass
from itertools import pairwise
from pathlib import Path

import numpy as np
import pytest

from understudy.config.train import DataConfig, TrainConfig
from understudy.data.selection.select import split_episodes
from understudy.data.write.writer import EpisodeWriter
from understudy.train.data.run_data import open_data

KEYS = ("observation.state", "action")


@dataclass(frozen=True)
class Frames:
    """Of some frames: episode int64 (N,), state and action float64 (N, D)."""

    episode: np.ndarray
    state: np.ndarray
    action: np.ndarray

    def part(self, chosen: np.ndarray) -> "Frames":
        return Frames(self.episode[chosen], self.state[chosen], self.action[chosen])


def made_up(tmp_path: Path) -> Path:
    """Twelve reaches to places of their own, each with a speed of its own."""
    draw, root = np.random.default_rng(0), tmp_path / "reaches"
    with EpisodeWriter(root, fps=10, features={key: {"dtype": "float32", "shape": (4,)} for key in KEYS}) as writer:
        for _ in range(12):
            goal, bend = draw.normal(size=(2, 4))
            time = np.linspace(0, 1, 81)[:, None]
            state = (goal * time**2 + bend * np.sin(np.pi * time)).astype(np.float32)
            for now, following in pairwise(state):
                writer.add_frame({KEYS[0]: now, KEYS[1]: following}, task="reach")
            writer.save_episode()
    return root


@pytest.fixture(params=["made up", "recorded"])
def dataset(request: pytest.FixtureRequest, tmp_path: Path) -> Path:
    if request.param == "made up":
        return made_up(tmp_path)
    root: Path = request.getfixturevalue("real_data")
    return root / "g1_v30"


def split(dataset: Path) -> tuple[Frames, Frames]:
    """Training and validation frames of a run."""
    config = TrainConfig(data=DataConfig(root=str(dataset), chunk_size=1, val_fraction=0.25))
    data = open_data(config)
    parts = []
    for part in (data.training[0], data.validation[0]):
        assert part is not None
        batch = part.row_batch(*part.locate(range(len(part))))
        state, action = (batch[key].double().numpy().reshape(len(part), -1) for key in KEYS)
        parts.append(Frames(batch["episode_index"].numpy(), state, action))
    return parts[0], parts[1]


def nearest(known: Frames, asked: Frames) -> tuple[float, float]:
    """Over frames `asked`, the median distance of the state to the nearest one known, and of the action to that
    one's."""
    squares = (asked.state**2).sum(1)[:, None] + (known.state**2).sum(1) - 2 * asked.state @ known.state.T
    near = known.part(squares.argmin(1))
    away, off = (np.linalg.norm(a - b, axis=1) for a, b in ((asked.state, near.state), (asked.action, near.action)))
    return float(np.median(away)), float(np.median(off))


def test_a_split_by_frames_leaks_and_one_by_episodes_does_not(dataset: Path) -> None:
    trained, held = split(dataset)
    whole = Frames(*(np.concatenate(pair) for pair in zip(vars(trained).values(), vars(held).values())))
    by_frame = np.random.default_rng(0).permutation(len(whole.episode)) < len(held.episode)  # as many frames
    (near, wrong), (leaked, too_good) = nearest(trained, held), nearest(whole.part(~by_frame), whole.part(by_frame))
    assert leaked < near / 4
    assert too_good < wrong / 2


def test_every_episode_is_on_one_side(dataset: Path) -> None:
    trained, held = split(dataset)
    ids = set(trained.episode) | set(held.episode)
    assert not set(trained.episode) & set(held.episode)
    assert len(ids) == 12 if dataset.name == "reaches" else len(ids) > 1
    assert set(split_episodes(np.array(sorted(ids)), 0.25)[0]) == set(trained.episode)


def test_a_split_loses_and_doubles_no_episode() -> None:

    ids = np.array([3, 3, 17, 5, 40, 40, 2])
    for fraction in (0.0, 0.01, 0.5, 0.99):
        trained, held = split_episodes(ids, fraction)
        assert sorted([*trained, *held]) == [2, 3, 5, 17, 40]
