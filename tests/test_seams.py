"""Imports between the distributions to come, by scripts/seams.py. Imports no module of ours."""

import ast
import runpy
from pathlib import Path

import pytest

SEAMS = runpy.run_path(str(Path(__file__).parents[1] / "scripts/seams.py"))


def test_no_import_runs_against_the_arrows() -> None:
    """The remedy: the name moves to a distribution below, or is found by an entry point."""
    crossings = SEAMS["find_crossings"](SEAMS["find_modules"]())
    assert len(crossings) > 100
    assert list(map(str, SEAMS["against"](crossings))) == []


def test_the_table_has_each_file_and_nothing_else() -> None:
    wheels = SEAMS["find_modules"]()
    assert set(wheels) == set(SEAMS["ARROWS"])
    modules = set().union(*wheels.values())
    entries = [entry for part in SEAMS["WHEELS"].values() for entry in part.split()]
    assert sorted(entries) == sorted(set(entries))
    named = {f"understudy.{entry}".removesuffix(".__init__") for entry in entries}
    assert named - modules == set()
    with pytest.raises(LookupError):
        SEAMS["find_wheel"](["tool"])


def test_arrows_form_an_order() -> None:
    """Each distribution imports earlier ones of the table only: no circle is possible."""
    seen: set[str] = set()
    for wheel, allowed in SEAMS["ARROWS"].items():
        assert allowed <= seen, wheel
        seen.add(wheel)


@pytest.mark.parametrize(
    ("code", "taken"),
    [
        ("from understudy.train.run import train", ["train.run:train"]),
        ("def f():\n    from understudy.train.run import train", ["train.run:train"]),
        ("from understudy.train import run\nrun.train()", ["train.run:", "train.run:train"]),
        ("import understudy.train.run as r\nr.train", ["train.run:", "train.run:train"]),
        ("import_module('understudy.train.run')", ["train.run:"]),
        ("RUN = 'understudy.train.run:train'", ["train.run:train"]),
        ("RUN = 'train.run:train'", ["train.run:train"]),
        ("LOG = logging.getLogger('understudy.train.run')", []),
        ("import numpy.random\nnumpy.random.run", []),
    ],
)
def test_a_name_is_seen_however_it_is_taken(code: str, taken: list[str]) -> None:
    owners = dict.fromkeys(("understudy", "understudy.train", "understudy.train.run"), "understudy")
    found = set(SEAMS["names_taken"](ast.parse(code), "understudy", owners))
    assert sorted(f"{SEAMS['short'](module)}:{name}" for module, name in found) == taken
