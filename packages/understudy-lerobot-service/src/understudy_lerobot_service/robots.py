"""One robot: its features as inputs of the policy, its newest observation, and the observations
that are skipped.

LeRobot's client sends an observation in each control step in which few actions are left, and waits
for a chunk in another thread. Only the newest observation is computed. Those of a computed timestep
are skipped, and those like the last computed one, unless the robot has no action left (`must_go`).
The client sets `must_go` once, and again after the next chunk. So after a failure the next
observation is never skipped.
"""

import asyncio
import time
from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any, Literal

import numpy as np

from understudy import RobotPolicy
from understudy_base import STATE, TASK
from understudy_client import MessageError, RobotFacts, declare
from understudy_lerobot_service.messages import Instructions, Observation
from understudy_robot import Session

_PREFIX = "observation."
_IMAGES = "observation.images."


@dataclass(frozen=True)
class Inputs:
    """The inputs of a policy among the values of a robot.

    Attributes:
        vectors: key of the policy -> names of the values, in the sequence of the robot's features.
        images: key of the policy -> name of the camera.
    """

    vectors: Mapping[str, tuple[str, ...]] = field(default_factory=dict)
    images: Mapping[str, str] = field(default_factory=dict)

    def select(self, values: Mapping[str, Any]) -> dict[str, Any]:
        """Return the observation in the policy's keys: vectors float32 [D], images as they are,
        `task`.

        Raises:
            MessageError: a value is missing, or has another type.
        """
        inputs: dict[str, Any] = {TASK: values.get(TASK, "")}
        if not isinstance(inputs[TASK], str):
            raise MessageError(f"{TASK} is a {type(inputs[TASK]).__name__}; it must be a text")
        for key, names in self.vectors.items():
            inputs[key] = np.array([_value(values, name, float) for name in names], np.float32)
        for key, name in self.images.items():
            inputs[key] = _value(values, name, np.ndarray)
        return inputs

    def without_extras(self, robot: RobotPolicy) -> "Inputs":
        """Return the inputs that the policy has: a robot of LeRobot sends all of its cameras and
        joints.

        Where one is lacking, the others stay, since one of them may be it under another name.
        """
        alternatives = _policy_keys(robot)
        if not all(keys & {*self.vectors, *self.images} for keys in alternatives):
            return self
        used = set().union(*alternatives)
        vectors = {key: names for key, names in self.vectors.items() if key in used}
        return Inputs(vectors, {key: name for key, name in self.images.items() if key in used})

    def declaration(self) -> RobotFacts:
        """Return the robot's statements about itself."""
        return declare(state_names=self.vectors.get(STATE, ()), cameras=tuple(self.images))


def _policy_keys(robot: RobotPolicy) -> list[set[str]]:
    """Alternative keys of each input of the policy."""
    config = robot.config
    facts = robot.facts
    cameras = robot.metadata.get("cameras", config.cameras)
    keys = [{camera} for camera in config.cameras if camera in cameras] + [{STATE}] * bool(
        config.state_dim
    )
    if facts is not None:
        names = {key: camera.key for key, camera in facts.cameras.items()}
        names |= {STATE: facts.state.key} if facts.state is not None else {}
        keys = [{key, names.get(key, key)} for (key,) in keys]
    return keys


def _value(values: Mapping[str, Any], name: str, kind: type) -> Any:
    value = values.get(name)
    if not isinstance(value, kind):
        fault = "is missing" if name not in values else f"is a {type(value).__name__}"
        expected = "number" if kind is float else "image"
        raise MessageError(f"{name[:80]!r} {fault}; the robot's features have this {expected}")
    return value


def read_inputs(instructions: Instructions) -> Inputs:
    """Return the inputs of a robot's features, as LeRobot's `build_dataset_frame` takes them.

    Raises:
        MessageError: a feature has another form.
    """
    vectors: dict[str, tuple[str, ...]] = {}
    images: dict[str, str] = {}
    for key, feature in instructions.features.items():
        if not key.startswith(_PREFIX):
            continue
        if not isinstance(feature, dict):
            raise MessageError(
                f"the feature {key[:80]!r} is a {type(feature).__name__}; it must be a dict"
            )
        dtype = feature.get("dtype")
        shape = feature.get("shape")
        names = feature.get("names")
        renamed = instructions.rename_map.get(key, key)
        if renamed in vectors or renamed in images:
            raise MessageError(
                f"rename_map gives the name {renamed[:80]!r} to several features, {key[:80]!r} "
                "among them"
            )
        if dtype in ("image", "video"):
            images[renamed] = key.removeprefix(_IMAGES)
        elif dtype == "float32" and isinstance(shape, tuple | list) and len(shape) == 1:
            if not isinstance(names, tuple | list) or not all(
                isinstance(name, str) for name in names
            ):
                raise MessageError(f"the feature {key[:80]!r} has no list of names")
            vectors[renamed] = tuple(names)
    return Inputs(vectors, images)


