"""Checks of the environment protocol."""

import numpy as np
import pytest

from understudy_robot.envs.env import Env, layout_seed


def check_env(env: Env, steps: int) -> None:
    """Check the parts of the protocol that hold for every environment."""
    assert env.fps > 0
    assert env.max_steps > 0
    observed = set(env.features) - {"action"}
    for task in env.tasks:
        observation = env.reset(layout_seed(0, 0), task)
        again = env.reset(layout_seed(0, 0), task)
        assert set(observation) == observed
        for key in observed:
            np.testing.assert_array_equal(observation[key], again[key])
        for _ in range(steps):
            action = env.expert()
            assert (action.dtype, action.shape) == (
                np.float32,
                tuple(env.features["action"]["shape"]),
            )
            assert np.abs(action).max() <= 1
            observation, outcome = env.step(action)
            for key in observed:
                feature = env.features[key]
                dtype = np.uint8 if feature["dtype"] == "video" else feature["dtype"]
                assert observation[key].shape == tuple(feature["shape"]), key
                assert observation[key].dtype == dtype, key
            if outcome.done:
                break
    with pytest.raises(ValueError, match="'dance'"):
        env.reset(0, "dance")
