"""Each planted mistake of a robot is named by its kind and key, and a sound robot gives no mismatch."""

import json
from collections.abc import Callable
from typing import Any

import numpy as np
import pytest

from understudy.contract.camera_print import CameraPrint, shrink
from understudy.contract.declared import Declaration, compare_declaration
from understudy.contract.facts import CameraFacts, InputContract, RobotFacts, VectorFacts, read_contract, write_contract
from understudy.contract.observed import LEAST_SEEN, ObservationCheck

HEIGHT, WIDTH, STEPS = 96, 128, 20
CENTER = np.array([0.0, -0.6, 0.2, -1.9, 0.1, 1.5, 0.4])
DEVIATION = np.array([0.3, 0.4, 0.3, 0.4, 0.2, 0.3, 0.4])
NAMES = ("base", "shoulder", "arm", "elbow", "roll", "wrist", "gripper")
TASKS = ("pick up the red block", "open the drawer")
Observation = dict[str, Any]


def states(count: int, seed: int) -> np.ndarray:
    """Joint angles in radians, and a gripper that is open or closed."""
    rng = np.random.default_rng(seed)
    found = CENTER + DEVIATION * np.clip(rng.standard_normal((count, 7)), -2.5, 2.5)
    found[:, 6] = 0.8 * (rng.random(count) < 0.4)
    return found


def images(camera: str, count: int, seed: int) -> np.ndarray:
    """A scene of the camera's own, a moving object, changing light and noise."""
    scene = np.random.default_rng(len(camera)).integers(0, 255, (6, 8, 3))
    rng = np.random.default_rng(seed)
    found = []
    for _ in range(count):
        image = np.kron(scene + rng.normal(0, 8, 3), np.ones((16, 16, 1)))
        x = rng.integers(0, WIDTH - 20)
        image[40:60, x : x + 20] = (200, 30, 30)
        found.append(np.clip(image + rng.normal(0, 3, image.shape), 0, 255).astype(np.uint8))
    return np.stack(found)


def vector(key: str, values: np.ndarray) -> VectorFacts:
    figures = {"mean": values.mean(0), "std": values.std(0), "min": values.min(0), "max": values.max(0)}
    return VectorFacts(key, NAMES, figures | {"q01": np.quantile(values, 0.01, 0), "q99": np.quantile(values, 0.99, 0)})


@pytest.fixture(scope="module")
def contract(tmp_path_factory: pytest.TempPathFactory) -> InputContract:
    """Two robots, read back from a file."""
    cameras = {
        f"observation.images.{name}": CameraFacts(
            f"cam_{name}", (HEIGHT, WIDTH), CameraPrint.of_images([shrink(i) for i in images(name, 48, 1)])
        )
        for name in ("front", "wrist_left")
    }
    trained = states(4000, 1)
    robots = {
        head: RobotFacts(30, 16, head, "joint", vector("joints", own), vector("action", own), cameras, TASKS)
        for head, own in {"arm": trained, "other": trained[:, ::-1] * 1.7 + 2}.items()
    }
    folder = tmp_path_factory.mktemp("contract")
    write_contract(folder / "contract.json", InputContract(robots, {"run": "r"}))
    found = read_contract(folder)
    assert found is not None
    assert found.provenance == {"run": "r"}
    return found


def found_in(
    contract: InputContract, change: Callable[[Observation], Observation], steps: int = STEPS, **numbers: Any
) -> set[tuple[str, str]]:
    """Kinds and keys that the checks of changed observations name."""
    seed = numbers.get("seed", 7)
    poses, front, wrist = states(steps, seed), images("front", steps, seed), images("wrist_left", steps, seed + 1)
    check, found = ObservationCheck(contract, "arm"), []
    for step in range(steps):
        seen = {"joints": poses[step], "cam_front": front[step], "cam_wrist_left": wrist[step], "task": TASKS[0]}
        found += check.look(change(seen), numbers.get("time", lambda step: step / 30)(step))
    named = [(mismatch.kind, mismatch.key) for mismatch in found]
    assert len(named) == len(set(named)), "reported twice"
    return set(named)


def state(change: Callable[[np.ndarray], np.ndarray]) -> Callable[[Observation], Observation]:
    return lambda seen: {**seen, "joints": change(seen["joints"])}


def front(change: Callable[[np.ndarray], np.ndarray]) -> Callable[[Observation], Observation]:
    return lambda seen: {**seen, "cam_front": change(seen["cam_front"])}


