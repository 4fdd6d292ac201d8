"""LIBERO's suites: conventions of observations and actions, initial states, missing assets."""

import os
from itertools import pairwise

import numpy as np
import pytest

pytest.importorskip("libero", reason="the extra `libero` is not installed")

from understudy_base.testing.refusals import refused
from understudy_robot.envs.env import layout_seed
from understudy_robot.envs.libero import ASSETS, MAX_STEPS, axis_angle
from understudy_robot.envs.registry import open_env

needs_assets = pytest.mark.skipif(
    ASSETS not in os.environ, reason=f"{ASSETS} does not name LIBERO's assets"
)


@pytest.mark.parametrize("angle", [1e-3, 0.5, 3.0, 6.0])
def test_axis_angle_is_the_rotation(angle: float) -> None:
    axis = np.array([2, -1, 2]) / 3
    np.testing.assert_allclose(
        axis_angle(np.append(np.sin(angle / 2) * axis, np.cos(angle / 2))), angle * axis
    )
    assert (axis_angle(np.array([0, 0, 0, 1.0])) == 0).all()


def test_missing_assets_are_named(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv(ASSETS, "/nowhere")
    with refused(ASSETS, "/nowhere", kind=ValueError):
        open_env("libero_spatial")
    with refused("cameras", "image3", kind=ValueError):
        open_env("libero_spatial", cameras=("image3",))


@needs_assets
def test_suites_have_the_published_protocol() -> None:
    envs = {name: open_env(name) for name in MAX_STEPS}
    assert [env.max_steps for env in envs.values()] == [220, 280, 300, 520, 400]
    assert [env.episodes for env in envs.values()] == [500, 500, 500, 500, 4500]
    with refused("tasks", "dance", kind=ValueError):
        open_env("libero_goal", tasks=("dance",))


@pytest.mark.long
@needs_assets
def test_an_episode_begins_in_its_initial_state_and_follows_actions() -> None:
    env = open_env("libero_spatial", size=64)
    task = env.tasks[0]
    trials = [env.reset(layout_seed(0, 10 * trial, evaluation=True), task) for trial in (0, 1, 0)]
    states = [trial["observation.state"] for trial in trials]
    np.testing.assert_array_equal(states[0], states[2])
    np.testing.assert_array_equal(
        trials[0]["observation.images.image"], trials[2]["observation.images.image"]
    )
    assert (trials[0]["observation.images.image"] != trials[1]["observation.images.image"]).any()
    sky, table = (
        trials[0]["observation.images.image"][rows].mean()
        for rows in (slice(0, 8), slice(-8, None))
    )
    assert abs(sky - table) > 5, "the wall is at the top, the table at the bottom"
    assert env.unwrapped.env.timestep == 10, "the waiting steps"
    heights = []
    fingers = []
    for _ in range(8):  # up, with an open and then a closed gripper
        observation, outcome = env.step(np.array([0, 0, 1, 0, 0, 0, 1.0]))
        heights.append(observation["observation.state"][2])
        fingers.append(np.abs(observation["observation.state"][6:]).sum())
        assert not outcome.done
    assert all(low < high for low, high in pairwise(heights))
    assert fingers[-1] < 0.5 * np.abs(states[0][6:]).sum(), "1 closes the gripper"
