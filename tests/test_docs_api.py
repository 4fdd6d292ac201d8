"""docs/api.md has every public name, and mkdocs.yml every page."""

import re
from pathlib import Path

import yaml

import understudy as us

ROOT = Path(__file__).parents[1]


def test_api_page_has_every_public_name() -> None:
    listed = re.findall(r"^::: understudy\.(\w+)$", (ROOT / "docs" / "api.md").read_text(), re.MULTILINE)
    assert sorted(listed) == sorted(set(us.__all__) - {"__version__"})


def test_api_page_has_every_name_for_policies() -> None:
    listed = re.findall(r"^::: understudy\.policies\.(\w+)$", (ROOT / "docs" / "api.md").read_text(), re.MULTILINE)
    assert sorted(listed) == us.policies.__all__
    assert all(getattr(us.policies, name) for name in listed)


def test_every_public_name_has_a_docstring() -> None:
    assert [name for name in us.__all__ if not (getattr(us, name).__doc__ or "").strip()] == []


def test_site_has_every_page() -> None:
    nav = yaml.safe_load((ROOT / "mkdocs.yml").read_text())["nav"]
    pages = [page for entry in nav for page in (next(iter(entry.values())) if isinstance(entry, dict) else [entry])]
    outside = {f"{recipe.parent.name}.md" for recipe in (ROOT / "recipes").glob("*/README.md")}
    outside |= {"index.md", "changelog.md", "contributing.md"}
    assert outside <= set(pages)
    pages = [page for page in pages if page not in outside]
    assert sorted(pages) == sorted(path.name for path in (ROOT / "docs").glob("*.md"))
