"""The tabletop as an `Env`: `Tabletop` and its scripted expert under the keys of a dataset."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np

from understudy.envs.env import Outcome, image_feature, select_by_name, vector_feature
from understudy.envs.tabletop.expert import NOISE, expert_action
from understudy.envs.tabletop.sim import COLORS, FPS, MAX_STEPS, Tabletop, task_text

CAMERA = "front"


class TabletopEnv:
    """The tabletop as an `Env`.

    Keys: `observation.images.front`, `observation.state` (hand x, y, z in metres, grip).

    Attributes:
        sim: The simulation.
    """

    name = "tabletop"
    fps = FPS
    max_steps = MAX_STEPS
    one_scene = True
    noise = NOISE

    def __init__(self, size: int = 64, cameras: Sequence[str] | None = None, tasks: Sequence[str] = ()) -> None:
        if cameras is not None and tuple(cameras) != (CAMERA,):
            raise ValueError(f"cameras={list(cameras)}: the tabletop always has the one camera {CAMERA!r}")
        colors = select_by_name("task", tasks, {color: task_text(color) for color in COLORS})
        self._color_of = {text: color for color, text in colors.items()}
        self.tasks = tuple(self._color_of)
        self.features = {
            f"observation.images.{CAMERA}": image_feature(size),
            "observation.state": vector_feature(["x", "y", "z", "grip"]),
            "action": vector_feature(["dx", "dy", "dz", "grip"]),
        }
        self.sim = Tabletop(size)

    def reset(self, seed: int, task: str) -> dict[str, np.ndarray]:
        """Start an episode; see `Env.reset`."""
        if task not in self._color_of:
            raise ValueError(f"unknown task {task!r}; known: {list(self.tasks)}")
        observation, _ = self.sim.reset(seed=seed, options={"color": self._color_of[task]})
        return self._named(observation)

    def step(self, action: np.ndarray) -> tuple[dict[str, np.ndarray], Outcome]:
        """Execute an action; see `Env.step`."""
        observation, _, terminated, truncated, info = self.sim.step(np.clip(action, -1, 1))
        lifted = info["lifted"]
        return self._named(observation), Outcome(task_text(lifted) if lifted else None, terminated or truncated)

    def expert(self) -> np.ndarray:
        """Compute the expert's action; see `Env.expert`."""
        return expert_action(self.sim)

    @staticmethod
    def _named(observation: dict[str, np.ndarray]) -> dict[str, np.ndarray]:
        return {f"observation.images.{CAMERA}": observation["image"], "observation.state": observation["state"]}
