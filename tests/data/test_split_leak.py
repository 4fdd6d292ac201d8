"""Why episodes are held out whole: a split by frames leaks, which a nearest neighbour shows on recorded motion.

Whoever remembers the training frames and answers with the action of the nearest one looks excellent on held-out frames
of episodes that were trained on, since the frame before and the one behind are there; on new episodes it does not.
"""

import os
from collections.abc import Callable

import numpy as np
import pytest

from understudy import EpisodeDataset
from understudy.data.select import split_episodes

DATA = os.environ.get("UNDERSTUDY_TEST_DATA")
Motion = tuple[np.ndarray, np.ndarray, np.ndarray]
"""Episode int64 (N,), state and action float64 (N, D)."""


def made_up() -> Motion:
    """Twelve reaches to places of their own, each with a speed of its own."""
    draw = np.random.default_rng(0)
    parts = []
    for episode in range(12):
        goal, bend = draw.normal(size=(2, 4))
        time = np.linspace(0, 1, 80)[:, None]
        parts.append((np.full(80, episode), goal * time**2 + bend * np.sin(np.pi * time)))
    state = np.concatenate([part for _, part in parts])
    episode = np.concatenate([number for number, _ in parts])
    return episode, state, np.roll(state, -1, axis=0)


def recorded() -> Motion:
    if DATA is None:
        pytest.skip("UNDERSTUDY_TEST_DATA names no folder of real datasets")
    data = EpisodeDataset(f"{DATA}/g1_v30", keys=["observation.state", "action"])
    batch = data.batch(*data.locate(range(len(data))))
    return (
        batch["episode_index"].numpy(),
        batch["observation.state"].double().numpy(),
        batch["action"].double().numpy(),
    )


def nearest(motion: Motion, held: np.ndarray) -> tuple[float, float]:
    """Over held-out frames (bool (N,)), the median distance of the state to the nearest one trained on, and of the
    action to that one's."""
    _, state, action = motion
    known, asked = np.flatnonzero(~held), np.flatnonzero(held)
    squares = (state[asked] ** 2).sum(1)[:, None] + (state[known] ** 2).sum(1) - 2 * state[asked] @ state[known].T
    near = known[squares.argmin(1)]
    return tuple(float(np.median(np.linalg.norm(v[asked] - v[near], axis=1))) for v in (state, action))  # type: ignore[return-value]


@pytest.mark.parametrize("source", [made_up, recorded])
def test_a_split_by_frames_leaks_and_one_by_episodes_does_not(source: Callable[[], Motion]) -> None:
    motion = source()
    episode = motion[0]
    _, ids = split_episodes(episode, 0.25)
    by_episode = np.isin(episode, ids)
    by_frame = np.random.default_rng(0).permutation(by_episode)  # as many frames
    assert not set(episode[by_episode]) & set(episode[~by_episode])
    assert set(episode[by_frame]) == set(episode[~by_frame])  # every episode is on both sides
    (near, wrong), (leaked, too_good) = nearest(motion, by_episode), nearest(motion, by_frame)
    assert leaked < near / 4
    assert too_good < wrong / 2
