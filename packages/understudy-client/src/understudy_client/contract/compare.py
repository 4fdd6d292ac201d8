"""Two contracts against each other, before the first observation: each contradiction with its
remedy.

    compare_contracts(policy, dataset)       # or a robot, an environment, another policy

An unknown fact contradicts nothing. Facts that only motion shows are compared by `observed`.
"""

from collections.abc import Iterator, Mapping
from dataclasses import replace
from difflib import get_close_matches

import numpy as np

from understudy_client.contract.camera_print import explain_look
from understudy_client.contract.facts import CameraFacts, Contract, RobotFacts, VectorFacts
from understudy_client.contract.form import Kind
from understudy_client.contract.mismatch import REMEDIES, Mismatch
from understudy_client.contract.numbers import explain_figures

RATE_TOLERANCE = 0.05  # share of fps
_STATE = "observation.state"
_ACTION = "action"
_COLLAPSED = 1e-3  # share of a deviation; a smaller one was lost in rounding
_SHOWN_TASKS = 3
_UNITS = {
    "radian": "rad", "radians": "rad", "degree": "deg", "degrees": "deg", "\N{DEGREE SIGN}": "deg",
    "meter": "m", "meters": "m", "metre": "m",
    "centimeter": "cm", "centimeters": "cm", "centimetre": "cm",
    "millimeter": "mm", "millimeters": "mm", "millimetre": "mm",
}  # fmt: skip


def compare_contracts(first: Contract, second: Contract, head: str = "") -> list[Mismatch]:
    """List the contradictions inside two contracts, and between them.

    Args:
        first: contract of a policy, or of anything where the second one is a policy's.
        second: contract of a dataset, robot, environment or policy.
        head: norm head of the policy's robot, where it has several.

    Raises:
        ValueError: there is no such head.
    """
    faults = [*first.faults, *second.faults]
    if second.kind == "policy" and first.kind != "policy":
        first, second = second, first
    faults += _differing("weights", "", first.weights, second.weights)
    if head and head not in first.robots:
        raise ValueError(f"head={head!r}: the policy has {', '.join(first.robots)}")
    for trained, robot in first.pair_robots(second, head):
        if trained is None:
            fix = "name the robot's norm head with --head"
            faults.append(
                Mismatch("other robot", "", ", ".join(first.robots), robot.robot_type, fix)
            )
        else:
            faults += compare_robots(trained, robot, second.kind)
    return faults


def compare_robots(trained: RobotFacts, robot: RobotFacts, kind: Kind = "robot") -> list[Mismatch]:
    """List the contradictions between a policy's robot and another contract.

    Args:
        trained: facts of training.
        robot: facts of the other one.
        kind: whose they are. A robot may leave facts out; a dataset or environment without cameras
            has none.
    """
    faults = [*_rates(trained, robot), *_robots(trained, robot)]
    if trained.state is not None:
        faults += _states(trained.state, robot.state, kind)
    faults += _vectors(_ACTION, trained.action, robot.action, kind)
    if robot.cameras or kind != "robot":
        faults += _cameras(trained, robot.cameras, kind)
    return faults + list(_instructions(trained, robot, kind))


def _rates(trained: RobotFacts, robot: RobotFacts) -> Iterator[Mismatch]:
    if abs(robot.fps - trained.fps) > RATE_TOLERANCE * trained.fps:
        fix = "run the control loop at the rate of training, or train with its rate"
        yield Mismatch("rate", "", f"{trained.fps:g} steps per second", f"{robot.fps:g}", fix)
    executed = max(robot.chunk, robot.replan)
    is_other = robot.chunk not in (0, trained.chunk) or robot.replan > trained.chunk
    if trained.chunk and executed and is_other:
        fix = f"use {trained.chunk} actions of each prediction, at most"
        yield Mismatch("action horizon", "", f"{trained.chunk} actions at once", f"{executed}", fix)
    else:
        replans = (str(facts.replan or "") for facts in (trained, robot))
        yield from _differing("replanning", "", *replans)


def _robots(trained: RobotFacts, robot: RobotFacts) -> list[Mismatch]:
    fix = f"choose the policy of {robot.robot_type}, or correct the robot type"
    kinds = _plain(trained.robot_type), _plain(robot.robot_type)
    modes = _plain(trained.control_mode), _plain(robot.control_mode)
    return _differing("other robot", "", *kinds, fix) + _differing("control mode", "", *modes)


def _plain(text: str) -> str:
    return text.strip().lower().removeprefix("unknown")


def _differing(kind: str, key: str, trained: str, other: str, fix: str = "") -> list[Mismatch]:
    """List the difference between two texts; none where one is unknown."""
    if not trained or not other or trained == other:
        return []
    return [Mismatch(kind, key, trained, other, fix or f"{REMEDIES[kind]}: {trained}")]


