"""The environment protocol: what recording and rollouts need of a simulation, so that both are one code path.

An environment speaks the language of datasets: observations under the keys they are recorded with, tasks as sentences.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any, Protocol

import numpy as np


@dataclass(frozen=True)
class Outcome:
    """Where an episode stands after a step."""

    taken: str | None
    """The task that has been done, whichever was asked for; None while none is. Ends the episode."""
    over: bool
    """Whether the episode is over: a task was done, or the steps are used up."""


class World(Protocol):
    """One simulated scene, reset again and again. Everything is a function of layout seed, task and actions."""

    name: str
    fps: int
    """Steps per second of simulated time."""
    max_steps: int
    tasks: tuple[str, ...]
    """The instructions, as sentences."""
    one_scene: bool
    """Whether a layout seed gives the same scene for every task, so that exchanging the instruction makes sense."""
    noise: float
    """Standard deviation of the noise that suits this world's expert (actions are in [-1, 1])."""
    features: dict[str, dict[str, Any]]
    """Features of a recorded dataset, `action` included: dtype, shape, names as in LeRobot's `info.json`."""

    def reset(self, seed: int, task: str) -> dict[str, np.ndarray]:
        """Start the episode of a layout seed (see `layout_seed`); returns the observations by feature key, pictures
        uint8 (H, W, 3). Raises ValueError when `task` is not among `tasks`."""
        ...

    def step(self, action: np.ndarray) -> tuple[dict[str, np.ndarray], Outcome]:
        """Execute `action`, clipped to [-1, 1]."""
        ...

    def expert(self) -> np.ndarray:
        """What the scripted expert does now, float32, in [-1, 1]. Call once per step."""
        ...


def layout_seed(seed: int, episode: int, *, attempt: int = 0, evaluation: bool = False) -> int:
    """The seed of one scene, in [0, 2**63): its own for every (seed, episode, attempt), and for training or evaluation.

    The arguments stand side by side in its bits, evaluation in the highest, so nothing that is rolled out has ever been
    recorded, whatever the two seeds: disjoint by construction, not by chance.
    """
    for name, value, bits in (("seed", seed, 32), ("episode", episode, 24), ("attempt", attempt, 6)):
        if not 0 <= value < 1 << bits:
            raise ValueError(f"{name}={value}: must be in [0, 2**{bits})")
    return int(evaluation) << 62 | seed << 30 | episode << 6 | attempt


def chosen(kind: str, wanted: Sequence[str], known: dict[str, str]) -> dict[str, str]:
    """The entries of `known` (short name -> sentence) that `wanted` names by either, in the order of `wanted`."""
    if not wanted:
        return dict(known)
    by_sentence = {sentence: short for short, sentence in known.items()}
    picked = {}
    for name in wanted:
        short = by_sentence.get(name, name)
        if short not in known:
            raise ValueError(f"no {kind} {name!r}; there are {', '.join(known)}")
        picked[short] = known[short]
    return picked


def picture_feature(size: int) -> dict[str, Any]:
    """The feature of a square RGB camera."""
    return {"dtype": "video", "shape": (size, size, 3), "names": ["height", "width", "channels"]}


def vector_feature(names: Sequence[str]) -> dict[str, Any]:
    """The feature of a float32 vector."""
    return {"dtype": "float32", "shape": (len(names),), "names": list(names)}
