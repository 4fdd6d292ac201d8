"""The suites of LIBERO (Liu et al. 2023, "LIBERO") as an `Env`, by the package hf-libero.

The conventions are those of openpi (`examples/libero/main.py`) and LeRobot
(`lerobot/envs/libero.py`): both images are turned by 180 degrees. The state is the position of the
hand (3), its quaternion as axis times angle (3) and the two fingers (2). Actions are relative, and
a gripper of -1 opens. The first 10 steps do nothing, since objects fall.
"""

import json
import os
from collections.abc import Sequence
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any

import numpy as np

from understudy_base import optional_imports
from understudy_robot.envs.env import Outcome, image_feature, package_versions, vector_feature

MAX_STEPS = {
    "libero_spatial": 220,
    "libero_object": 280,
    "libero_goal": 300,
    "libero_10": 520,
    "libero_90": 400,
}
"""Suite -> most steps of an episode, as in openpi's `examples/libero/main.py`."""
CAMERAS = {"image": "agentview_image", "image2": "robot0_eye_in_hand_image"}
"""LeRobot's name of a camera -> LIBERO's."""
WAIT = 10
IDLE = [0.0] * 6 + [-1.0]
TRIALS = 50
"""Episodes per task: each begins in another of the task's initial states."""
ASSETS = "LIBERO_ASSETS"
"""Environment variable: the folder `libero/libero/assets` of the repository
Lifelong-Robot-Learning/LIBERO.
"""


def _package() -> Path:
    """Folder of the package, with a config for its import, which asks a question on the terminal
    without one.

    Raises:
        ValueError: There are no assets.
    """
    with optional_imports():
        import libero

    root = Path(next(iter(libero.__path__))) / "libero"
    assets = Path(os.environ.get(ASSETS) or root / "assets")
    if not (assets / "scenes").is_dir():
        place = f"{ASSETS}={os.environ[ASSETS]}" if ASSETS in os.environ else f"{ASSETS} is not set"
        fix = (
            "fetch the repository Lifelong-Robot-Learning/LIBERO, and name its folder "
            "libero/libero/assets"
        )
        raise ValueError(f"env: LIBERO's package has no objects and scenes, and {place}; {fix}")
    folders = {
        "bddl_files": root / "bddl_files",
        "init_states": root / "init_files",
        "assets": assets,
    }
    folders |= {"benchmark_root": root, "datasets": root}
    (Path(_CONFIG.name) / "config.yaml").write_text(
        json.dumps({name: str(path) for name, path in folders.items()})
    )
    os.environ["LIBERO_CONFIG_PATH"] = _CONFIG.name
    import libero.libero

    libero.libero._assets_path_cache = str(assets)  # else it looks on the hub
    return root


_CONFIG = TemporaryDirectory(prefix="understudy-libero-")


def axis_angle(quaternion: np.ndarray) -> np.ndarray:
    """Convert a quaternion (x, y, z, w) to axis times angle, float64 (3,), as robosuite's
    `quat2axisangle` does.
    """
    w = np.clip(quaternion[3], -1, 1)
    sine = np.sqrt(1 - w * w)
    return np.zeros(3) if np.isclose(sine, 0) else quaternion[:3] * 2 * np.arccos(w) / sine


