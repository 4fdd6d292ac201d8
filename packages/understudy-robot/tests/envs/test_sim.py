"""The tabletop: layouts, physics, the scripted expert, and determinism in seed and actions."""

import hashlib
import subprocess
import sys
from pathlib import Path

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

mujoco = pytest.importorskip("mujoco", reason="the extra `demo` is not installed")

from understudy_base.testing.refusals import refused  # noqa: E402
from understudy_robot.envs import tabletop as sim  # noqa: E402
from understudy_robot.envs.tabletop import (  # noqa: E402
    APART,
    COLORS,
    HALF,
    HIGH,
    LOW,
    MAX_STEPS,
    NOISE,
    REACH,
    SPREAD,
    STEP,
    TASKS,
    TabletopEnv,
)

STILL = np.array([0, 0, 0, -1], dtype=np.float32)
IMAGE = "observation.images.front"
STATE = "observation.state"
RED = TASKS["red"]


@pytest.fixture(scope="module")
def env() -> TabletopEnv:
    return TabletopEnv(size=16)


def move_to(env: TabletopEnv, place: np.ndarray, grip: float) -> None:
    for _ in range(60):
        gap = place - env.hand
        if np.abs(gap).max() < 1e-6:
            return
        env.step(np.append(np.clip(gap / STEP, -1, 1), grip))
    raise AssertionError(f"the hand does not get to {place}")


def trajectory(seed: int, size: int = 24, steps: int = 25) -> str:
    """Digest of all observations of an episode of pseudo-random actions that also grip."""
    env = TabletopEnv(size=size)
    digest = hashlib.sha256()
    env.reset(seed, RED)
    actions = np.random.Generator(np.random.PCG64(seed)).random((steps, 4)) * 2 - 1
    target = env.blocks[0]
    for action in actions:
        action[:3] += np.clip((target - env.hand) / STEP, -1, 1)
        observation, _ = env.step(action)
        digest.update(
            observation[IMAGE].tobytes() + observation[STATE].tobytes() + env.blocks.tobytes()
        )
    return digest.hexdigest()


# -- layouts ---------------------------------------------------------------------------------------


@given(st.integers(0, 2**64 - 1))
def test_blocks_of_a_layout_lie_apart_and_on_the_table(seed: int) -> None:
    centers, yaw, hand = sim.layout(seed)
    gaps = [np.linalg.norm(centers[i] - centers[j]) for i, j in ((0, 1), (1, 2), (0, 2))]
    assert min(gaps) >= APART > 2 * HALF * np.sqrt(2)  # squares turned anyhow do not touch
    assert np.abs(centers).max() <= SPREAD
    assert ((yaw >= 0) & (yaw <= np.pi / 2)).all()
    assert ((hand >= LOW) & (hand <= HIGH)).all()
    assert hand[2] - HALF > REACH  # no episode starts with a block in reach


def test_layouts_cover_the_table_alike_for_every_block() -> None:
    centers = np.stack([sim.layout(seed)[0] for seed in range(1500)])  # (1500, 3, 2)
    for block in range(3):
        counts, *_ = np.histogram2d(*centers[:, block].T, bins=4, range=[[-SPREAD, SPREAD]] * 2)
        assert counts.min() > 0.6 * 1500 / 16
        assert counts.max() < 1.5 * 1500 / 16


def test_a_layout_is_frozen_for_good() -> None:
    """Golden values: later releases record the same layouts."""
    centers, yaw, hand = sim.layout(12345)
    np.testing.assert_allclose(
        centers,
        [[-0.1136443213, 0.088635374], [0.0506274903, -0.1245866179], [0.1206828392, 0.0521630912]],
        atol=1e-9,
    )
    np.testing.assert_allclose(yaw, [0.250693883, 0.2528083908, 1.2855060458], atol=1e-9)
    np.testing.assert_allclose(hand, [0.0351312452, 0.0658242235, 0.1550505385], atol=1e-9)


def test_an_episode_that_does_nothing_is_cut_off(env: TabletopEnv) -> None:
    env.reset(1, RED)
    ends = [env.step(STILL)[1] for _ in range(MAX_STEPS)]
    assert [end.done for end in ends] == [False] * (MAX_STEPS - 1) + [True]
    assert {end.completed_task for end in ends} == {None}


