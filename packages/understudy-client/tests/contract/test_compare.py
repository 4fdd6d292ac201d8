"""Two contracts: each contradiction is named by kind and key with a remedy; unknown facts
contradict nothing.
"""

from collections.abc import Callable, Mapping
from dataclasses import replace
from typing import Any

import numpy as np
import pytest

from understudy_base.testing.refusals import refused
from understudy_client.contract.compare import compare_contracts, compare_robots
from understudy_client.contract.declared import declare
from understudy_client.contract.facts import (
    CameraFacts,
    Contract,
    Normalization,
    RobotFacts,
    VectorFacts,
)
from understudy_client.contract.mismatch import REMEDIES, Mismatch
from understudy_client.testing.arm import NAMES, arm_contract

FRONT = "observation.images.front"
WRIST = "observation.images.wrist_left"
FACTORS = np.where(np.arange(7) < 6, 180 / np.pi, 1.0)


def make_arm() -> RobotFacts:
    """The arm, with all facts that a contract can state."""
    arm = arm_contract().robots["arm"]
    assert arm.state is not None
    vector: dict[str, Any] = {"units": ("rad",) * 6 + ("",), "roles": ("joint",) * 6 + ("gripper",)}
    state = replace(arm.state, **vector, gripper={"gripper": (0.8, 0.0)}, frame="base")
    action = replace(
        arm.action, **vector, references=("absolute",) * 7, gripper={"gripper": (0.8, 0.0)}
    )
    cameras = {
        key: replace(
            camera,
            role=role,
            orientation="upright",
            color="RGB",
            layout="HWC",
            dtype="uint8",
            resize="pad",
            network_size=(64, 64),
        )
        for (key, camera), role in zip(arm.cameras.items(), ("front", "wrist"), strict=True)
    }
    about = {"replan": 8, "prompt": "{task}", "tokenizer": "a" * 64, "episodes": 40}
    return replace(arm, state=state, action=action, cameras=cameras, **about)


ARM = make_arm()


def changed(part: str, **changes: Any) -> RobotFacts:
    """The arm with other facts of its state, its action or a camera."""
    if part in ARM.cameras:
        return replace(ARM, cameras={**ARM.cameras, part: replace(ARM.cameras[part], **changes)})
    return replace(ARM, **{part: replace(getattr(ARM, part), **changes)})


def figures(
    vector: VectorFacts | None, change: Callable[[np.ndarray], np.ndarray]
) -> Mapping[str, np.ndarray]:
    assert vector is not None
    return {name: change(values) for name, values in vector.figures.items()}


def listed(faults: list[Mismatch]) -> list[tuple[str, str]]:
    assert all(fault.fix and fault.remedy == REMEDIES[fault.kind] for fault in faults)
    return [(fault.kind, fault.key) for fault in faults]


OTHERS: dict[str, tuple[RobotFacts, list[tuple[str, str]]]] = {
    "rate": (replace(ARM, fps=15.0), [("rate", "")]),
    "longer chunk": (replace(ARM, chunk=32), [("action horizon", "")]),
    "longer replanning": (replace(ARM, replan=20), [("action horizon", "")]),
    "other replanning": (replace(ARM, replan=4), [("replanning", "")]),
    "type": (replace(ARM, robot_type="so101"), [("other robot", "")]),
    "mode": (replace(ARM, control_mode="ee_delta"), [("control mode", "")]),
    "no state": (replace(ARM, state=None), [("missing key", "joints")]),
    "other key": (changed("state", key="qpos"), [("missing key", "joints")]),
    "order": (changed("state", names=NAMES[::-1]), [("dimension order", "joints")]),
    "names": (changed("action", names=("x", *NAMES[1:])), [("dimension names", "action")]),
    "units": (changed("state", units=("deg",) * 6 + ("",)), [("units", "joints")]),
    "frame": (changed("state", frame="tool"), [("frame", "joints")]),
    "delta": (changed("action", references=("state",) * 6 + ("absolute",)), [("delta", "action")]),
    "gripper": (changed("action", gripper={"gripper": (0.0, 0.8)}), [("gripper", "action")]),
    "degrees": (
        changed("state", figures=figures(ARM.state, lambda x: x * FACTORS)),
        [("degrees", "joints")],
    ),
    "another zero": (
        changed("state", figures=figures(ARM.state, lambda x: x + 3 * (np.arange(7) == 1))),
        [("range", "joints")],
    ),
    "no wrist camera": (
        replace(ARM, cameras={FRONT: ARM.cameras[FRONT]}),
        [("missing key", "cam_wrist_left")],
    ),
    "misspelt camera": (
        replace(
            ARM, cameras={FRONT: ARM.cameras[FRONT], "wrst": CameraFacts("cam_wrst_left", (0, 0))}
        ),
        [("camera map", "cam_wrist_left")],
    ),
    "role": (changed(FRONT, role="overhead"), [("camera map", "cam_front")]),
    "exchanged role": (changed(FRONT, role="wrist"), [("swapped cameras", "cam_front")]),
    "shape": (changed(FRONT, size=(96, 96)), [("shape", "cam_front")]),
    "turned": (changed(FRONT, size=(128, 96)), [("transposed", "cam_front")]),
    "transposed": (changed(FRONT, layout="WHC"), [("transposed", "cam_front")]),
    "BGR": (changed(FRONT, color="BGR"), [("color order", "cam_front")]),
    "mirrored": (changed(FRONT, orientation="mirrored"), [("orientation", "cam_front")]),
    "floats": (changed(FRONT, dtype="float32"), [("dtype", "cam_front")]),
    "resize": (changed(FRONT, resize="crop"), [("resize", "cam_front")]),
    "look": (changed(FRONT, look=ARM.looks[WRIST]), [("swapped cameras", "cam_front")]),
    "prompt": (replace(ARM, prompt="Task: {task}"), [("prompt", "task")]),
    "tokenizer": (replace(ARM, tokenizer="b" * 64), [("tokenizer", "task")]),
    "instruction": (replace(ARM, tasks=("dance", *ARM.tasks)), [("instruction", "task")]),
}


