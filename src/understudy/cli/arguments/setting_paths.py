"""Settings of a dataclass by their dotted paths."""

from collections.abc import Iterator
from dataclasses import fields, is_dataclass
from typing import Any, get_type_hints

from understudy.config import help


def setting_paths(cls: type, prefix: str = "") -> Iterator[tuple[str, Any]]:
    """Yield dotted path and type of all settings of a dataclass."""
    hints = get_type_hints(cls)
    for own in fields(cls):
        kind = hints[own.name]
        if isinstance(kind, type) and is_dataclass(kind):
            kind = getattr(kind, "select", lambda _, kind=kind: kind)({})
            yield from setting_paths(kind, f"{prefix}{own.name}.")
        else:
            yield f"{prefix}{own.name}", kind


def list_settings(cls: type, prefix: str = "") -> Iterator[tuple[str, type]]:
    """Yield dotted path and class of the settings that are lists of dataclasses, which flags cannot set."""
    hints = get_type_hints(cls)
    for own in fields(cls):
        kind = hints[own.name]
        item = help.item_class(own.name, cls)
        if item is not None:
            yield f"{prefix}{own.name}", item
        elif isinstance(kind, type) and is_dataclass(kind):
            yield from list_settings(kind, f"{prefix}{own.name}.")
