"""The scripted expert: it succeeds under its noise, and from wherever it is put."""

import numpy as np
import pytest

pytest.importorskip("mujoco", reason="the extra `demo` is not installed")

from understudy.envs.tabletop import COLORS, MAX_STEPS, NOISE, Tabletop, expert_action


def play(env: Tabletop, noise: np.ndarray) -> tuple[bool, int]:
    """Run the expert under `noise` (steps, 4) until the episode ends; whether it succeeded, and in how many steps."""
    for step in range(MAX_STEPS):
        action = expert_action(env)
        assert action.dtype == np.float32
        assert np.abs(action).max() <= 1
        *_, terminated, truncated, info = env.step(action + noise[step])
        if terminated or truncated:
            break
    return bool(info["success"]), step + 1


@pytest.mark.long
def test_the_expert_succeeds_under_its_own_noise() -> None:
    env, results = Tabletop(size=8), []
    for seed in range(150):
        env.reset(seed=seed)
        results.append(play(env, np.random.Generator(np.random.PCG64(seed)).normal(0, NOISE, (MAX_STEPS, 4))))
    successes, steps = zip(*results)
    assert sum(successes) >= 147  # 98 %
    assert np.mean(steps) < 30  # and wastes no time: a meandering expert teaches meandering


@pytest.mark.parametrize("color", COLORS)
def test_every_block_of_a_scene_can_be_asked_for(color: str) -> None:
    env = Tabletop(size=8)
    env.reset(seed=42, options={"color": color})
    assert play(env, np.zeros((MAX_STEPS, 4)))[0]


def test_the_expert_has_no_memory_and_recovers() -> None:
    """Opened on the way up, and given a wrong block, it acts rightly from there."""
    env = Tabletop(size=8)
    env.reset(seed=3, options={"color": "red"})
    while env.held is None:
        env.step(expert_action(env))
    env.step(np.array([0, 0, 1, 1]))
    env.step(np.array([0.5, 0, 0, -1]))
    assert env.held is None
    assert play(env, np.zeros((MAX_STEPS, 4)))[0]

    env.reset(seed=3, options={"color": "red"})
    env.color = "blue"
    while env.held is None:
        env.step(expert_action(env))
    env.color = "red"
    assert play(env, np.zeros((MAX_STEPS, 4)))[0]
