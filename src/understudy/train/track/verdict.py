"""Verdict on a run from its metrics: training against validation loss, the lowest validation, and whether it falls."""

from collections import deque
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np

from understudy.train.track import metrics_file

Records = Sequence[Mapping[str, Any]]

STEPS = 100
"""Most steps of the mean of the training loss."""
FALL = 0.01
"""Share by which a validation loss has to fall to be called falling."""


@dataclass(frozen=True)
class Verdict:
    """Training and validation loss at the latest validation of a run."""

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
        return self.lowest_step == self.step and self.before is not None and self.validation <= (1 - FALL) * self.before

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
            return f"the last of {self.validations:,} validations is the lowest: it is still falling"
        if self.lowest_step == self.step:
            return f"the last of {self.validations:,} validations is the lowest, by less than {FALL:.0%}"
        return f"lowest at step {self.lowest_step:,}: {self.lowest:.4g}"


def read_verdict(path: Path) -> Verdict | None:
    """Read the verdict on a run from its metrics.jsonl, of which few steps are held; see `compare_losses`."""
    recent, train, val = deque[dict[str, Any]](maxlen=STEPS), list[dict[str, Any]](), list[dict[str, Any]]()
    for record in metrics_file.iterate(path):
        if record["kind"] == "train":
            recent.append(record)
        elif record["kind"] == "val":
            train = list(recent)  # each of these steps is at or before the validation
            val.append(record)
    return compare_losses(train, val)


def compare_losses(train: Records, val: Records) -> Verdict | None:
    """Compare the losses of a run; None without a validation, or where a loss is not finite.

    Where the training has task modes or other terms than the validation, the first common term is compared.

    Args:
        train: training records, oldest first.
        val: validation records, oldest first.
    """
    before = [record for record in train if val and record["step"] <= val[-1]["step"]][-STEPS:]
    if not before:
        return None
    terms = list(val[-1].get("terms", ()))
    term = ""
    if "modes" in before[-1] or {name for record in before for name in record.get("terms", ())} != set(terms):
        common = (name for name in terms if any(name in record.get("terms", ()) for record in before))
        term = next(common, "")
    losses = [(record["step"], loss_of(record, term)) for record in val]
    finite = [(loss, step) for step, loss in losses if loss is not None]
    training = mean_loss(before, term)
    if not finite or finite[-1][1] != val[-1]["step"] or training is None:
        return None
    lowest, lowest_step = min(finite)
    last, step = finite[-1]
    previous = finite[-2][0] if len(finite) > 1 else None
    return Verdict(term, training, len(before), last, step, previous, lowest, lowest_step, len(finite))


def loss_of(record: Mapping[str, Any], term: str) -> float | None:
    """Return a record's loss, or that of a term; None where it has none or is not finite."""
    loss = record.get("terms", {}).get(term, {}).get("loss") if term else record["loss"]
    return None if loss is None else float(loss)


def mean_loss(train: Records, term: str) -> float | None:
    """Return the mean loss of records; of a term each element weighs the same. None without a finite loss."""
    elements = [record["terms"][term]["elements"] if term in record.get("terms", {}) else 1 for record in train]
    pairs = [(loss_of(record, term), count) for record, count in zip(train, elements)]
    finite = np.array([(loss, count) for loss, count in pairs if loss is not None]).reshape(-1, 2)
    return float(np.average(finite[:, 0], weights=finite[:, 1])) if len(finite) else None
