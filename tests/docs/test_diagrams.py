"""Diagrams of the pages are drawn from numbers in the repository and from the settings of a run.

`python scripts/draw_diagrams.py` draws them anew.
"""

import json
import runpy
from typing import Any

import pytest

from understudy.testing.docs import ROOT

NUMBERS = sorted((ROOT / "lab/results/diagrams").glob("*.json"))


@pytest.fixture(scope="module")
def script() -> dict[str, Any]:
    return runpy.run_path(str(ROOT / "scripts/draw_diagrams.py"))


def test_diagrams_are_drawn_from_their_numbers(script: dict[str, Any]) -> None:
    pages = "".join(path.read_text() for path in (ROOT / "docs").glob("*.md"))
    drawn = {path.stem for path in (ROOT / "docs/img/diagrams").glob("*.svg")}
    assert drawn == set(script["DIAGRAMS"])
    for name, draw in script["DIAGRAMS"].items():
        picture = (ROOT / f"docs/img/diagrams/{name}.svg").read_text()
        assert picture == draw(), name
        assert f"img/diagrams/{name}.svg" in pages
        assert "prefers-color-scheme: dark" in picture


def test_numbers_state_how_they_were_measured() -> None:
    assert NUMBERS
    for path in NUMBERS:
        measured = json.loads(path.read_text())["measured"]
        assert set(measured) == {"date", "machine", "data", "source"}, path
        assert (ROOT / measured["source"].partition("#")[0]).is_file()


def test_columns_of_a_resume_are_those_of_the_settings(script: dict[str, Any]) -> None:
    columns = script["resume_columns"]()
    assert "seed" in columns["refused"]
    assert "optim.lr" in columns["from here on"]
    assert "loader.num_threads" in columns["free"]
    assert "data.root *" in columns["free"]
