"""What several tests ask of a world."""

import numpy as np
import pytest

from understudy.envs.env import World, layout_seed


def check_world(world: World, steps: int) -> None:
    """The promises of the protocol that need no particular world."""
    assert world.fps > 0
    assert world.max_steps > 0
    observed = set(world.features) - {"action"}
    for task in world.tasks:
        observation = world.reset(layout_seed(0, 0), task)
        again = world.reset(layout_seed(0, 0), task)
        assert set(observation) == observed
        for key in observed:
            np.testing.assert_array_equal(observation[key], again[key])
        for _ in range(steps):
            action = world.expert()
            assert (action.dtype, action.shape) == (np.float32, tuple(world.features["action"]["shape"]))
            assert np.abs(action).max() <= 1
            observation, outcome = world.step(action)
            for key in observed:
                feature = world.features[key]
                assert observation[key].shape == tuple(feature["shape"]), key
                assert observation[key].dtype == (np.uint8 if feature["dtype"] == "video" else feature["dtype"]), key
            if outcome.over:
                break
    with pytest.raises(ValueError, match="'dance'"):
        world.reset(0, "dance")
