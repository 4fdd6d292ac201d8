"""The diagnosis of a trace names planted reasons of a failed grasp, and nothing of a sound one."""

import json
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from support.arm import NAMES, arm_contract, arm_observations
from support.refusals import refused
from understudy.cli.why import WhyConfig, why
from understudy.contract.facts import Contract
from understudy.contract.trace import Diagnosis, TraceWriter, Transitions, diagnose
from understudy.errors import ConfigError
from understudy.report.why import findings, why_page

STEPS, CHUNK, CLOSES, OPENS = 128, 8, 40, 100


def graspable() -> Contract:
    """The arm, whose gripper closes at 0.8."""
    contract = arm_contract()
    arm = contract.robots["arm"]
    return replace(contract, robots={"arm": replace(arm, action=replace(arm.action, gripper={"gripper": (0.8, 0.0)}))})


def recorded() -> np.ndarray:
    actions = np.tile(np.linspace(0, 1, STEPS)[:, None], (1, 7))
    actions[:, 6] = 0.8 * ((np.arange(STEPS) >= CLOSES) & (np.arange(STEPS) < OPENS))
    return actions


def traced(path: Path, predicted: np.ndarray, with_recording: bool = True, **changes: Any) -> Diagnosis:
    """Write the trace of two episodes of one robot, and diagnose it."""
    writer, truth = TraceWriter(path, graspable(), "arm"), recorded()
    for episode in range(2):
        seen = arm_observations(STEPS // CHUNK, episode)
        for number, step in enumerate(range(0, STEPS, CHUNK)):
            shown = {**seen[number], **{key: change(seen[number][key]) for key, change in changes.items()}}
            rows = truth[step : step + CHUNK] if with_recording else None
            writer.add("robot 0", step, shown, predicted[step : step + CHUNK], 0.01, rows)
    writer.close()
    return diagnose(path)


def test_a_sound_trace_has_no_finding(tmp_path: Path) -> None:
    diagnosis = traced(tmp_path / "trace.jsonl", recorded())
    assert findings(diagnosis) == []
    assert diagnosis.transitions == {"gripper": Transitions(4, 4, 4)}
    assert set(diagnosis.errors) == {"approach", "closing", "closed", "opening", "after"}
    assert all((error == 0).all() for error in diagnosis.errors.values())
    assert abs(np.median(diagnosis.likelihood)) < 0.5
    assert len(diagnosis.steps) == len(diagnosis.ages_s) == 2 * STEPS // CHUNK


def test_a_gripper_that_never_closes_is_named_in_its_phases(tmp_path: Path) -> None:
    predicted = recorded()
    predicted[:, 6] = 0.05
    diagnosis = traced(tmp_path / "trace.jsonl", predicted)
    assert diagnosis.transitions == {"gripper": Transitions(0, 4, 0)}
    worst = {phase: NAMES[int(error.argmax())] for phase, error in diagnosis.errors.items()}
    assert worst["closed"] == "gripper"
    assert diagnosis.errors["closed"][6] == pytest.approx(0.75)
    assert diagnosis.errors["approach"][6] == pytest.approx(0.05)
    assert len(findings(diagnosis)) == 2


def test_states_images_and_age_are_named(tmp_path: Path) -> None:
    shifted = {"joints": lambda x: x + 3 * (np.arange(7) == 1), "cam_front": lambda x: x // 4}
    diagnosis = traced(tmp_path / "trace.jsonl", recorded(), with_recording=False, **shifted)
    assert diagnosis.errors == {}
    assert diagnosis.transitions == {"gripper": Transitions(4, 0, 0)}
    assert {name for name, share in diagnosis.outside.items() if share > 0.5} == {NAMES[1]}
    assert np.median(diagnosis.misfits["observation.images.front"]) > 1
    assert np.median(diagnosis.misfits["observation.images.wrist_left"]) < 1
    assert np.median(diagnosis.likelihood) < -0.5
    late = replace(diagnosis, ages_s=np.full(len(diagnosis.ages_s), 0.5))
    assert len(findings(late)) == len(findings(diagnosis)) + 1


def test_why_writes_a_page(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    traced(tmp_path / "trace.jsonl", np.zeros((STEPS, 7)))
    why(WhyConfig(trace=str(tmp_path / "trace.jsonl")))
    assert str(tmp_path / "trace.html") in capsys.readouterr().out
    page = (tmp_path / "trace.html").read_text()
    assert page == why_page(diagnose(tmp_path / "trace.jsonl"), "trace")
    assert [name for name in (*NAMES, "observation.images.front", "closing") if name not in page] == []
    (tmp_path / "foreign.html").write_text("mine")
    with refused("foreign.html", kind=ConfigError):
        why(WhyConfig(trace=str(tmp_path / "trace.jsonl"), page=str(tmp_path / "foreign.html")))
    (tmp_path / "other.jsonl").write_text(json.dumps({"robots": {}}) + "\n")
    for damaged in ("other.jsonl", "absent.jsonl"):
        with refused("trace", kind=ConfigError):
            why(WhyConfig(trace=str(tmp_path / damaged)))
