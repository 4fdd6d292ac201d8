"""Links and file names in the README, in docs/ and in recipes/ refer to existing files."""

import re
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[1]
PAGES = [ROOT / "README.md", *sorted((ROOT / "docs").glob("*.md")), *sorted((ROOT / "recipes").glob("*/*.md"))]


@pytest.mark.parametrize("page", PAGES, ids=lambda page: f"{page.parent.name}/{page.name}")
def test_links_lead_to_files(page: Path) -> None:
    links = re.findall(r"\]\((?!https?:|#)([^)#]+)(?:#[^)]*)?\)", page.read_text())
    assert [link for link in links if not (page.parent / link).exists()] == []


def test_architecture_names_existing_files() -> None:
    names = re.findall(r"`([a-z0-9_/]+\.(?:py|c))`", (ROOT / "docs" / "architecture.md").read_text())
    assert len(names) > 20
    assert [
        name for name in names if not (ROOT / "src/understudy" / name).exists() and not (ROOT / name).exists()
    ] == []
