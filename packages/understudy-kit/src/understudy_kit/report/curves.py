"""Charts as plain data: curves over steps, time or another quantity, which `static/curves.js`
draws.

A curve of more than `POINTS` values is divided into as many stretches of equal numbers of values.
Each keeps the smoothed value at its end, and its least and greatest value, so that no peak is lost
after a million steps.
"""

import math
from collections.abc import Iterable, Sequence
from typing import Any

import numpy as np

from understudy_base.records import Records
from understudy_kit.report.page import COLORS, Block, text

POINTS = 400
"""Most points of a curve over steps."""
FRAMES = 600
"""Most points of a curve over the frames of an episode."""
DIGITS = 5
"""Significant digits of a value on the page."""


def chart(
    label: str,
    axes: str | Sequence[str],
    unit: str,
    lines: Iterable[Block],
    *,
    log: bool | None = None,
    zero: bool = True,
    cut: bool = False,
    bare: bool = False,
    height: int = 230,
) -> Block | None:
    """Make a chart; None if no line has a value.

    Args:
        label: Alternative text.
        axes: Names of the horizontal axes with their units; each line has positions on all of them.
        unit: Name of the vertical axis.
        lines: Results of `line`.
        log: Whether the vertical axis begins as logarithmic; None offers no logarithmic axis.
        zero: Whether a linear axis includes 0.
        cut: Whether a linear axis ends where a few large values would flatten the rest; the chart
            notes it.
        bare: Whether the legend, which has the values under the pointer, is left out.
        height: CSS pixels.
    """
    drawn = [line for line in lines if _has_value(line)]
    if not drawn:
        return None
    names = [axes] if isinstance(axes, str) else list(axes)
    options = {"log": log, "zero": zero, "cut": cut, "bare": bare, "height": height}
    return {"kind": "chart", "label": label, "axes": names, "unit": unit, "lines": drawn, **options}


def _has_value(line: Block) -> bool:
    return any(value is not None for value in line["value"])


def line(
    name: str,
    positions: Any,
    values: Any,
    color: int | str = 0,
    *,
    low: Any = None,
    high: Any = None,
    starts: Sequence[float] = (),
    **style: Any,
) -> Block:
    """Make a line of a chart.

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
    drawn_color = COLORS[color % len(COLORS)] if isinstance(color, int) else color
    shown = {"name": name, "color": drawn_color, **style}
    shown |= {"x": [numbers(positions, 12)], "value": numbers(values)}
    if low is not None:
        shown |= {"low": numbers(low), "high": numbers(high)}
    if len(starts):
        shown["starts"] = numbers(starts, 12)
    return shown


def step_line(
    name: str, edges: Sequence[float], values: Sequence[float], color: int = 0, **style: Any
) -> Block:
    """Make a line that is constant between each two of its N + 1 edges; `filled=True` makes it a
    histogram.
    """
    heights = np.repeat(np.asarray(values, np.float64), 2)
    band: dict[str, Any] = {}
    if style.pop("filled", False):
        band = {"low": np.zeros(len(heights)), "high": heights}
    return line(
        name, np.repeat(np.asarray(edges, np.float64), 2)[1:-1], heights, color, **band, **style
    )


def histogram(
    label: str, values: np.ndarray, unit: str, counted: str, bins: int = 24, height: int = 130
) -> Block:
    """Make a histogram of values (N,) in equal intervals of their range; a text where they have
    none.
    """
    finite = values[np.isfinite(values)].astype(np.float64)
    if not finite.size:
        return text("no finite value")
    if finite.min() == finite.max():
        return text(f"always {finite.min():.3g}")
    scale = max(1.0, abs(float(finite.min())), abs(float(finite.max())))
    counts, edges = np.histogram(finite / scale, bins)
    bars = step_line(counted, (edges * scale).tolist(), counts.tolist(), filled=True)
    block = chart(label, unit, counted, [bars], height=height)
    assert block is not None
    return block


def record_line(
    name: str, records: Records, key: str, color: int | str, *, smooth: bool = False, **style: Any
) -> Block:
    """Make a line of one figure of records of `metrics.jsonl` over their steps, thinned."""
    pairs = [(record["step"], record[key]) for record in records if record.get(key) is not None]
    steps, values = np.array(pairs, np.float64).reshape(-1, 2).T
    return thinned_line(name, steps, values, color, smooth=smooth, **style)


def thinned_line(
    name: str,
    steps: np.ndarray,
    values: np.ndarray,
    color: int | str = 0,
    *,
    smooth: bool = True,
    **style: Any,
) -> Block:
    """Make a line of `thin`, with the extremes of its stretches as a band where it has any."""
    curve = thin(steps, values, smooth=smooth)
    has_band = not (curve["low"] == curve["high"] == curve["value"])
    band = {"low": curve["low"], "high": curve["high"]} if has_band else {}
    return line(name, curve["step"], curve["value"], color, **band, **style)


def bucketed_line(
    name: str, values: np.ndarray, fps: float, color: int | str, **style: Any
) -> Block:
    """Make a line of values (frames,) over the time in s; above `FRAMES`, it has the range of each
    bucket of frames.
    """
    bucket = -(-max(1, len(values)) // FRAMES)
    low, high = ranges(values[:, None], bucket)
    frames = np.arange(len(low)) * bucket + (bucket - 1) / 2
    band: dict[str, Any] = {} if bucket == 1 else {"low": low[:, 0], "high": high[:, 0]}
    return line(name, frames / fps, (low + high)[:, 0] / 2, color, **band, **style)


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
    return float(f"{number:.{digits}g}") if math.isfinite(number) else None
