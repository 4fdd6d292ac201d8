"""Rules with too little data are listed as undecided, beside the findings."""

import json
from pathlib import Path

import pytest

from understudy_kit.cli import main
from understudy_tools.check.examine import check_dataset
from understudy_tools.check.findings import Finding, Place, merge_undecided, undecided
from understudy_tools.testing.robot_rows import write_rows


def test_a_rule_with_too_little_data_is_undecided(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    report = check_dataset(write_rows(tmp_path / "set", (40,) * 4, width=3), "rows")
    [lag] = [entry for entry in report.undecided if entry.rule == "values.lag"]
    assert (lag.severity, lag.measured, lag.expected) == ("undecided", 4, 5)
    assert not [finding for finding in report.findings if finding.severity == "undecided"]
    assert main.main(["check", str(tmp_path / "set"), "--depth", "rows", "--json"]) == 0
    assert "values.lag" in [
        entry["rule"] for entry in json.loads(capsys.readouterr().out)["undecided"]
    ]


def test_one_entry_per_rule_has_the_least_data() -> None:
    entries: list[Finding] = [
        undecided("images.shifted", 5, "clips", count, Place(camera=str(count))) for count in (3, 1)
    ]
    [merged] = merge_undecided([*entries, undecided("values.lag", 5, "episodes", 4)])[1:]
    assert (merged.rule, merged.measured, merged.place) == ("images.shifted", 1, Place())
