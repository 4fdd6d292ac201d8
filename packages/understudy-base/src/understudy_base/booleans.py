"""Booleans where numbers are asked for: Python takes True for 1, and a mask for a list of ids."""

from typing import Any


def is_boolean(value: Any) -> bool:
    """Return whether a value is a boolean, of Python or of numpy."""
    return isinstance(value, bool) or type(value).__name__ in ("bool_", "bool")


def holds_boolean(values: Any) -> bool:
    """Return whether a value, an array or nested lists hold a boolean."""
    if isinstance(values, list | tuple):
        return any(map(holds_boolean, values))
    return is_boolean(values) or str(getattr(values, "dtype", "")) in ("bool", "torch.bool")
