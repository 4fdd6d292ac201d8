"""Facts that two contracts leave open, and the power of the checks that decide them."""

from dataclasses import replace

import pytest

from understudy_client import RobotFacts
from understudy_client.testing.arm import arm_contract
from understudy_robot.contracts.in_motion import list_undecided


@pytest.mark.long
def test_power_tells_a_symmetric_scene_from_another() -> None:
    """A camera above a bare table looks the same upside down: its orientation is not decidable."""
    trained = arm_contract().robots["arm"]
    (key, camera), *_ = trained.cameras.items()
    look = camera.look
    assert look is not None
    even = look.mean.copy()
    even[:] = even.mean((0, 1))
    symmetric = replace(look, mean=even)
    robot = replace(trained, cameras={})

    def power(facts: RobotFacts, fact: str) -> float:
        return next(
            each.power
            for each in list_undecided(facts, robot)
            if (each.fact, each.key) == (fact, camera.key)
        )

    bare = replace(trained, cameras={key: replace(camera, look=symmetric)})
    assert power(trained, "orientation") == power(trained, "color") == pytest.approx(1.0)
    assert power(bare, "orientation") == 0.0


def test_facts_that_both_contracts_state_are_decided() -> None:
    trained = arm_contract().robots["arm"]
    assert trained.state is not None
    cameras = {
        key: replace(camera, color="RGB", orientation="upright")
        for key, camera in trained.cameras.items()
    }
    ends = {"gripper": (0.8, 0.0)}
    stated = replace(
        trained,
        cameras=cameras,
        state=replace(trained.state, units=("rad",) * 7),
        action=replace(trained.action, gripper=ends, references=("absolute",) * 7),
    )
    assert list_undecided(stated, stated) == []
    open_facts = {(each.fact, each.key): each for each in list_undecided(trained, stated)}
    assert set(open_facts) == {
        ("orientation", "cam_front"),
        ("color", "cam_front"),
        ("orientation", "cam_wrist_left"),
        ("color", "cam_wrist_left"),
        ("units", "joints"),
        ("gripper", "action"),
        ("references", "action"),
    }
    assert open_facts["units", "joints"].power > 0.5
    assert open_facts["gripper", "action"].observations == 0
    assert all("\n" not in str(each) for each in open_facts.values())
