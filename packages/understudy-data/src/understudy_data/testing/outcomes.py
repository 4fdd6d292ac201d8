"""Datasets of episodes with outcomes, whose state shows them."""

from collections.abc import Sequence
from pathlib import Path

import numpy as np

from understudy_data.datasets.write.writer import EpisodeWriter
from understudy_data.testing.datasets import rate_episodes

FPS = 10


def write_outcomes(
    root: Path,
    lengths: Sequence[int],
    success: Sequence[bool | None],
    truncated: Sequence[bool] = (),
    shown: float = 1,
) -> None:
    """Write episodes without cameras. The state is [outcome, frames left / 10], with noise of 0.1.

    Args:
        root: the folder.
        lengths: frames of each episode.
        success: outcome of each; None is missing, and of all episodes no such metadata. The state
            is 1 for true, otherwise -1, times `shown`.
        truncated: whether each was cut; empty: no such metadata.
        shown: see `success`.
    """
    vector = {"dtype": "float32", "shape": (2,), "names": ["x", "y"]}
    features = {"action": vector, "observation.state": vector}
    features |= {"reward": {"dtype": "float32", "shape": (1,), "names": ["reward"]}}
    features |= {"helped": {"dtype": "int64", "shape": (1,), "names": ["helped"]}}
    rng = np.random.default_rng(0)
    with EpisodeWriter(root, fps=FPS, features=features) as writer:
        for episode, (length, won) in enumerate(zip(lengths, success)):
            for frame in range(length):
                outcome = shown if won else -shown
                state = np.array([outcome, (length - 1 - frame) / 10])
                state = state + 0.1 * rng.normal(size=2)
                values = {
                    "action": rng.normal(size=2).astype(np.float32),
                    "observation.state": state.astype(np.float32),
                }
                values |= {"reward": np.array([rng.integers(-2, 3)], np.float32)}
                values |= {"helped": np.array([int(frame == 1)])}
                writer.add_frame(values, task=f"task {episode % 2}")
            writer.save_episode()
    metadata = {}
    if any(won is not None for won in success):
        metadata["success"] = list(success)
    if truncated:
        metadata["truncated"] = list(truncated)
    rate_episodes(root, **metadata)
