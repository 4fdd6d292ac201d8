"""Meta-World behind the protocol: experts that succeed, layouts from our seeds, images without
GL.
"""

import numpy as np
import pytest

from understudy_robot.testing.envs import check_env

pytest.importorskip("metaworld", reason="the extra `sim` is not installed")

from understudy_base.testing.refusals import refused
from understudy_robot.envs.env import layout_seed
from understudy_robot.envs.metaworld import MetaWorldEnv
from understudy_robot.envs.ray_camera import SKY
from understudy_robot.envs.registry import open_env

pytestmark = pytest.mark.filterwarnings("ignore")  # its packages deprecate each other at import


@pytest.fixture(scope="module")
def env() -> MetaWorldEnv:
    return MetaWorldEnv(size=16, tasks=("reach-v3", "drawer-open-v3"))


def test_metaworld_fulfils_the_protocol(env: MetaWorldEnv) -> None:
    check_env(env, steps=3)
    assert env.tasks == ("Reach a goal position", "Open a drawer")


@pytest.mark.long
def test_metaworld_expert_succeeds_and_the_flag_ends_the_episode() -> None:
    env = open_env("metaworld", cameras=(), tasks=("reach-v3", "drawer-open-v3"))
    for task in env.tasks:
        env.reset(layout_seed(0, 1), task)
        for _ in range(150):
            _, outcome = env.step(env.expert())
            if outcome.done:
                break
        assert outcome.completed_task == task


def test_metaworld_observes_the_goal(env: MetaWorldEnv) -> None:
    """The 39 numbers end with the goal; a stale observation space would clip it to zero."""
    goals = [
        env.reset(layout_seed(0, e), "Reach a goal position")["observation.environment_state"]
        for e in range(4)
    ]
    goals = np.stack(goals)[:, -3:]
    assert (np.abs(goals[:, 1:]) > 0.01).all()
    assert len(np.unique(goals, axis=0)) == 4


def test_metaworld_layouts_follow_the_seed_and_evaluation_has_its_own(env: MetaWorldEnv) -> None:
    state, _ = np.random.get_state()[1:3]  # noqa: NPY002 (the global generator must stay untouched)
    first = env.reset(layout_seed(0, 0), "Open a drawer")
    after = [env.step(env.expert())[0] for _ in range(5)][-1]
    env.reset(layout_seed(0, 0, evaluation=True), "Open a drawer")
    other = env.reset(layout_seed(0, 0, evaluation=True), "Open a drawer")
    assert (first["observation.environment_state"] != other["observation.environment_state"]).any()
    fresh = MetaWorldEnv(size=16, tasks=("drawer-open-v3",))
    again = fresh.reset(layout_seed(0, 0), "Open a drawer")
    again_after = [fresh.step(fresh.expert())[0] for _ in range(5)][-1]
    for key in first:
        np.testing.assert_array_equal(first[key], again[key])
        np.testing.assert_array_equal(after[key], again_after[key])
    np.testing.assert_array_equal(state, np.random.get_state()[1])  # noqa: NPY002


def test_metaworld_images_are_upright() -> None:
    env = MetaWorldEnv(size=32, cameras=("corner2", "gripperPOV"), tasks=("drawer-open-v3",))
    observation = env.reset(layout_seed(0, 0), "Open a drawer")
    image = observation["observation.images.corner2"]
    sky = (image == SKY.astype(np.uint8)).all(axis=-1)
    assert sky[0].mean() > 0.6  # beyond the table, at the top
    assert not sky[-1].any()
    assert len(np.unique(observation["observation.images.gripperPOV"].reshape(-1, 3), axis=0)) > 5


def test_metaworld_names_unknown_cameras_and_tasks() -> None:
    with refused(["front"], "corner2, gripperPOV", kind=ValueError):
        MetaWorldEnv(cameras=("front",))
    with refused("'fly-v3'", "reach-v3", kind=ValueError):
        MetaWorldEnv(tasks=("fly-v3",))
