"""One version in all places that state it, and a changelog in its form. No git is needed to know it."""

import re
import tomllib
from pathlib import Path

import yaml

import understudy as us

ROOT = Path(__file__).parents[1]
CHANGELOG = (ROOT / "CHANGELOG.md").read_text()
RELEASES = re.findall(r"^## (.+)$", CHANGELOG, flags=re.MULTILINE)
SECTIONS = ("Upgrading from", "Added", "Changed", "Deprecated", "Removed", "Fixed", "Security")


def test_version_is_the_same_everywhere() -> None:
    project = tomllib.loads((ROOT / "pyproject.toml").read_text())["project"]
    assert "version" not in project["dynamic"]
    kit = tomllib.loads((ROOT / "packages/understudy-conformance/pyproject.toml").read_text())["project"]
    assert not any(dependency.startswith("understudy") for dependency in kit["dependencies"])
    citation = yaml.safe_load((ROOT / "CITATION.cff").read_text())
    version, date = RELEASES[1].split(" - ")
    assert {project["version"], kit["version"], citation["version"], us.__version__} == {version}
    assert str(citation["date-released"]) == date


def test_changelog_has_releases_in_order() -> None:
    assert RELEASES[0] == "Unreleased"
    assert all(re.fullmatch(r"\d+\.\d+\.\d+( - \d{4}-\d\d-\d\d)?", release) for release in RELEASES[1:])
    numbers = [tuple(map(int, release.split(" ")[0].split("."))) for release in RELEASES[1:]]
    assert numbers == sorted(set(numbers), reverse=True)
    assert all(name.startswith(SECTIONS) for name in re.findall(r"^### (.+)$", CHANGELOG, flags=re.MULTILINE))


def test_changelog_has_each_entry_once() -> None:
    """A merge that keeps both sides of a conflict leaves an entry twice, in other words or lines."""
    for release in re.split(r"^## ", CHANGELOG, flags=re.MULTILINE)[1:]:
        entries = [" ".join(entry.split())[:60] for entry in re.split(r"^\* ", release, flags=re.MULTILINE)[1:]]
        assert sorted(entries) == sorted(set(entries))
