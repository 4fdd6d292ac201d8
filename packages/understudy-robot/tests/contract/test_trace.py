"""The diagnosis of a trace names planted reasons of a failed grasp, and nothing of a sound one."""

import json
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest

import wiring
from understudy_base import ConfigError
from understudy_base.testing.refusals import refused
from understudy_client import Contract, Mismatch, VectorFacts
from understudy_client.testing.arm import NAMES, arm_observations
from understudy_client.testing.hostile import damaged, refusal, samples
from understudy_robot.cli.why import WhyConfig, why
from understudy_robot.contracts.trace import TraceWriter, diagnose
from understudy_robot.report.why import findings, why_page
from understudy_robot.testing.traces import CHUNK, STEPS, graspable, recorded, traced, write_broken


def test_a_sound_trace_has_no_finding(tmp_path: Path) -> None:
    assert findings(traced(tmp_path / "trace.jsonl", recorded())) == []


def test_a_gripper_that_never_closes_is_a_finding(tmp_path: Path) -> None:
    predicted = recorded()
    predicted[:, 6] = 0.05
    assert len(findings(traced(tmp_path / "trace.jsonl", predicted))) == 2


def test_states_images_and_age_are_findings(tmp_path: Path) -> None:
    shifted = {"joints": lambda x: x + 3 * (np.arange(7) == 1), "cam_front": lambda x: x // 4}
    diagnosis = traced(tmp_path / "trace.jsonl", recorded(), with_recording=False, **shifted)
    page = why_page(diagnosis, "trace")
    assert ("predicted" in page, "matched" in page) == (True, False)
    late = replace(diagnosis, ages_s=np.full(len(diagnosis.ages_s), 0.5))
    assert len(findings(late)) == len(findings(diagnosis)) + 1


def test_why_writes_a_page(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    traced(tmp_path / "trace.jsonl", np.zeros((STEPS, 7)))
    why(WhyConfig(paths=(str(tmp_path / "trace.jsonl"),)))
    assert str(tmp_path / "trace.html") in capsys.readouterr().out
    page = (tmp_path / "trace.html").read_text()
    assert page == why_page(diagnose(tmp_path / "trace.jsonl"), "trace")
    assert [
        name for name in (*NAMES, "observation.images.front", "closing") if name not in page
    ] == []
    (tmp_path / "foreign.html").write_text("mine")
    with refused("foreign.html", kind=ConfigError):
        why(WhyConfig(paths=(str(tmp_path / "trace.jsonl"),), page=str(tmp_path / "foreign.html")))
    (tmp_path / "other.jsonl").write_text(json.dumps({"robots": {}}) + "\n")
    for name in ("other.jsonl", "absent.jsonl"):
        with refused("trace", kind=ConfigError):
            why(WhyConfig(paths=(str(tmp_path / name),)))


def test_why_names_the_first_contradiction_of_a_trace(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    """Faults of the files come first, then those of the observations with their step; each once."""
    mirrored = {"cam_front": lambda x: x[:, ::-1].copy(), "joints": lambda x: np.rad2deg(x)}
    diagnosis = traced(tmp_path / "trace.jsonl", recorded(), **mirrored)
    assert ("degrees" in findings(diagnosis)[0], "orientation" in findings(diagnosis)[1]) == (
        True,
        True,
    )
    faulty = replace(graspable(), faults=(Mismatch("rate", "", "30", "10", "set it"),))
    writer = TraceWriter(tmp_path / "faulty.jsonl", faulty, "arm")
    writer.add("robot 0", 0, arm_observations(1)[0], recorded()[:CHUNK])
    writer.close()
    why(WhyConfig(paths=(str(tmp_path / "faulty.jsonl"),)))
    assert "rate" in capsys.readouterr().out.splitlines()[0]


@pytest.mark.parametrize("tool", ["lerobot", "openpi", "groot", "ours"])
def test_a_trace_is_compared_with_a_policy_of_any_tool(
    tool: str, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    """States in degrees, by the statistics of a policy that was trained in radians."""
    contract = Contract({"so101": wiring.facts()}, {}, "robot")
    radians = {name: np.deg2rad(values) for name, values in wiring.ARM.items()}
    vector = VectorFacts(wiring.STATE, wiring.JOINTS, radians)
    folder = tmp_path / "policy"
    trace = tmp_path / "trace.jsonl"
    makers: dict[str, Callable[[], object]] = {
        "lerobot": lambda: wiring.lerobot(folder, stats=radians),
        "openpi": lambda: wiring.openpi(folder, stats=radians),
        "groot": lambda: in_radians(wiring.groot(folder)),
        "ours": lambda: wiring.ours(folder, wiring.facts(state=vector)),
    }
    makers[tool]()
    writer = TraceWriter(trace, contract, "so101")
    rng = np.random.default_rng(0)
    for step in range(6):
        state = wiring.MEAN + wiring.STD * np.clip(rng.standard_normal(6), -2, 2)
        writer.add(
            "robot 0", step, {wiring.STATE: state, "task": wiring.TASKS[0]}, np.zeros((1, 6))
        )
    writer.close()
    assert [mismatch.kind for _, mismatch in diagnose(trace).mismatches] == [
        "missing key",
        "missing key",
    ]
    why(WhyConfig(paths=(str(folder), str(trace))))
    first, *_, page = capsys.readouterr().out.splitlines()
    assert "step 4" in first
    assert "degrees" in first
    why(WhyConfig(paths=(str(trace),)))
    assert capsys.readouterr().out.splitlines()[-1] != page  # neither page replaces the other
    assert Path(page).is_file()


def in_radians(folder: Path) -> Path:
    def convert(stored: dict[str, Any]) -> None:
        for groups in stored["new_embodiment"]["statistics"].values():
            for figures in groups.values():
                figures |= {name: np.deg2rad(values).tolist() for name, values in figures.items()}

    return wiring.edit(folder, "experiment_cfg/metadata.json", convert)


@pytest.mark.parametrize("content", [b"", b"{}\n{}\n", b"HEADS\nROW\n"])
def test_a_file_that_is_no_trace_is_named(content: bytes, tmp_path: Path) -> None:
    path = tmp_path / "trace.jsonl"
    write_broken(path, content)
    with pytest.raises(ConfigError) as error:
        why(WhyConfig(paths=(str(path),)))
    assert str(path) in str(error.value)
    assert "unpack" not in str(error.value)


def test_damaged_traces_are_refused_and_never_raise_another_error(tmp_path: Path) -> None:
    path = tmp_path / "trace.jsonl"
    traced(path, recorded())
    head, row, *_ = path.read_text().splitlines()
    for place, hostile in samples(json.loads(row), 200):
        path.write_text("\n".join([head, json.dumps(damaged(json.loads(row), place, hostile)), ""]))
        refusal(lambda: why(WhyConfig(paths=(str(path),))))
    for place, hostile in samples(json.loads(head), 30):
        path.write_text("\n".join([json.dumps(damaged(json.loads(head), place, hostile)), row, ""]))
        refusal(lambda: why(WhyConfig(paths=(str(path),))))
    with refused("rollouts", kind=ConfigError):
        why(WhyConfig(paths=(str(tmp_path),)))
