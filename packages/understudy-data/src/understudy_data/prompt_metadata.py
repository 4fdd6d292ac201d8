"""Metadata of an episode as text of the prompt: `pick up the cup, quality: 3, success: true`. No
torch.

    prompt   {task}, {name}: {value}, {name}: {value}

Names come in the sequence of the settings, with spaces for `_`. A missing value is left out with
its name, and an empty task with its comma. Values are `true` or `false`, numbers of up to six
digits (3 for 3.0), or texts with single spaces. A batch holds the fields of each sample under
`prompt_metadata`, one per line: `quality: 3`.
"""

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from itertools import chain
from math import isfinite
from numbers import Integral, Real
from typing import Any, ClassVar

import numpy as np

from understudy_base import PROMPT_METADATA, Record


@dataclass(frozen=True)
class PromptMetadata:
    """Names of the metadata in prompts, in their sequence there."""

    names: tuple[str, ...] = ()

    FORMAT: ClassVar[str] = "{task}, {name}: {value}"
    """Name of this format in a policy folder."""

    @classmethod
    def of_robot(cls, facts: Record) -> "PromptMetadata":
        """Read the names from the facts of a robot in a policy folder; none where it has none.

        Args:
            facts: under `prompt_metadata` the `record` of the prompts of training.

        Raises:
            ValueError: the prompts have another format.
        """
        stored = facts.get(PROMPT_METADATA, {})
        names = tuple(stored.get("names", ()))
        if names and stored.get("format") != cls.FORMAT:
            raise ValueError(
                f"the prompts have the format {stored.get('format')!r}, this release has "
                f"{cls.FORMAT!r}"
            )
        return cls(names)

    @property
    def record(self) -> dict[str, Any]:
        """Format and names, for a policy folder."""
        return {"format": self.FORMAT, "names": list(self.names)}

    def lines(self, values: Record) -> str:
        """Return the fields of an episode, one per line.

        Args:
            values: metadata by name; a missing name, None and NaN are missing values.

        Raises:
            ValueError: a value is not a text, number, true or false.
        """
        texts = ((self.label(name), _value(name, values.get(name))) for name in self.names)
        return "\n".join(f"{name}: {text}" for name, text in texts if text)

    def observed(self, observation: Mapping[str, Any], rows: int) -> dict[str, list[str]]:
        """Return {"prompt_metadata": fields of a robot's observations}; {} without names.

        Args:
            observation: under `prompt_metadata` metadata by name, or a list of such mappings for a
                batch; or nothing.
            rows: number of observations.

        Raises:
            ValueError: a name that the prompts of training do not have, a value without text, or
                another number of observations.
        """
        entries = observation.get(PROMPT_METADATA)
        if entries is None or isinstance(entries, Mapping):
            every = [entries or {}]
        else:
            every = list(entries)
        every = every * rows if len(every) == 1 else every
        if len(every) != rows:
            raise ValueError(
                f"prompt_metadata has {len(every)} entries for {rows} observations; give one for "
                "each"
            )
        if unknown := [name for name in chain.from_iterable(every) if name not in self.names]:
            expected = ", ".join(self.names) or "no metadata"
            raise ValueError(
                f"prompt_metadata has {unknown[0]!r}, the prompts of training have {expected}"
            )
        return {PROMPT_METADATA: [self.lines(entry) for entry in every]} if self.names else {}

    @staticmethod
    def label(name: str) -> str:
        """Return the name of a field in a prompt. Raises ValueError where it cannot have one."""
        words = " ".join(name.replace("_", " ").split())
        if not words or ":" in words:
            raise ValueError(
                f"prompt_metadata: {name!r}: names of a prompt have no colon and are not empty"
            )
        return words

    @staticmethod
    def add(tasks: Sequence[str], lines: Sequence[str] | None) -> list[str]:
        """Return the instruction of each sample with its metadata; `lines` None: without.

        Raises:
            ValueError: the numbers of instructions and metadata differ.
        """
        if lines is None:
            return list(tasks)
        if len(tasks) != len(lines):
            raise ValueError(
                f"{len(tasks)} instructions and {len(lines)} entries of prompt_metadata: give one "
                "for each"
            )
        prompts = []
        for task, entry in zip(tasks, lines):
            prompt = _prompt(task, entry.splitlines()) if entry else task
            prompts.append(prompt)
        return prompts

    @staticmethod
    def drop(lines: str, dropped: Iterable[str]) -> str:
        """Return the fields of a sample without those whose names (`label`) are `dropped`."""
        gone = set(dropped)
        return "\n".join(line for line in lines.splitlines() if line.partition(":")[0] not in gone)


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
