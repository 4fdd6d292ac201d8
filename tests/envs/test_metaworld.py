"""Meta-World behind the protocol: experts that succeed, layouts from our seeds, pictures without GL."""

import numpy as np
import pytest

from support.worlds import check_world

pytest.importorskip("metaworld", reason="the extra `sim` is not installed")

from understudy.envs.env import layout_seed
from understudy.envs.metaworld import MetaWorld
from understudy.envs.rays import SKY
from understudy.envs.registry import open_world

pytestmark = pytest.mark.filterwarnings("ignore")  # its packages deprecate each other at import


@pytest.fixture(scope="module")
def world() -> MetaWorld:
    return MetaWorld(size=16, tasks=("reach-v3", "drawer-open-v3"))


def test_it_is_a_world(world: MetaWorld) -> None:
    check_world(world, steps=3)
    assert world.tasks == ("Reach a goal position", "Open a drawer")


def test_its_expert_succeeds_and_the_flag_ends_the_episode() -> None:
    world = open_world("metaworld", cameras=(), tasks=("reach-v3", "drawer-open-v3"))
    for task in world.tasks:
        world.reset(layout_seed(0, 1), task)
        for _ in range(150):
            _, outcome = world.step(world.expert())
            if outcome.over:
                break
        assert outcome.taken == task


def test_the_goal_is_observed(world: MetaWorld) -> None:
    """The 39 numbers end with the goal; a stale observation space would clip it to zero."""
    goals = [world.reset(layout_seed(0, e), "Reach a goal position")["observation.environment_state"] for e in range(4)]
    goals = np.stack(goals)[:, -3:]
    assert (np.abs(goals[:, 1:]) > 0.01).all()
    assert len(np.unique(goals, axis=0)) == 4


def test_a_seed_is_a_layout_and_evaluation_has_its_own(world: MetaWorld) -> None:
    state, _ = np.random.get_state()[1:3]  # noqa: NPY002 (the global generator is what must stay untouched)
    first = world.reset(layout_seed(0, 0), "Open a drawer")
    after = [world.step(world.expert())[0] for _ in range(5)][-1]
    world.reset(layout_seed(0, 0, evaluation=True), "Open a drawer")
    other = world.reset(layout_seed(0, 0, evaluation=True), "Open a drawer")
    assert (first["observation.environment_state"] != other["observation.environment_state"]).any()
    fresh = MetaWorld(size=16, tasks=("drawer-open-v3",))
    again = fresh.reset(layout_seed(0, 0), "Open a drawer")
    again_after = [fresh.step(fresh.expert())[0] for _ in range(5)][-1]
    for key in first:
        np.testing.assert_array_equal(first[key], again[key])
        np.testing.assert_array_equal(after[key], again_after[key])
    np.testing.assert_array_equal(state, np.random.get_state()[1])  # noqa: NPY002


def test_pictures_are_the_right_way_up() -> None:
    world = MetaWorld(size=32, cameras=("corner2", "gripperPOV"), tasks=("drawer-open-v3",))
    observation = world.reset(layout_seed(0, 0), "Open a drawer")
    picture = observation["observation.images.corner2"]
    sky = (picture == SKY.astype(np.uint8)).all(axis=-1)
    assert sky[0].mean() > 0.6  # beyond the table, at the top
    assert not sky[-1].any()
    assert len(np.unique(observation["observation.images.gripperPOV"].reshape(-1, 3), axis=0)) > 5


def test_unknown_cameras_and_tasks_are_named() -> None:
    with pytest.raises(ValueError, match=r"front.*corner2, gripperPOV"):
        MetaWorld(cameras=("front",))
    with pytest.raises(ValueError, match=r"'fly-v3'.*reach-v3"):
        MetaWorld(tasks=("fly-v3",))
