"""Actions outside the recorded ones: moved to the bound and named, refused, or left as they are."""

import json
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch

import understudy as us
from understudy.policies.acting import bound_actions
from understudy.policies.inference import RobotPolicy
from understudy.testing.arm import write_arm_policy
from understudy_base.testing.refusals import refused
from understudy_client.testing.arm import NAMES, arm_contract, arm_observations

SEEN = {
    "observation.state": arm_observations(1)[0]["joints"],
    "observation.images.front": arm_observations(1)[0]["cam_front"],
    "observation.images.wrist_left": arm_observations(1)[0]["cam_wrist_left"],
    "task": "pick up the red block",
}
FACTS = arm_contract().robots["arm"].action
LOW = FACTS.low - FACTS.margin
HIGH = FACTS.high + FACTS.margin


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return write_arm_policy(tmp_path_factory.mktemp("arm") / "policy")


def chunk(
    folder: Path, bounds: Any, contract: Any = "off", scale: float = 0.6
) -> tuple[RobotPolicy, np.ndarray]:
    """A chunk of a policy whose actions are `scale` times as far from the center as the
    network's.
    """
    policy = us.load_policy(folder, head="arm", contract=contract, action_bounds=bounds)
    original = policy.policy.act
    center = torch.as_tensor(FACTS.center, dtype=torch.float32)
    policy.policy.act = lambda *args, **options: (
        (original(*args, **options) - center) * scale + center
    )  # type: ignore[method-assign]
    policy.reset(seed=1)
    return policy, policy.act(SEEN)


def test_actions_are_moved_to_their_bounds_and_named(folder: Path) -> None:
    free, raw = chunk(folder, "off")
    policy, actions = chunk(folder, "clamp")
    beyond = np.maximum(LOW - raw, raw - HIGH).max(0)
    assert 0 < (beyond > 0).sum() < 7
    assert (free.clamped, policy.clamped.keys()) == (
        {},
        {name for name, d in zip(NAMES, beyond) if d > 0},
    )
    assert all(
        np.isclose(policy.clamped[name], beyond[NAMES.index(name)]) for name in policy.clamped
    )
    np.testing.assert_array_equal(actions, np.clip(raw, LOW, HIGH).astype(np.float32))
    policy.reset()
    assert policy.clamped == {}


def test_actions_inside_of_their_bounds_are_equal_to_the_bit(folder: Path) -> None:
    for bounds in ("clamp", "error"):
        policy, actions = chunk(folder, bounds, scale=0.1)
        np.testing.assert_array_equal(actions, chunk(folder, "off", scale=0.1)[1])
        assert policy.clamped == {}


def test_an_action_outside_is_an_error_on_request(folder: Path) -> None:
    with refused("action", "action_bounds", kind=ValueError):
        chunk(folder, "error")


def test_a_batch_is_bounded_as_a_whole() -> None:
    actions = np.tile(FACTS.center.astype(np.float32), (2, 3, 1))
    actions[1, 2, 3], actions[0, 0, 5] = 9, -9
    bounded, clamped = bound_actions(actions, FACTS, "clamp")
    assert clamped.keys() == {NAMES[3], NAMES[5]}
    assert (bounded[1, 2, 3], bounded[0, 0, 5]) == (np.float32(HIGH[3]), np.float32(LOW[5]))


def test_bounds_need_a_recorded_minimum_and_maximum(folder: Path, tmp_path: Path) -> None:
    unknown = write_arm_policy(tmp_path / "policy")
    contract = json.loads((unknown / "contract.json").read_text())
    contract["robots"]["arm"]["action"]["figures"]["max"][2] = "unknown"
    (unknown / "contract.json").write_text(json.dumps(contract))
    (unknown / "understudy.sha256").unlink()
    with refused(NAMES[2], kind=ValueError):
        us.load_policy(unknown, head="arm", action_bounds="clamp")
    (unknown / "contract.json").unlink()
    with refused("contract.json", kind=ValueError):
        us.load_policy(unknown, head="arm", action_bounds="error")
    with refused("action_bounds='clip'", kind=ValueError):
        us.load_policy(folder, head="arm", action_bounds="clip")  # type: ignore[arg-type]


def test_bounds_of_learnt_differences_are_those_of_the_recorded_actions(folder: Path) -> None:
    """The state is added before the actions are compared: the robot receives absolute targets."""
    normalization = json.loads((folder / "normalisation.json").read_text())
    normalization["delta"] = [[True] * 7] * 2
    chunks = {}
    for bounds in ("off", "clamp"):
        policy = us.load_policy(
            folder,
            head="arm",
            contract="off",
            normalization=normalization,
            action_bounds=bounds,  # type: ignore[arg-type]
        )
        policy.reset(seed=1)
        chunks[bounds] = policy.act(SEEN)
    plain = us.load_policy(folder, head="arm", contract="off")
    plain.reset(seed=1)
    np.testing.assert_allclose(
        chunks["off"], plain.act(SEEN) + SEEN["observation.state"], rtol=1e-4, atol=1e-5
    )
    np.testing.assert_array_equal(
        chunks["clamp"], np.clip(chunks["off"], LOW, HIGH).astype(np.float32)
    )
    assert policy.clamped


def test_the_seed_and_the_position_of_an_episode_decide_its_noise(folder: Path) -> None:
    policy = us.load_policy(folder, head="arm", contract="off")

    def first(**start: int) -> np.ndarray:
        policy.reset(**start)
        return np.asarray(policy.act(SEEN))

    expected = first(seed=5)
    assert np.array_equal(first(seed=5), expected)
    assert np.array_equal(first(seed=5, position=0), expected)
    assert not np.array_equal(first(seed=6), expected)
    assert not np.array_equal(first(seed=5, position=100), expected)
