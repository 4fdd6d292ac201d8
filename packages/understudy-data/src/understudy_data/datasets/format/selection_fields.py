"""The fields of a selection: their defaults, the values that a file may give them, and what two
selections have together.

A new field is a line of `SelectionFields`, a line of `SelectionOptions`, and its work in
`Selection.apply`. It is declared also as a setting, in `SelectionConfig` of the kit and
`EditConfig` of tools; runs, views and `edit` then select by it.
"""

from __future__ import annotations

import os
import re
from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass, field, fields
from typing import Any, Literal, NamedTuple, TypedDict

KeepRanges = str | os.PathLike[str] | Mapping[Any, Any]
"""Frame ranges to keep: a JSON file, or its content, key of an episode -> list of [start, end)."""
WeightsIn = Literal["order", "loss", "both"]
COPY = re.compile(r"[0-9a-f]{64}\.(json|parquet)")
"""Name of a file that a view has a copy of."""


class Kind(NamedTuple):
    """Values of a field.

    Attributes:
        accepts: whether the field of a view in a file may have a value.
        rule: such values in words.
        join: the value that selects what two values select both, or None where there is none;
            without it, two values contradict each other.
        needs_lengths_alone: whether ids and lengths of the episodes decide what a value selects.
            Large selections of such values are computed once per host.
    """

    accepts: Callable[[Any], bool]
    rule: str
    join: Callable[[Any, Any], Any] | None = None
    needs_lengths_alone: bool = False


def is_natural(value: object) -> bool:
    """Return whether a value of a JSON file is a whole number from 0 that int64 holds."""
    return isinstance(value, int) and not isinstance(value, bool) and 0 <= value < 1 << 63


def _are_ids(value: object) -> bool:
    return isinstance(value, list) and all(map(is_natural, value))


def _is_fraction(value: object) -> bool:
    return isinstance(value, int | float) and not isinstance(value, bool) and 0 <= value < 1


def _is_text(value: object) -> bool:
    return isinstance(value, str)


def _is_copy(value: object) -> bool:
    return isinstance(value, str) and bool(COPY.fullmatch(value)) and value.endswith(".json")


def _are_weights(value: object) -> bool:
    return isinstance(value, str) and bool(COPY.fullmatch(value) or not value.endswith(".parquet"))


def _intersect(ids: Iterable[int], others: Iterable[int]) -> tuple[int, ...] | None:
    return tuple(sorted({*ids} & {*others})) or None


def _unite(ids: Iterable[int], others: Iterable[int]) -> tuple[int, ...]:
    return tuple(sorted({*ids, *others}))


def _both_hold(condition: str, other: str) -> str:
    return f"({condition}) and ({other})"


_COPIED = "it is a file of meta/views/files"
_IDS = Kind(_are_ids, "it is a list of episode ids", _intersect, needs_lengths_alone=True)
_EXCLUDED = _IDS._replace(join=_unite)
_CONDITION = Kind(_is_text, "it is a condition in text", _both_hold)
_FRAMES = Kind(is_natural, "it is a number of frames from 0", max, needs_lengths_alone=True)
_RANGES = Kind(_is_copy, _COPIED)
_WEIGHTS = Kind(_are_weights, f"{_COPIED}, or the key of a feature")


def _one_of(*words: str) -> Kind:
    return Kind(words.__contains__, f"it is {', '.join(words[:-1])} or {words[-1]}")


_RULES = _one_of("window", "start")
_USES = _one_of("order", "loss", "both")


@dataclass(frozen=True, kw_only=True)
class SelectionFields:
    """The episodes and frames of a dataset that are samples; by default all."""

    episodes: Iterable[int] | None = field(default=None, metadata={"kind": _IDS})
    """Ids of the episodes to use."""
    exclude_episodes: Iterable[int] | None = field(default=None, metadata={"kind": _EXCLUDED})
    """Ids of the episodes to leave out."""
    where: str | None = field(default=None, metadata={"kind": _CONDITION})
    """Condition on the metadata of episodes, as in "success and quality >= 3" (docs/datasets.md).
    Only those for which it holds are used, and of these only the ones in `episodes`.
    """
    keep_ranges: KeepRanges | None = field(default=None, metadata={"kind": _RANGES})
    """Frame ranges to use, a JSON file or its content, key of an episode -> list of [start, end).
    Episodes without a key are left out (`datasets/selection/keep_ranges.py`).
    """
    keep_rule: Literal["window", "start"] = field(default="window", metadata={"kind": _RULES})
    """"window" keeps a frame when its whole window lies inside a range. "start" keeps it when the
    frame itself does: the window's future is padded from the range's end on, its past may leave the
    range.
    """
    drop_n_first_frames: int = field(default=0, metadata={"kind": _FRAMES})
    """Frames at the start of each episode that are not samples (windows still see them)."""
    drop_n_last_frames: int = field(default=0, metadata={"kind": _FRAMES})
    """Frames at the end of each episode that are not samples."""
    frame_weights: str | os.PathLike[str] | None = field(default=None, metadata={"kind": _WEIGHTS})
    """Weight of each frame: a parquet file with the columns episode, frame and weight, or the key
    of a feature with one number per frame. Frames of weight 0 are not samples
    (docs/frame_weights.md).
    """
    frame_weights_in: WeightsIn = field(default="both", metadata={"kind": _USES})
    """"order", "loss" or "both": a frame comes more often in an epoch (`epoch_segments`), its
    sample has the factor of its loss as `loss_weight` (float32 scalar), or both, as their product.
    """


class SelectionOptions(TypedDict, total=False):
    """The fields of a selection as keyword arguments."""

    episodes: Iterable[int] | None
    exclude_episodes: Iterable[int] | None
    where: str | None
    keep_ranges: KeepRanges | None
    keep_rule: Literal["window", "start"]
    drop_n_first_frames: int
    drop_n_last_frames: int
    frame_weights: str | os.PathLike[str] | None
    frame_weights_in: WeightsIn


KINDS: dict[str, Kind] = {item.name: item.metadata["kind"] for item in fields(SelectionFields)}
"""Field -> its values."""
DEFAULTS: dict[str, Any] = {item.name: item.default for item in fields(SelectionFields)}
"""Field -> its default."""
SPLIT: dict[str, Kind] = {
    "val_episodes": Kind(_are_ids, "it is a list of episode ids"),
    "val_fraction": Kind(_is_fraction, "it is a share from 0 to below 1"),
}
"""Settings of a view that divide its episodes into training and validation -> their values."""


def is_unset(name: str, value: object) -> bool:
    """Return whether a value of a field is its default, or the empty text or tuple of settings. An
    empty list, array or mapping is a selection of nothing.
    """
    if value is None:
        return True
    if isinstance(value, str | tuple | int | float):
        return value in ("", ()) or value == DEFAULTS.get(name)
    return False


def values_of(settings: object) -> dict[str, Any]:
    """Return the fields of a selection that settings have, as attributes of their names: those that
    are not the default.
    """
    values = {name: getattr(settings, name, None) for name in KINDS}
    return {name: value for name, value in values.items() if not is_unset(name, value)}