def test_wrong_inputs_are_named(env: TabletopEnv) -> None:
    with refused("'pink'", kind=ValueError):
        env.reset(0, "pink")
    env.reset(0, RED)
    with refused("nan", kind=ValueError):
        env.step(np.array([0, 0, np.nan, 0]))
    with refused("array([0., 0., 0.])", kind=ValueError):
        env.step(np.zeros(3))
    with refused("size=4", kind=ValueError):
        TabletopEnv(size=4)


# -- determinism -----------------------------------------------------------------------------------


def test_seed_and_actions_decide_everything_in_any_process() -> None:
    here = trajectory(7)
    code = f"""
import sys; sys.path.insert(0, {str(Path(__file__).parent)!r})
import numpy; numpy.random.random(100)
from test_sim import trajectory
trajectory(3); print(trajectory(7))
"""
    there = subprocess.run(
        [sys.executable, "-c", code], capture_output=True, text=True, check=True
    ).stdout.strip()
    assert here == there
    assert here != trajectory(8)


def test_an_episode_does_not_know_the_one_before(env: TabletopEnv) -> None:
    fresh = TabletopEnv(size=16)
    expected = [fresh.reset(3, RED), *(fresh.step(np.array([0.5, 0, -1, 1]))[0] for _ in range(12))]
    env.reset(2, RED)
    move_to(env, env.blocks[1], grip=1)  # leaves a block in a closed hand
    got = [env.reset(3, RED), *(env.step(np.array([0.5, 0, -1, 1]))[0] for _ in range(12))]
    for a, b in zip(expected, got):
        np.testing.assert_array_equal(a[IMAGE], b[IMAGE])
        np.testing.assert_array_equal(a[STATE], b[STATE])


def test_the_three_tasks_of_a_seed_share_one_scene(env: TabletopEnv) -> None:
    images = [env.reset(11, task)[IMAGE] for task in env.tasks]
    assert len(images) == 3
    np.testing.assert_array_equal(images[0], images[1])
    np.testing.assert_array_equal(images[0], images[2])
    assert (env.reset(12, RED)[IMAGE] != images[0]).any()


# -- physics ---------------------------------------------------------------------------------------


def test_blocks_lie_still_until_they_are_taken(env: TabletopEnv) -> None:
    env.reset(4, RED)
    before = env.blocks
    for _ in range(30):
        env.step(STILL)
    np.testing.assert_allclose(env.blocks, before, atol=5e-4)
    move_to(env, before[0], grip=-1)  # an open hand passes through and disturbs nothing
    np.testing.assert_allclose(env.blocks, before, atol=5e-4)


def test_the_hand_moves_no_further_than_a_step_and_stays_in_its_space(env: TabletopEnv) -> None:
    env.reset(4, RED)
    for action in np.random.Generator(np.random.PCG64(1)).normal(0, 50, (60, 4)):
        before = env.hand
        env.step(action)
        assert np.abs(env.hand - before).max() <= STEP + 1e-12
        assert ((env.hand >= LOW) & (env.hand <= HIGH)).all()


def test_a_block_is_taken_carried_and_dropped(env: TabletopEnv) -> None:
    env.reset(6, RED)
    block = env.blocks[2]
    move_to(env, block + np.array([0, 0, 0.03]), grip=-1)
    env.step(np.array([0, 0, 0, 1]))
    assert env.held is None  # closed, but out of reach
    move_to(env, block + np.array([0.01, 0, 0.01]), grip=1)
    assert env.held == "blue"
    offset = env.blocks[2] - env.hand
    move_to(env, np.array([0.05, 0.05, 0.08]), grip=1)
    np.testing.assert_allclose(env.blocks[2] - env.hand, offset, atol=5e-3)  # it comes along
    env.step(STILL)
    assert env.held is None
    for _ in range(10):
        env.step(STILL)
    assert env.blocks[2][2] == pytest.approx(HALF, abs=2e-3)  # and falls


def test_a_hand_holds_one_block(env: TabletopEnv) -> None:
    env.reset(6, RED)
    move_to(env, env.blocks[0], grip=1)
    goal = np.append(env.blocks[1][:2], 0.05)
    move_to(env, goal, grip=1)
    assert env.held == "red"


@pytest.mark.parametrize("lifted", ["green", "red"])
def test_the_first_block_up_ends_the_episode(env: TabletopEnv, lifted: str) -> None:
    env.reset(9, TASKS["green"])
    move_to(env, env.blocks[COLORS.index(lifted)], grip=1)
    for _ in range(12):
        _, outcome = env.step(np.array([0, 0, 1, 1]))
        assert (
            outcome.done
            == (env.blocks[:, 2].max() > sim.LIFTED)
            == (outcome.completed_task is not None)
        )
        if outcome.done:
            break
    assert outcome.completed_task == TASKS[lifted]


