"""One version in all places that state it, and a changelog in its form. No git is needed to know
the version.
"""

import re
import shutil
import subprocess
import tomllib
from pathlib import Path

import pytest
import yaml

import understudy as us

ROOT = Path(__file__).parents[1]
CHANGELOG = (ROOT / "CHANGELOG.md").read_text()
RELEASES = re.findall(r"^## (.+)$", CHANGELOG, flags=re.MULTILINE)
RELEASE = re.compile(r"(\d+\.\d+\.\d+) - (\d{4}-\d\d-\d\d)(?:, commit ([0-9a-f]{8}))?")
SECTIONS = ("Upgrading from", "Added", "Changed", "Deprecated", "Removed", "Fixed", "Security")


def test_version_is_the_same_everywhere() -> None:
    project = tomllib.loads((ROOT / "pyproject.toml").read_text())["project"]
    assert "version" not in project["dynamic"]
    papers = [tomllib.loads(path.read_text()) for path in ROOT.glob("packages/*/pyproject.toml")]
    wheels = [paper["project"] for paper in papers]
    ours = {wheel["name"] for wheel in wheels}
    for wheel in wheels:
        extras = wheel.get("optional-dependencies", {}).values()
        for need in [*wheel["dependencies"], *(one for extra in extras for one in extra)]:
            name, _, version = need.partition("==")
            if name in ours:
                assert version == wheel["version"], need
            else:
                assert re.split(r"[\[<>=]", need)[0] not in ours - {wheel["name"]}, need
    kit = tomllib.loads((ROOT / "packages/understudy-conformance/pyproject.toml").read_text())[
        "project"
    ]
    assert not any(dependency.startswith("understudy") for dependency in kit["dependencies"])
    citation = yaml.safe_load((ROOT / "CITATION.cff").read_text())
    latest = RELEASE.fullmatch(RELEASES[1])
    assert latest is not None
    version, date, _ = latest.groups()
    assert {
        project["version"],
        *(wheel["version"] for wheel in wheels),
        citation["version"],
        us.__version__,
    } == {version}
    assert str(citation["date-released"]) == date


def test_changelog_has_releases_in_order() -> None:
    assert RELEASES[0] == "Unreleased"
    assert all(map(RELEASE.fullmatch, RELEASES[1:]))
    numbers = [tuple(map(int, release.split(" ")[0].split("."))) for release in RELEASES[1:]]
    assert numbers == sorted(set(numbers), reverse=True)
    assert all(
        name.startswith(SECTIONS)
        for name in re.findall(r"^### (.+)$", CHANGELOG, flags=re.MULTILINE)
    )


def git(*words: str) -> subprocess.CompletedProcess[str]:
    return subprocess.run(["git", *words], cwd=ROOT, capture_output=True, text=True)


def test_releases_name_their_commit() -> None:
    """A release learns its commit with the next change, so the latest one may lack it."""
    releases = [release for name in RELEASES[1:] if (release := RELEASE.fullmatch(name))]
    assert all(release[3] for release in releases[1:])
    if (
        shutil.which("git") is None
        or git("rev-parse", "--is-shallow-repository").stdout.strip() != "false"
    ):
        pytest.skip("without git, or without the whole history")
    for version, _, commit in (release.groups() for release in releases):
        if commit is not None:
            project = tomllib.loads(git("show", f"{commit}:pyproject.toml").stdout)["project"]
            assert project["version"] == version


def test_changelog_has_each_entry_once() -> None:
    """A merge that keeps both sides of a conflict leaves an entry twice, in other words or
    lines.
    """
    for release in re.split(r"^## ", CHANGELOG, flags=re.MULTILINE)[1:]:
        entries = [
            " ".join(entry.split())[:60]
            for entry in re.split(r"^\* ", release, flags=re.MULTILINE)[1:]
        ]
        assert sorted(entries) == sorted(set(entries))