def inputs_of_training(robot: RobotPolicy, values: Mapping[str, Any]) -> Inputs:
    """Return the inputs of a robot that gave no instructions: its server was started again.

    Raises:
        MessageError: its values have other names than those of training, or another order.
    """
    names = tuple(robot.metadata.get("state_names", ())) if robot.config.state_dim else ()
    images = {}
    for camera in robot.config.cameras:
        facts = robot.facts.cameras.get(camera) if robot.facts is not None else None
        recorded = facts.key if facts is not None else camera
        for key in (camera, recorded):
            if (name := key.removeprefix(_IMAGES)) in values:
                images[camera] = name
    sent = tuple(name for name in values if name in names)
    lacking = set(robot.metadata.get("cameras", robot.config.cameras)) - set(images)
    if sent != names or lacking or (robot.config.state_dim and not names):
        raise MessageError(
            "the server has no instructions of this robot, and its values are not those of "
            "training by name and order; start its client again"
        )
    vectors = {STATE: names} if names else {}
    return Inputs(vectors, images)


def compare_policy(instructions: Instructions, robot: RobotPolicy, served: str) -> list[str]:
    """List the differences between the policy that a robot expects and the served one, a line each.

    A name may be a part of the other: "user/model" and "hf://user/model", "runs/table" and
    "runs/table/policy".
    """
    differences = []
    served_type = str(robot.config.type)
    if _plain(instructions.policy_type) != _plain(served_type):
        text = (
            f"the robot expects policy_type {instructions.policy_type[:80]!r}, and "
            f"{served_type!r} is served"
        )
        differences.append(f"{text}; give --policy_type={served_type} to its client")
    if not _contains(_parts(served), _parts(instructions.name)):
        text = f"the robot expects the policy {instructions.name[:200]!r}, and {served!r} is served"
        differences.append(f"{text}; give --pretrained_name_or_path={served} to its client")
    return differences


def _plain(name: str) -> str:
    return name.lower().removeprefix("lerobot-").replace("_", "-")


def _parts(name: str) -> list[str]:
    return [part for part in name.removeprefix("hf://").split("/") if part not in ("", ".")]


def _contains(*names: list[str]) -> bool:
    short, long = sorted(names, key=len)
    return any(
        long[start : start + len(short)] == short for start in range(len(long) - len(short) + 1)
    )


SIMILAR = 0.05
"""Distance of two similar states, in deviations of training. LeRobot's is 1 in the unit of the
joints, which would skip nearly all observations of a robot that sends radians.
"""
_MOST_TIMESTEPS = 10_000  # kept ones

Skipped = Literal["", "predicted", "similar"]


class Robot:
    """State of one client. All methods are called in the event loop.

    Args:
        name: name in the log.
        session: session of its requests.
        scale: deviation of each dimension of the state in training; None: no observation is similar
            to another.

    Attributes:
        inputs: inputs among its features; None: it gave no instructions.
        most_actions: most actions of an answer.
        serving: lock that is held while an answer is in work.
        receiving: whether an observation arrives.
        last_call: `time.monotonic` of its last call.
    """

    def __init__(self, name: str, session: Session, scale: np.ndarray | None) -> None:
        self.name = name
        self.session = session
        self.inputs: Inputs | None = None
        self.most_actions: int | None = None
        self.serving = asyncio.Lock()
        self.receiving = False
        self.last_call = time.monotonic()
        self._scale = scale
        self._newest: tuple[Observation, dict[str, Any], float] | None = None
        self._arrived = asyncio.Event()
        self._predicted: dict[int, None] = {}
        self._state: np.ndarray | None = None
        self._owed = True  # the robot waits for the chunk of its next observation

    def offer(
        self, observation: Observation, inputs: dict[str, Any], since: float
    ) -> tuple[Skipped, bool]:
        """Keep an observation as the newest one, unless it is skipped.

        Args:
            observation: message of the robot.
            inputs: its values in the policy's keys.
            since: `time.monotonic` of its arrival.

        Returns:
            Why it is skipped, or ""; and whether it replaces one that waited.
        """
        self._owed |= observation.must_go
        if not self._owed:
            if observation.timestep in self._predicted:
                return "predicted", False
            if self._is_similar(inputs.get(STATE)):
                return "similar", False
        replaced = self._newest is not None
        self._newest = observation, inputs, since
        self._arrived.set()
        return "", replaced

    async def take(self, seconds: float) -> tuple[Observation, dict[str, Any], float] | None:
        """Wait for an observation, and remove it; None: none came, or `wake` was called."""
        try:
            async with asyncio.timeout(seconds):
                await self._arrived.wait()
        except TimeoutError:
            return None
        self._arrived.clear()
        newest = self._newest
        self._newest = None
        if newest is not None:
            observation, inputs, _ = newest
            self._owed = False
            self._state = inputs.get(STATE)
            self._predicted[observation.timestep] = None
            if len(self._predicted) > _MOST_TIMESTEPS:
                del self._predicted[next(iter(self._predicted))]
        return newest

    def wake(self) -> None:
        """End the wait of `take`."""
        self._arrived.set()

    def mark_failed(self) -> None:
        """An observation got no chunk: the next one is not skipped."""
        self._owed = True

    def _is_similar(self, state: np.ndarray | None) -> bool:
        if (
            self._scale is None
            or state is None
            or self._state is None
            or len(state) != len(self._scale)
        ):
            return False
        return bool(np.linalg.norm((state - self._state) / self._scale) < SIMILAR)
