"""A difference between the inputs of a robot and those of training."""

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Literal

from understudy.errors import UnderstudyError

Kind = Literal[
    "missing key",
    "extra key",
    "shape",
    "dtype",
    "dimension names",
    "dimension order",
    "degrees",
    "radians",
    "scale",
    "normalized",
    "range",
    "other robot",
    "swapped cameras",
    "color order",
    "orientation",
    "crop",
    "unlike training",
    "repeated frame",
    "time",
    "rate",
    "instruction",
    "weights",
]
"""Kinds of mismatch. `degrees` and `radians` are units that came; `normalized` numbers came instead of raw ones."""


@dataclass(frozen=True)
class Mismatch:
    """One difference.

    Attributes:
        kind: see `Kind`.
        key: the input, "" for the whole observation.
        trained: the input of training.
        came: the input of the robot.
        fix: the remedy.
    """

    kind: Kind
    key: str
    trained: str
    came: str
    fix: str = ""

    def __str__(self) -> str:
        """One line."""
        fix = f" ({self.fix})" if self.fix else ""
        where = f"{self.key}: " if self.key else ""
        return f"{where}{self.kind}: training saw {self.trained}, the robot sends {self.came}{fix}"


class ContractError(UnderstudyError, ValueError):
    """Observations differ from those of training. The message has one line for each difference.

    Attributes:
        mismatches: the differences.
    """

    def __init__(self, mismatches: Sequence[Mismatch]) -> None:
        self.mismatches = tuple(mismatches)
        super().__init__("\n".join(map(str, self.mismatches)))

    def __reduce__(self) -> tuple[object, ...]:
        """Rebuild the error from its mismatches, for pickle."""
        return ContractError, (self.mismatches,)


class ContractWarning(UserWarning):
    """An observation differs from those of training."""
