"""Parts of a run's page that other packages add."""

import html
from pathlib import Path

import pytest

from understudy.cli import runs
from understudy.report.run.page import write_report
from understudy.testing.runs import SHORT, tiny_config, tiny_dataset, trained_run
from understudy_base import PIP_LINES, EntryPoint
from understudy_kit.testing.packages import install

PART = """
from understudy_kit import Block
from understudy.report.run.parts import PagePart

def part(run):
    kinds = sorted(kind for kind, records in run.logs.items() if records)
    return PagePart("Weather", [Block.paragraph(f"{run.root.name}: {kinds}")], [("12 mm", "rain")])
"""

BROKEN = {
    "raises": "def part(run):\n    raise RuntimeError('no rain gauge')\n",
    "breaks its import": "raise RuntimeError('no rain gauge')\n",
    "returns no part": "def part(run):\n    return None\n",
    "breaks while its blocks are read": """
def part(run):
    return "Weather", (int("no rain gauge") for _ in "1"), ()
""",
}
UNDRAWABLE = "def part(run):\n    return 'Weather', [], ['no pair of number and description']\n"


def page_of(root: Path) -> str:
    return write_report(root, predict=False).read_text(encoding="utf-8")


def test_a_part_of_another_package_is_on_the_page(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    root = trained_run(tmp_path / "r", **SHORT)
    plain = page_of(root)
    install(
        tmp_path / "site", "weather-1", "[understudy.pages]\nweather = toys_weather:part\n", PART
    )
    monkeypatch.syspath_prepend(str(tmp_path / "site"))
    page = page_of(root)
    assert 'id="weather"' in page
    assert "12 mm" in page
    assert "&#39;train&#39;" in page
    assert 'id="weather"' not in plain


def test_rollouts_without_their_package_are_named(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def none(group: str) -> dict[str, EntryPoint]:
        return {}

    root = trained_run(tmp_path / "r", **SHORT)
    monkeypatch.setattr("understudy.report.run.parts.find_entry_points", none)
    assert html.escape(PIP_LINES["robot"]).replace("&#x27;", "&#39;") not in page_of(root)
    (root / "rollouts").mkdir()
    assert html.escape(PIP_LINES["robot"]).replace("&#x27;", "&#39;") in page_of(root)


@pytest.mark.parametrize("fault", BROKEN)
def test_a_part_that_fails_shows_its_error(
    fault: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    root = trained_run(tmp_path / "r", **SHORT)
    name = f"weather{list(BROKEN).index(fault)}"  # each module is imported once
    text = f"[understudy.pages]\nweather = toys_{name}:part\n"
    install(tmp_path / "site", f"{name}-1", text, BROKEN[fault])
    monkeypatch.syspath_prepend(str(tmp_path / "site"))
    page = page_of(root)
    assert 'id="weather"' in page
    assert f"toys_{name}:part" in page
    assert ("no rain gauge" in page) == (fault != "returns no part")
    assert 'id="loss"' in page


def test_a_report_that_fails_keeps_the_exit_code(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    install(
        tmp_path / "site",
        "undrawable-1",
        "[understudy.pages]\nweather = toys_undrawable:part\n",
        UNDRAWABLE,
    )
    monkeypatch.syspath_prepend(str(tmp_path / "site"))
    config = tiny_config(
        tiny_dataset(tmp_path / "dataset"), tmp_path / "r", log={"report": True}, **SHORT
    )
    assert runs.train(config) == 0
    printed = capsys.readouterr()
    assert f"understudy report {tmp_path / 'r'}" in printed.err
    assert "report:" not in printed.out
    assert (tmp_path / "r/policy").is_dir()
    assert not (tmp_path / "r/report.html").exists()
