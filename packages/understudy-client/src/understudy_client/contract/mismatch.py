"""A difference between the inputs of a robot and those of training."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass

from understudy_base import UnderstudyError

REMEDIES: Mapping[str, str] = {
    "missing key": "rename keys",
    "extra key": "rename keys",
    "shape": "send recorded images",
    "dtype": "send recorded images",
    "dimension count": "send the dimensions of training",
    "dimension names": "send the dimensions of training",
    "dimension order": "reorder dimensions",
    "units": "convert units",
    "degrees": "convert units",
    "radians": "convert units",
    "scale": "convert units",
    "normalized": "send raw numbers",
    "range": "inspect the robot",
    "frame": "convert actions",
    "delta": "convert actions",
    "control mode": "convert actions",
    "gripper": "invert the gripper",
    "action horizon": "set the horizon",
    "replanning": "set the horizon",
    "rate": "set the rate",
    "other robot": "choose the policy",
    "camera map": "map cameras",
    "swapped cameras": "exchange cameras",
    "color order": "convert colors",
    "orientation": "turn images",
    "transposed": "transpose images",
    "crop": "send recorded images",
    "resize": "resize as in training",
    "unlike training": "inspect the robot",
    "repeated frame": "inspect the robot",
    "time": "inspect the robot",
    "instruction": "give an instruction of training",
    "prompt": "restore the prompt",
    "tokenizer": "restore the tokenizer",
    "weights": "restore the weights",
    "statistics ignored": "rename statistics",
    "statistics missing": "add statistics",
    "statistics cut": "restore statistics",
    "statistics": "compute statistics",
}
"""Kind of mismatch -> remedy. `degrees` and `radians` are units that came; `normalized` numbers
came instead of raw ones. `statistics` are those of other data than the compared ones.
"""


_MOST_LETTERS = 600


def printable(text: str, most: int = _MOST_LETTERS) -> str:
    """Return the text of a robot for a line of a log: at most `most` letters, and those that do not
    print escaped.
    """
    short = text if len(text) <= most else f"{text[:most]}… ({len(text):,} letters)"
    printed = ""
    for letter in short:
        printed += letter if letter.isprintable() else letter.encode("unicode_escape").decode()
    return printed


@dataclass(frozen=True)
class Mismatch:
    """One difference.

    Attributes:
        kind: a key of `REMEDIES`.
        key: the input, "" for the whole observation.
        trained: the input of training.
        came: the input of the robot.
        fix: the remedy.
    """

    kind: str
    key: str
    trained: str
    came: str
    fix: str = ""

    @property
    def remedy(self) -> str:
        """Kind of the remedy."""
        return REMEDIES[self.kind]

    def to_json(self) -> dict[str, str]:
        """Return plain values."""
        return {name: str(text) for name, text in vars(self).items()}

    def __str__(self) -> str:
        """One line, in which long values are cut."""
        key, trained, came, fix = map(printable, (self.key, self.trained, self.came, self.fix))
        where = f"{key}: " if key else ""
        fix = f" ({fix})" if fix else ""
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
