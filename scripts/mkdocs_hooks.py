"""Hooks of mkdocs.yml: pages that lie outside docs/, and links from docs/ into the repository.

The same Markdown is read in the repository and on the site. There, `../tests/x.py` is an address of
the repository. The first page is the README, with doors before its first picture. A page of all
settings is made of the program, so that a search finds each flag.
"""

import re
from collections.abc import Iterator
from html import escape
from pathlib import Path
from typing import Any

from mkdocs.structure.files import File

ROOT = Path(__file__).resolve().parents[1]
RECIPES = sorted((ROOT / "recipes").glob("*/README.md"))
OUTSIDE = {
    "index.md": "README.md",
    "changelog.md": "CHANGELOG.md",
    "contributing.md": "CONTRIBUTING.md",
    **{f"{path.parent.name}.md": f"recipes/{path.parent.name}/README.md" for path in RECIPES},
}
HOME = """
<div class="home" markdown>

<div class="doors" markdown>

- [**Your own loop**<br>batches near decode speed](docs/loading.md)
- [**`lerobot-train`**<br>one flag, the same trainer](docs/loading.md#in-the-trainers-of-others)
- [**Check a dataset**<br>faults, each with its remedy](docs/checking.md)
- [**Train and run**<br>from recordings to a robot](docs/tutorial_research.md)

</div>

![A policy of the first ten minutes picks up the named block](docs/img/table.webp)

</div>

"""
"""Doors and film of the first page, with links as in the README."""


def on_files(files: Any, config: Any) -> Any:
    """Add the pages that lie outside docs/, and the page of all settings."""
    for page, source in OUTSIDE.items():
        files.append(File.generated(config, page, content=(ROOT / source).read_text()))
    files.append(File.generated(config, "settings.md", content="\n".join(settings_page())))
    return files


def settings_page() -> Iterator[str]:
    """Yield the lines of the page of all settings: a table for each group of each command."""
    from understudy.policies.registry import own_type_names, policy_type
    from understudy_kit.cli.commands import COMMANDS, find_commands
    from understudy_kit.config.help import groups

    yield "# Settings\n"
    yield "Flags of each command, as in its `--help`. In a file `--optim.lr` is `optim: {lr: …}`.\n"
    of_training = set[str]()
    for name, command in find_commands().items():
        if name not in COMMANDS:
            continue
        lines = list[str]()
        for group in groups(command.settings_class):
            rows = list(_rows(group.settings))
            if name != "train" and of_training.issuperset(rows):
                continue  # those of a training, which other commands have, too
            lines += [f"\n### {name}: {group.name}\n"] if group.name else []
            lines += ["| flag | meaning |", "|---|---|", *rows] if rows else []
            of_training |= set(rows) if name == "train" else set()
        yield f"\n## {name}\n\n{COMMANDS[name].summary.capitalize()}.\n"
        yield from lines
    for kind in own_type_names():
        if not kind.startswith("lerobot"):
            yield f"\n## train --policy.type {kind}\n\n| flag | meaning |\n|---|---|"
            for group in groups(policy_type(kind).settings, None, "policy"):
                yield from _rows(group.settings)


def _rows(settings: Any) -> Iterator[str]:
    """Yield a row for each setting with a flag."""
    for setting in settings:
        if not setting.positional:
            meaning = escape(setting.meaning(), quote=False).replace("|", "\\|")
            yield f"| `{setting.flag().replace('|', ' or ')}` | {meaning} |"


def on_page_markdown(markdown: str, page: Any, config: Any, files: Any) -> str:
    """Point links at pages of the site where there are such, and at the repository otherwise."""
    if page.file.src_uri == "index.md":
        start, picture, end = markdown.partition("![")
        markdown = start + HOME + picture + end
    if page.file.src_uri == "changelog.md":
        page.meta["search"] = {"exclude": True}
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
