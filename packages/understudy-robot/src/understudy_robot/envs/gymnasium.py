"""Environments of Gymnasium (https://gymnasium.farama.org) as an `Env`: `gymnasium:ID`,
`gymnasium:MODULE:ID`.

The default keys are those of LeRobot's environments (`lerobot/envs/utils.py`,
`preprocess_observation`): `pixels` is `observation.image`, `pixels.NAME` is
`observation.images.NAME`, `agent_pos` is `observation.state`.
"""

import json
import re
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager, suppress
from importlib import import_module
from importlib.metadata import PackageNotFoundError, requires
from importlib.util import find_spec
from typing import Any

import numpy as np

from understudy import GymnasiumOptions
from understudy_base import Record, optional_imports
from understudy_robot.envs.env import (
    IMAGE,
    ActionError,
    Outcome,
    package_versions,
    uniforms,
    vector_feature,
)

with optional_imports():
    import gymnasium
    from gymnasium.spaces import Box, Dict, Space

STATE = "observation.state"
TASKS = {  # the texts of LeRobot's datasets
    "gym_pusht/PushT-v0": "Push the T-shaped block onto the T-shaped target.",
    "gym_aloha/AlohaInsertion-v0": "Insert the peg into the socket.",
    "gym_aloha/AlohaTransferCube-v0": "Pick up the cube with the right arm and transfer it to the "
    "left arm.",
}
SUCCESS = ("is_success", "success")
"""Entries of `info` that are a success, in this sequence."""
RENDER = "render"
"""Name of the image of `render()` among the observations."""
ENGINES = ("mujoco", "dm_control", "pymunk", "pybullet", "sapien", "robosuite")
"""Simulators whose versions are recorded if the environment's package requires them."""


