"""Metadata of an episode as text of the prompt: `pick up the cup, quality: 3, success: true`. No
torch.

    prompt   {task}, {name}: {value}, {name}: {value}

Names come in the sequence of the settings, with spaces for `_`. A missing value is left out with
its name, and an empty task with its comma. Values are `true` or `false`, numbers of up to six
digits (3 for 3.0), or texts with single spaces. A batch holds the fields of each sample under
`prompt_metadata`, one per line: `quality: 3`.
"""

from collections.abc import Iterable, Mapping, Sequence
from itertools import chain
from math import isfinite
from numbers import Integral, Real
from typing import Any

import numpy as np

from understudy_base import PROMPT_METADATA, Record

FORMAT = "{task}, {name}: {value}"
"""Name of this format in a policy folder."""


def metadata_lines(values: Record, names: Iterable[str]) -> str:
    """Return the fields of an episode, one per line, in the sequence of `names`.

    Args:
        values: metadata by name; a missing name, None and NaN are missing values.
        names: fields of the prompt.

    Raises:
        ValueError: a value is not a text, number, true or false.
    """
    texts = ((label(name), _value(name, values.get(name))) for name in names)
    return "\n".join(f"{name}: {text}" for name, text in texts if text)


def label(name: str) -> str:
    """Return the name of a field in a prompt. Raises ValueError where it cannot have one."""
    words = " ".join(name.replace("_", " ").split())
    if not words or ":" in words:
        raise ValueError(
            f"prompt_metadata: {name!r}: names of a prompt have no colon and are not empty"
        )
    return words


def add_metadata(tasks: Sequence[str], lines: Sequence[str] | None) -> list[str]:
    """Return the instruction of each sample with its metadata; `lines` None: without.

    Raises:
        ValueError: the numbers of instructions and metadata differ.
    """
    if lines is None:
        return list(tasks)
    if len(tasks) != len(lines):
        raise ValueError(
            f"{len(tasks)} instructions and {len(lines)} entries of prompt_metadata: give one for "
            "each"
        )
    prompts = []
    for task, entry in zip(tasks, lines):
        prompt = _prompt(task, entry.splitlines()) if entry else task
        prompts.append(prompt)
    return prompts


def drop_fields(lines: str, dropped: Iterable[str]) -> str:
    """Return the fields of a sample without those whose names (`label`) are `dropped`."""
    gone = set(dropped)
    return "\n".join(line for line in lines.splitlines() if line.partition(":")[0] not in gone)


def observed_metadata(
    observation: Mapping[str, Any], facts: Record, rows: int
) -> dict[str, list[str]]:
    """Return {"prompt_metadata": fields of a robot's observations}; {} for a policy without
    metadata in its prompts.

    Args:
        observation: under `prompt_metadata` metadata by name, or a list of such mappings for a
            batch; or nothing.
        facts: of the robot in the policy folder; its `prompt_metadata` has `format` and `names` of
            the prompts.
        rows: number of observations.

    Raises:
        ValueError: a name that the prompts of training do not have, a value without text, another
            number of observations, or another format.
    """
    entries = observation.get(PROMPT_METADATA)
    stored = facts.get(PROMPT_METADATA, {})
    names = list(stored.get("names", ()))
    if names and stored.get("format") != FORMAT:
        raise ValueError(
            f"the prompts have the format {stored.get('format')!r}, this release has {FORMAT!r}"
        )
    every = [entries or {}] if entries is None or isinstance(entries, Mapping) else list(entries)
    every = every * rows if len(every) == 1 else every
    if len(every) != rows:
        raise ValueError(
            f"prompt_metadata has {len(every)} entries for {rows} observations; give one for each"
        )
    if unknown := [name for name in chain.from_iterable(every) if name not in names]:
        expected = ", ".join(names) or "no metadata"
        raise ValueError(
            f"prompt_metadata has {unknown[0]!r}, the prompts of training have {expected}"
        )
    return {PROMPT_METADATA: [metadata_lines(entry, names) for entry in every]} if names else {}


def _value(name: str, value: Any) -> str:
    if value is None:
        return ""
    if isinstance(value, bool | np.bool_):
        return "true" if value else "false"
    if isinstance(value, str):
        return " ".join(value.split())
    if isinstance(value, Integral):
        return str(int(value))
    if isinstance(value, Real):
        return f"{float(value):.6g}" if isfinite(value) else ""
    raise ValueError(
        f"prompt_metadata: {name!r} is {value!r}: a prompt has texts, numbers, true and false"
    )


def _prompt(task: str, fields: Sequence[str]) -> str:
    parts = [task.strip(), *fields] if task.strip() else fields
    return ", ".join(parts)
