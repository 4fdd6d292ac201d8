"""metrics.jsonl: the reference for all figures of a run. Append-only, exact, without gaps or
duplicates after any kill.

Each line is one JSON object with `kind` and `step` (the number of optimizer steps before it):

    train   loss, lr, grad_norm, skipped, terms: {term: {loss, elements}}, episodes (distinct ones
            in the batch of all ranks) and its design_effect, one line per optimizer step; floats
            read back bit-equal. In a mixture also sources: {name: {terms}}, with several task modes
            modes: {mode: {terms}}. With texts also cut: {prompt: ...}, the number of samples of
            which the policy could not keep everything
    speed   samples_per_s, wait (share of the time spent waiting for data), seconds (in this
            process), host_bytes and on a GPU gpu_bytes (largest memory of the process of rank 0),
            once per log. Where the policy has tokens or a step several parts also samples_per_part;
            with tokens also tokens_per_s (valid ones) and valid_share (of the tokens that the
            network computed)
    val     once per validation: loss, macro, weighted, heads, sources, tasks: {name: {loss, se,
            samples, …}}, groups, time, open_loop (explained in `train/validation/`), held_out
            (validation frames, of which `samples` were evaluated), unreadable (skipped frames, if
            any). With several task modes also modes: {mode: loss, terms, tasks, …}, and imagined:
            errors of imagined states and images (`train/validation/imagined.py`)
    rollout world, success, tasks: {task: ...} of the weights of `step`; `at` is the step at
            which it was logged

A line belongs to one step, never to "since the last log": a run killed between two logs writes the
same lines again.
"""

import json
import os
from collections import deque
from collections.abc import Iterable, Iterator
from contextlib import suppress
from dataclasses import dataclass
from itertools import chain
from pathlib import Path
from typing import Any, ClassVar

import numpy as np

from understudy.train.track import metrics_file
from understudy_base import ConfigError, Record, Records, finite, path_in_errors, write_text

NAME = "metrics.jsonl"
"""Name of the file in a run directory."""


class MetricsFile:
    """Appends records. `sync` makes them durable, which checkpoints depend on."""

    def __init__(self, path: Path) -> None:
        self._path = path
        self._file = path.open("a", encoding="utf-8")

    def write(self, records: Iterable[Record]) -> None:
        """Append each record as a line; a number that is not finite becomes null (JSON has no
        NaN).
        """
        with path_in_errors(self._path):
            self._file.write(
                "".join(json.dumps(finite(record), ensure_ascii=False) + "\n" for record in records)
            )
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
                whole = (
                    type(record["step"]) is int
                    and type(record.get("at", 0)) is int
                    and type(record["kind"]) is str
                )
                if not whole:
                    raise ValueError("its step or kind is malformed")
            except (ValueError, TypeError, KeyError, AttributeError, RecursionError) as error:
                line = line.removesuffix(b"\n")
                raise ConfigError(
                    f"{path}: line {number} is not a record: {line[:80]!r}; remove that line"
                ) from error
            yield record


def truncate(path: Path, step: int) -> None:
    """Remove the records after optimizer step `step`, and a torn last line, since the run resumes
    there.

    A file that a copy of the run shares (`cp -al`, `cp -rs`) becomes the run's own, before records
    are appended.
    """
    records = read(path)
    valid = [record for record in records if record["step"] <= step]
    for index, record in enumerate(valid):
        # Records about these weights that were logged later count as logged now.
        if record.get("at", 0) > step:
            valid[index] = record | {"at": step}
    torn = path.exists() and not path.read_bytes().endswith(b"\n")
    shared = path.is_symlink() or (path.exists() and path.stat().st_nlink > 1)
    if valid != records or torn or shared:
        write_text(path, "".join(json.dumps(record, ensure_ascii=False) + "\n" for record in valid))


STEPS = 100
"""Most steps of the mean of the training loss."""


