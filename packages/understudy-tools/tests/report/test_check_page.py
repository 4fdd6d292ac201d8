"""The page of `understudy check`: its title has the result."""

import re
from dataclasses import replace
from pathlib import Path

import pytest

from understudy_data.testing.datasets import Spec, write_dataset
from understudy_tools.check.examine import check_dataset
from understudy_tools.check.findings import Finding, Report
from understudy_tools.report.check_page import check_page


@pytest.fixture(scope="module")
def report(tmp_path_factory: pytest.TempPathFactory) -> Report:
    root = tmp_path_factory.mktemp("page") / "set"
    write_dataset(root, Spec(lengths=(6, 4), foreign=False))
    return check_dataset(Path(root), "rows")


@pytest.mark.parametrize(
    ("severities", "result"),
    [
        ([], "sound"),
        (["note"], "sound"),
        (["warning"], "1 warning"),
        (["error"] * 2 + ["warning"], "2 errors, 1 warning"),
    ],
)
def test_the_title_counts_errors_and_warnings(
    report: Report, severities: list[str], result: str
) -> None:
    findings = tuple(Finding("values.unit", severity, "degrees") for severity in severities)
    page = check_page(replace(report, findings=findings), 0)
    assert re.findall(r"<h1>(.*?)</h1>", page) == [f"set: {result}"]
