"""Settings of other trainers, for messages about unknown ones: the file `other_trainers.toml`
beside this one.
"""

import tomllib
from functools import cache
from pathlib import Path


@cache
def read_tables() -> dict[str, dict[str, str]]:
    """Return a table for each trainer: setting, as it is spelled there -> the equivalent here, in
    Markdown.
    """
    text = Path(__file__).with_suffix(".toml").read_text(encoding="utf-8")
    return tomllib.loads(text)


@cache
def read_hints() -> dict[str, str]:
    """Return the equivalents of all trainers by name, with the hyphens of our flags.

    Of two trainers with one name that of the earlier table holds. Names that are the same here are
    left out.
    """
    hints: dict[str, str] = {}
    for table in read_tables().values():
        for spelled, text in table.items():
            name = spelled.lstrip("-").replace("_", "-")
            if text != f"`--{name}`":
                hints.setdefault(name, text.replace("`", ""))
    return hints


def equivalent(name: str) -> str | None:
    """Return the hint for a setting of another trainer, or for an item of one
    (`dataset_mixture.datasets.0.weight`).
    """
    hints = read_hints()
    name = name.replace("_", "-")
    while name not in hints and name.count(".") > 1:
        name = name.rpartition(".")[0]
    return hints.get(name)