@dataclass(frozen=True)
class Verdict:
    """Training and validation loss at the latest validation of a run."""

    FALL: ClassVar[float] = 0.01
    """Share by which a validation loss has to fall to be called falling."""

    term: str
    """Loss term that both have; "" for the loss."""
    training: float
    """Mean over the `steps` steps before the validation."""
    steps: int
    validation: float
    step: int
    """Step of the validation."""
    before: float | None
    """Loss of the validation before it."""
    lowest: float
    """Lowest validation loss."""
    lowest_step: int
    validations: int

    @property
    def ratio(self) -> float | None:
        """Validation loss over training loss; None where the latter is not positive."""
        return self.validation / self.training if self.training > 0 else None

    @property
    def falling(self) -> bool:
        """Whether the latest of several validations is the lowest, by `FALL` or more."""
        return (
            self.lowest_step == self.step
            and self.before is not None
            and self.validation <= (1 - self.FALL) * self.before
        )

    def loss_of(self, record: Record) -> float | None:
        """Return the loss of a record, of the term of this verdict; None where it has none."""
        return loss_of(record, self.term)

    def __str__(self) -> str:
        loss = f"{self.term} loss" if self.term else "loss"
        ratio = "" if self.ratio is None else f", {self.ratio:.3g} times as high"
        line = (
            f"training {loss} {self.training:.4g} (mean of {self.steps} steps), validation {loss} "
            f"{self.validation:.4g} at step {self.step:,}{ratio}"
        )
        return line if self.validations < 2 else f"{line}; {self.trend}"

    @property
    def trend(self) -> str:
        """Describe the lowest validation in one line."""
        if self.falling:
            return (
                f"the last of {self.validations:,} validations is the lowest: it is still falling"
            )
        if self.lowest_step == self.step:
            return (
                f"the last of {self.validations:,} validations is the lowest, by less than "
                f"{self.FALL:.0%}"
            )
        return f"lowest at step {self.lowest_step:,}: {self.lowest:.4g}"


def read_verdict(path: Path) -> Verdict | None:
    """Read the verdict on a run from its metrics.jsonl, of which few steps are held; see
    `compare_losses`.
    """
    recent = deque[dict[str, Any]](maxlen=STEPS)
    train = list[dict[str, Any]]()
    val = list[dict[str, Any]]()
    for record in metrics_file.iterate(path):
        if record["kind"] == "train":
            recent.append(record)
        elif record["kind"] == "val":
            train = list(recent)  # each of these steps is at or before the validation
            val.append(record)
    return compare_losses(train, val)


def compare_losses(train: Records, val: Records) -> Verdict | None:
    """Compare the losses of a run; None without a validation, or where a loss is not finite.

    Where the training has task modes or other terms than the validation, the first common term is
    compared.

    Args:
        train: training records, oldest first.
        val: validation records, oldest first.
    """
    trained = [record for record in train if val and record["step"] <= val[-1]["step"]][-STEPS:]
    if not trained:
        return None
    terms = list(val[-1].get("terms", ()))
    trained_terms = set(chain.from_iterable(record.get("terms", ()) for record in trained))
    term = ""
    if "modes" in trained[-1] or trained_terms != set(terms):
        term = next((name for name in terms if name in trained_terms), "")
    losses = [(record["step"], loss_of(record, term)) for record in val]
    finite = [(loss, step) for step, loss in losses if loss is not None]
    training = mean_loss(trained, term)
    if not finite or finite[-1][1] != val[-1]["step"] or training is None:
        return None
    lowest, lowest_step = min(finite)
    last, step = finite[-1]
    previous = finite[-2][0] if len(finite) > 1 else None
    return Verdict(
        term, training, len(trained), last, step, previous, lowest, lowest_step, len(finite)
    )


def loss_of(record: Record, term: str) -> float | None:
    """Return a record's loss, or that of a term; None where it has none or is not finite."""
    loss = record.get("terms", {}).get(term, {}).get("loss") if term else record["loss"]
    return None if loss is None else float(loss)


def mean_loss(train: Records, term: str) -> float | None:
    """Return the mean loss of records; of a term each element weighs the same. None without a
    finite loss.
    """
    pairs = []
    for record in train:
        elements = record["terms"][term]["elements"] if term in record.get("terms", {}) else 1
        pairs.append((loss_of(record, term), elements))
    finite = np.array([(loss, count) for loss, count in pairs if loss is not None]).reshape(-1, 2)
    return float(np.average(finite[:, 0], weights=finite[:, 1])) if len(finite) else None
