"""Types of settings with bounds, and the argument without a flag. Needs the extra `train`."""

from collections.abc import Callable
from dataclasses import dataclass
from math import inf
from typing import Annotated, Any, TypeVar

from annotated_types import Ge, Gt, Interval

T = TypeVar("T")
POSITIONAL = "positional"
"""Marker of a setting that is an argument without a flag."""
Positional = Annotated[T, POSITIONAL]
IDS = "ids"
"""Marker of a list of ids or indices, which takes ranges (`0-7`), and each number once."""


@dataclass(frozen=True)
class ByHand:
    """Marker of a setting whose value means more where a flag gives it than in a file."""

    act: Callable[[Any], object]
    """Called with the value of a flag. Raises ValueError: it names nothing."""


Natural = Annotated[int, Ge(0)]
Ids = Annotated[tuple[Natural, ...], IDS]
Processes = Annotated[int, Interval(ge=1, le=2**20)]
Fraction = Annotated[float, Interval(ge=0, lt=1)]
"""A share that leaves something."""
Positive = Annotated[float, Gt(0)]
"""Infinity included."""
Scale = Annotated[float, Interval(gt=0, lt=inf)]

__all__ = ["Ge", "Gt", "Interval"]
