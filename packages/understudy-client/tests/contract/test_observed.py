"""Each planted mistake of a robot is named by its kind and key, and a sound robot gives no
mismatch.
"""

import json
from collections.abc import Callable
from typing import Any

import numpy as np
import pytest

from understudy_client.contract.camera_print import CameraPrint, shrink
from understudy_client.contract.compare import compare_robots
from understudy_client.contract.declared import declare
from understudy_client.contract.facts import (
    CameraFacts,
    Contract,
    RobotFacts,
    VectorFacts,
)
from understudy_client.contract.observed import LEAST_SEEN, ObservationCheck
from understudy_client.testing.arm import (
    CENTER,
    DEVIATION,
    NAMES,
    TASKS,
    Observation,
    arm_contract,
    arm_observations,
    images,
    states,
    vector,
)

STEPS = 20


@pytest.fixture(scope="module")
def contract(tmp_path_factory: pytest.TempPathFactory) -> Contract:
    """Two robots, read back from a file."""
    folder = tmp_path_factory.mktemp("contract")
    arm_contract().write(folder / "contract.json")
    found = Contract.read_folder(folder)
    assert found is not None
    assert found.provenance == {"run": "r"}
    return found


def found_in(
    contract: Contract,
    change: Callable[[Observation], Observation],
    steps: int = STEPS,
    **numbers: Any,
) -> set[tuple[str, str]]:
    """Kinds and keys that the checks of changed observations name."""
    seed = numbers.get("seed", 7)
    check = ObservationCheck(contract, "arm")
    found = []
    for step, seen in enumerate(arm_observations(steps, seed)):
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
    "joints exchanged": (
        state(lambda x: x[[3, 1, 2, 0, 4, 5, 6]]),
        {("dimension order", "joints")},
    ),
    "joints reversed": (state(lambda x: x[::-1]), {("dimension order", "joints")}),
    "another zero": (state(lambda x: x + 3 * (np.arange(7) == 1)), {("range", "joints")}),
    "another robot": (state(lambda x: x[::-1] * 1.7 + 2), {("other robot", "joints")}),
    "BGR": (front(lambda x: x[..., ::-1]), {("color order", "cam_front")}),
    "upside down": (front(lambda x: x[::-1]), {("orientation", "cam_front")}),
    "mirrored": (front(lambda x: x[:, ::-1]), {("orientation", "cam_front")}),
    "narrow strip": (front(lambda x: x[:, :8]), {("shape", "cam_front")}),
    "center crop": (front(lambda x: x[12:84, 16:112]), {("crop", "cam_front")}),
    "square crop": (front(lambda x: x[:, 16:112]), {("crop", "cam_front"), ("shape", "cam_front")}),
    "floats": (front(lambda x: x / 255), {("dtype", "cam_front")}),
    "dark": (front(lambda x: x // 4), {("unlike training", "cam_front")}),
    "frozen camera": (front(lambda x: FIXED), {("repeated frame", "cam_front")}),
    "cameras exchanged": (
        lambda seen: {
            **seen,
            "cam_front": seen["cam_wrist_left"],
            "cam_wrist_left": seen["cam_front"],
        },
        {("swapped cameras", "cam_front"), ("swapped cameras", "cam_wrist_left")},
    ),
    "misspelt key": (
        lambda seen: {key.replace("wrist_left", "wrst_left"): value for key, value in seen.items()},
        {("missing key", "cam_wrist_left"), ("extra key", "cam_wrst_left")},
    ),
    "another instruction": (
        lambda seen: {**seen, "task": "pick up the blue block"},
        {("instruction", "task")},
    ),
}


@pytest.mark.parametrize("mistake", MISTAKES)
def test_each_mistake_is_named(mistake: str, contract: Contract) -> None:
    change, named = MISTAKES[mistake]
    assert found_in(contract, change) == named


@pytest.mark.parametrize("seed", range(20, 26))
def test_a_sound_robot_has_no_mismatch(seed: int, contract: Contract) -> None:
    """Also under the keys of the policy, with images as [3, H, W]."""
    assert found_in(contract, lambda seen: seen, 40, seed=seed) == set()
    names = {
        "joints": "observation.state",
        "cam_front": "observation.images.front",
        "cam_wrist_left": "observation.images.wrist_left",
    }

    def standard(seen: Observation) -> Observation:
        return {
            names.get(key, key): value.transpose(2, 0, 1) if "cam" in key else value
            for key, value in seen.items()
        }

    assert found_in(contract, standard, seed=seed) == set()


def test_numbers_are_explained_after_a_few_observations(contract: Contract) -> None:
    change, named = MISTAKES["degrees"]
    assert found_in(contract, change, LEAST_SEEN - 1) == set()
    assert found_in(contract, change, LEAST_SEEN) == named
    # beyond the ranges of the other robot
    raised = state(lambda x: x[::-1] * 1.7 + 2 + 40 * (np.arange(7) == 1))
    assert ("other robot", "joints") not in found_in(contract, raised)


def test_a_camera_that_rests_with_the_robot_is_no_frozen_camera(contract: Contract) -> None:
    rest = states(1, 5)[0]
    still = front(lambda x: FIXED)
    assert found_in(contract, lambda seen: still({**seen, "joints": rest})) == set()
    slow = iter(np.repeat(images("front", 4, 3), 6, axis=0))  # 5 images a second
    assert found_in(contract, front(lambda x: next(slow))) == set()


@pytest.mark.parametrize("value", [1e18, -1e200, 1e308, 2**62])
def test_an_absurd_number_is_reported_at_once(value: float, contract: Contract) -> None:
    """Numbers whose squares overflow once made the search for another order endless."""
    glitch = state(lambda x: np.where(np.arange(7) % 3 == 0, value, x))
    for steps in (1, 2 * LEAST_SEEN):
        assert found_in(contract, glitch, steps) == {("range", "joints")}
    assert found_in(contract, state(lambda x: x * 1e5), 1) <= {
        ("range", "joints"),
        ("scale", "joints"),
    }


def table_check() -> tuple[ObservationCheck, np.random.Generator]:
    """Positions on a table in meters, around 0: factors of units fit nearly alike."""
    rng = np.random.default_rng(0)
    poses = rng.uniform((-0.25, -0.25, 0.02), (0.25, 0.25, 0.2), (2000, 3))
    figures = {"mean": poses.mean(0), "std": poses.std(0), "min": poses.min(0), "max": poses.max(0)}
    figures |= {"q01": np.quantile(poses, 0.01, 0), "q99": np.quantile(poses, 0.99, 0)}
    facts = VectorFacts("state", ("x", "y", "z"), figures)
    return ObservationCheck(
        Contract({"": RobotFacts(10, 8, "", "", facts, facts, {}, (), 0, 22)}), ""
    ), rng


@pytest.mark.parametrize(
    ("factor", "kinds"), [(100, {"scale"}), (1000, {"scale"}), (180 / np.pi, {"scale", "degrees"})]
)
def test_a_unit_is_named_only_where_its_factor_fits_clearly_better(
    factor: float, kinds: set[str]
) -> None:
    check, rng = table_check()
    for _ in range(24):
        check.reset()
        start = rng.uniform((-0.25, -0.25, 0.02), (0.25, 0.25, 0.2))
        found = [
            mismatch.kind
            for _ in range(20)
            for mismatch in check.look(
                {"state": factor * (start + rng.normal(0, 0.003, 3)), "task": ""}
            )
        ]
        assert len(found) == 1, found
        assert set(found) <= kinds


def test_zeros_have_no_unit(contract: Contract) -> None:
    assert found_in(contract, state(lambda x: 0 * x)) == {("range", "joints")}


def recordings(seed: int, episodes: int) -> list[np.ndarray]:
    """States of episodes that begin in different places and move less than that: (40, 7) each."""
    rng = np.random.default_rng(seed)
    center = rng.normal(0, 1, 7)
    deviation = np.exp(rng.normal(-1, 0.7, 7))
    return [
        center
        + deviation * (rng.normal(0, 1.0, 7) + np.cumsum(rng.normal(0, 0.15, (40, 7)), axis=0))
        for _ in range(episodes)
    ]


def kinds_of(trained: list[np.ndarray], seen: np.ndarray) -> set[str]:
    """Kinds that are named for the states of an episode, after training on others."""
    poses = np.concatenate(trained)
    facts = RobotFacts(
        30,
        16,
        "arm",
        "joint",
        vector("joints", poses),
        vector("action", poses),
        {},
        TASKS,
        episodes=len(trained),
    )
    check = ObservationCheck(Contract({"arm": facts}), "arm")
    return {
        found.kind for state in seen for found in check.look({"joints": state, "task": TASKS[0]})
    }


@pytest.mark.parametrize("count", [2, 3, 6, 12])
def test_few_episodes_give_no_false_order(count: int) -> None:
    for seed in range(12):
        *trained, one, two = recordings(seed, count + 2)
        assert "dimension order" not in kinds_of(trained, one) | kinds_of(trained, two)


def test_a_planted_order_is_named_after_more_episodes() -> None:
    named = 0
    for seed in range(12):
        *trained, one = recordings(seed, 41)
        assert "dimension order" not in kinds_of(trained, one)
        named += "dimension order" in kinds_of(trained, one[:, ::-1])
        assert kinds_of(trained[:12], one[:, ::-1]) & {
            "range",
            "other robot",
            "normalized",
            "degrees",
            "scale",
        }
    assert named >= 6
    near = 0.6 * np.arange(7) + np.clip(
        np.random.default_rng(0).standard_normal((13, 40, 7)), -2.5, 2.5
    )
    assert kinds_of(list(near), np.roll(near[0], -1, axis=1)) == {"range"}  # of one dimension alone


def test_times_must_not_decrease(contract: Contract) -> None:
    assert found_in(contract, lambda seen: seen, time=lambda step: 1.0) == set()
    assert found_in(contract, lambda seen: seen, time=lambda step: -step) == {("time", "")}


def test_declarations_are_compared(contract: Contract) -> None:
    facts = contract.robots["arm"]

    def kinds(**said: Any) -> list[tuple[str, str]]:
        return [
            (mismatch.kind, mismatch.key) for mismatch in compare_robots(facts, declare(**said))
        ]

    assert kinds() == []
    assert (
        kinds(
            fps=30.5, state_names=NAMES, cameras=["cam_front", "cam_wrist_left"], robot_type="ARM"
        )
        == []
    )
    assert kinds(fps=15) == [("rate", "")]
    assert kinds(state_names=NAMES[::-1]) == [("dimension order", "joints")]
    assert kinds(action_names=["x", *NAMES[1:]]) == [("dimension names", "action")]
    assert kinds(cameras=["observation.images.front"]) == [("missing key", "cam_wrist_left")]
    assert kinds(robot_type="so101") == [("other robot", "")]
    (unlike,) = compare_robots(facts, declare(robot_type="so101"))
    assert "so101" in unlike.fix  # a policy to look for, and no head
    assert "arm" not in unlike.fix


def test_unknown_figures_stay_unknown(contract: Contract) -> None:
    """`unknown` in the file is NaN, and no number is outside an unknown range; unlisted
    instructions may be any.
    """
    stored = contract.to_json()
    stored["robots"]["arm"]["tasks_left_out"] = 1
    for name in ("min", "max", "q01", "q99", "mean", "std"):
        stored["robots"]["arm"]["state"]["figures"][name][3] = "unknown"
    known = Contract.from_json(json.loads(json.dumps(stored)))
    own = known.robots["arm"].state
    assert own is not None
    assert np.isnan(own.figures["mean"][3])
    assert found_in(known, lambda seen: seen) == set()
    assert found_in(known, state(lambda x: x * ONE_IN_DEGREES)) == set()
    assert found_in(known, MISTAKES["another instruction"][0]) == set()


def scene_images(episode: int, count: int) -> np.ndarray:
    """A table with three blocks that lie elsewhere in each episode, and a hand that moves."""
    table = np.random.default_rng(0).integers(90, 160, (12, 16, 3))
    rng = np.random.default_rng([5, episode])
    places = rng.integers(5, 40, (3, 2))
    colors = ((200, 30, 30), (30, 200, 30), (30, 30, 200))
    start = rng.integers(0, 30)
    found = []
    for step in range(count):
        image = np.kron(table, np.ones((4, 4, 1)))
        for (y, x), color in zip(places, colors):
            image[y : y + 7, x : x + 7] = color
        image[15:30, start + step : start + step + 8] = 20
        found.append(np.clip(image + rng.normal(0, 3, image.shape), 0, 255).astype(np.uint8))
    return np.stack(found)


def test_few_episodes_are_no_reason_for_a_crop() -> None:
    """A print of six episodes: others look different, but are neither cropped nor mirrored; BGR is
    still found.
    """
    shown = [(episode, image) for episode in range(6) for image in scene_images(episode, 24)[::3]]
    grids = [shrink(image) for _, image in shown]
    episodes = [episode for episode, _ in shown]
    poses = states(200, 1)

    def found(look: CameraPrint, change: Callable[[np.ndarray], np.ndarray]) -> list[set[str]]:
        camera = {"observation.images.front": CameraFacts("cam", (48, 64), look)}
        facts = RobotFacts(
            30, 16, "arm", "joint", vector("joints", poses), vector("action", poses), camera, TASKS
        )
        kinds = []
        for episode in range(100, 108):
            check = ObservationCheck(Contract({"arm": facts}), "arm")
            own = set()
            for step, image in enumerate(scene_images(episode, 15)):
                seen = {"joints": poses[step], "cam": change(image), "task": TASKS[0]}
                own |= {mismatch.kind for mismatch in check.look(seen)}
            kinds.append(own)
        return kinds

    look = CameraPrint.of_images(grids, episodes)
    assert found(look, lambda image: image) == [set()] * 8
    assert sum("color order" in own for own in found(look, lambda image: image[..., ::-1])) > 4
    # halves of the images have the same episodes
    assert look.most > CameraPrint.of_images(grids).most


def test_covered_lens_is_no_crop() -> None:
    """Images of one color look like the middle of images whose middle is empty."""
    rng = np.random.default_rng(3)
    poses = states(200, 1)
    recorded = rng.integers(0, 255, (24, 48, 64, 3), np.uint8)
    recorded[:, 8:40, 10:54] = 110 + rng.integers(0, 3, (24, 32, 44, 3), np.uint8)
    recorded[:, :8], recorded[:, 40:] = 20, 230
    look = CameraPrint.of_images([shrink(image) for image in recorded])
    camera = {"observation.images.front": CameraFacts("cam", (48, 64), look)}
    facts = RobotFacts(
        30, 16, "arm", "joint", vector("joints", poses), vector("action", poses), camera, TASKS
    )
    check = ObservationCheck(Contract({"arm": facts}), "arm")
    kinds = set()
    for step in range(15):
        covered = (110 + rng.integers(0, 3, (48, 64, 3))).astype(np.uint8)
        seen = {"joints": poses[step], "cam": covered, "task": TASKS[0]}
        kinds |= {mismatch.kind for mismatch in check.look(seen)}
    assert kinds == {"unlike training"}


def test_an_absurd_number_is_reported_after_a_smaller_difference(contract: Contract) -> None:
    check = ObservationCheck(contract, "arm")
    found = []
    for step, seen in enumerate(arm_observations(STEPS)):
        joints = seen["joints"] + 3 * (np.arange(7) == 1)
        if step in (12, 13, 15):
            joints[2] = 1e9
        found += [(step, mismatch.kind) for mismatch in check.look({**seen, "joints": joints})]
    assert [step for step, _ in found] == [LEAST_SEEN - 1, 12]
    assert found[1][1] == "range"


def test_keys_that_are_no_inputs_are_named_in_a_few_short_lines(contract: Contract) -> None:
    """Of a robot that sends others in each observation, too."""
    check = ObservationCheck(contract, "arm")
    found = []
    for step, seen in enumerate(arm_observations(STEPS)):
        found += check.look(
            {**seen, **{f"{step}/{number}\n" + "k" * 10_000: 0 for number in range(3)}}
        )
    assert {mismatch.kind for mismatch in found} == {"extra key"}
    assert 4 <= len(found) <= 10
    assert all(
        mismatch.key.isprintable() and len(mismatch.key) < 1000
        for mismatch in found
        if mismatch.key
    )
