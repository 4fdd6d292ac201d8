"""LeRobot's features and names, as inputs of the policy."""

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any

import numpy as np

from understudy.batch_keys import STATE, TASK
from understudy.contract.declared import Declaration
from understudy.policies.inference import RobotPolicy
from understudy.serve.coding import MessageError
from understudy.serve.lerobot.messages import Instructions

_PREFIX, _IMAGES = "observation.", "observation.images."


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
        """Return the observation in the policy's keys: vectors float32 [D], images as they are, `task`.

        Raises:
            MessageError: a value is missing, or has another type.
        """
        found: dict[str, Any] = {TASK: values.get(TASK, "")}
        if not isinstance(found[TASK], str):
            raise MessageError(f"{TASK} is a {type(found[TASK]).__name__}; it must be a text")
        for key, names in self.vectors.items():
            found[key] = np.array([_value(values, name, float) for name in names], np.float32)
        for key, name in self.images.items():
            found[key] = _value(values, name, np.ndarray)
        return found

    def without_extras(self, robot: RobotPolicy) -> "Inputs":
        """Return the inputs that the policy has: a robot of LeRobot sends all of its cameras and joints.

        Where one is lacking, the others stay, since one of them may be it under another name.
        """
        wanted = _wanted(robot)
        if not all(keys & {*self.vectors, *self.images} for keys in wanted):
            return self
        known = set().union(*wanted)
        vectors = {key: names for key, names in self.vectors.items() if key in known}
        return Inputs(vectors, {key: name for key, name in self.images.items() if key in known})

    def declaration(self) -> Declaration:
        """Return the robot's statements about itself."""
        return Declaration(state_names=self.vectors.get(STATE), cameras=tuple(self.images))


def _wanted(robot: RobotPolicy) -> list[set[str]]:
    """Keys of each input of the policy, of which an observation has one."""
    config, facts = robot.config, robot.facts
    cameras = robot.metadata.get("cameras", config.cameras)
    found = [{camera} for camera in config.cameras if camera in cameras] + [{STATE}] * bool(config.state_dim)
    if facts is not None:
        names = {key: camera.key for key, camera in facts.cameras.items()}
        names |= {STATE: facts.state.key} if facts.state is not None else {}
        found = [{key, names.get(key, key)} for (key,) in found]
    return found


def _value(values: Mapping[str, Any], name: str, kind: type) -> Any:
    value = values.get(name)
    if not isinstance(value, kind):
        came = "is missing" if name not in values else f"is a {type(value).__name__}"
        wanted = "number" if kind is float else "image"
        raise MessageError(f"{name[:80]!r} {came}; the robot's features have this {wanted}")
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
            raise MessageError(f"the feature {key[:80]!r} is a {type(feature).__name__}; it must be a dict")
        dtype, shape, names = feature.get("dtype"), feature.get("shape"), feature.get("names")
        own = instructions.rename_map.get(key, key)
        if own in vectors or own in images:
            raise MessageError(f"rename_map gives the name {own[:80]!r} to several features, {key[:80]!r} among them")
        if dtype in ("image", "video"):
            images[own] = key.removeprefix(_IMAGES)
        elif dtype == "float32" and isinstance(shape, tuple | list) and len(shape) == 1:
            if not isinstance(names, tuple | list) or not all(isinstance(name, str) for name in names):
                raise MessageError(f"the feature {key[:80]!r} has no list of names")
            vectors[own] = tuple(names)
    return Inputs(vectors, images)


def inputs_of_training(robot: RobotPolicy, values: Mapping[str, Any]) -> Inputs:
    """Return the inputs of a robot that gave no instructions: its server was started again.

    Raises:
        MessageError: its values have other names than those of training, or another order.
    """
    names = tuple(robot.metadata.get("state_names", ())) if robot.config.state_dim else ()
    images = {}
    for camera in robot.config.cameras:
        known = robot.facts.cameras.get(camera) if robot.facts is not None else None
        for key in (camera, known.key if known is not None else camera):
            if (name := key.removeprefix(_IMAGES)) in values:
                images[camera] = name
    sent = tuple(name for name in values if name in names)
    lacking = set(robot.metadata.get("cameras", robot.config.cameras)) - set(images)
    if sent != names or lacking or (robot.config.state_dim and not names):
        raise MessageError(
            "the server has no instructions of this robot, and its values are not those of training by name and order; "
            "start its client again"
        )
    return Inputs({STATE: names} if names else {}, images)


def compare_policy(instructions: Instructions, robot: RobotPolicy, served: str) -> list[str]:
    """List the differences between the policy that a robot expects and the served one, a line each.

    A name may be a part of the other: "user/model" and "hf://user/model", "runs/table" and "runs/table/policy".
    """
    found = []
    own = str(robot.config.type)
    if _plain(instructions.policy_type) != _plain(own):
        text = f"the robot expects policy_type {instructions.policy_type[:80]!r}, and {own!r} is served"
        found.append(f"{text}; give --policy_type={own} to its client")
    if not _contains(_parts(served), _parts(instructions.name)):
        text = f"the robot expects the policy {instructions.name[:200]!r}, and {served!r} is served"
        found.append(f"{text}; give --pretrained_name_or_path={served} to its client")
    return found


def _plain(name: str) -> str:
    return name.lower().removeprefix("lerobot-").replace("_", "-")


def _parts(name: str) -> list[str]:
    return [part for part in name.removeprefix("hf://").split("/") if part not in ("", ".")]


def _contains(one: list[str], two: list[str]) -> bool:
    short, long = sorted((one, two), key=len)
    return any(long[start : start + len(short)] == short for start in range(len(long) - len(short) + 1))
