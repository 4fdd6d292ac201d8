"""Findings are ranked by their effect on a training; each has a fix, and names the command that
shows its episodes.
"""

import json
from pathlib import Path

import numpy as np
import pytest

from understudy_data.testing.datasets import Spec, edit_column, edit_json, write_dataset
from understudy_kit import main
from understudy_tools.check.contents import format_report
from understudy_tools.check.effects import complete_fix, effect_of, rank_findings
from understudy_tools.check.examine import check_dataset
from understudy_tools.check.findings import LOOK, RULES, Finding, Place
from understudy_tools.report.check_page import check_page


@pytest.mark.parametrize("severity", ["error", "warning", "note"])
def test_effects_and_fixes_of_all_rules(severity: str) -> None:
    for rule in RULES:
        for place in (Place(), Place((3, 4, 9))):
            bare = Finding(rule, severity, "", place)  # type: ignore[arg-type]
            finding = complete_fix(bare, "/data/set")
            assert finding.fix
            assert "SRC" not in finding.fix
            assert "training" in effect_of(finding)
    looked = complete_fix(
        Finding("images.shifted", "note", "", Place((4, 7)), fix=LOOK), "/data/set"
    )
    assert "understudy view /data/set --episodes 4 7" in looked.fix
    assert "--data.exclude-episodes 4 7" in looked.fix


def test_command_lists_all_rules(capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["check", "--rules", "--json"]) == 0
    assert list(json.loads(capsys.readouterr().out)) == list(RULES)


def test_effects_rank_findings() -> None:
    rules = ["metadata.totals", "episodes.idle", "values.unit", "rows.count"]
    ranked = rank_findings(tuple(Finding(rule, "warning", "") for rule in rules))
    assert [one.rule for one in ranked][-2:] == ["episodes.idle", "metadata.totals"]
    errors = rank_findings(
        (Finding("values.unit", "error", ""), Finding("files.missing", "error", ""))
    )
    assert [one.rule for one in errors] == ["files.missing", "values.unit"]
    mixed = rank_findings(
        (Finding("files.missing", "note", ""), Finding("metadata.totals", "error", ""))
    )
    assert [one.severity for one in mixed] == ["error", "note"]


def test_page_has_the_fix_of_each_finding_in_a_paragraph(tmp_path: Path) -> None:
    root = tmp_path / "set"
    write_dataset(root, Spec(lengths=(6, 9, 4), foreign=False))
    edit_json(
        root / "meta/info.json", lambda info: info.update(total_frames=7, splits={"train": "0:99"})
    )
    report = check_dataset(root)
    page = check_page(report, 0)
    for finding in report.findings:
        assert finding.fix
        assert f"<h3>{finding.rule}" in page
    assert "Worst episodes" not in page
    shown = page.partition(">Warnings</h2>")[2].partition("<h2")[0]
    assert "Fix: " in shown
    assert "<table" not in shown
    assert "fix: " in format_report(report)


def test_a_sound_dataset_has_no_bad_episodes_on_its_page(tmp_path: Path) -> None:
    write_dataset(tmp_path / "set", Spec(lengths=(12,) * 10, foreign=False))
    report = check_dataset(tmp_path / "set")
    page = check_page(report, 1)
    assert (">Most unusual episodes</h2>" in page) == any(
        entry["score"] >= 3 for entry in report.ranking
    )
    assert "Worst episodes" not in page


def test_rounding_is_no_unusual_motion(tmp_path: Path) -> None:
    root = tmp_path / "set"
    write_dataset(root, Spec(lengths=(30,) * 10, foreign=False, per_data_file=10, cameras=()))
    rng = np.random.default_rng(0)

    def ramps(values: np.ndarray) -> list[list[float]]:
        rows = []
        for episode in range(10):
            noise = rng.normal(size=30) * (1e-8 if episode else 1e-6)
            rows += [[frame / 29 + noise[frame], 1 - frame / 29] for frame in range(30)]
        return rows

    edit_column(root / "data/chunk-000/file-000.parquet", "action", ramps)
    report = check_dataset(root)
    assert all(abs(entry["z"]["jerk"]) < 3 for entry in report.ranking)
    assert not any("e-0" in entry["why"] for entry in report.ranking)
