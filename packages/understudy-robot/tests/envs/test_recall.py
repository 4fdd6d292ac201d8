"""The table that needs memory: the lit pad shows for one second, decides success, and leaves no
other trace.
"""

import itertools
from dataclasses import dataclass
from typing import Any

import numpy as np
import pytest
import torch

from understudy.policies.capabilities.past import Past
from understudy.policies.draws import RandomSpec
from understudy.policies.policy import Policy
from understudy_base.testing.refusals import refused
from understudy_robot.envs.recall import (
    LIMIT,
    LIT,
    MAX_STEPS,
    PADS,
    START,
    TASK,
    WAIT,
    WRONG,
    RecallEnv,
    layout,
    move_to,
)
from understudy_robot.envs.registry import open_env
from understudy_robot.rollout.play import rollout
from understudy_robot.testing.envs import check_env

TOP = "observation.images.top"
STATE = "observation.state"
STILL = np.zeros(2, dtype=np.float32)
SIZE = 32


@pytest.fixture(scope="module")
def env() -> RecallEnv:
    env = open_env("recall", size=SIZE)
    assert isinstance(env, RecallEnv)
    return env


def waited(env: RecallEnv, seed: int, lit: int) -> list[dict[str, np.ndarray]]:
    """Observations of a scene with another lit pad, up to the first in which the hand may move."""
    env.reset(seed, TASK)
    env.lit = lit
    found = [env.observation()]
    while len(found) <= env.go:
        found.append(env.step(STILL)[0])
    return found


def moved(env: RecallEnv, seed: int, pad: int) -> str | None:
    """Outcome of moving to `pad` from the first step on."""
    env.reset(seed, TASK)
    while True:
        _, outcome = env.step(move_to(env.hand, pad))
        if outcome.done:
            return outcome.completed_task


def test_recall_fulfils_the_protocol(env: RecallEnv) -> None:
    check_env(env, steps=MAX_STEPS)


def test_the_pad_shows_for_one_second_and_leaves_no_trace(env: RecallEnv) -> None:
    assert env.fps == LIT
    for seed in range(8):
        several = [waited(env, seed, lit) for lit in range(len(PADS))]
        for one, other in itertools.combinations(several, 2):
            shown = [not np.array_equal(a[TOP], b[TOP]) for a, b in zip(one, other, strict=True)]
            assert shown == [True] * LIT + [False] * (len(one) - LIT)
            assert all(np.array_equal(a[STATE], b[STATE]) for a, b in zip(one, other))


def test_scenes_give_no_hint_of_the_pad() -> None:
    """Pad, first step and start are independent: counts over 4,000 scenes stay within 5 standard
    deviations.
    """
    scenes = [layout(seed) for seed in range(4000)]
    pads = np.array([lit for lit, _, _ in scenes])
    late = np.array([go - LIT - WAIT[0] for _, go, _ in scenes])
    corner = np.array([(hand > 0) @ [1, 2] for _, _, hand in scenes])
    assert set(late) == set(range(WAIT[1] - WAIT[0] + 1))
    assert max(np.abs(hand).max() for _, _, hand in scenes) <= START
    for other in (late, corner):
        counts = np.array(
            [[np.sum((pads == pad) & (other == value)) for value in set(other)] for pad in range(4)]
        )
        expected = len(scenes) / counts.size
        assert np.abs(counts - expected).max() < 5 * np.sqrt(expected)


def test_the_hand_is_locked_until_the_lamp_is_green(env: RecallEnv) -> None:
    first = env.reset(3, TASK)
    lamps = set()
    for step in range(1, env.go + 1):
        observation, outcome = env.step(np.ones(2))
        assert np.array_equal(observation[STATE], first[STATE])
        assert not outcome.done
        lamps.add((step, tuple(observation[TOP][3, 16])))
    colors = [color for _, color in sorted(lamps)]
    assert len(set(colors[:-1])) == 1
    assert colors[-1] != colors[0]
    assert not np.array_equal(env.step(np.ones(2))[0][STATE], first[STATE])


def test_the_expert_always_succeeds_and_a_guess_one_time_in_four() -> None:
    env = RecallEnv(size=8)
    right = 0
    noise = np.random.Generator(np.random.PCG64(0)).normal(0, env.noise, (200, MAX_STEPS, 2))
    for seed, pushes in enumerate(noise):
        env.reset(seed, TASK)
        for push in pushes:
            _, outcome = env.step(env.expert() + push)
            if outcome.done:
                break
        assert outcome.completed_task == TASK
        guess = moved(env, seed, pad=0)
        assert guess == (TASK if env.lit == 0 else WRONG)
        right += guess == TASK
    assert 30 <= right <= 70  # 1 in 4 of 200: 50, standard deviation 6


@dataclass(frozen=True)
class Sight:
    chunk: int = 1
    action_dim: int = 2
    image_times: tuple[float, ...] = ()

    def past(self) -> Past:
        return Past(self.image_times)


class Witness(Policy):
    """A policy that moves to the pad that it sees lit, in any of its frames; to the first where it
    sees none.
    """

    def __init__(self, image_times: tuple[float, ...] = ()) -> None:
        super().__init__()
        self.config = Sight(image_times=image_times)

    def random_spec(self, use: str) -> dict[str, RandomSpec]:
        return {}

    def preprocess(self, batch: dict[str, Any]) -> dict[str, Any]:
        return batch

    def act(
        self, batch: dict[str, Any], draws: dict[str, torch.Tensor], steps: int = 10
    ) -> torch.Tensor:
        images = batch[TOP]
        places = ((PADS / LIMIT * [1, -1] + 1) * SIZE / 2).astype(int)
        frames = images if images.ndim == 5 else images[:, None]
        red = frames[:, :, 0, places[:, 1], places[:, 0]].amax(dim=1)  # [B, pads]
        found = [
            move_to(hand.numpy(), pad)
            for hand, pad in zip(batch[STATE], red.int().argmax(dim=1).tolist())
        ]
        return torch.from_numpy(np.stack(found))[:, None]


def test_five_frames_a_second_apart_remember_the_pad() -> None:
    """The windows of a rollout hold the lit pad at every step in which the hand moves; the present
    does not.
    """
    envs = [RecallEnv(size=SIZE) for _ in range(4)]
    recalled = rollout(Witness((-5.0, -4.0, -3.0, -2.0, -1.0, 0.0)), envs, 40, execute=1)
    assert recalled.successes == 40
    forgot = rollout(Witness(), envs, 40, execute=1)
    assert [episode.success for episode in forgot.episodes] == [
        layout(e.seed)[0] == 0 for e in forgot.episodes
    ]
    assert {episode.taken for episode in forgot.episodes} == {TASK, WRONG}


def test_an_episode_ends_at_the_limit(env: RecallEnv) -> None:
    env.reset(1, TASK)
    outcomes = [env.step(STILL)[1] for _ in range(MAX_STEPS)]
    assert [outcome.done for outcome in outcomes] == [False] * (MAX_STEPS - 1) + [True]
    assert outcomes[-1].completed_task is None


@pytest.mark.parametrize("action", [[0, 0, 0], [0, np.nan]])
def test_recall_refuses_actions_it_cannot_execute(env: RecallEnv, action: list[float]) -> None:
    env.reset(1, TASK)
    with refused(repr(np.array(action, float)), kind=ValueError):
        env.step(np.array(action))


def test_recall_refuses_other_cameras_and_sizes() -> None:
    with pytest.raises(ValueError, match="'top'"):
        open_env("recall", cameras=("front",))
    with pytest.raises(ValueError, match="size=4"):
        RecallEnv(size=4)
