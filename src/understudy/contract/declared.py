"""The robot's own declaration against the facts of training, before the first observation."""

from collections.abc import Sequence
from dataclasses import dataclass
from typing import ClassVar

from understudy.contract.facts import RobotFacts, VectorFacts
from understudy.contract.mismatch import Mismatch

RATE_TOLERANCE = 0.05  # share of fps


@dataclass(frozen=True)
class Declaration:
    """Statements of a robot about itself; None: no statement.

    Attributes:
        fps: control steps per second.
        state_names: names of the state's dimensions, in the sequence that it sends.
        action_names: names of the action's dimensions, in the sequence that it executes.
        cameras: keys of its cameras.
        robot_type: type of the robot.
    """

    __pydantic_config__: ClassVar = {"extra": "forbid"}  # where it is read from a message

    fps: float | None = None
    state_names: Sequence[str] | None = None
    action_names: Sequence[str] | None = None
    cameras: Sequence[str] | None = None
    robot_type: str | None = None


def compare_declaration(facts: RobotFacts, robot: Declaration) -> list[Mismatch]:
    """List the differences between a robot's declaration and training."""
    mismatches: list[Mismatch] = []
    if robot.fps is not None and abs(robot.fps - facts.fps) > RATE_TOLERANCE * facts.fps:
        fix = "run the control loop at the rate of training, or train with its rate"
        mismatches.append(Mismatch("rate", "", f"{facts.fps:g} steps per second", f"{robot.fps:g}", fix))
    for vector, names in ((facts.state, robot.state_names), (facts.action, robot.action_names)):
        if vector is not None and names is not None:
            mismatches += compare_names(vector, names)
    if robot.cameras is not None:
        missing = [camera.key for key, camera in facts.cameras.items() if not {key, camera.key} & set(robot.cameras)]
        mismatches += [Mismatch("missing key", key, "this camera", "no such camera", "send it") for key in missing]
    trained_type = facts.robot_type.strip().lower()
    if robot.robot_type and trained_type not in ("", "unknown") and robot.robot_type.strip().lower() != trained_type:
        fix = "name the robot's norm head with head="
        mismatches.append(Mismatch("other robot", "", facts.robot_type, robot.robot_type, fix))
    return mismatches


def compare_names(vector: VectorFacts, names: Sequence[str]) -> list[Mismatch]:
    """List the difference between the names of a vector's dimensions and those of training; none where they are equal.

    Names of training that are only numbers say nothing.
    """
    if tuple(names) == vector.names or vector.names == tuple(map(str, range(vector.width))):
        return []
    trained, came = ", ".join(vector.names), ", ".join(names)
    if sorted(names) == sorted(vector.names):
        return [Mismatch("dimension order", vector.key, trained, came, "send the dimensions in the order of training")]
    return [Mismatch("dimension names", vector.key, trained, came, "send the dimensions of training")]
