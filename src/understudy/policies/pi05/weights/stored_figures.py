"""Figures of a stored normalization, as offsets and spreads in float32. No torch.

A constant dimension has no special case: its constant becomes -1 under quantiles, and a deviation from it a large
number. The bins of the state make one rounding visible: the smallest state must stay at -1, or its bin becomes -1
instead of 0. `map_range` chooses the offset so, and `keep_low` that of a normalization computed from data.
"""

import json
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np

from understudy.batch_keys import STATE
from understudy.errors import ConfigError


@dataclass(frozen=True)
class Stored:
    """Normalization as it is stored beside weights."""

    where: Path
    maps: Mapping[str, Mapping[str, Any]]
    """Key -> {"offset": [dim], "spread": [dim]}, or [H][dim] with several heads."""
    padding: Mapping[str, np.ndarray]
    """Key -> bool [dim]: dimensions that may be left out, since their figures are those of padding."""
    delta: tuple[int, ...] | None = None
    """Action dimensions that are differences to the state; None: unknown."""
    whole: Mapping[str, Any] | None = None
    """The content of an own file."""


def map_range(low: np.ndarray, high: np.ndarray, size: np.ndarray) -> dict[str, list[float]]:
    """Return offset and spread of 2 (x - low) / size - 1 in float32, by which `low` becomes -1 and never less.

    Args:
        low: float64 [dim].
        high: float64 [dim], for the choice of the rounding alone.
        size: float64 [dim], above 0.
    """
    start = low.astype(np.float32)
    spread = (size / 2).astype(np.float32)
    # A range below the resolution of float32 around `low`: the next power of two keeps `low` at -1 exactly.
    step = np.spacing(np.maximum(np.abs(start), np.abs(high.astype(np.float32))))
    coarse = spread < 256 * step  # a step of the offset stays well inside a bin of 1 / 128
    spread = np.where(coarse, np.exp2(np.ceil(np.log2(np.maximum(spread, step)))), spread).astype(np.float32)
    offset = (start + spread).astype(np.float32)
    for _ in range(8):  # rounding of the offset, a few steps at most
        below = (start - offset) / spread < np.float32(-1)
        offset = np.where(below, np.nextafter(offset, start), offset)
    return {"offset": offset.tolist(), "spread": spread.tolist()}


def keep_low(computed: Mapping[str, Any]) -> Mapping[str, Any]:
    """Return a normalization of data whose lower ends of the state, of which it has rounded maps, are never below -1.

    Offset and spread are rounded to float32 separately, so the lower end can lie as far from their difference as the
    two roundings. The offset moves down by about as much. Constant dimensions keep theirs.
    """
    if STATE not in computed:
        return computed
    offset, spread = (np.asarray(computed[STATE][name], np.float32) for name in ("offset", "spread"))
    constant = spread == 0
    most = (np.spacing(np.abs(offset)).astype(np.float64) + np.spacing(spread)) / 2
    low, high = np.float64(offset) - spread - most, np.float64(offset) + spread
    found = map_range(low, high, np.where(constant, 1.0, 2 * np.float64(spread)))
    state = {
        "offset": np.where(constant, offset, np.asarray(found["offset"], np.float32)).tolist(),
        "spread": np.where(constant, spread, np.asarray(found["spread"], np.float32)).tolist(),
    }
    return {**computed, STATE: {**computed[STATE], **state}}


def map_deviation(mean: np.ndarray, spread: np.ndarray) -> dict[str, list[float]]:
    """Return offset and spread of (x - mean) / spread in float32."""
    return {"offset": mean.astype(np.float32).tolist(), "spread": spread.astype(np.float32).tolist()}


def read_figures(entry: Any, names: Sequence[str], where: str) -> dict[str, np.ndarray]:
    """Return figures as float64 [dim], equally wide, finite, in order.

    Raises:
        ConfigError: one is missing or damaged.
    """
    if not isinstance(entry, Mapping):
        raise ConfigError(f"{where} is no object of statistics; restore the file")
    found = {}
    for name in names:
        if entry.get(name) is None:
            raise ConfigError(f"{where} has no {name!r}, by which these weights are normalized; restore the file")
        try:
            found[name] = np.asarray(entry[name], np.float64).reshape(-1)
        except (TypeError, ValueError) as error:
            raise ConfigError(f"{where}: {name!r} holds no numbers; restore the file") from error
    first, second = (found[name] for name in names)
    finite = len(first) == len(second) > 0 and np.isfinite(first).all() and np.isfinite(second).all()
    if not finite or ((second < 0) if names[1] == "std" else (second < first)).any():
        raise ConfigError(f"{where}: {names[0]!r} and {names[1]!r} are not finite, equally wide and in order")
    return found


def read_object(path: Path) -> dict[str, Any]:
    """Read a JSON object; ConfigError where the file is missing, damaged or holds something else."""
    try:
        value = json.loads(path.read_text(encoding="utf-8"))
    except (OSError, ValueError) as error:
        raise ConfigError(f"{path} cannot be read: {error}; restore the file") from error
    if not isinstance(value, dict):
        raise ConfigError(f"{path} holds a {type(value).__name__}, expected an object; restore the file")
    return value
