"""Values of settings that another reader would take for something else: found before pydantic
converts them.

A boolean is no number, a mask no list of indices, and `0-2` no number -2. Ranges of episodes become
their ids here.
"""

import re
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, fields, is_dataclass
from functools import cache
from typing import Annotated, Any, Literal, get_args, get_origin, get_type_hints

from understudy_base import parse_ids, repeated
from understudy_kit.config.declare import IDS
from understudy_kit.config.help import members

WHOLE = re.compile(r"[+-]?[0-9][0-9_]*(\.0*)?")
NUMBER = re.compile(
    r"[+-]?([0-9][0-9_]*\.?[0-9_]*|\.[0-9][0-9_]*)(e[+-]?[0-9]+)?|[+-]?\.?(inf|infinity|nan)", re.I
)
"""Texts that are numbers: words of flags, and `1e-3`, which YAML reads as a text."""
_SHOWN = 12


@cache
def type_hints(cls: Any, include_extras: bool = False) -> dict[str, Any]:
    """Type of each field of a class, which a list may have thousands of times."""
    return get_type_hints(cls, include_extras=include_extras)


@dataclass(frozen=True)
class Misfit:
    """A value that does not fit its setting.

    Attributes:
        path: names down to the setting.
        rule: what is wrong with it; "": it is of another type than `kind`.
        kind: type of the setting.
        value: the given value.
    """

    path: tuple[str, ...]
    rule: str = ""
    kind: Any = Any
    value: Any = None


def with_ids(cls: type, content: Mapping[str, Any]) -> tuple[dict[str, Any], list[Misfit]]:
    """Return settings with ranges of episodes as their ids, and the lists of ids that cannot be
    read.

    Args:
        cls: the settings class.
        content: settings, nested as in a file.
    """
    misfits: list[Misfit] = []
    return _with_ids(cls, content, (), misfits), misfits


def _with_ids(
    cls: Any, content: Mapping[str, Any], path: tuple[str, ...], misfits: list[Misfit]
) -> dict[str, Any]:
    hints = type_hints(cls, include_extras=True)
    read = dict(content)
    for name in hints.keys() & content.keys():
        value = content[name]
        below = (*path, name)
        kind = _bare(hints[name])
        marks = getattr(hints[name], "__metadata__", ())
        if is_dataclass(kind) and isinstance(value, Mapping):
            read[name] = _with_ids(kind, value, below, misfits)
        elif not isinstance(value, list | tuple):
            continue
        elif get_origin(kind) is tuple and is_dataclass(get_args(kind)[0]):
            item = get_args(kind)[0]
            entries: list[Any] = []
            for number, entry in enumerate(value):
                if isinstance(entry, Mapping):
                    entry = _with_ids(item, entry, (*below, str(number)), misfits)
                entries.append(entry)
            read[name] = entries
        elif IDS in marks:
            try:
                read[name] = _numbers(value)
            except ValueError as error:
                misfits.append(Misfit(below, str(error)))
                read.pop(name)
    return read


def _numbers(values: list[Any] | tuple[Any, ...]) -> list[Any]:
    """Return a list of ids or indices, ranges spelt out. Raises ValueError: it is a mask, or a
    number is repeated.
    """
    masks = [value for value in values if isinstance(value, bool)]
    if masks and len(masks) == len(values):
        chosen = [number for number, value in enumerate(values) if value]
        raise ValueError(
            f"a list of numbers is needed, not a mask of true and false: give {chosen}"
        )
    if masks:
        return list(values)
    numbers = list[Any]()
    for value in values:
        if isinstance(value, str):
            numbers += parse_ids([value])
        else:
            numbers.append(value)
    whole = [number for number in map(_whole, numbers) if number is not None]
    if twice := repeated(whole):
        named = ", ".join(map(str, twice[:_SHOWN])) + ", …" * (len(twice) > _SHOWN)
        verb = "is" if len(twice) == 1 else "are"
        mask = ""
        if len(whole) > 2 and set(whole) <= {0, 1}:
            mask = "; a mask of 0 and 1 is no list of numbers"
        raise ValueError(f"{named} {verb} repeated: give each once{mask}")
    return numbers


def _whole(value: Any) -> int | None:
    if isinstance(value, str) and re.fullmatch(r"[0-9]+", value):
        return int(value[:18])
    if isinstance(value, int | float) and value == value // 1:
        return int(value)
    return None


def find_misfits(cls: Any, content: Any, path: tuple[str, ...] = ()) -> Iterator[Misfit]:
    """Yield booleans and texts where a setting is a number.

    Args:
        cls: the settings class; a union of them is that which the values select.
        content: settings, nested as in a file.
        path: names down to them.
    """
    chosen = selected(cls, content)
    if chosen is None or not isinstance(content, Mapping):
        return
    hints = type_hints(chosen)
    for name in (entry.name for entry in fields(chosen)):
        if name in content:
            yield from _inside(hints[name], content[name], (*path, name))


def _inside(kind: Any, value: Any, path: tuple[str, ...]) -> Iterator[Misfit]:
    if isinstance(kind, type) and is_dataclass(kind):
        yield from find_misfits(kind, value, path)
        return
    kinds = members(kind)
    if isinstance(value, Mapping):
        for member in kinds:
            origin = get_origin(member)
            if isinstance(member, type) and is_dataclass(member):
                yield from find_misfits(member, value, path)
            elif isinstance(origin, type) and issubclass(origin, Mapping):
                for name, item in value.items():
                    yield from _inside(get_args(member)[1], item, (*path, str(name)))
    elif isinstance(value, list | tuple):
        for member in kinds:
            inner = [item for item in get_args(member) if item is not Ellipsis]
            if get_origin(member) is tuple:
                for number, item in enumerate(value):
                    kind_of_item = inner[min(number, len(inner) - 1)]
                    yield from _inside(kind_of_item, item, (*path, str(number)))
    elif not _fits(kinds, value):
        yield Misfit(path, "", kind, value)


def _fits(kinds: list[Any], value: Any) -> bool:
    """Return whether a plain value is none of those that a number would be made of."""
    numbers = [kind for kind in kinds if kind in (int, float)]
    if not numbers or any(kind in (Any, object) for kind in kinds):
        return True
    if isinstance(value, bool):
        return bool in kinds
    if any(get_origin(kind) is Literal and value in get_args(kind) for kind in kinds):
        return True
    if isinstance(value, str) and str not in kinds:
        pattern = NUMBER if float in numbers else WHOLE
        return pattern.fullmatch(value.strip()) is not None
    return True


def selected(cls: Any, content: Any) -> Any:
    """Return the class that `content` selects, if `cls` is a tagged union, else `cls`; None: there
    is no such class.
    """
    try:
        return getattr(cls, "select", lambda _: cls)(content)
    except (ValueError, AttributeError):
        return None  # the check of the values reports it, and its names are not known


def _bare(hint: Any) -> Any:
    """Return a type without its marks."""
    return get_args(hint)[0] if get_origin(hint) is Annotated else hint