ONE_IN_DEGREES = np.where(np.arange(7) == 3, 180 / np.pi, 1.0)
ALL_IN_DEGREES = np.where(np.arange(7) < 6, 180 / np.pi, 1.0)
FIXED = images("front", 1, 3)[0]
MISTAKES: dict[str, tuple[Callable[[Observation], Observation], set[tuple[str, str]]]] = {
    "degrees": (state(lambda x: x * ALL_IN_DEGREES), {("degrees", "joints")}),
    "one joint in degrees": (state(lambda x: x * ONE_IN_DEGREES), {("degrees", "joints")}),
    "normalized state": (state(lambda x: (x - CENTER) / DEVIATION), {("normalized", "joints")}),
    "millimeters": (state(lambda x: x * 1000), {("scale", "joints")}),
    "joints exchanged": (state(lambda x: x[[3, 1, 2, 0, 4, 5, 6]]), {("dimension order", "joints")}),
    "joints reversed": (state(lambda x: x[::-1]), {("dimension order", "joints")}),
    "another zero": (state(lambda x: x + 3 * (np.arange(7) == 1)), {("range", "joints")}),
    "another robot": (state(lambda x: x[::-1] * 1.7 + 2), {("other robot", "joints")}),
    "BGR": (front(lambda x: x[..., ::-1]), {("color order", "cam_front")}),
    "upside down": (front(lambda x: x[::-1]), {("orientation", "cam_front")}),
    "center crop": (front(lambda x: x[12:84, 16:112]), {("crop", "cam_front")}),
    "square crop": (front(lambda x: x[:, 16:112]), {("crop", "cam_front"), ("shape", "cam_front")}),
    "floats": (front(lambda x: x / 255), {("dtype", "cam_front")}),
    "dark": (front(lambda x: x // 4), {("unlike training", "cam_front")}),
    "frozen camera": (front(lambda x: FIXED), {("repeated frame", "cam_front")}),
    "cameras exchanged": (
        lambda seen: {**seen, "cam_front": seen["cam_wrist_left"], "cam_wrist_left": seen["cam_front"]},
        {("swapped cameras", "cam_front"), ("swapped cameras", "cam_wrist_left")},
    ),
    "misspelt key": (
        lambda seen: {key.replace("wrist_left", "wrst_left"): value for key, value in seen.items()},
        {("missing key", "cam_wrist_left"), ("extra key", "cam_wrst_left")},
    ),
    "another instruction": (lambda seen: {**seen, "task": "pick up the blue block"}, {("instruction", "task")}),
}


@pytest.mark.parametrize("mistake", MISTAKES)
def test_each_mistake_is_named(mistake: str, contract: InputContract) -> None:
    change, named = MISTAKES[mistake]
    assert found_in(contract, change) == named


@pytest.mark.parametrize("seed", range(20, 26))
def test_a_sound_robot_has_no_mismatch(seed: int, contract: InputContract) -> None:
    """Also under the keys of the policy, with images as [3, H, W]."""
    assert found_in(contract, lambda seen: seen, 40, seed=seed) == set()
    names = {
        "joints": "observation.state",
        "cam_front": "observation.images.front",
        "cam_wrist_left": "observation.images.wrist_left",
    }

    def standard(seen: Observation) -> Observation:
        return {names.get(key, key): value.transpose(2, 0, 1) if "cam" in key else value for key, value in seen.items()}

    assert found_in(contract, standard, seed=seed) == set()


def test_numbers_are_explained_after_a_few_observations(contract: InputContract) -> None:
    change, named = MISTAKES["degrees"]
    assert found_in(contract, change, LEAST_SEEN - 1) == set()
    assert found_in(contract, change, LEAST_SEEN) == named


def test_a_camera_that_rests_with_the_robot_is_no_frozen_camera(contract: InputContract) -> None:
    rest = states(1, 5)[0]
    still = front(lambda x: FIXED)
    assert found_in(contract, lambda seen: still({**seen, "joints": rest})) == set()


def test_times_must_not_decrease(contract: InputContract) -> None:
    assert found_in(contract, lambda seen: seen, time=lambda step: 1.0) == set()
    assert found_in(contract, lambda seen: seen, time=lambda step: -step) == {("time", "")}


def test_declarations_are_compared(contract: InputContract) -> None:
    facts = contract.robots["arm"]

    def kinds(**said: Any) -> list[tuple[str, str]]:
        return [(mismatch.kind, mismatch.key) for mismatch in compare_declaration(facts, Declaration(**said))]

    assert kinds() == []
    assert kinds(fps=30.5, state_names=NAMES, cameras=["cam_front", "cam_wrist_left"], robot_type="ARM") == []
    assert kinds(fps=15) == [("rate", "")]
    assert kinds(state_names=NAMES[::-1]) == [("dimension order", "joints")]
    assert kinds(action_names=["x", *NAMES[1:]]) == [("dimension names", "action")]
    assert kinds(cameras=["observation.images.front"]) == [("missing key", "cam_wrist_left")]
    assert kinds(robot_type="so101") == [("other robot", "")]


def test_unknown_figures_stay_unknown(contract: InputContract) -> None:
    """A null in the file is NaN, and no number is outside an unknown range."""
    stored = contract.to_json()
    for name in ("min", "max", "q01", "q99", "mean", "std"):
        stored["robots"]["arm"]["state"][name][3] = None
    known = InputContract.from_json(json.loads(json.dumps(stored)))
    own = known.robots["arm"].state
    assert own is not None
    assert np.isnan(own.figures["mean"][3])
    assert found_in(known, lambda seen: seen) == set()
    assert found_in(known, state(lambda x: x * ONE_IN_DEGREES)) == set()
