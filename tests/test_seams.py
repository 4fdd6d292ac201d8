"""Imports between the distributions, by scripts/seams.py. Imports no module of ours."""

import ast
import re
import runpy
from functools import cache
from pathlib import Path
from typing import Any

import pytest

ROOT = Path(__file__).parents[1]
SEAMS = runpy.run_path(str(ROOT / "scripts/seams.py"))
FACES = {
    "client": {"base"},
    "data": {"base"},
    "kit": {"base"},
    "lerobot_service": {"base", "client", "robot", "understudy"},
    "robot": {"base", "client", "data", "kit", "understudy"},
    "tools": {"base", "client", "data", "kit"},
    "understudy": {"base", "client", "data", "kit"},
    "zoo": {"base", "client", "data", "kit", "understudy"},
}
"""Distribution -> those whose names it takes from the top alone: `from understudy_kit import X`."""
MOST_NAMES = 40
MOST_NAMES_OF_BASE = 60


def package_of(other: str) -> str:
    """Import name of a distribution."""
    return other if other == "understudy" else f"understudy_{other}"


def stub_of(other: str) -> Path:
    """Stub with the names that a distribution has at its top."""
    package = package_of(other)
    return ROOT / "packages" / package.replace("_", "-") / "src" / package / "__init__.pyi"


def names_of_users() -> set[str]:
    """Names of `understudy` for its users: those of the page, without its last chapter."""
    page = (ROOT / "docs/api.md").read_text(encoding="utf-8")
    chapters = page.partition("\n## For other distributions\n")
    assert chapters[1]
    return set(re.findall(r"^::: understudy\.(\w+)$", chapters[0], re.MULTILINE))


def public_names(stub: Path) -> set[str]:
    """Names that a stub imports from modules of its package or of others."""
    names = set()
    for node in ast.parse(stub.read_text(encoding="utf-8")).body:
        if isinstance(node, ast.ImportFrom) and node.module != stub.parent.name:
            names |= {alias.name for alias in node.names if alias.asname == alias.name}
    return names


@cache
def crossings() -> list[Any]:
    """Names that cross, read once."""
    found: list[Any] = SEAMS["find_crossings"](SEAMS["find_modules"]())
    return found


def test_no_import_runs_against_the_arrows() -> None:
    """The remedy: the name moves to a distribution below, or is found by an entry point."""
    assert len(crossings()) > 100
    assert list(map(str, SEAMS["against"](crossings()))) == []


def test_the_table_has_each_distribution() -> None:
    assert set(SEAMS["find_modules"]()) == set(SEAMS["ARROWS"])


@pytest.mark.parametrize(
    ("wheel", "other"), [(wheel, other) for wheel in FACES for other in sorted(FACES[wheel])]
)
def test_names_come_from_the_face(wheel: str, other: str) -> None:
    """The remedy: a line in the other's `__init__.pyi`, and `from understudy_OTHER import NAME`."""
    taken = [crossing for crossing in crossings() if crossing.wheel == wheel]
    seam = [crossing for crossing in taken if crossing.other == other]
    assert seam
    past = "\n".join(map(str, SEAMS["past_face"](seam)))
    assert not past, f"import these from {package_of(other)}, whose __init__.pyi has them:\n{past}"
    names = SEAMS["names_by_seam"](seam)[wheel, other]
    most = MOST_NAMES_OF_BASE if other == "base" else MOST_NAMES
    assert len(names) <= most, (
        f"{wheel} takes {len(names)} names of {other}, at most {most}: make functions methods of "
        f"what they are given, or move what {wheel} alone uses: {sorted(names)}"
    )


@pytest.mark.parametrize("stub", sorted(ROOT.glob("packages/*/src/*/__init__.pyi")))
def test_a_face_has_no_name_of_a_module(stub: Path) -> None:
    """`from understudy_kit import signals` is the module, whether or not it was imported before."""
    modules = {path.stem for path in stub.parent.iterdir() if path.suffix in ("", ".py")}
    assert public_names(stub) & modules == set()


def test_a_face_has_no_unused_name() -> None:
    """The remedy: the name leaves `__init__.pyi`, or it is for users (docs/api.md)."""
    taken = {crossing.name for crossing in crossings()}
    for other in sorted(set().union(*FACES.values())):
        names = public_names(stub_of(other))
        if other == "understudy":
            names -= names_of_users() | {"__version__"}
        unused = [name for name in names if f"{package_of(other)}:{name}" not in taken]
        assert unused == []


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
