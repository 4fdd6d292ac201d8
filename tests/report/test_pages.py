"""The pages in a real browser, on wide and narrow screens, light and dark: everything is
readable.
"""

import json
import shutil
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from understudy.report.run.page import read_run, write_report
from understudy.testing.pages import charts_of
from understudy.testing.runs import tiny_dataset, trained_run
from understudy.train.checkpoint.run_dir import RunDir
from understudy_data.datasets.format.catalog import Catalog
from understudy_kit import Block, render_page
from understudy_kit.testing import browser
from understudy_robot.report.why import why_page
from understudy_robot.rollout.files import write_result
from understudy_robot.rollout.result import Episode, RolloutResult
from understudy_robot.testing.traces import CHUNK, STEPS, recorded, traced
from understudy_tools.check.examine import check_dataset
from understudy_tools.check.findings import Finding
from understudy_tools.report.check_page import check_page

SCREENS = [
    (1200, "light"),
    (390, "dark"),
    *(pytest.param(*screen, marks=pytest.mark.long) for screen in [(1200, "dark"), (375, "light")]),
]


@pytest.fixture(scope="module")
def chromium() -> Iterator[Any]:
    with browser.browser() as opened:
        yield opened


@pytest.fixture(scope="module")
def report(tmp_path_factory: pytest.TempPathFactory, chromium: Any) -> Path:
    """A run with all sections of a report: falling losses, groups, rollouts."""
    root = tmp_path_factory.mktemp("pages")
    trained_run(root / "run")
    tasks = ["pick up the red block and put it onto the green one", "open the drawer"]
    film = np.random.default_rng(0).integers(0, 255, (21, 64, 64, 3), np.uint8)
    episodes = tuple(
        Episode(i, i, tasks[i % 2], tasks[i % 2], tasks[i % 2] if i < 3 else None, 20)
        for i in range(4)
    )
    write_result(
        RolloutResult("tabletop", 0, {"mujoco": "3.3.0"}, False, episodes, {0: film, 3: film}),
        root / "run/rollouts",
    )
    metrics = RunDir(root / "run").metrics
    records = [json.loads(line) for line in metrics.read_text().splitlines()]
    for number, record in enumerate(r for r in records if r["kind"] == "train"):
        record["loss"] = 40.0 if number == 0 else record["loss"]
        record["grad_norm"] = 10.0 ** (1 - number / 4)
        record["skipped"] = number == 5
    metrics.write_text("".join(json.dumps(record) + "\n" for record in records))
    return write_report(root / "run")


@pytest.mark.parametrize(("width", "scheme"), SCREENS)
def test_report_is_readable(report: Path, chromium: Any, width: int, scheme: str) -> None:
    assert browser.faults(chromium, report, width, scheme) == []


@pytest.fixture(scope="module")
def comparison(report: Path) -> Path:
    path = report.parent.parent / "comparison.html"
    shutil.copytree(report.parent, report.parent.parent / "other")
    return write_report(report.parent, path, others=[read_run(report.parent.parent / "other", "B")])


@pytest.mark.parametrize(("width", "scheme"), SCREENS[:3])
def test_comparison_is_readable(comparison: Path, chromium: Any, width: int, scheme: str) -> None:
    assert browser.faults(chromium, comparison, width, scheme) == []


@pytest.mark.long
def test_comparison_shows_the_lines_of_both_runs(comparison: Path, chromium: Any) -> None:
    tab = chromium.new_page(viewport={"width": 1200, "height": 900})
    tab.goto(comparison.as_uri())
    assert tab.get_by_text("cannot be decided").first.is_visible()
    chart = tab.locator(".curves:has([aria-label='loss by step'])")
    assert chart.locator("svg path.line").count() == 4
    chart.locator(".area").hover(position={"x": 500, "y": 90})
    assert len([text for text in chart.locator("output").all_inner_texts() if text]) >= 4
    chart.locator("button", has_text="B training").click()
    assert chart.locator("svg path.line").count() == 3
    tab.close()


@pytest.fixture(scope="module")
def checked(tmp_path_factory: pytest.TempPathFactory, chromium: Any) -> Path:
    root = tmp_path_factory.mktemp("pages")
    report = check_dataset(tiny_dataset(root / "dataset"))
    finding = Finding("files.missing", "error", f"{'a/very_long_' * 12}path.mp4 is not there")
    path = root / "check.html"
    path.write_text(check_page(replace(report, findings=(finding,)), 2), encoding="utf-8")
    return path


@pytest.mark.parametrize(("width", "scheme"), SCREENS)
def test_check_page_is_readable(checked: Path, chromium: Any, width: int, scheme: str) -> None:
    assert browser.faults(chromium, checked, width, scheme) == []


@pytest.mark.long
def test_check_page_wraps_long_paths(checked: Path, chromium: Any) -> None:
    tab = chromium.new_page(viewport={"width": 375, "height": 900})
    tab.goto(checked.as_uri())
    wide = (
        "Array.from(document.querySelectorAll('p, h3')).map(li => li.scrollWidth - li.clientWidth)"
    )
    over = tab.evaluate(wide)
    tab.close()
    assert over
    assert max(over) <= 0


@pytest.mark.long
@pytest.mark.parametrize(("width", "scheme"), SCREENS)
def test_check_page_of_a_real_robot_is_readable(
    real_data: Path, chromium: Any, tmp_path: Path, width: int, scheme: str
) -> None:
    """26 joints with long names, and real texts."""
    catalog = Catalog.open(real_data / "g1_v30")
    path = tmp_path / "g1.html"
    path.write_text(check_page(check_dataset(catalog, "rows"), 1), encoding="utf-8")
    assert ", ".join(catalog.features["action"].dimension_names) in path.read_text(encoding="utf-8")
    assert browser.faults(chromium, path, width, scheme) == []


