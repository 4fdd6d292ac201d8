"""Plain values with one hostile value in place of another, and the refusals that they may cause."""

import copy
import itertools
import random
from collections.abc import Callable, Iterator
from typing import Any

from understudy_base import ConfigError

HOSTILE: tuple[Any, ...] = (
    None, True, 0, -1, 1.5, float("nan"), float("inf"), 10**400, "", "x", "unknown", "\ud800",
    [], [[1]], [None], ["unknown"], [1] * 7, {}, {"a": 1},
)  # fmt: skip
Place = tuple[str | int, ...]


def places(value: Any, place: Place = ()) -> Iterator[Place]:
    """All places of plain values; of a list the first two."""
    yield place
    parts: dict[str | int, Any] = {}
    if isinstance(value, dict):
        parts = value
    elif isinstance(value, list):
        parts = dict(enumerate(value[:2]))
    for key, part in parts.items():
        yield from places(part, (*place, key))


def damaged(value: Any, place: Place, hostile: Any) -> Any:
    """A copy with one other value."""
    if not place:
        return hostile
    changed = copy.deepcopy(value)
    inside = changed
    for key in place[:-1]:
        inside = inside[key]
    inside[place[-1]] = hostile
    return changed


def samples(value: Any, count: int) -> list[tuple[Place, Any]]:
    pairs = list(itertools.product(places(value), HOSTILE))
    return random.Random(0).sample(pairs, min(count, len(pairs)))


def refusal(read: Callable[[], object], kind: type[Exception] = ConfigError) -> str:
    """Message of a refusal, "" where nothing is refused; any other error fails the test."""
    try:
        read()
    except kind as error:
        return str(error)
    return ""
