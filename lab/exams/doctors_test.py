"""No finding of other projects' doctors on datasets that understudy writes."""

import sys
from pathlib import Path

import pytest
from lerobot_doctor import dataset_loader, gate, runner

from outputs import NAMES

CHECKS = sorted(runner._get_all_checks())
POLICIES = sorted(gate.POLICY_CONFIGS)


@pytest.mark.parametrize("check", CHECKS)
@pytest.mark.parametrize("name", NAMES)
def test_lerobot_doctor_finds_nothing(outputs: Path, name: str, check: str) -> None:
    report = runner.run_checks(dataset_loader.load_local(outputs / name), checks=[check])
    found = [
        m.message
        for result in report.results
        for m in result.messages
        if m.severity.value != "PASS"
    ]
    assert not found, "\n".join(found)


@pytest.mark.parametrize("policy", POLICIES)
@pytest.mark.parametrize("name", NAMES)
def test_gate_of_lerobot_doctor_opens(outputs: Path, name: str, policy: str) -> None:
    result = gate.gate_check(outputs / name, policy=policy)
    assert result.passed, result.blockers


@pytest.mark.parametrize("name", NAMES)
def test_lerobot_lance_doctor_finds_nothing(
    outputs: Path, name: str, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    doctor = pytest.importorskip("lerobot_lancedb.doctor")
    monkeypatch.setattr(
        sys, "argv", ["doctor", "--root", str(outputs / name), "--repo-id", "exam/output"]
    )
    assert doctor.main() == 0, capsys.readouterr().out
