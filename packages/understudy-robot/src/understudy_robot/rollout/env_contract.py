"""The contract of an environment: rate, keys, names, and the meanings that it states."""

from collections.abc import Mapping

from understudy_base import Record
from understudy_client import CameraFacts, Contract, RobotFacts, VectorFacts
from understudy_robot.envs.env import IMAGE, Env


def env_contract(env: Env, state: str = "observation.state", replan: int = 0) -> Contract:
    """Make the contract of an environment; all that it does not state is unknown.

    Args:
        env: the environment. `meanings` has further facts by key, fields of `VectorFacts` and
            `CameraFacts`.
        state: key of the state that the policy sees.
        replan: actions that are executed before the next prediction; 0: unknown.
    """
    meanings: Mapping[str, Record] = getattr(env, "meanings", {})
    cameras = {
        key: CameraFacts(
            key,
            feature["shape"][:2],
            color="RGB",
            layout="HWC",
            dtype="uint8",
            **meanings.get(key, {}),
        )
        for key, feature in env.features.items()
        if key.startswith(IMAGE)
    }
    vectors = {
        key: VectorFacts.unmeasured(key, env.features[key]["names"], **meanings.get(key, {}))
        for key in (state, "action")
        if key in env.features
    }
    facts = RobotFacts(
        fps=float(env.fps),
        chunk=0,
        robot_type="",
        control_mode="",
        state=vectors.get(state),
        action=vectors["action"],
        cameras=cameras,
        tasks=tuple(env.tasks),
        replan=replan,
    )
    return Contract({"": facts}, {"environment": env.name, **env.conditions}, "environment")
