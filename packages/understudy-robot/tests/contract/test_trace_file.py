"""The diagnosis of a trace has planted reasons of a failed grasp, and none of a sound one."""

import json
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest

from understudy_client import Mismatch
from understudy_client.testing.arm import NAMES, arm_contract, arm_observations
from understudy_client.testing.hostile import damaged, refusal, samples
from understudy_robot.contracts.trace import PHASES, TraceWriter, Transitions, diagnose
from understudy_robot.testing.traces import CHUNK, STEPS, graspable, recorded, traced, write_broken


def test_a_sound_trace(tmp_path: Path) -> None:
    diagnosis = traced(tmp_path / "trace.jsonl", recorded())
    assert diagnosis.transitions == {"gripper": Transitions(4, 4, 4)}
    assert set(diagnosis.errors) == set(PHASES)
    assert all((error == 0).all() for error in diagnosis.errors.values())
    assert abs(np.median(diagnosis.likelihood)) < 0.5
    assert len(diagnosis.steps) == len(diagnosis.ages_s) == 2 * STEPS // CHUNK
    assert diagnosis.mismatches == []
    assert diagnosis.facts.to_json() == graspable().robots["arm"].to_json()


def test_a_gripper_that_never_closes_is_named_in_its_phases(tmp_path: Path) -> None:
    predicted = recorded()
    predicted[:, 6] = 0.05
    diagnosis = traced(tmp_path / "trace.jsonl", predicted)
    assert diagnosis.transitions == {"gripper": Transitions(0, 4, 0)}
    worst = {phase: NAMES[int(error.argmax())] for phase, error in diagnosis.errors.items()}
    assert worst["closed"] == "gripper"
    assert diagnosis.errors["closed"][6] == pytest.approx(0.75)
    assert diagnosis.errors["approach"][6] == pytest.approx(0.05)


def test_a_late_gripper_is_predicted_and_not_matched(tmp_path: Path) -> None:
    """Half a second is 15 steps."""
    for shift, matched in ((12, 4), (20, 0)):
        diagnosis = traced(tmp_path / f"{shift}.jsonl", np.roll(recorded(), shift, axis=0))
        assert diagnosis.transitions == {"gripper": Transitions(4, 4, matched)}


