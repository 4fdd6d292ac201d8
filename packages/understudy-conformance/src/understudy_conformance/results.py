"""Results of the checks of a loader: `LoaderCheck` and `LoaderReport`, and the names of all checks."""

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any, Literal

Status = Literal["passed", "failed", "not checked", "not applicable"]

CHECKS = {
    "coverage": "one process gives each sample once per epoch",
    "coverage.ranks": "all ranks together give each sample once per epoch",
    "coverage.workers": "several workers together give each sample once per epoch",
    "ranks.even": "each rank gives the same number of batches, of the same sizes",
    "rows": "columns of a sample are those of its row",
    "windows": "windows hold the rows and images at their times, inside the episode",
    "padding": "`<key>_is_pad` marks exactly the steps outside the episode",
    "images": "the image of a sample belongs to its row",
    "epochs.differ": "two epochs have different sequences",
    "epochs.repeat": "the same epoch, read twice, has the same batches",
    "workers.same": "another number of workers gives the same batches",
    "workers.busy": "each worker of a DataLoader makes at least a quarter of an equal share of the samples",
    "resume": "a loader resumed from a state gives the batches that the first one still had",
    "resume.ranks": "so do several ranks that are resumed together",
    "resume.world": "resumed with another number of ranks, and once more, an epoch still has each sample once",
    "shuffling": "batches average nearly as well as batches of a perfect shuffle",
}
"""Name of each check -> its rule."""


@dataclass(frozen=True)
class LoaderCheck:
    """Result of one check.

    Attributes:
        name: a key of `CHECKS`.
        status: "passed", "failed", "not checked" (it could not be made), or "not applicable" (dataset or loader have
            nothing to check, such as workers, or the caller skips it).
        detail: the measured facts, or the reason why it was not made.
        measured: the same facts as JSON holds them.
    """

    name: str
    status: Status
    detail: str = ""
    measured: Mapping[str, Any] = field(default_factory=dict)

    def __post_init__(self) -> None:
        if self.name not in CHECKS:
            raise ValueError(f"name is {self.name!r}; give a key of CHECKS")


@dataclass(frozen=True)
class LoaderReport:
    """Result of `check_loader`. As text it is a table.

    Attributes:
        dataset: address of the dataset.
        samples: samples of an epoch.
        checks: one result per key of `CHECKS`, in their sequence.
        batches: batches read in all.
        seconds: duration.
    """

    dataset: str
    samples: int
    checks: tuple[LoaderCheck, ...]
    batches: int = 0
    seconds: float = 0.0

    def __getitem__(self, name: str) -> LoaderCheck:
        return next(check for check in self.checks if check.name == name)

    @property
    def passed(self) -> bool:
        """Whether each check that applies was made and passed. A check that was not made is no pass."""
        return all(check.status in ("passed", "not applicable") for check in self.checks)

    @property
    def failed(self) -> tuple[str, ...]:
        """Names of the failed checks."""
        return tuple(check.name for check in self.checks if check.status == "failed")

    def to_json(self) -> dict[str, Any]:
        """Return the report as plain values: {"passed", "dataset", "samples", "batches", "seconds", "checks"}."""
        checks = {
            check.name: {"status": check.status, "detail": check.detail, **dict(check.measured)}
            for check in self.checks
        }
        return {
            "passed": self.passed,
            "dataset": self.dataset,
            "samples": self.samples,
            "batches": self.batches,
            "seconds": round(self.seconds, 3),
            "checks": checks,
        }

    def __str__(self) -> str:
        lines = [f"{self.dataset}: {self.samples:,} samples"]
        for check in self.checks:
            lines.append(f"{check.status:>14}  {check.name:<16}  {CHECKS[check.name]}")
            if check.detail:
                lines.append(f"{'':>14}  {'':<16}  {check.detail}")
        counts = [f"{sum(c.status == s for c in self.checks)} {s}" for s in ("passed", "failed", "not checked")]
        lines.append(f"{', '.join(counts)}; {self.batches:,} batches, {self.seconds:.1f} s")
        return "\n".join(lines)
