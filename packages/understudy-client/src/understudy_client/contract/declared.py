"""Usual statements of a robot about itself, as its contract."""

from collections.abc import Sequence

import numpy as np

from understudy_client.contract.facts import CameraFacts, RobotFacts, VectorFacts


def declare(
    fps: float = np.nan,
    state_names: Sequence[str] = (),
    action_names: Sequence[str] = (),
    cameras: Sequence[str] = (),
    robot_type: str = "",
) -> RobotFacts:
    """Return statements as a contract in which all else is unknown; `RobotFacts` has all that a
    robot can state.

    Args:
        fps: control steps per second.
        state_names: names of the state's dimensions, in the sequence that it sends.
        action_names: names of the action's dimensions, in the sequence that it executes.
        cameras: keys of its cameras.
        robot_type: type of the robot.
    """
    state, action = (VectorFacts.unmeasured("", names) for names in (state_names, action_names))
    return RobotFacts(
        fps, 0, robot_type, "", state, action, {key: CameraFacts(key, (0, 0)) for key in cameras}
    )
