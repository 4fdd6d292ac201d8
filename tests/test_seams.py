"""Imports between the distributions, by scripts/seams.py. Imports no module of ours."""

import ast
import runpy
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[1]
SEAMS = runpy.run_path(str(ROOT / "scripts/seams.py"))


def test_no_import_runs_against_the_arrows() -> None:
    """The remedy: the name moves to a distribution below, or is found by an entry point."""
    crossings = SEAMS["find_crossings"](SEAMS["find_modules"]())
    assert len(crossings) > 100
    assert list(map(str, SEAMS["against"](crossings))) == []


def test_the_table_has_each_distribution() -> None:
    assert set(SEAMS["find_modules"]()) == set(SEAMS["ARROWS"])


@pytest.mark.parametrize("wheel", SEAMS["ARROWS"])
def test_tests_import_what_their_distribution_may(wheel: str) -> None:
    """So they run where it alone is installed. Tests of several distributions together are in
    tests/.
    """
    name = "understudy" if wheel == "understudy" else f"understudy_{wheel}"
    folder = ROOT / "packages" / name.replace("_", "-")
    allowed = {
        name,
        *(f"understudy_{other}".removesuffix("_understudy") for other in SEAMS["ARROWS"][wheel]),
    }
    if wheel == "conformance":  # it examines our loader, where that is installed
        allowed |= {"understudy", "understudy_data"}
    strange = {}
    for path in [*folder.glob("tests/**/*.py"), *folder.glob("src/*/testing/**/*.py")]:
        imported = set()
        for node in ast.walk(ast.parse(path.read_text(encoding="utf-8"))):
            if isinstance(node, ast.Import):
                imported |= {alias.name.split(".")[0] for alias in node.names}
            elif isinstance(node, ast.ImportFrom):
                imported.add(str(node.module).split(".")[0])
        ours = {module for module in imported if module.split("_")[0] == "understudy"}
        if ours - allowed:
            strange[str(path.relative_to(folder))] = sorted(ours - allowed)
    assert strange == {}


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