def _states(trained: VectorFacts, other: VectorFacts | None, kind: Kind) -> list[Mismatch]:
    if other is not None:
        return _vectors(_STATE, trained, other, kind)
    fix = f"send it as {trained.key!r}"
    return [Mismatch("missing key", trained.key, "this input", "nothing", fix)]


def _vectors(standard: str, trained: VectorFacts, other: VectorFacts, kind: Kind) -> list[Mismatch]:
    """List the contradictions between two vectors; of a dataset also figures that are cut, where
    there are no others.
    """
    faults = _uncut_vectors(standard, trained, other, kind)
    if kind == "dataset" and not faults and other.width and trained.width == other.width:
        return list(_cut_statistics(trained, other))
    return faults


def _uncut_vectors(
    standard: str, trained: VectorFacts, other: VectorFacts, kind: Kind
) -> list[Mismatch]:
    key = trained.key or standard
    sized = trained.width and other.width
    faults: list[Mismatch] = []
    if trained.key and other.key not in ("", trained.key, standard):
        faults.append(
            Mismatch("missing key", key, "this key", other.key, f"rename {other.key!r} to {key!r}")
        )
    if sized and trained.width != other.width:
        came = f"{other.width} numbers"
        fix = "send the dimensions of training"
        return [*faults, Mismatch("dimension count", key, f"{trained.width} numbers", came, fix)]
    if sized:
        faults += _orders(key, trained, other)
    if sized and not faults:
        faults += _meanings(key, trained, other)
    digest = trained.normalization.digest
    other_digest = other.normalization.digest
    is_of_absolute = "state" in trained.learned and digest != "" and digest == other_digest
    if kind == "policy":
        faults += _differing("statistics", key, digest, other_digest)
    elif kind == "dataset" and is_of_absolute:
        text = "statistics of differences to the state", "statistics of absolute actions"
        fix = "compute the statistics of the differences"
        faults.append(Mismatch("statistics", key, *text, fix))
    elif sized and not faults:
        faults += _figures(key, trained, other, kind)
    return faults


def _figures(key: str, trained: VectorFacts, other: VectorFacts, kind: Kind) -> list[Mismatch]:
    """List the explanation of figures that do not fit; those of a dataset may be of other data."""
    explained = explain_figures(trained, other)
    if explained is None:
        return []
    if kind == "dataset" and explained.kind in ("normalized", "range"):
        fix = "compute the statistics of this data, or use the data of the policy"
        explained = replace(explained, kind="statistics", fix=fix)
    return [replace(explained, key=key)]


def _orders(key: str, trained: VectorFacts, other: VectorFacts) -> list[Mismatch]:
    """List the difference between the names of two vectors' dimensions, or between their roles
    where names are numbers.

    Roles of unlike words say nothing.
    """
    names = trained.names
    others = other.names
    if trained.is_unnamed or other.is_unnamed:
        names = trained.roles
        others = other.roles
        if "" in (*names, *others) or not set(names) & set(others):
            return []
    kind = "dimension order" if sorted(names) == sorted(others) else "dimension names"
    return _differing(kind, key, ", ".join(names), ", ".join(others))


def _meanings(key: str, trained: VectorFacts, other: VectorFacts) -> Iterator[Mismatch]:
    """Contradictions in units, zeros, frame and gripper of vectors of the same dimensions."""
    trained_units = [_UNITS.get(unit, unit) for unit in trained.units]
    other_units = [_UNITS.get(unit, unit) for unit in other.units]
    pairs = {
        "units": (trained_units, other_units),
        "delta": (trained.references, other.references),
    }
    for kind, (mine, theirs) in pairs.items():
        my_words = []
        their_words = []
        for name, my_word, their_word in zip(trained.names, mine, theirs, strict=False):
            if my_word and their_word and my_word != their_word:
                my_words.append(f"{name} {my_word}")
                their_words.append(f"{name} {their_word}")
        yield from _differing(kind, key, ", ".join(my_words), ", ".join(their_words))
    yield from _differing("frame", key, trained.frame, other.frame)
    for name in sorted(set(trained.gripper) & set(other.gripper)):
        closed, opened = trained.gripper[name]
        ends = other.gripper[name]
        if ends != (closed, opened):
            fix = f"map {ends[0]:g} to {closed:g} and {ends[1]:g} to {opened:g}"
            yield Mismatch("gripper", key, f"{name} {closed:g} closes", f"{ends[0]:g} closes", fix)


