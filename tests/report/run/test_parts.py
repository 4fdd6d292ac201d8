"""Parts of a run's page that other packages add."""

from pathlib import Path

import pytest

from support.packages import install
from support.runs import SHORT, trained_run
from understudy.entry_points import EntryPoint
from understudy.report.run.page import write_report

PART = """
from understudy.report.page import text
from understudy.report.run.parts import PagePart

def part(run):
    kinds = sorted(kind for kind, records in run.logs.items() if records)
    return PagePart("Weather", [text(f"{run.root.name}: {kinds}")], [("12 mm", "rain")])
"""


def page_of(root: Path) -> str:
    return write_report(root, predict=False).read_text(encoding="utf-8")


def test_a_part_of_another_package_is_on_the_page(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    root = trained_run(tmp_path / "r", **SHORT)
    plain = page_of(root)
    install(tmp_path / "site", "weather-1", "[understudy.pages]\nweather = toys_weather:part\n", PART)
    monkeypatch.syspath_prepend(str(tmp_path / "site"))
    page = page_of(root)
    assert 'id="weather"' in page
    assert "12 mm" in page
    assert "&#39;train&#39;" in page
    assert 'id="weather"' not in plain


def test_rollouts_without_their_package_are_named(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    def none(group: str) -> dict[str, EntryPoint]:
        return {}

    root = trained_run(tmp_path / "r", **SHORT)
    monkeypatch.setattr("understudy.report.run.parts.find_entry_points", none)
    assert "understudy[robot]" not in page_of(root)
    (root / "rollouts").mkdir()
    assert "understudy[robot]" in page_of(root)