@pytest.mark.parametrize("name", OTHERS)
def test_each_contradiction_is_named_alone(name: str) -> None:
    other, expected = OTHERS[name]
    assert listed(compare_robots(ARM, other)) == expected


@pytest.mark.parametrize("kind", ["policy", "dataset", "robot", "environment"])
def test_a_contract_does_not_contradict_itself(kind: Any) -> None:
    assert compare_contracts(Contract({"": ARM}), Contract({"": ARM}, kind=kind)) == []


@pytest.mark.parametrize(
    "alike",
    [
        replace(ARM, fps=30.5, robot_type=" ARM "),
        replace(ARM, chunk=0, replan=0),
        replace(ARM, robot_type="unknown"),
        changed("state", units=("radians",) * 6 + ("",)),
        changed("state", key="observation.state"),
        changed(FRONT, size=(192, 256)),
        replace(ARM, cameras={}),
        replace(ARM, tasks=("Pick up the red block",)),
        declare(),
        declare(30, NAMES, NAMES, ["cam_front", "cam_wrist_left"], "arm"),
    ],
)
def test_unknown_and_equal_facts_contradict_nothing(alike: RobotFacts) -> None:
    assert compare_robots(ARM, alike) == []


def test_another_number_of_dimensions_is_named_first() -> None:
    short = VectorFacts.unmeasured("joints", NAMES[:5])
    (fault,) = compare_robots(ARM, replace(ARM, state=short))
    assert (fault.kind, fault.key, fault.trained, fault.came) == (
        "dimension count",
        "joints",
        "7 numbers",
        "5 numbers",
    )


def test_a_robot_may_leave_its_cameras_out_and_a_dataset_may_not() -> None:
    bare = replace(ARM, cameras={})
    assert compare_robots(ARM, bare, "robot") == []
    missing = [("missing key", "cam_front"), ("missing key", "cam_wrist_left")]
    for kind in ("dataset", "environment"):
        assert listed(compare_robots(ARM, bare, kind)) == missing  # type: ignore[arg-type]


def test_statistics_of_other_data_are_named_of_a_dataset() -> None:
    far = changed("state", figures=figures(ARM.state, lambda x: x + 3 * (np.arange(7) == 1)))
    assert listed(compare_robots(ARM, far, "dataset")) == [("statistics", "joints")]
    flat = {
        **ARM.action.figures,
        "std": ARM.action.figures["std"] * np.where(np.arange(7) == 2, 1e-9, 1),
    }
    cut = changed("action", figures=flat)
    assert listed(compare_robots(cut, ARM, "dataset")) == [("statistics cut", "action")]


def test_statistics_of_another_policy_are_named_by_their_digest() -> None:
    digests = [Normalization("external", "mean_std", letter * 64) for letter in "ab"]
    mine, other = (changed("action", normalization=digest) for digest in digests)
    assert listed(compare_robots(mine, other, "policy")) == [("statistics", "action")]
    assert compare_robots(mine, other, "robot") == []


def test_weights_and_faults_of_both_contracts_are_listed() -> None:
    fault = Mismatch("statistics missing", "action", "figures", "none", "add them")
    first = Contract({"": ARM}, weights="a" * 64, faults=(fault,))
    second = Contract({"": ARM}, kind="robot", weights="b" * 64)
    assert listed(compare_contracts(first, second)) == [
        ("statistics missing", "action"),
        ("weights", ""),
    ]
    assert listed(compare_contracts(second, first)) == [
        ("statistics missing", "action"),
        ("weights", ""),
    ]


def test_the_policy_may_come_second() -> None:
    robot = Contract({"": replace(ARM, fps=15.0)}, kind="robot")
    for pair in ((Contract({"": ARM}), robot), (robot, Contract({"": ARM}))):
        (fault,) = compare_contracts(*pair)
        assert (fault.kind, fault.came) == ("rate", "15")


def test_a_robot_is_compared_with_its_head() -> None:
    policy = arm_contract()
    arm = policy.robots["arm"]
    other = policy.robots["other"]
    assert policy.pair_robots(Contract({"": arm}, kind="robot"), "") == [(arm, arm)]
    assert (
        policy.pair_robots(Contract({"": replace(arm, robot_type="")}, kind="robot"), "other")[0][0]
        is other
    )
    assert policy.pair_robots(Contract({"other": arm}, kind="robot"), "")[0][0] is other
    unknown = Contract({"": replace(arm, robot_type="so101")}, kind="robot")
    assert listed(compare_contracts(policy, unknown)) == [("other robot", "")]
    with refused("'nobody'", "arm", "other", kind=ValueError):
        compare_contracts(policy, unknown, "nobody")