class GymnasiumEnv:
    """A Gymnasium environment with a `Box` of actions, as an `Env` with one task.

    The seed of a scene is 31 bits, a hash of the layout seed whose highest bit is `evaluation`:
    simulators take no more bits, and layouts of recordings and evaluations stay disjoint. An
    episode ends when the environment terminates or truncates it, or with a success
    (`GymnasiumOptions.success`).
    """

    one_scene = False
    noise = 0.0
    episodes = 50

    def __init__(
        self,
        env_id: str,
        size: int | None = None,
        cameras: Sequence[str] | None = None,
        tasks: Sequence[str] = (),
        options: GymnasiumOptions | None = None,
    ) -> None:
        self._options = options = options or GymnasiumOptions()
        if size is not None:
            fix = 'give its own arguments, such as gymnasium.args: {"observation_width": 96}'
            raise ValueError(f"image_size: {size}: {env_id} has its own image sizes; {fix}")
        with _named(env_id):
            self._env = _make(env_id, options)
        self.unwrapped = self._env.unwrapped
        """The environment without wrappers, for a scripted expert."""
        self.name = env_id.rpartition(":")[2].replace("/", "-")
        self.tasks = (_task(env_id.rpartition(":")[2], self.unwrapped, tasks),)
        self.fps = round(options.fps or self._env.metadata.get("render_fps") or 0)
        self.max_steps = self._env.spec.max_episode_steps or 0
        for setting, value in (("fps", self.fps), ("max_steps", self.max_steps)):
            if value < 1:
                raise ValueError(f"gymnasium.{setting}: {env_id} has none; give 1 or more")
        self._actions = self._env.action_space
        if not isinstance(self._actions, Box) or not np.issubdtype(
            self._actions.dtype, np.floating
        ):
            raise ValueError(
                f"env: the actions of {env_id} are {self._actions}; policies predict a Box of "
                "floats"
            )
        spaces = _leaves(self._env.observation_space)
        self._keys = _selected_keys(
            spaces, self._env.render_mode == "rgb_array", options.keys, cameras
        )
        with _named(env_id):
            observation = self._read(self._env.reset(seed=0)[0])
        self.features: dict[str, dict[str, Any]] = {}
        for key, value in observation.items():
            if key.startswith(IMAGE):
                names = ["height", "width", "channels"]
                feature = {"dtype": "video", "shape": value.shape, "names": names}
            else:
                joined = "+".join(self._keys[key])
                feature = vector_feature([f"{joined}_{index}" for index in range(len(value))])
            self.features[key] = feature
        self.features["action"] = vector_feature(
            [f"action_{index}" for index in range(self._actions.shape[0])]
        )
        module = type(self.unwrapped).__module__.partition(".")[0]
        self.conditions = {
            **package_versions("gymnasium", module, *_engines(module)),
            "success": f"{_success_rule(options)}, {options.success}",
            "action bounds": options.action_bounds,
            **{f"gymnasium.{name}": str(value) for name, value in sorted(options.args.items())},
        }

    def reset(self, seed: int, task: str) -> dict[str, np.ndarray]:
        """Start an episode; see `Env.reset`."""
        if task not in self.tasks:
            raise ValueError(f"unknown task {task!r}; known: {list(self.tasks)}")
        observation, _ = self._env.reset(
            seed=(seed >> 62) << 30 | int(uniforms(seed, 1)[0] * 2**30)
        )
        return self._read(observation)

    def step(self, action: np.ndarray) -> tuple[dict[str, np.ndarray], Outcome]:
        """Execute an action, with `GymnasiumOptions.action_bounds`; see `Env.step`."""
        raw, reward, terminated, truncated, info = self._env.step(self._bounded(np.asarray(action)))
        over = bool(terminated or truncated)
        success = self._is_success(float(reward), info, over) and (
            over or self._options.success == "any"
        )
        completed = self.tasks[0] if success else None
        return self._read(raw), Outcome(completed, over or success)

    def expert(self) -> np.ndarray:
        """Raise ValueError: there is no scripted expert."""
        raise ValueError(f"{self.name} has no scripted expert; give one: --expert FILE.py:FUNCTION")

    def _bounded(self, action: np.ndarray) -> np.ndarray:
        """Return an action of the space's dtype.

        Raises:
            ActionError: it is outside the space, and `action_bounds` is "error".
        """
        space = self._actions
        if action.shape != space.shape or not np.isfinite(action).all():
            raise ValueError(
                f"an action of {self.name} has {space.shape[0]} finite numbers, got {action!r}"
            )
        action = action.astype(space.dtype)
        if self._options.action_bounds == "clamp":
            action = np.clip(action, space.low, space.high)
        elif self._options.action_bounds == "error" and len(
            outside := np.flatnonzero(~_inside(action, space))
        ):
            index = outside[0]
            bounds = f"[{space.low[index]:g}, {space.high[index]:g}]"
            raise ActionError(f"action_{index} is {action[index]:g}, outside {bounds}")
        return action

    def _is_success(self, reward: float, info: Record, over: bool) -> bool:
        if self._options.success_reward is not None:
            return reward >= self._options.success_reward
        choices = [self._options.success_key] if self._options.success_key else SUCCESS
        if key := next((key for key in choices if key in info), ""):
            return bool(info[key])
        if self._options.success_key and not over:  # some environments have it at the end alone
            return False
        fix = (
            f"give gymnasium.success_key, one of {', '.join(map(str, info)) or 'none'}, or "
            "gymnasium.success_reward"
        )
        raise ValueError(
            f"gymnasium.success: info of {self.name} has no {' or '.join(choices)}; {fix}"
        )

    def _read(self, observation: Any) -> dict[str, np.ndarray]:
        """Copy the selected values of an observation: images uint8 (H, W, 3), vectors float32
        (N,).
        """
        values = {}
        for key, paths in self._keys.items():
            parts = []
            for path in paths:
                part = self._env.render() if path == RENDER else _value(observation, path)
                parts.append(part)
            values[key] = (
                np.array(parts[0])
                if key.startswith(IMAGE)
                else np.concatenate(parts).astype(np.float32)
            )
        return values


@contextmanager
def _named(env_id: str) -> Iterator[None]:
    """Turn any error of the environment's package in this block into a ValueError."""
    try:
        yield
    except Exception as error:
        fix = (
            "install its package, or correct the ID and gymnasium.args; without a display set "
            "MUJOCO_GL=egl or osmesa"
        )
        raise ValueError(
            f"env: {env_id!r} cannot be made: {type(error).__name__}: {error}; {fix}"
        ) from error


def _make(env_id: str, options: GymnasiumOptions) -> Any:
    """Make the environment, after an import of its module, or of a package with the name of its
    namespace.
    """
    module, _, name = env_id.rpartition(":")
    namespace, slash, _ = name.partition("/")
    if module or (slash and find_spec(namespace)):
        import_module(module or namespace)
    spec = gymnasium.spec(name)
    creator = spec.entry_point
    if isinstance(creator, str):
        creator = gymnasium.envs.registration.load_env_creator(creator)
    args: dict[str, Any] = {"obs_type": "pixels_agent_pos"} if "obs_type" in spec.kwargs else {}
    if "rgb_array" in getattr(creator, "metadata", {}).get("render_modes", ()):
        args["render_mode"] = "rgb_array"
    args |= {key: _from_json(value) for key, value in options.args.items()}
    return gymnasium.make(name, max_episode_steps=options.max_steps, **args)