def test_states_and_images_are_named(tmp_path: Path) -> None:
    shifted = {"joints": lambda x: x + 3 * (np.arange(7) == 1), "cam_front": lambda x: x // 4}
    diagnosis = traced(tmp_path / "trace.jsonl", recorded(), with_recording=False, **shifted)
    assert diagnosis.errors == {}
    assert diagnosis.transitions == {"gripper": Transitions(4, 0, 0)}
    assert {name for name, share in diagnosis.outside.items() if share > 0.5} == {NAMES[1]}
    assert np.median(diagnosis.misfits["observation.images.front"]) > 1
    assert np.median(diagnosis.misfits["observation.images.wrist_left"]) < 1
    assert np.median(diagnosis.likelihood) < -0.5


def test_each_contradiction_has_the_place_of_the_first(tmp_path: Path) -> None:
    """Faults of the files come first, then those of the observations with their step; each once."""
    mirrored = {"cam_front": lambda x: x[:, ::-1].copy(), "joints": lambda x: np.rad2deg(x)}
    diagnosis = traced(tmp_path / "trace.jsonl", recorded(), **mirrored)
    found = [(place, mismatch.kind, mismatch.key) for place, mismatch in diagnosis.mismatches]
    assert found == [
        ("robot 0, step 32: ", "degrees", "joints"),
        ("robot 0, step 32: ", "orientation", "cam_front"),
    ]
    fault = Mismatch("rate", "", "30", "10", "set it")
    writer = TraceWriter(tmp_path / "faulty.jsonl", replace(graspable(), faults=(fault,)), "arm")
    writer.add("robot 0", 0, {**arm_observations(1)[0], "task": "dance"}, recorded()[:CHUNK])
    writer.close()
    (first, second) = diagnose(tmp_path / "faulty.jsonl").mismatches
    assert first == ("", fault)
    assert (second[0], second[1].kind) == ("robot 0, step 0: ", "instruction")


def test_robots_and_episodes_are_told_apart(tmp_path: Path) -> None:
    """Robots share a file; an episode begins where a robot's steps do not rise."""
    writer = TraceWriter(tmp_path / "trace.jsonl", graspable(), "arm")
    seen = arm_observations(4)
    for episode in (7, 8):
        for step in (0, 8):
            for robot, offset in (("a", 0), ("b", 2)):
                actions = recorded()[step : step + CHUNK]
                writer.add(robot, step, seen[offset], actions, 0.01, actions, episode + offset * 10)
    writer.close()
    diagnosis = diagnose(tmp_path / "trace.jsonl")
    assert set(diagnosis.played) == {7, 8, 27, 28}
    for number, played in diagnosis.played.items():
        assert played.steps.tolist() == [0, 8]
        assert np.array_equal(
            played.states, np.stack([seen[2 if number > 20 else 0]["joints"]] * 2)
        )


def test_a_trace_is_compared_with_another_policy(tmp_path: Path) -> None:
    """Its numbers are as if it was trained in radians, and the robot sent degrees."""
    path = tmp_path / "trace.jsonl"
    traced(path, recorded())
    arm = graspable().robots["arm"]
    assert arm.state is not None
    radians = {name: np.deg2rad(values) for name, values in arm.state.figures.items()}
    other = replace(
        arm_contract(), robots={"": replace(arm, state=replace(arm.state, figures=radians))}
    )
    assert [mismatch.kind for _, mismatch in diagnose(path).mismatches] == []
    kinds = [(mismatch.kind, mismatch.key) for _, mismatch in diagnose(path, other).mismatches]
    assert ("degrees", "joints") in kinds
    with pytest.raises(ValueError):
        diagnose(path, arm_contract())  # of two robots


def test_a_trace_replaces_no_file(tmp_path: Path) -> None:
    path = tmp_path / "trace.jsonl"
    path.write_text("mine")
    with pytest.raises(FileExistsError):
        TraceWriter(path, graspable(), "arm")
    with pytest.raises(KeyError):
        TraceWriter(tmp_path / "other.jsonl", graspable(), "nobody")
    assert path.read_text() == "mine"


def test_the_line_that_a_kill_tore_does_not_count(tmp_path: Path) -> None:
    path = tmp_path / "trace.jsonl"
    whole = traced(path, recorded())
    with path.open("a") as file:
        file.write('{"robot": "robot 0", "st')
    assert diagnose(path).steps.tolist() == whole.steps.tolist()


@pytest.mark.parametrize(
    "content",
    [b"", b"{", b"\n", b"[]\n", b"{}\n{}\n", b"\xff\n", b"1\n2\n", b"HEAD\n", b"HEADS\nROW\n"],
)
def test_a_file_that_is_no_trace_is_a_value_error(content: bytes, tmp_path: Path) -> None:
    path = tmp_path / "trace.jsonl"
    write_broken(path, content)
    with pytest.raises(ValueError) as error:
        diagnose(path)
    assert str(path) in str(error.value)


def test_damaged_traces_raise_no_other_error(tmp_path: Path) -> None:
    path = tmp_path / "trace.jsonl"
    traced(path, recorded())
    head, row, *_ = path.read_text().splitlines()
    messages = []
    for place, hostile in samples(json.loads(row), 100):
        path.write_text("\n".join([head, json.dumps(damaged(json.loads(row), place, hostile)), ""]))
        messages.append(refusal(lambda: diagnose(path), ValueError))
    refusals = [message for message in messages if message]
    assert len(refusals) > 20
    assert all(str(path) in message for message in refusals)
