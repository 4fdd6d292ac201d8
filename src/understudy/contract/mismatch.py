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
]
"""Kinds of mismatch. `degrees` and `radians` are units that came; `normalized` numbers came instead of raw ones."""


_MOST_LETTERS = 600


def printable(text: str, most: int = _MOST_LETTERS) -> str:
    """Return the text of a robot for a line of a log: at most `most` letters, and those that do not print escaped."""
    short = text if len(text) <= most else f"{text[:most]}… ({len(text):,} letters)"
    return "".join(x if x.isprintable() else x.encode("unicode_escape").decode() for x in short)


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
        """One line, in which long values are cut."""
        key, trained, came, fix = map(printable, (self.key, self.trained, self.came, self.fix))
        where, fix = f"{key}: " if key else "", f" ({fix})" if fix else ""
        return f"{where}{self.kind}: training saw {trained}, the robot sends {came}{fix}"


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
