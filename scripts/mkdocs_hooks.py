"""Hooks of mkdocs.yml: the README as the first page, and links from docs/ into the repository.

The same Markdown is read in the repository and on the site. There, `../tests/x.py` is an address of
the repository.
"""

import re
from pathlib import Path
from typing import Any

from mkdocs.structure.files import File

ROOT = Path(__file__).resolve().parents[1]
OUTSIDE = {
    "index.md": "README.md",
    "changelog.md": "CHANGELOG.md",
    "contributing.md": "CONTRIBUTING.md",
    "droid.md": "recipes/droid/README.md",
    "kubernetes.md": "recipes/kubernetes/README.md",
    "libero.md": "recipes/libero/README.md",
    "ray.md": "recipes/ray/README.md",
    "skypilot.md": "recipes/skypilot/README.md",
}


def on_files(files: Any, config: Any) -> Any:
    """Add the pages that lie outside docs/."""
    for page, source in OUTSIDE.items():
        files.append(File.generated(config, page, content=(ROOT / source).read_text()))
    return files


def on_page_markdown(markdown: str, page: Any, config: Any, files: Any) -> str:
    """Point links at pages of the site where there are such, and at the repository otherwise."""
    outside = OUTSIDE.get(page.file.src_uri)
    folder = (ROOT / outside).parent if outside else ROOT / "docs"
    pages = {(ROOT / source).resolve(): page for page, source in OUTSIDE.items()}

    def link(found: re.Match[str]) -> str:
        target, _, anchor = found[1].partition("#")
        if re.match(r"[a-z]+:", target) or not target:
            return found[0]
        path = (folder / target).resolve()
        if path in pages:
            address = pages[path]
        elif path.is_relative_to(ROOT / "docs") and path.is_file():
            address = path.relative_to(ROOT / "docs").as_posix()
        else:
            address = f"{config['repo_url']}/blob/main/{path.relative_to(ROOT).as_posix()}"
        return f"]({address}{'#' + anchor if anchor else ''})"

    return re.sub(r"\]\(([^)\s]+)\)", link, markdown)


def on_post_page(output: str, page: Any, config: Any) -> str:
    """Drop the mark by which the theme asks GitHub for the stars of the repository: a page asks no
    other host.
    """
    return output.replace('data-md-component="source"', "")
