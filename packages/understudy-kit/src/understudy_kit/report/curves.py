"""Charts as plain data: curves over steps, time or another quantity, which `static/curves.js`
draws.

A curve of more than `POINTS` values is divided into as many stretches of equal numbers of values.
Each keeps the smoothed value at its end, and its least and greatest value, so that no peak is lost
after a million steps.
"""

import math
from collections.abc import Sequence
from copy import copy
from typing import Any

import numpy as np

from understudy_base import Records

# Readable on white and on near-black (colors of Okabe & Ito, slightly lighter or darker).
COLORS = ("#2f7fd8", "#e0762b", "#2aa36f", "#c0569f", "#b08a00", "#56a8d8", "#d04a4a", "#8a7fd0")
"""Colors of curves."""
POINTS = 400
"""Most points of a curve over steps."""
FRAMES = 600
"""Most points of a curve over the frames of an episode."""
DIGITS = 5
"""Significant digits of a value on the page."""


class Curve(dict[str, Any]):
    """Line of a chart, as `static/curves.js` draws it.

    Args:
        name: Name in the legend.
        positions: (N,) on the first axis.
        values: (N,); numbers that are not finite leave gaps.
        color: Index in `COLORS`, or a color.
        low: (N,), lower end of a band or of whiskers; None for none.
        high: (N,), upper end.
        starts: Positions at which a new piece begins.
        style: `points`, `dashed`, `faint`: True to draw points with whiskers, dashes, or a pale
            line.
    """

    def __init__(
        self,
        name: str,
        positions: Any,
        values: Any,
        color: int | str = 0,
        *,
        low: Any = None,
        high: Any = None,
        starts: Sequence[float] = (),
        **style: Any,
    ) -> None:
        drawn_color = COLORS[color % len(COLORS)] if isinstance(color, int) else color
        super().__init__(name=name, color=drawn_color, **style)
        self.update(x=[numbers(positions, 12)], value=numbers(values))
        if low is not None:
            self.update(low=numbers(low), high=numbers(high))
        if len(starts):
            self.update(starts=numbers(starts, 12))

    @classmethod
    def from_edges(
        cls,
        name: str,
        edges: Sequence[float],
        values: Sequence[float],
        color: int = 0,
        **style: Any,
    ) -> "Curve":
        """Make a curve that is constant between each two of its N + 1 edges; `filled=True` makes it
        a histogram.
        """
        heights = np.repeat(np.asarray(values, np.float64), 2)
        band: dict[str, Any] = {}
        if style.pop("filled", False):
            band = {"low": np.zeros(len(heights)), "high": heights}
        positions = np.repeat(np.asarray(edges, np.float64), 2)[1:-1]
        return cls(name, positions, heights, color, **band, **style)

    @classmethod
    def from_records(
        cls,
        name: str,
        records: Records,
        key: str,
        color: int | str,
        *,
        smooth: bool = False,
        **style: Any,
    ) -> "Curve":
        """Make a curve of one figure of records of `metrics.jsonl` over their steps, thinned."""
        pairs = [(record["step"], record[key]) for record in records if record.get(key) is not None]
        steps, values = np.array(pairs, np.float64).reshape(-1, 2).T
        return cls.from_steps(name, steps, values, color, smooth=smooth, **style)

    @classmethod
    def from_steps(
        cls,
        name: str,
        steps: np.ndarray,
        values: np.ndarray,
        color: int | str = 0,
        *,
        smooth: bool = True,
        **style: Any,
    ) -> "Curve":
        """Make a curve of `thin`, with the extremes of its stretches as a band where it has any."""
        points = thin(steps, values, smooth=smooth)
        has_band = not (points["low"] == points["high"] == points["value"])
        band = {}
        if has_band:
            band = {"low": points["low"], "high": points["high"]}
        return cls(name, points["step"], points["value"], color, **band, **style)

    @classmethod
    def from_frames(
        cls, name: str, values: np.ndarray, fps: float, color: int | str, **style: Any
    ) -> "Curve":
        """Make a curve of values (frames,) over the time in s; above `FRAMES`, it has the range of
        each bucket of frames.
        """
        bucket = -(-max(1, len(values)) // FRAMES)
        low, high = ranges(values[:, None], bucket)
        frames = np.arange(len(low)) * bucket + (bucket - 1) / 2
        band: dict[str, Any] = {}
        if bucket > 1:
            band = {"low": low[:, 0], "high": high[:, 0]}
        return cls(name, frames / fps, (low + high)[:, 0] / 2, color, **band, **style)

    @property
    def has_value(self) -> bool:
        """Whether any of its values is finite."""
        return any(value is not None for value in self["value"])

    def relabel(self, name: str, color: int) -> "Curve":
        """Return the curve with another name, and the color of this index in `COLORS`."""
        curve = copy(self)
        curve.update(name=name, color=COLORS[color % len(COLORS)])
        return curve


def ranges(values: np.ndarray, bucket: int) -> tuple[np.ndarray, np.ndarray]:
    """Return the least and the largest finite value of each bucket of rows: float64 (points, D);
    NaN without any.

    Args:
        values: Array (frames, D).
        bucket: Rows of a bucket; the last one may have less.
    """
    values = np.where(np.isfinite(values), values, np.nan).astype(np.float64)
    if bucket == 1:
        return values, values
    starts = np.arange(0, len(values), bucket)
    return np.fmin.reduceat(values, starts, axis=0), np.fmax.reduceat(values, starts, axis=0)


def thin(steps: np.ndarray, values: np.ndarray, *, smooth: bool = True) -> dict[str, list[Any]]:
    """Thin a curve to at most `POINTS`: `step`, smoothed `value`, and the extremes `low` and `high`
    of each stretch.

    Args:
        steps: int (N,).
        values: float64 (N,); values that are not finite are left out.
        smooth: Whether `value` is smoothed.
    """
    is_finite = np.isfinite(values)
    steps = steps[is_finite]
    values = values[is_finite]
    if not len(values):
        return {"step": [], "value": [], "low": [], "high": []}
    ends = np.unique(np.linspace(0, len(values), min(POINTS, len(values)) + 1).round().astype(int))
    starts = ends[:-1]
    last = ends[1:] - 1
    shown = smoothed(values) if smooth else values
    return {
        "step": steps[last].tolist(),
        "value": numbers(shown[last]),
        "low": numbers(np.minimum.reduceat(values, starts)),
        "high": numbers(np.maximum.reduceat(values, starts)),
    }


def smoothed(values: np.ndarray) -> np.ndarray:
    """Centred moving mean over about a fiftieth of the series; the window is cut at both ends."""
    half = max(1, len(values) // 100)
    total = np.concatenate([[0.0], np.cumsum(values)])
    centers = np.arange(len(values))
    low = np.maximum(0, centers - half)
    high = np.minimum(len(values), centers + half + 1)
    return (total[high] - total[low]) / (high - low)


def numbers(values: Any, digits: int = DIGITS) -> list[Any]:
    """Convert numbers to nested lists of JSON with `digits` digits; None for None and numbers that
    are not finite.
    """
    array = np.asarray(values, np.float64)
    if array.ndim > 1:
        return [numbers(row, digits) for row in array]
    return [_rounded(number, digits) for number in array.tolist()]


def _rounded(number: float, digits: int) -> float | None:
    if not math.isfinite(number):
        return None
    return float(f"{number:.{digits}g}")
