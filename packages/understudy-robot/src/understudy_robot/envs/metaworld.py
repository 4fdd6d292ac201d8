"""Meta-World's MT10 (Yu et al. 2019, "Meta-World") as an `Env`, rendered by ray casting without a
GL library.

Observations follow LeRobot's convention for this benchmark. `observation.environment_state` holds
the simulator's 39 numbers, and `observation.state` the first four of them (hand x, y, z, grip
opening). Camera `corner2` has LeRobot's position and is turned upright. Each task has LeRobot's
sentence.

The goal marks of reach, push and pick-place are not rendered: they are sites, which MuJoCo's rays
do not hit. The 39 numbers contain the goal.
"""

import warnings
from collections.abc import Sequence
from typing import Any

import numpy as np

from understudy_base import optional_imports
from understudy_robot.envs.env import (
    Outcome,
    image_feature,
    package_versions,
    select_by_name,
    vector_feature,
)
from understudy_robot.envs.ray_camera import RayCamera

with optional_imports():
    import mujoco
    from metaworld.env_dict import ENV_CLS_MAP
    from metaworld.policies import ENV_POLICY_MAP

TASKS = {  # LeRobot's sentences for MT10
    "reach-v3": "Reach a goal position",
    "push-v3": "Push the puck to a goal",
    "pick-place-v3": "Pick and place a puck to a goal",
    "door-open-v3": "Open a door with a revolving joint",
    "drawer-open-v3": "Open a drawer",
    "drawer-close-v3": "Push and close a drawer",
    "button-press-topdown-v3": "Press a button from the top",
    "peg-insert-side-v3": "Insert a peg sideways",
    "window-open-v3": "Push and open a window",
    "window-close-v3": "Push and close a window",
}
CAMERAS = ("corner2", "gripperPOV")
_CORNER2 = (0.75, 0.075, 0.7)  # LeRobot's camera position, metres
_VISIBLE = (0, 1, 2)  # geom groups to render; the others hold collision shapes


class MetaWorldEnv:
    """Meta-World as an `Env`; an episode ends with the task's first success flag.

    Keys: `observation.images.<camera>`, `observation.state` (4,), `observation.environment_state`
    (39,), both float32.
    """

    name = "metaworld"
    fps = 80
    max_steps = 500
    episodes = 30
    one_scene = False
    noise = 0.1
    conditions = package_versions("metaworld", "mujoco", "gymnasium")

    def __init__(
        self,
        size: int | None = None,
        cameras: Sequence[str] | None = None,
        tasks: Sequence[str] = (),
    ) -> None:
        size = 64 if size is None else size
        self._cameras = ("corner2",) if cameras is None else tuple(cameras)
        unknown = set(self._cameras) - set(CAMERAS)
        if unknown:
            raise ValueError(f"unknown cameras {sorted(unknown)}; known: {', '.join(CAMERAS)}")
        self._size = size
        self._env_of = {
            sentence: short for short, sentence in select_by_name("task", tasks, TASKS).items()
        }
        self.tasks = tuple(self._env_of)
        self.features: dict[str, dict[str, Any]] = {
            **{f"observation.images.{camera}": image_feature(size) for camera in self._cameras},
            "observation.state": vector_feature(["x", "y", "z", "grip"]),
            "observation.environment_state": vector_feature([f"state_{i}" for i in range(39)]),
            "action": vector_feature(["dx", "dy", "dz", "grip"]),
        }
        self._envs: dict[str, tuple[Any, list[RayCamera]]] = {}  # by task, made at its first reset
        self._task = self.tasks[0]
        self._steps = 0

    def reset(self, seed: int, task: str) -> dict[str, np.ndarray]:
        """Start an episode; see `Env.reset`."""
        if task not in self._env_of:
            raise ValueError(f"unknown task {task!r}; known: {list(self.tasks)}")
        self._task = task
        self._steps = 0
        if task not in self._envs:
            self._envs[task] = self._make(self._env_of[task])
        self._env, self._views = self._envs[task]
        self._policy = ENV_POLICY_MAP[self._env_of[task]]()
        self._env.seed(seed)
        self._raw, _ = self._env.reset()
        return self._observation()

    def step(self, action: np.ndarray) -> tuple[dict[str, np.ndarray], Outcome]:
        """Execute an action; see `Env.step`."""
        # Meta-World truncates at the same 500 steps; a further step would raise.
        self._raw, _, _, _, info = self._env.step(np.clip(action, -1, 1).astype(np.float32))
        self._steps += 1
        completed = self._task if info["success"] > 0 else None
        return self._observation(), Outcome(
            completed, completed is not None or self._steps >= self.max_steps
        )

    def expert(self) -> np.ndarray:
        """Compute the expert's action; see `Env.expert`."""
        with warnings.catch_warnings():
            # the expert warns about actions beyond the limits, which we clip
            warnings.simplefilter("ignore")
            action = self._policy.get_action(self._raw)
        return np.clip(action, -1, 1).astype(np.float32)

    def _make(self, name: str) -> tuple[Any, list[RayCamera]]:
        """Make a simulator that observes its goal and draws a fresh layout from its own seed at
        every reset.

        Meta-World's public constructors freeze 50 layouts drawn from numpy's global generator. The
        attributes below are those that its benchmark classes set. The cached observation space is
        dropped, since it would clip the goal to zero.
        """
        env = ENV_CLS_MAP[name]()
        env._partially_observable = False
        env._freeze_rand_vec = False
        env.seeded_rand_vec = True
        env._set_task_called = True
        vars(env).pop("sawyer_observation_space", None)
        camera = mujoco.mj_name2id(env.model, mujoco.mjtObj.mjOBJ_CAMERA, "corner2")
        env.model.cam_pos[camera] = _CORNER2
        return env, [
            RayCamera(env.model, c, self._size, self._size, _VISIBLE) for c in self._cameras
        ]

    def _observation(self) -> dict[str, np.ndarray]:
        raw = self._raw.astype(np.float32)
        observation = {"observation.state": raw[:4], "observation.environment_state": raw}
        for name, view in zip(self._cameras, self._views):
            image = view.render(self._env.data)
            if name == "corner2":
                image = image[::-1, ::-1].copy()  # the camera is mounted upside down
            observation[f"observation.images.{name}"] = image
        return observation