def _engines(package: str) -> list[str]:
    """Simulators that a package requires."""
    with suppress(PackageNotFoundError):
        names = {
            re.split(r"[^\w.-]", line)[0].replace("-", "_").lower()
            for line in requires(package) or ()
        }
        return [engine for engine in ENGINES if engine in names]
    return []


def _from_json(value: Any) -> Any:
    """Parse a text that is JSON; other values stay."""
    with suppress(TypeError, ValueError):
        return json.loads(value)
    return value


def _task(name: str, env: Any, tasks: Sequence[str]) -> str:
    if len(tasks) > 1:
        raise ValueError(f"tasks: {len(tasks)} are given; {name} has one, and tasks is its text")
    text = next(iter(tasks), None) or getattr(env, "task_description", None) or TASKS.get(name)
    return str(text or getattr(env, "task", None) or name.rpartition("/")[2])


def _success_rule(options: GymnasiumOptions) -> str:
    if options.success_reward is not None:
        return f"reward >= {options.success_reward:g}"
    return options.success_key or " or ".join(SUCCESS)


def _leaves(space: Space, path: str = "") -> dict[str, Box]:
    """Boxes of a space by dotted path; the path of one without keys is `observation`."""
    if isinstance(space, Dict):
        boxes: dict[str, Box] = {}
        for name, part in space.items():
            boxes |= _leaves(part, f"{path}.{name}".lstrip("."))
        return boxes
    return {path or "observation": space} if isinstance(space, Box) else {}


def _is_image(space: Box) -> bool:
    return len(space.shape) == 3 and space.shape[-1] == 3 and space.dtype == np.uint8


def _default_key(path: str, space: Box) -> str:
    """Key of a dataset for an observation; "" for one that is neither an image nor a vector."""
    name = path.replace(".", "_")
    if _is_image(space):
        alone = path in ("pixels", "observation")
        return IMAGE if alone else f"{IMAGE}s.{name.removeprefix('pixels_')}"
    if len(space.shape) != 1:
        return ""
    return STATE if path in ("agent_pos", "observation", "state") else f"observation.{name}"


def _selected_keys(
    spaces: Mapping[str, Box], renders: bool, keys: Mapping[str, str], cameras: Sequence[str] | None
) -> dict[str, list[str]]:
    """Key of the dataset -> observations.

    Raises:
        ValueError: An unknown observation or camera, or a key that does not fit.
    """
    names = {path: _default_key(path, space) for path, space in spaces.items()}
    if renders:
        names[RENDER] = "" if any(map(_is_image, spaces.values())) else IMAGE
    if unknown := sorted(set(keys) - set(names)):
        raise ValueError(
            f"gymnasium.keys: unknown observations {unknown}; known: {', '.join(names)}"
        )
    names = {
        **{path: keys[path] for path in keys},
        **{path: key for path, key in names.items() if path not in keys},
    }
    groups: dict[str, list[str]] = {}
    for path, key in names.items():
        is_image = path == RENDER or _is_image(spaces[path])
        if key and (not key.startswith("observation.") or key.startswith(IMAGE) != is_image):
            rule = (
                f"an image has a key {IMAGE} or {IMAGE}s.NAME, a vector another one that begins "
                "with observation."
            )
            raise ValueError(f"gymnasium.keys: {path}: {key!r}: {rule}")
        if key and not is_image and len(spaces[path].shape) != 1:
            raise ValueError(
                f"gymnasium.keys: {path} has the shape {spaces[path].shape}; vectors and RGB "
                "images can be read"
            )
        if key:
            groups.setdefault(key, []).append(path)
    for key, paths in groups.items():
        if len(paths) > 1 and (key.startswith(IMAGE) or not set(paths) <= set(keys)):
            rule = "vectors are joined where gymnasium.keys has all of them, images are not"
            raise ValueError(f"gymnasium.keys: {key} is the key of {' and '.join(paths)}; {rule}")
    names_of = {
        key: (key, key.removeprefix(f"{IMAGE}s.")) for key in groups if key.startswith(IMAGE)
    }
    if cameras is not None and (unknown := sorted(set(cameras).difference(*names_of.values()))):
        raise ValueError(f"cameras: unknown {unknown}; known: {', '.join(names_of)}")
    left_out = {
        key
        for key, pair in names_of.items()
        if cameras is not None and not set(cameras) & set(pair)
    }
    return {
        key: groups[key]
        for key in sorted(groups, key=lambda key: key not in names_of)
        if key not in left_out
    }


def _value(observation: Any, path: str) -> np.ndarray:
    if isinstance(observation, Mapping):
        for name in path.split("."):
            observation = observation[name]
    return np.asarray(observation)


def _inside(action: np.ndarray, space: Box) -> np.ndarray:
    return (action >= space.low) & (action <= space.high)
