"""Small curves and histograms of one dimension each, as a few bytes of SVG beside its name and its range.

The SVG is stretched to its cell and has no text, so it stays readable on a narrow screen.
"""

from collections.abc import Sequence
from html import escape

import numpy as np

POINTS = 300
"""Most points of a curve; longer curves are thinned to the least and the greatest value of each interval."""
BINS = 24


def curves(name: str, lines: Sequence[np.ndarray], colors: Sequence[str], note: str = "") -> str:
    """Render lines over the same time on one scale, from the least to the greatest of all values.

    Args:
        name: Title of the cell.
        lines: float (T,) each; values that are not finite leave gaps.
        colors: One per line, or more.
        note: Text after the range.
    """
    finite = np.concatenate([line[np.isfinite(line)] for line in lines])
    if not finite.size:
        return _cell(name, "no finite value", "")
    low, high = float(finite.min()), float(finite.max())
    drawn = "".join(_path(line, low, high, color) for line, color in zip(lines, colors))
    return _cell(name, (f"{low:.3g} to {high:.3g}" if high > low else f"always {low:.3g}") + note, drawn)


def histogram(name: str, values: np.ndarray) -> str:
    """Render a histogram of values (N,) with `BINS` equal intervals of their range."""
    finite = values[np.isfinite(values)]
    if not finite.size:
        return _cell(name, "no finite value", "")
    low, high = float(finite.min()), float(finite.max())
    if low == high:
        return _cell(name, f"always {low:.3g}", "")
    counts, _ = np.histogram(finite / max(1.0, abs(low), abs(high)), BINS)
    width = 100 / BINS
    bars = "".join(
        f'<rect x="{i * width:.2f}" width="{width * 0.9:.2f}" y="{40 - 40 * count / counts.max():.2f}" '
        f'height="{40 * count / counts.max():.2f}"/>'
        for i, count in enumerate(counts)
    )
    return _cell(name, f"{low:.3g} to {high:.3g}", f'<g fill="var(--accent)">{bars}</g>')


def _cell(name: str, caption: str, drawn: str) -> str:
    label = escape(f"{name}: {caption}", quote=True)
    image = f'<svg role="img" aria-label="{label}" viewBox="0 0 100 40" preserveAspectRatio="none">{drawn}</svg>'
    return f'<div class="dim"><b>{escape(name)}</b><span>{escape(caption)}</span>{image}</div>'


def _path(line: np.ndarray, low: float, high: float, color: str) -> str:
    times, values = _thinned(line)
    x = 100 * times / max(1, len(line) - 1)
    y = 38 - 36 * ((values / 2 - low / 2) / (high / 2 - low / 2)) if high > low else np.full(len(values), 20.0)
    commands, pen = [], "M"
    for at, height in zip(x, y):
        if not np.isfinite(height):
            pen = "M"
            continue
        commands.append(f"{pen}{at:.1f} {height:.1f}")
        pen = "L"
    style = f'fill="none" stroke="{color}" stroke-width="1.4" vector-effect="non-scaling-stroke"'
    return f'<path {style} d="{"".join(commands)}"/>'


def _thinned(line: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
    """Times and values of at most about `POINTS` points, with all peaks."""
    if len(line) <= POINTS:
        return np.arange(len(line)), line
    chosen = set()
    for stretch in np.array_split(np.arange(len(line)), POINTS // 2):
        part = line[stretch]
        if np.isnan(part).all():
            chosen.add(int(stretch[0]))
        else:
            chosen |= {int(stretch[np.nanargmin(part)]), int(stretch[np.nanargmax(part)])}
    times = np.array(sorted(chosen))
    return times, line[times]
