"""metrics.jsonl: the truth about what a run measured. Append-only, exact, without gaps or doubles after any kill.

Each line is one JSON object with `kind` and `step` (the number of optimizer steps behind it):

    train   loss, lr, grad_norm, skipped, one line per optimizer step; floats read back bit-equal
    speed   samples_per_s, wait (share of the time spent waiting for data), seconds (in this process), once per log
    val     once per validation: loss, macro, weighted, heads, sources, tasks: {name: {loss, se, samples, …}}, groups,
            time, open_loop (`train/eval/` says what each is), held_out (frames, of which `samples` were
            judged), unreadable (frames that were left out, where there are any)
    rollout world, success, tasks: {task: ...} of the weights of `step`; `at` is the step at which that was known

A line belongs to one step, never to "since the last log": so a run killed between two logs writes the same lines again.
"""

import json
import math
import os
from collections.abc import Iterable, Mapping
from contextlib import suppress
from pathlib import Path
from typing import Any

from understudy.atomic import path_in_errors, write_text
from understudy.errors import ConfigError


class MetricsFile:
    """Appends records. `sync` makes what was written durable; a checkpoint counts on it."""

    def __init__(self, path: Path) -> None:
        self._path = path
        self._file = path.open("a", encoding="utf-8")

    def write(self, records: Iterable[Mapping[str, Any]]) -> None:
        """Append each record as a line; a number that is not finite becomes null (JSON has no NaN)."""
        with path_in_errors(self._path):
            self._file.write("".join(json.dumps(finite(record), ensure_ascii=False) + "\n" for record in records))
            self._file.flush()

    def sync(self) -> None:
        with path_in_errors(self._path):
            os.fsync(self._file.fileno())

    def close(self) -> None:
        with suppress(OSError):  # what could not be written has been told by `write`
            self._file.close()


def read(path: Path, kind: str | None = None) -> list[dict[str, Any]]:
    """The records, of one kind if given; a last line torn by a kill is left out. No file: no records.

    Raises:
        ConfigError: a line in the middle is not a record; names file and line.
    """
    if not path.exists():
        return []
    lines = path.read_bytes().split(b"\n")
    records = []
    for number, line in enumerate(lines[:-1], start=1):  # what follows the last newline is empty or torn
        try:
            record = json.loads(line)
            whole = type(record["step"]) is int and type(record.get("at", 0)) is int and type(record["kind"]) is str
            if not whole:
                raise ValueError("its step or kind is none")
        except (ValueError, TypeError, KeyError, AttributeError, RecursionError) as error:
            raise ConfigError(f"{path}: line {number} is not a record: {line[:80]!r}; remove that line") from error
        records.append(record)
    return [record for record in records if kind is None or record["kind"] == kind]


def truncate(path: Path, step: int) -> None:
    """Drop what was measured after optimizer step `step`, and a torn last line: the run goes on from there."""
    records = read(path)
    kept = [record for record in records if record["step"] <= step]
    # What was known of these weights only later is known now.
    kept = [record | {"at": step} if record.get("at", 0) > step else record for record in kept]
    torn = path.exists() and not path.read_bytes().endswith(b"\n")
    if kept != records or torn:
        write_text(path, "".join(json.dumps(record, ensure_ascii=False) + "\n" for record in kept))


def finite(value: Any) -> Any:
    """A record as JSON has it, at every depth: None for a number that is not finite."""
    if isinstance(value, Mapping):
        return {key: finite(item) for key, item in value.items()}
    if isinstance(value, list):
        return [finite(item) for item in value]
    return None if isinstance(value, float) and not math.isfinite(value) else value
