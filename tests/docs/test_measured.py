"""The bars of docs/measured.md are drawn from lab/results, whose values are those of their source.

`python scripts/draw_measured.py` draws them anew.
"""

import json
import re
import runpy
from pathlib import Path
from typing import Any

import pytest

from understudy.testing.docs import ROOT

PAGE = ROOT / "docs/measured.md"
RESULTS = sorted((ROOT / "lab/results").glob("*.json"))
MEASURED = {"date", "machine", "versions", "data", "frames", "command", "source"}
"""What a group was measured with. `frames` is null where the source has no single number."""


def read(path: Path) -> dict[str, Any]:
    results = json.loads(path.read_text())
    assert isinstance(results, dict)
    return results


def section(source: str) -> str:
    """Text below the heading of an anchor, up to the next heading of its level or above."""
    name, _, anchor = source.partition("#")
    parts = re.split(r"^(#+) (.*)\n", (ROOT / name).read_text(), flags=re.MULTILINE)
    taken = ""
    level = 0
    for marks, heading, body in zip(parts[1::3], parts[2::3], parts[3::3]):
        if level and len(marks) <= level:
            break
        slug = re.sub(r"[^\w -]", "", heading.lower()).replace(" ", "-")
        if slug == anchor:
            level = len(marks)
        if level:
            taken += body
    assert taken, f"no heading {source}"
    return taken


def numbers(words: str) -> list[str]:
    """Numbers of a text, without thousands separators."""
    return re.findall(r"\d+(?:\.\d+)?", re.sub(r"(?<=\d),(?=\d{3})", "", words))


@pytest.fixture(scope="module")
def script() -> dict[str, Any]:
    return runpy.run_path(str(ROOT / "scripts/draw_measured.py"))


def test_pictures_are_drawn_from_the_results(script: dict[str, Any]) -> None:
    assert script["find_results"]() == RESULTS
    for path in RESULTS:
        assert script["picture_of"](path).read_text() == script["draw"](read(path)), path
    drawn = {script["picture_of"](path).relative_to(PAGE.parent).as_posix() for path in RESULTS}
    assert set(re.findall(r"\((img/measured/\S+)\)", PAGE.read_text())) == drawn


@pytest.mark.parametrize("path", RESULTS, ids=lambda path: path.stem)
def test_values_are_those_of_their_source(path: Path) -> None:
    for group in read(path)["groups"]:
        measured = group["measured"]
        assert set(measured) == MEASURED
        if measured["command"] == "none: published":
            assert measured["source"].startswith("https://")
            continue
        assert re.fullmatch(r"lab/journal/\w+\.md#[\w-]+", measured["source"])
        if path.stem == "resume":
            continue
        quoted = numbers(section(measured["source"]))
        for bar in group["bars"]:
            for key in ("value", "low", "high"):
                assert key not in bar or bar[key] in map(float, quoted), (group["name"], bar)
            assert bar.get("text", f"{bar['value']:g}") in quoted


def test_requirements_are_counted_in_the_table() -> None:
    (group,) = read(ROOT / "lab/results/resume.json")["groups"]
    table = re.search(r"^\| resume \|.*?\n\n", section(group["measured"]["source"]), re.S | re.M)
    assert table is not None
    rows = [
        [cell.strip() for cell in line.strip("|").split("|")]
        for line in table[0].strip().splitlines()
    ]
    columns = dict(zip(rows[0], zip(*rows[2:])))
    columns["us.Loader"] = columns["understudy"]
    for bar in group["bars"]:
        marks = columns[bar["name"]]
        applies = len(marks) - marks.count("–")
        assert (bar["value"], bar["text"]) == (marks.count("✓"), f"{bar['value']} of {applies}")


def test_numbers_of_the_last_table_are_in_their_source() -> None:
    rows = re.findall(
        r"^\| \[(.+)\]\((\S+?)(?:#\S+)?\) \| (.+) \| (.+) \|$",
        PAGE.read_text(),
        flags=re.MULTILINE,
    )
    assert len(rows) == 9
    for name, page, ours, beside in rows:
        quoted = {float(word) for word in numbers((PAGE.parent / page).read_text())}
        rounded = quoted | {round(value, 1) for value in quoted}
        lost = [word for word in numbers(f"{ours} {beside}") if float(word) not in rounded]
        assert lost == [], name


def test_pictures_are_readable_on_a_phone_and_in_the_dark(script: dict[str, Any]) -> None:
    for path in RESULTS:
        drawn = script["picture_of"](path).read_text()
        assert re.findall(r"https?://[^\"]+|url\(|@import", drawn) == ["http://www.w3.org/2000/svg"]
        assert "prefers-color-scheme: dark" in drawn
        assert min(map(int, re.findall(r"(\d+)px", drawn))) >= 12
        assert int(re.findall(r'viewBox="0 0 (\d+)', drawn)[0]) <= 390
        for group in read(path)["groups"]:
            assert len(group["name"]) <= 50
            assert max(len(bar["name"]) for bar in group["bars"]) <= 25


def test_page_is_short_and_its_tables_are_narrow() -> None:
    assert len(PAGE.read_text().split()) <= 1200
    lines = [line for line in PAGE.read_text().splitlines() if line.startswith("|")]
    assert max(line.count("|") - 1 for line in lines) <= 3