@pytest.mark.long
def test_report_changes_scales_and_plays_films(report: Path, chromium: Any) -> None:
    tab = chromium.new_page(viewport={"width": 1200, "height": 900})
    tab.goto(report.as_uri())
    loss = tab.locator(".curves", has=tab.locator("svg[aria-label='loss by step']")).first
    assert "The axis ends at" in loss.locator(".note").inner_text()
    linear = loss.locator("svg text[text-anchor=end]").all_text_contents()
    loss.get_by_role("button", name="logarithmic").click()
    assert loss.locator("svg text[text-anchor=end]").all_text_contents() != linear
    assert not loss.locator(".note").is_visible()
    steps = loss.locator("svg text[text-anchor=middle]").all_text_contents()
    assert [step.isdigit() for step in steps[:-1]] == [True] * (len(steps) - 1)
    assert steps[-1] == "step"
    loss.get_by_role("button", name="validation").click()
    assert loss.locator("svg path.line").count() == 1
    tab.get_by_text("play episode 0").click()
    film = tab.get_by_alt_text("episode 0, whole")
    assert film.is_visible()
    assert film.evaluate("image => image.complete && image.naturalWidth") == 64
    tab.close()


PLANTED = {
    "contrast": '<p style="color:#999;background:#fff">pale</p>',
    "small": '<p style="font-size:7px">small</p>',
    "overflow": '<p style="width:3000px;max-width:none">wide</p>',
    "scrolls": '<div style="width:40px;overflow-x:auto"><p style="width:300px">wide</p></div>',
    "scope": "<table><tr><th>head</th></tr></table>",
    "alt": '<img src="data:image/png;base64,">',
    "squeezed": '<table style="width:40px"><tr><td style="width:40px">one two three four five '
    "six</td></tr></table>",
    "cut off": '<svg aria-label="x" viewBox="0 0 50 50"><text x="10" y="49" '
    'style="fill:#777">low</text>'
    '<text x="45" y="20" font-size="12">outside</text></svg>',
    "link": '<a href="#nowhere">lost</a>',
    "console": "<script>console.log('told')</script>",
    "request": '<img alt="remote" src="http://127.0.0.1:9/a.png">',
    "focus": '<style>:focus { outline: none !important }</style><a href="#x" id="x">link</a>',
}


@pytest.mark.parametrize("fault", PLANTED)
def test_browser_finds_a_planted_fault(fault: str, chromium: Any, tmp_path: Path) -> None:
    """Negative control of the tests above."""
    path = tmp_path / "page.html"
    path.write_text(
        render_page("planted", "planted", []).replace("</main>", f"{PLANTED[fault]}</main>"),
        encoding="utf-8",
    )
    found = browser.faults(chromium, path, 1200, "light")
    assert any(line.startswith(fault) for line in found), found


@pytest.mark.parametrize("width", [390, 1200])
def test_wide_table_names_its_cells_on_a_telephone(
    chromium: Any, tmp_path: Path, width: int
) -> None:
    path = tmp_path / "page.html"
    rows = [["pick up the yellow bottle on the table", 1234567, "a remark of some length"]]
    table = Block.table(["task", "samples", "remark"], rows)
    more = Block.fold("more", Block.paragraph("text"))
    path.write_text(render_page("", "", [Block.section("one", table, more)]), encoding="utf-8")
    assert browser.faults(chromium, path, width, "light") == []
    tab = chromium.new_page(viewport={"width": width, "height": 900})
    tab.goto(path.as_uri())
    label = "td => [getComputedStyle(td, '::before').content, td.innerText]"
    named = tab.locator("td").nth(1).evaluate(label)
    tab.close()
    content = '"samples"' if width == 390 else "none"
    assert named == [content, "1,234,567"]


@pytest.mark.parametrize(("width", "scheme"), SCREENS[:2])
def test_page_of_a_trace_is_readable(
    chromium: Any, tmp_path: Path, width: int, scheme: str
) -> None:
    diagnosis = traced(tmp_path / "trace.jsonl", recorded())
    assert list(diagnosis.lengths) == [STEPS // CHUNK] * 2
    path = tmp_path / "why.html"
    path.write_text(why_page(diagnosis, "trace"), encoding="utf-8")
    (states,) = [
        chart for chart in charts_of(path.read_text()) if chart["label"].startswith("Like")
    ]
    assert states["lines"][0]["starts"] == [STEPS // CHUNK]
    assert browser.faults(chromium, path, width, scheme) == []


def test_check_page_begins_with_the_verdict_and_has_one_legend(checked: Path) -> None:
    page = checked.read_text(encoding="utf-8")
    assert page.index("files.missing") < page.index('class="grid tiles"')
    charts = charts_of(page)
    assert len(charts) > 2
    assert all(chart["bare"] for chart in charts if chart["label"] != "episode lengths")


def test_browser_finds_no_fault_in_a_sound_page(chromium: Any, tmp_path: Path) -> None:
    path = tmp_path / "page.html"
    body = Block.card(
        "", Block.table(["a", "b"], [["one", 1]]), Block.fold("more", Block.paragraph("text"))
    )
    path.write_text(render_page("sound", "sound", [Block.section("one", body)]), encoding="utf-8")
    assert browser.faults(chromium, path, 375, "dark") == []
