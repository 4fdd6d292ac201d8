"""Types of settings with bounds, and the argument without a flag. Needs the extra `train`."""

from math import inf
from typing import Annotated, TypeVar

from understudy.optional_packages import optional_imports

with optional_imports():
    from annotated_types import Ge, Gt, Interval

T = TypeVar("T")
POSITIONAL = "positional"
"""Marker of a setting that is an argument without a flag."""
Positional = Annotated[T, POSITIONAL]
CODE = "code"
"""Marker of a setting that names code, `FILE.py:NAME`."""
Code = Annotated[T, CODE]
IDS = "ids"
"""Marker of a list of ids or indices, which takes ranges (`0-7`), and each number once."""

Natural = Annotated[int, Ge(0)]
Ids = Annotated[tuple[Natural, ...], IDS]
Count = Annotated[int, Ge(1)]
Steps = Annotated[int, Interval(ge=1, le=10**12)]
Period = Annotated[int, Interval(ge=0, le=10**12)]
"""Steps between two of something; 0: never."""
Samples = Annotated[int, Interval(ge=1, le=2**24)]
Processes = Annotated[int, Interval(ge=1, le=2**20)]
Share = Annotated[float, Interval(ge=0, le=1)]
Fraction = Annotated[float, Interval(ge=0, lt=1)]
"""A share that leaves something."""
Positive = Annotated[float, Gt(0)]
"""Infinity included."""
Scale = Annotated[float, Interval(gt=0, lt=inf)]
Factor = Annotated[float, Interval(ge=0, lt=inf)]

__all__ = ["Ge", "Gt", "Interval"]
