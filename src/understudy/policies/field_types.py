"""Types of the values in a config.json, checked against the fields of its dataclass."""

from collections.abc import Mapping
from types import NoneType, UnionType
from typing import Annotated, Any, Literal, Union, get_args, get_origin, get_type_hints


def type_problems(kind: type[Any], stored: Mapping[str, Any]) -> list[str]:
    """List the values that are not of their field's type, one line each.

    Args:
        kind: a dataclass.
        stored: JSON values by field; other keys are ignored, and so are types that JSON has no values of.
    """
    hints = get_type_hints(kind, include_extras=True)
    return [
        f"{name}: {value!r}: must be {_words(hints[name])}"
        for name, value in stored.items()
        if name in hints and not _fits(value, hints[name])
    ]


def _fits(value: Any, hint: Any) -> bool:
    origin, inner = get_origin(hint), get_args(hint)
    if origin is Annotated:
        return _fits(value, inner[0])
    if origin is Literal:
        return value in inner
    if origin in (Union, UnionType):
        return any(_fits(value, each) for each in inner)
    if origin is tuple:
        if not isinstance(value, list | tuple):
            return False
        wanted = inner[:1] * len(value) if inner[-1] is Ellipsis else inner
        return len(value) == len(wanted) and all(map(_fits, value, wanted))
    if hint in (int, float):
        return isinstance(value, int if hint is int else int | float) and not isinstance(value, bool)
    if hint in (str, bool, NoneType):
        return isinstance(value, hint)
    if isinstance(origin, type) and issubclass(origin, Mapping):
        return isinstance(value, Mapping)
    return True


def _words(hint: Any) -> str:
    origin, inner = get_origin(hint), get_args(hint)
    if origin is Annotated:
        return _words(inner[0])
    if origin is Literal:
        return " or ".join(map(repr, inner))
    if origin in (Union, UnionType):
        return " or ".join(map(_words, inner))
    if origin is tuple:
        number = "" if inner[-1] is Ellipsis else f" of {len(inner)}"
        return f"a list{number}, of {_words(inner[0])} each"
    plain = {int: "a whole number", float: "a number", str: "a text", bool: "true or false", NoneType: "null"}
    return plain.get(hint, "an object")