class LiberoEnv:
    """A suite as an `Env`: `observation.images.image`, `observation.images.image2` (wrist),
    `observation.state` (8,).

    Episode e of a layout seed is trial e // T of task e % T, of T tasks: it begins in that one of
    the task's initial states. Tasks of `libero_90` that share a text differ by the episode.
    """

    fps = 20
    one_scene = False
    noise = 0.0

    def __init__(
        self,
        suite: str,
        size: int | None = None,
        cameras: Sequence[str] | None = None,
        tasks: Sequence[str] = (),
    ) -> None:
        self.name = suite
        self.max_steps = MAX_STEPS[suite]
        self._cameras = tuple(CAMERAS) if cameras is None else tuple(cameras)
        if unknown := sorted(set(self._cameras) - set(CAMERAS)):
            raise ValueError(f"cameras: unknown {unknown}; known: {', '.join(CAMERAS)}")
        self._root = _package()
        with optional_imports():
            from libero.libero import benchmark
            from libero.libero.envs import OffScreenRenderEnv
        self._make_env = OffScreenRenderEnv
        self._suite = benchmark.get_benchmark_dict()[suite]()
        entries = list(enumerate(self._suite.tasks))
        names = [(task.name, task.language) for _, task in entries]
        if unknown := sorted(set(tasks).difference(*names)):
            raise ValueError(
                f"tasks: unknown {unknown}; known: "
                f"{', '.join(task.language for _, task in entries)}"
            )
        self._tasks = [
            (index, task)
            for index, task in entries
            if not tasks or {task.name, task.language} & set(tasks)
        ]
        self.tasks = tuple(task.language for _, task in self._tasks)
        self.episodes = TRIALS * len(self.tasks)
        self.conditions = {
            **package_versions("hf-libero", "robosuite", "mujoco"),
            "waiting steps": str(WAIT),
        }
        self._size = 256 if size is None else size
        self.features: dict[str, dict[str, Any]] = {
            **{
                f"observation.images.{camera}": image_feature(self._size)
                for camera in self._cameras
            },
            "observation.state": vector_feature(
                ["x", "y", "z", "rx", "ry", "rz", "finger_0", "finger_1"]
            ),
            "action": vector_feature(["dx", "dy", "dz", "drx", "dry", "drz", "gripper"]),
        }
        self.meanings = {
            **{
                f"observation.images.{camera}": {"orientation": "rotated 180"}
                for camera in self._cameras
            },
            "observation.state": {"units": ("m",) * 3 + ("rad",) * 3 + ("m",) * 2, "frame": "base"},
            "action": {
                "roles": ("position",) * 3 + ("rotation",) * 3 + ("gripper",),
                "references": ("state",) * 6 + ("absolute",),
                "gripper": {"gripper": (1.0, -1.0)},
            },
        }
        self._env: Any = None
        self._place = -1
        self._steps = 0

    @property
    def unwrapped(self) -> Any:
        """The simulator of the current task, for a scripted expert."""
        return self._env

    def reset(self, seed: int, task: str) -> dict[str, np.ndarray]:
        """Start an episode; see `Env.reset`."""
        if task not in self.tasks:
            raise ValueError(f"unknown task {task!r}; known: {list(self.tasks)}")
        # the episode of `layout_seed`
        trial, place = divmod(seed >> 6 & (1 << 24) - 1, len(self.tasks))
        if self.tasks[place] != task:
            place = self.tasks.index(task)
        self._open(place)
        self._env.seed(seed % (1 << 31))
        self._env.reset()
        self._env.set_init_state(self._states[trial % len(self._states)])
        for _ in range(WAIT):
            raw, *_ = self._env.step(IDLE)
        self._task = task
        self._steps = 0
        return self._observation(raw)

    def step(self, action: np.ndarray) -> tuple[dict[str, np.ndarray], Outcome]:
        """Execute an action; see `Env.step`."""
        raw, *_ = self._env.step(np.clip(action, -1, 1))
        self._steps += 1
        completed = self._task if self._env.check_success() else None
        return self._observation(raw), Outcome(
            completed, completed is not None or self._steps >= self.max_steps
        )

    def expert(self) -> np.ndarray:
        """Raise ValueError: there is no scripted expert."""
        raise ValueError(f"{self.name} has no scripted expert; give one: --expert FILE.py:FUNCTION")

    def _open(self, place: int) -> None:
        """Make the simulator of a task, in place of that of another one: ten at once would fill the
        memory.
        """
        if place == self._place:
            return
        if self._env is not None:
            self._env.close()
        index, task = self._tasks[place]
        file = self._root / "bddl_files" / task.problem_folder / task.bddl_file
        self._env = self._make_env(
            bddl_file_name=str(file), camera_heights=self._size, camera_widths=self._size
        )
        self._states = self._suite.get_task_init_states(index)
        self._place = place

    def _observation(self, raw: dict[str, np.ndarray]) -> dict[str, np.ndarray]:
        images = {
            f"observation.images.{name}": raw[CAMERAS[name]][::-1, ::-1].copy()
            for name in self._cameras
        }
        parts = (
            raw["robot0_eef_pos"],
            axis_angle(raw["robot0_eef_quat"]),
            raw["robot0_gripper_qpos"],
        )
        return {**images, "observation.state": np.concatenate(parts).astype(np.float32)}
