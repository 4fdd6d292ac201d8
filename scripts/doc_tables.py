"""Write the parts of docs/ that the program states: `python scripts/doc_tables.py`.

These are the commands of docs/commands.md, the rules of docs/checking.md, and the tables of
docs/migration.md with settings of other trainers.
"""

import re
import tomllib
from collections.abc import Callable
from pathlib import Path

from understudy_kit.cli.commands import COMMANDS, GROUPS
from understudy_kit.cli.help_texts import EXAMPLES
from understudy_tools.check.findings import RULES

ROOT = Path(__file__).parents[1]
TRAINERS = ROOT / "packages/understudy/src/understudy/config/other_trainers.toml"
RULES_HEAD = "\n| rule | a sound dataset |\n|---|---|\n"
COLUMN = 61
"""Column at which the meaning of a short command begins."""
WIDTH = 118
"""Longest line of a block of commands."""


def write_commands(page: str) -> str:
    """Return docs/commands.md with the commands of each group: an example, and its meaning.

    Raises:
        LookupError: the page has no block of a group.
    """
    for title, names in GROUPS.items():
        head = f"\n## {title.capitalize()}\n\n```\n"
        if head not in page:
            raise LookupError(f"no block of commands below {title.capitalize()}")
        start, _, end = page.partition(head)
        lines = "".join(_command(EXAMPLES[name][0], COMMANDS[name].summary) for name in names)
        page = start + head + lines + end[end.index("```\n") :]
    return page


def _command(example: str, summary: str) -> str:
    """Return a command with its meaning behind it, or above it where a line cannot hold both."""
    line = f"{example:<{COLUMN}} # {summary}\n"
    return line if len(line) <= WIDTH else f"# {summary}\n{example}\n"


def write_rules(page: str) -> str:
    """Return docs/checking.md with a row for each rule.

    Raises:
        LookupError: the page has no table of rules.
    """
    return _with_rows(
        page, RULES_HEAD, [f"| `{name}` | {rule.sound} |\n" for name, rule in RULES.items()]
    )


def write_migration(page: str) -> str:
    """Return docs/migration.md with a row for each answer, and the names of each trainer it is for.

    A name that differs from ours by its dashes alone has no row.

    Raises:
        LookupError: the page has no table of a trainer.
    """
    for trainer, settings in tomllib.loads(TRAINERS.read_text(encoding="utf-8")).items():
        head = f"\n| {trainer} | understudy |\n|---|---|\n"
        names_by_answer: dict[str, list[str]] = {}
        for name, answer in settings.items():
            if answer != f"`{name.replace('_', '-')}`":
                names_by_answer.setdefault(answer, []).append(f"`{name}`")
        rows = [f"| {', '.join(names)} | {answer} |\n" for answer, names in names_by_answer.items()]
        page = _with_rows(page, head, rows)
    return page


def _with_rows(page: str, head: str, rows: list[str]) -> str:
    """Return a page whose table with this head has these rows."""
    if head not in page:
        raise LookupError(f"no table with the head {head.splitlines()[1]}")
    start, _, end = page.partition(head)
    return start + head + "".join(rows) + re.sub(r"\A(\|.*\n)+", "", end)


WRITERS: dict[str, Callable[[str], str]] = {
    "commands.md": write_commands,
    "checking.md": write_rules,
    "migration.md": write_migration,
}
"""Page -> function that returns it with the parts of the program."""

if __name__ == "__main__":
    for name, write in WRITERS.items():
        path = ROOT / "docs" / name
        path.write_text(write(path.read_text(encoding="utf-8")), encoding="utf-8")
