"""The picture of docs/architecture.md has the boxes and arrows of the present imports.

Its numbers are those of the day that it names. `python scripts/draw_wheels.py` draws it anew.
"""

import re
import runpy
from pathlib import Path
from typing import Any
from xml.etree import ElementTree

import pytest

from understudy.testing.docs import ROOT


@pytest.fixture(scope="module")
def script() -> dict[str, Any]:
    with pytest.MonkeyPatch.context() as patch:
        patch.syspath_prepend(str(ROOT / "scripts"))
        return runpy.run_path(str(ROOT / "scripts/draw_wheels.py"))


def parts(svg: str) -> set[str]:
    """Names of the boxes and arrows."""
    groups = ElementTree.fromstring(svg).iter("{http://www.w3.org/2000/svg}g")
    return {group.attrib["id"] for group in groups}


def test_picture_has_the_boxes_and_arrows_of_the_code(script: dict[str, Any]) -> None:
    committed = parts(script["PICTURE"].read_text())
    sizes = dict.fromkeys(script["ARROWS"], 0)
    assert committed == parts(script["draw"](sizes))
    assert {f"box-{wheel}" for wheel in script["ARROWS"]} <= committed


def test_boxes_are_those_of_the_table(script: dict[str, Any]) -> None:
    """An arrow leads down: its target is a later row, and has a line of its own."""
    rows = list(script["PERSONS"])
    assert sorted(rows) == sorted(script["ARROWS"])
    for wheel, targets in script["ARROWS"].items():
        assert all(rows.index(wheel) < rows.index(other) for other in targets)
    assert {other for targets in script["ARROWS"].values() for other in targets} == set(
        script["COLORS"]
    )
    assert all(len(person.split()) == 3 for person in script["PERSONS"].values())


def test_picture_reads_nothing_from_elsewhere(script: dict[str, Any]) -> None:
    text = Path(script["PICTURE"]).read_text()
    assert re.findall(r"https?://[^\"]+|url\(|@import", text) == ["http://www.w3.org/2000/svg"]
    assert "prefers-color-scheme: dark" in text
    assert min(map(int, re.findall(r"(\d+)px", text))) >= 12
    assert re.search(r"for version \d+\.\d+\.\d+ on \d{4}-\d\d-\d\d\.", text)