# -- the expert ------------------------------------------------------------------------------------


def play(env: TabletopEnv, noise: np.ndarray) -> tuple[bool, int]:
    """Run the expert under `noise` (steps, 4) until the episode ends; whether it succeeded, and in
    how many steps.
    """
    for step in range(MAX_STEPS):
        action = env.expert()
        assert action.dtype == np.float32
        assert np.abs(action).max() <= 1
        _, outcome = env.step(action + noise[step])
        if outcome.done:
            break
    return outcome.completed_task == TASKS[env.color], step + 1


@pytest.mark.long
def test_the_expert_succeeds_under_its_own_noise() -> None:
    env = TabletopEnv(size=8)
    results = []
    for seed in range(150):
        env.reset(seed, TASKS[COLORS[seed % 3]])
        results.append(
            play(env, np.random.Generator(np.random.PCG64(seed)).normal(0, NOISE, (MAX_STEPS, 4)))
        )
    successes, steps = zip(*results)
    assert sum(successes) >= 147  # 98 %
    assert np.mean(steps) < 30  # and wastes no time: a meandering expert teaches meandering


@pytest.mark.parametrize("color", COLORS)
def test_every_block_of_a_scene_can_be_asked_for(color: str, env: TabletopEnv) -> None:
    env.reset(42, TASKS[color])
    assert play(env, np.zeros((MAX_STEPS, 4)))[0]


def test_the_expert_has_no_memory_and_recovers(env: TabletopEnv) -> None:
    """Opened on the way up, and given a wrong block, it acts rightly from there."""
    env.reset(3, RED)
    while env.held is None:
        env.step(env.expert())
    env.step(np.array([0, 0, 1, 1]))
    env.step(np.array([0.5, 0, 0, -1]))
    assert env.held is None
    assert play(env, np.zeros((MAX_STEPS, 4)))[0]

    env.reset(3, TASKS["blue"])
    while env.held is None:
        env.step(env.expert())
    env.color = "red"
    assert play(env, np.zeros((MAX_STEPS, 4)))[0]


# -- images ----------------------------------------------------------------------------------------


def test_every_block_shows_in_its_color_where_it_lies() -> None:
    env = TabletopEnv(size=64)
    for seed in range(5):
        env.reset(seed, RED)
        env.data.mocap_pos[0] = [0.18, 0.18, 0.2]  # out of the way
        image = env.render().astype(int)
        for i, color in enumerate(COLORS):
            others = [c for c in range(3) if c != i]
            mask = (image[..., i] > 90) & (image[..., others].max(-1) < 0.6 * image[..., i])
            assert mask.sum() > 25, color
            rows, columns = np.nonzero(mask)
            seen = project(env, env.blocks[i])
            assert abs(columns.mean() + 0.5 - seen[0]) < 1.5
            assert abs(rows.mean() + 0.5 - seen[1]) < 1.5


def test_the_grip_shows() -> None:
    env = TabletopEnv(size=64)
    env.reset(0, RED)
    opened, closed, again = (
        env.step(np.array([0, 0, 0, grip]))[0][IMAGE].astype(int) for grip in (-1, 1, -1)
    )
    assert np.abs(opened - closed).max() > 50
    assert np.abs(opened - again).max() < 5  # (blocks settle by micrometres)


def test_rays_in_bulk_hit_what_single_rays_hit() -> None:
    """`mj_multiRay` of this release drops parts of large boxes; this scene must hold nothing that
    it gets wrong.
    """
    env = TabletopEnv(size=40)
    camera = env._camera
    for seed in range(4):
        env.reset(seed, RED)
        hit, _, rays = camera._cast(env.data)
        geom = np.zeros(1, dtype=np.int32)
        for i, ray in enumerate(rays):
            mujoco.mj_ray(env.model, env.data, env.data.cam_xpos[0], ray, None, 1, -1, geom)
            assert geom[0] == hit[i]


def project(env: TabletopEnv, point: np.ndarray) -> tuple[float, float]:
    """Column and row (in pixel edges) of a point in space in the image."""
    x, y, z = env.data.cam_xmat[0].reshape(3, 3).T @ (point - env.data.cam_xpos[0])
    focal = 32 / np.tan(np.radians(env.model.cam_fovy[0] / 2))
    return 32 + focal * x / -z, 32 - focal * y / -z
