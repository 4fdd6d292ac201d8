"""Meta-World's MT10 (Yu et al. 2019, "Meta-World") as a `world.World`, drawn by rays: no GL library is needed.

Observations follow LeRobot's convention for this benchmark: `observation.state` is the first four numbers of the
environment's 39 (hand x, y, z, grip opening), all 39 stand under `observation.environment_state`, camera `corner2` sits
at LeRobot's place and is turned the right way up, and each task has its sentence. Deliberately not here: drawing the
goal marks of reach, push and pick-place. They are sites, which rays do not see; the 39 numbers do hold the goal.
"""

from __future__ import annotations

import warnings
from collections.abc import Sequence
from typing import Any

import numpy as np

from understudy.envs.env import Outcome, chosen, picture_feature, vector_feature
from understudy.envs.rays import RayCamera
from understudy.extras import required

with required():
    import mujoco
    from metaworld.env_dict import ENV_CLS_MAP
    from metaworld.policies import ENV_POLICY_MAP

TASKS = {  # the sentences that LeRobot ships for MT10
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
_CORNER2 = (0.75, 0.075, 0.7)  # where LeRobot puts it, metres
_VISIBLE = (0, 1, 2)  # geom groups of what is looked at; collision shapes stand in the others


class MetaWorld:
    """See `world.World`. Keys: `observation.images.<camera>`, `observation.state` float32 (4,),
    `observation.environment_state` float32 (39,). An episode ends when the task's success flag is first up.
    """

    name = "metaworld"
    fps = 80
    max_steps = 500
    one_scene = False
    noise = 0.1

    def __init__(self, size: int = 64, cameras: Sequence[str] | None = None, tasks: Sequence[str] = ()) -> None:
        self._cameras = ("corner2",) if cameras is None else tuple(cameras)
        unknown = set(self._cameras) - set(CAMERAS)
        if unknown:
            raise ValueError(f"no camera {sorted(unknown)}; Meta-World here has {', '.join(CAMERAS)}")
        self._size = size
        self._env_of = {sentence: short for short, sentence in chosen("task", tasks, TASKS).items()}
        self.tasks = tuple(self._env_of)
        self.features: dict[str, dict[str, Any]] = {
            **{f"observation.images.{camera}": picture_feature(size) for camera in self._cameras},
            "observation.state": vector_feature(["x", "y", "z", "grip"]),
            "observation.environment_state": vector_feature([f"state_{i}" for i in range(39)]),
            "action": vector_feature(["dx", "dy", "dz", "grip"]),
        }
        self._envs: dict[str, tuple[Any, list[RayCamera]]] = {}  # by task, made when first played
        self._task = self.tasks[0]
        self._steps = 0

    def reset(self, seed: int, task: str) -> dict[str, np.ndarray]:
        if task not in self._env_of:
            raise ValueError(f"no task {task!r}; there are {list(self.tasks)}")
        self._task, self._steps = task, 0
        if task not in self._envs:
            self._envs[task] = self._make(self._env_of[task])
        self._env, self._views = self._envs[task]
        self._policy = ENV_POLICY_MAP[self._env_of[task]]()
        self._env.seed(seed)
        self._raw, _ = self._env.reset()
        return self._observation()

    def step(self, action: np.ndarray) -> tuple[dict[str, np.ndarray], Outcome]:
        # Its own truncation is at the same 500 steps; stepping on would raise.
        self._raw, _, _, _, info = self._env.step(np.clip(action, -1, 1).astype(np.float32))
        self._steps += 1
        taken = self._task if info["success"] > 0 else None
        return self._observation(), Outcome(taken, taken is not None or self._steps >= self.max_steps)

    def expert(self) -> np.ndarray:
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")  # it warns that what it asks for is going to be clipped
            action = self._policy.get_action(self._raw)
        return np.clip(action, -1, 1).astype(np.float32)

    def _make(self, name: str) -> tuple[Any, list[RayCamera]]:
        """An environment that shows its goal and draws a fresh layout from its own seed at every reset.

        Meta-World's public constructors freeze 50 layouts, drawn from numpy's global generator. These are the switches
        its own benchmark classes set; the space that observations are clipped to has to be made again, or the goal
        would be clipped to zero.
        """
        env = ENV_CLS_MAP[name]()
        env._partially_observable = False
        env._freeze_rand_vec = False
        env.seeded_rand_vec = True
        env._set_task_called = True
        vars(env).pop("sawyer_observation_space", None)
        camera = mujoco.mj_name2id(env.model, mujoco.mjtObj.mjOBJ_CAMERA, "corner2")
        env.model.cam_pos[camera] = _CORNER2
        return env, [RayCamera(env.model, c, self._size, self._size, _VISIBLE) for c in self._cameras]

    def _observation(self) -> dict[str, np.ndarray]:
        raw = self._raw.astype(np.float32)
        observation = {"observation.state": raw[:4], "observation.environment_state": raw}
        for name, view in zip(self._cameras, self._views):
            picture = view.render(self._env.data)
            if name == "corner2":
                picture = picture[::-1, ::-1].copy()  # the camera hangs upside down
            observation[f"observation.images.{name}"] = picture
        return observation