def _cut_statistics(trained: VectorFacts, data: VectorFacts) -> Iterator[Mismatch]:
    """Dimensions whose deviation is lost in the policy's statistics."""
    mine = trained.figures
    theirs = data.figures
    lost = mine["std"] < _COLLAPSED * theirs["std"]
    for low, high in (("min", "max"), ("q01", "q99")):
        lost |= (mine[high] <= mine[low]) & (theirs[high] > theirs[low])
    if lost.any():
        names = ", ".join(data.names[i] for i in np.flatnonzero(lost)[:4])
        came = f"figures in which {names} vary"
        yield Mismatch(
            "statistics cut",
            trained.key,
            f"constant figures of {names}",
            came,
            "store them in float64",
        )


def _cameras(
    robot: RobotFacts, others: Mapping[str, CameraFacts], kind: Kind
) -> Iterator[Mismatch]:
    trained = robot.cameras
    looks = robot.looks
    pairs = {key: _partner(key, camera, others) for key, camera in trained.items()}
    spare = {key: camera for key, camera in others.items() if key not in pairs.values()}
    for key, camera in trained.items():
        partner = pairs[key]
        if partner is None:
            yield _missing_camera(camera, spare)
            continue
        other = others[partner]
        yield from _exchanged(key, trained, other)
        yield from _images(camera, other, kind)
        if other.look is not None and (unlike := explain_look(key, looks, other.look)) is not None:
            named, came = unlike
            yield Mismatch(named, camera.key, "the images of training", came, REMEDIES[named])


def _missing_camera(camera: CameraFacts, spare: Mapping[str, CameraFacts]) -> Mismatch:
    """Name a camera that no other one stands for; `spare` are those without a partner."""
    if not spare:
        fix = f"send it as {camera.key!r}"
        return Mismatch("missing key", camera.key, "this camera", "no such camera", fix)
    near = get_close_matches(camera.key, spare, 1, 0.6)
    fix = f"is it {near[0]!r}?" if near else f"send it as {camera.key!r}"
    return Mismatch("camera map", camera.key, "this camera", ", ".join(spare), fix)


def _exchanged(
    key: str, trained: Mapping[str, CameraFacts], other: CameraFacts
) -> Iterator[Mismatch]:
    """Name another camera in place of the one of `key`, by its key or else by its role."""
    camera = trained[key]
    further = [theirs for name, theirs in trained.items() if name != key]
    if camera.key != other.key and other.key in {theirs.key for theirs in further}:
        fix = f"give {camera.key!r} as {key!r}"
        yield Mismatch("camera map", key, f"images of {camera.key}", f"images of {other.key}", fix)
    elif camera.role and other.role and camera.role != other.role:
        is_swapped = other.role in {theirs.role for theirs in further}
        named = "swapped cameras" if is_swapped else "camera map"
        fix = f"give the {camera.role} camera as {camera.key!r}"
        came = f"the {other.role} camera"
        yield Mismatch(named, camera.key, f"the {camera.role} camera", came, fix)


def _partner(key: str, camera: CameraFacts, others: Mapping[str, CameraFacts]) -> str | None:
    """Key of the camera of another contract that is given as `key`: by name, or by the name of the
    recordings.
    """
    for name in (key, camera.key):
        if name in others:
            return name
    by_recorded = {other.key: name for name, other in others.items()}
    by_role = {other.role: name for name, other in others.items() if other.role}
    return by_recorded.get(camera.key, by_recorded.get(key, by_role.get(camera.key)))


def _images(trained: CameraFacts, other: CameraFacts, kind: Kind) -> Iterator[Mismatch]:
    """Contradictions in the form of the images of one camera."""
    if all(other.size) and (unlike := trained.compare_size(other.size)) is not None:
        yield unlike
    if "WHC" in (trained.layout, other.layout):
        yield from _differing("transposed", trained.key, trained.layout, other.layout)
    names = {
        "dtype": "dtype",
        "color order": "color",
        "orientation": "orientation",
        "resize": "resize",
    }
    for named, fact in names.items():
        yield from _differing(named, trained.key, getattr(trained, fact), getattr(other, fact))
    if kind == "policy":
        yield from _differing(
            "resize", trained.key, _size_text(trained.network_size), _size_text(other.network_size)
        )


def _size_text(size: tuple[int, int]) -> str:
    return "{}x{}".format(*size) if all(size) else ""


def _instructions(trained: RobotFacts, robot: RobotFacts, kind: Kind) -> Iterator[Mismatch]:
    yield from _differing("prompt", "task", trained.prompt, robot.prompt)
    yield from _differing("tokenizer", "task", trained.tokenizer, robot.tokenizer)
    if kind == "policy" or not trained.tasks or trained.tasks_left_out:
        return
    tasks = set(map(_plain, trained.tasks))
    if unknown := [task for task in robot.tasks if task and _plain(task) not in tasks]:
        came = ", ".join(map(repr, unknown[:_SHOWN_TASKS]))
        yield Mismatch(
            "instruction", "task", f"{len(tasks)} others", came, "give an instruction of training"
        )
