"""metrics.jsonl: the reference for all figures of a run. Append-only, exact, without gaps or duplicates after any kill.

Each line is one JSON object with `kind` and `step` (the number of optimizer steps before it):

    train   loss, lr, grad_norm, skipped, terms: {term: {loss, elements}}, one line per optimizer step; floats read back
            bit-equal. In a mixture also sources: {name: {terms}}, with several task modes modes: {mode: {terms}}. With
            texts also cut: {prompt: ...}, the number of samples of which the policy could not keep everything
    speed   samples_per_s, wait (share of the time spent waiting for data), seconds (in this process), host_bytes and
            on a GPU gpu_bytes (largest memory of the process of rank 0), once per log.
            Where the policy has tokens or a step several parts also samples_per_part; with tokens also tokens_per_s
            (valid ones) and valid_share (of the tokens that the network computed)
    val     once per validation: loss, macro, weighted, heads, sources, tasks: {name: {loss, se, samples, …}}, groups,
            time, open_loop (explained in `train/validation/`), held_out (validation frames, of which `samples` were
            evaluated), unreadable (skipped frames, if any). With several task modes also modes: {mode: loss, terms,
            tasks, …}, and imagined: errors of imagined states and images (`train/validation/imagined.py`)
    rollout world, success, tasks: {task: ...} of the weights of `step`; `at` is the step at which it was logged

A line belongs to one step, never to "since the last log": a run killed between two logs writes the same lines again.
"""

import json
import math
import os
from collections.abc import Iterable, Iterator, Mapping
from contextlib import suppress
from pathlib import Path
from typing import Any

from understudy.atomic import path_in_errors, write_text
from understudy.errors import ConfigError

NAME = "metrics.jsonl"
"""Name of the file in a run directory."""


class MetricsFile:
    """Appends records. `sync` makes them durable, which checkpoints depend on."""

    def __init__(self, path: Path) -> None:
        self._path = path
        self._file = path.open("a", encoding="utf-8")

    def write(self, records: Iterable[Mapping[str, Any]]) -> None:
        """Append each record as a line; a number that is not finite becomes null (JSON has no NaN)."""
        with path_in_errors(self._path):
            self._file.write("".join(json.dumps(finite(record), ensure_ascii=False) + "\n" for record in records))
            self._file.flush()

    def sync(self) -> None:
        """Make all records durable."""
        with path_in_errors(self._path):
            os.fsync(self._file.fileno())

    def close(self) -> None:
        """Close the file."""
        with suppress(OSError):  # `write` has already raised the error
            self._file.close()


def read(path: Path, kind: str | None = None) -> list[dict[str, Any]]:
    """Return the records of `iterate` as a list, of one kind if given."""
    return [record for record in iterate(path) if kind is None or record["kind"] == kind]


def iterate(path: Path) -> Iterator[dict[str, Any]]:
    """Yield the records, without a last line torn by a kill; none if there is no file.

    Raises:
        ConfigError: a line before the last is not a record; names file and line.
    """
    if not path.exists():
        return
    with path.open("rb") as file:
        for number, line in enumerate(file, start=1):
            if not line.endswith(b"\n"):
                return  # torn
            try:
                record = json.loads(line)
                whole = type(record["step"]) is int and type(record.get("at", 0)) is int and type(record["kind"]) is str
                if not whole:
                    raise ValueError("its step or kind is malformed")
            except (ValueError, TypeError, KeyError, AttributeError, RecursionError) as error:
                line = line.removesuffix(b"\n")
                raise ConfigError(f"{path}: line {number} is not a record: {line[:80]!r}; remove that line") from error
            yield record


def truncate(path: Path, step: int) -> None:
    """Remove the records after optimizer step `step`, and a torn last line, since the run resumes there.

    A file that a copy of the run shares (`cp -al`, `cp -rs`) becomes the run's own, before records are appended.
    """
    records = read(path)
    valid = [record for record in records if record["step"] <= step]
    # Records about these weights that were logged later count as logged now.
    valid = [record | {"at": step} if record.get("at", 0) > step else record for record in valid]
    torn = path.exists() and not path.read_bytes().endswith(b"\n")
    shared = path.is_symlink() or (path.exists() and path.stat().st_nlink > 1)
    if valid != records or torn or shared:
        write_text(path, "".join(json.dumps(record, ensure_ascii=False) + "\n" for record in valid))


def finite(value: Any) -> Any:
    """Convert a record for JSON: a number that is not finite becomes None, at every depth."""
    if isinstance(value, Mapping):
        return {key: finite(item) for key, item in value.items()}
    if isinstance(value, list | tuple):
        return [finite(item) for item in value]
    return None if isinstance(value, float) and not math.isfinite(value) else value
