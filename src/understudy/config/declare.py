"""Metadata of settings: bounds of values, and the argument without a flag. Needs the extra `train`."""

from typing import Annotated, TypeVar

from understudy.optional_packages import optional_imports

with optional_imports():
    from annotated_types import Ge, Gt, Interval, Le

T = TypeVar("T")
POSITIONAL = "positional"
"""Marker of a setting that is an argument without a flag."""
Positional = Annotated[T, POSITIONAL]

__all__ = ["POSITIONAL", "Ge", "Gt", "Interval", "Le", "Positional"]
