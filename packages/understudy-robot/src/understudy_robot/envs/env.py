"""The environment protocol, shared by recording and rollouts.

Observations have the keys of a recorded dataset, and tasks are sentences.
"""

from collections.abc import Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass
from importlib.metadata import PackageNotFoundError, version
from typing import Any, Protocol

import numpy as np

from understudy_base import Record

IMAGE = "observation.image"
"""Prefix of the keys of images: `observation.image`, `observation.images.<camera>`."""


class ActionError(ValueError):
    """An action that the environment refuses: the episode fails, and the evaluation continues."""


@dataclass(frozen=True)
class Outcome:
    """State of an episode after a step."""

    completed_task: str | None
    """The completed task, requested or not; None while there is none. Completing a task ends the
    episode.
    """
    done: bool
    """Whether the episode is over: a task is completed, or the step limit is reached."""


class Env(Protocol):
    """One simulated scene, reset for each episode; a function of layout seed, task and actions."""

    name: str
    fps: int
    """Steps per second of simulated time."""
    max_steps: int
    episodes: int
    """Episodes of a usual evaluation."""
    conditions: Mapping[str, str]
    """Conditions of success besides rate, steps and image sizes: rules, and versions of the
    simulator's packages.
    """
    tasks: tuple[str, ...]
    """The instructions, as sentences."""
    one_scene: bool
    """Whether all tasks of a layout seed share one scene. Only then does a swapped instruction make
    sense.
    """
    noise: float
    """Standard deviation of the noise that suits the scripted expert (actions are in [-1, 1])."""
    features: dict[str, dict[str, Any]]
    """Features of a recorded dataset, `action` included: dtype, shape, names as in LeRobot's
    `info.json`.
    """
    meanings: Mapping[str, Record]
    """Key -> facts for the contract: `units`, `roles`, `references`, `frame`, `gripper` of vectors,
    `role` and `orientation` of cameras (`contract/facts.py`). An environment may leave them out.
    """

    def reset(self, seed: int, task: str) -> dict[str, np.ndarray]:
        """Start the episode of a layout seed (see `layout_seed`).

        Returns:
            Observations by feature key; images are uint8 (H, W, 3).

        Raises:
            ValueError: `task` is not in `tasks`.
        """
        ...

    def step(self, action: np.ndarray) -> tuple[dict[str, np.ndarray], Outcome]:
        """Execute `action`, clipped to [-1, 1] where the environment has these bounds.

        Raises:
            ActionError: the environment refuses it.
        """
        ...

    def expert(self) -> np.ndarray:
        """Compute the scripted expert's action for the current state: float32. Call once per step.

        Raises:
            ValueError: there is no scripted expert.
        """
        ...


def package_versions(*names: str) -> dict[str, str]:
    """Return package -> version of the installed packages among `names`."""
    versions = {}
    for name in names:
        with suppress(PackageNotFoundError):
            versions[name] = version(name)
    return versions


def layout_seed(seed: int, episode: int, *, attempt: int = 0, evaluation: bool = False) -> int:
    """Pack (seed, episode, attempt, evaluation) into one scene seed in [0, 2**63).

    Each argument has its own bits, with `evaluation` in the highest. Training and evaluation
    layouts are therefore disjoint for all seeds, by construction.

    Raises:
        ValueError: `seed`, `episode` or `attempt` exceeds its bits (32, 24, 6).
    """
    for name, value, bits in (
        ("seed", seed, 32),
        ("episode", episode, 24),
        ("attempt", attempt, 6),
    ):
        if not 0 <= value < 1 << bits:
            raise ValueError(f"{name}={value}: must be in [0, 2**{bits})")
    return int(evaluation) << 62 | seed << 30 | episode << 6 | attempt


def uniforms(seed: int, count: int) -> np.ndarray:
    """Draw float64 (count,) in [0, 1) from the raw words of Philox, by a seed in [0, 2**128).

    numpy keeps that stream fixed between versions, but not the distributions of `Generator`.
    """
    key = np.array([seed & 0xFFFFFFFFFFFFFFFF, seed >> 64], dtype=np.uint64)
    return (np.random.Philox(key=key).random_raw(count) >> np.uint64(11)) * 2.0**-53


def select_by_name(kind: str, names: Sequence[str], sentences: dict[str, str]) -> dict[str, str]:
    """Select entries of `sentences` (short name -> sentence) by short name or sentence, in the
    order of `names`.

    Empty `names` select all entries.

    Raises:
        ValueError: A name is not in `sentences`; the message calls it a `kind`, and the setting
            `kind` + "s".
    """
    if not names:
        return dict(sentences)
    by_sentence = {sentence: short for short, sentence in sentences.items()}
    selected = {}
    for name in names:
        short = by_sentence.get(name, name)
        if short not in sentences:
            raise ValueError(f"{kind}s: unknown {kind} {name!r}; known: {', '.join(sentences)}")
        selected[short] = sentences[short]
    return selected


def image_feature(size: int) -> dict[str, Any]:
    """Feature of a square RGB camera."""
    return {"dtype": "video", "shape": (size, size, 3), "names": ["height", "width", "channels"]}


def vector_feature(names: Sequence[str]) -> dict[str, Any]:
    """Feature of a float32 vector."""
    return {"dtype": "float32", "shape": (len(names),), "names": list(names)}
