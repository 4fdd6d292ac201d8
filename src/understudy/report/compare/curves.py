"""Curves of several runs over each other, thinned so that a page stays small after a million steps.

A curve of more than `POINTS` values is divided into as many stretches of equal numbers of values. Each keeps the
smoothed value at its end, and its least and greatest value, so that no peak is lost. Steps become samples or hours on
the page, along the knots of each run.
"""

import json
from collections.abc import Mapping, Sequence
from html import escape
from pathlib import Path
from typing import Any

import numpy as np

from understudy.report import html
from understudy.report.charts import smoothed
from understudy.report.compare.intervals import loss_interval
from understudy.report.compare.runs import Run

POINTS = 400
"""Most points of a curve."""
DIGITS = 5
"""Significant digits of a value on the page."""

STYLE = """<style>
.panel { display: flex; flex-wrap: wrap; gap: 6px 18px; align-items: center; margin: 0 0 10px; position: sticky; top: 0;
  background: var(--ground); padding: 8px 0; z-index: 2; }
.panel[hidden] { display: none; }
.panel fieldset { border: 0; margin: 0; padding: 0; display: flex; flex-wrap: wrap; gap: 2px 12px; font-size: 13px; }
.panel legend { float: left; padding: 0 8px 0 0; color: var(--soft); }
.panel .runs { display: flex; flex-wrap: wrap; gap: 4px 8px; }
.panel button { font: inherit; color: inherit; background: var(--card); border: 1px solid var(--line); cursor: pointer;
  border-radius: 14px; padding: 2px 10px; overflow-wrap: anywhere; text-align: left; }
.panel button[aria-pressed=false] { text-decoration: line-through; color: var(--soft); }
.panel button[aria-pressed=false] .key { background: var(--line) !important; }
.curve { position: relative; } .curve svg { touch-action: pan-y; }
.curve .values { position: absolute; top: 4px; pointer-events: none; background: var(--card); font-size: 12px;
  border: 1px solid var(--line); border-radius: 6px; padding: 4px 8px; font-variant-numeric: tabular-nums;
  max-width: 100%; z-index: 1; }
.curve .values div { white-space: nowrap; }
</style>"""

NO_SCRIPT = '<p id="no-script">The curves need JavaScript. The tables have their last values.</p>'


def render_curves(runs: Sequence[Run], colors: Mapping[str, str]) -> str:
    """Render the panel and the charts; `colors` by letter."""
    data = curves(runs)
    for run in data["runs"]:
        run["color"] = colors[run["letter"]]
    charts = data["charts"]
    if not charts:
        return html.card('<p class="soft">No step has been logged yet.</p>')
    wide = [_box(number, chart) for number, chart in enumerate(charts) if chart["wide"]]
    half = [_box(number, chart) for number, chart in enumerate(charts) if not chart["wide"]]
    axes = [("step", "step"), ("samples", "samples"), ("hours", "training time")]
    switches = _switch("over", "axis", axes) + _switch("scale", "scale", [("linear", "linear"), ("log", "logarithmic")])
    buttons = "".join(
        f'<button type="button" aria-pressed="true" data-run="{escape(run["letter"], quote=True)}">'
        f'<span class="key" style="background:{run["color"]}"></span>{escape(run["letter"])} · {escape(run["name"])}'
        "</button>"
        for run in data["runs"]
    )
    panel = f'<div class="panel" hidden><div class="runs">{buttons}</div>{switches}</div>'
    # "<" would end the element early.
    embedded = json.dumps(data, separators=(",", ":"), ensure_ascii=False, allow_nan=False).replace("<", "\\u003c")
    script = Path(__file__).with_name("curves.js").read_text(encoding="utf-8")
    return (
        f"{STYLE}{NO_SCRIPT}{panel}{''.join(wide)}{html.grid(half, 'two')}"
        f'<script type="application/json" id="curve-data">{embedded}</script><script>{script}</script>'
    )


def curves(runs: Sequence[Run]) -> dict[str, Any]:
    """Return the curves of a page.

    Returns:
        {"runs": [{"letter", "name", "knots": {"step", "samples", "hours"}}], "charts": [{"title", "wide", "series":
        {letter: {"step", "value", "low", "high"}}}]}. A chart without values is absent, and so is a run without values
        in it. `low` and `high` are absent where they are the value.
    """
    found = []
    for title, key, wide in _TRAIN:
        series = {run.letter: _curve(run.train["step"], run.train[key], smooth=key != "lr") for run in runs}
        found.append((title, wide, series))
    found.insert(1, ("Validation loss, with 95 % intervals", True, {run.letter: _losses(run) for run in runs}))
    found.insert(2, ("Open-loop error, normalized", False, {run.letter: _open_loop(run) for run in runs}))
    found.insert(2, ("Success of rollouts during training, with 95 % intervals", True, _successes(runs)))
    for title, key, unit in _SPEED:
        series = {run.letter: _curve(run.speed["step"], run.speed[key] / unit) for run in runs}
        found.append((title, False, series))
    charts: list[dict[str, Any]] = []
    for title, wide, series in found:
        series = {letter: curve for letter, curve in series.items() if curve["step"]}
        if series:
            charts.append({"title": title, "wide": wide, "series": series})
    about = [{"letter": run.letter, "name": run.name, "knots": _knots(run)} for run in runs]
    return {"runs": about, "charts": charts}


def thin(steps: np.ndarray, values: np.ndarray, points: int = POINTS, *, smooth: bool = True) -> dict[str, list[Any]]:
    """Thin a curve to at most `points`: `step`, smoothed `value`, and the extremes `low` and `high` of each stretch.

    Args:
        steps: int (N,).
        values: float64 (N,); values that are not finite are left out.
        points: largest number of points.
        smooth: whether `value` is smoothed.
    """
    known = np.isfinite(values)
    steps, values = steps[known], values[known]
    if not len(values):
        return {"step": [], "value": [], "low": [], "high": []}
    ends = np.unique(np.linspace(0, len(values), min(points, len(values)) + 1).round().astype(int))
    starts, last = ends[:-1], ends[1:] - 1
    return {
        "step": steps[last].tolist(),
        "value": _short((smoothed(values) if smooth else values)[last]),
        "low": _short(np.minimum.reduceat(values, starts)),
        "high": _short(np.maximum.reduceat(values, starts)),
    }


# -- inside -----------------------------------------------------------------------------------------------------------

_TRAIN = (
    ("Training loss", "loss", True),
    ("Gradient norm, before clipping", "grad_norm", False),
    ("Learning rate", "lr", False),
)
_SPEED = (
    ("Samples per second", "samples_per_s", 1),
    ("Share of the time spent waiting for data", "wait", 1),
)


def _curve(steps: np.ndarray, values: np.ndarray, smooth: bool = True) -> dict[str, list[Any]]:
    curve = thin(steps, values, smooth=smooth)
    if curve["low"] == curve["high"] == curve["value"]:
        del curve["low"], curve["high"]
    return curve


def _losses(run: Run) -> dict[str, list[Any]]:
    found = [(r["step"], r["loss"], loss_interval(r["loss"], r.get("se"), r.get("episodes", 0))) for r in run.val]
    return _with_intervals([(step, loss, *(interval or (loss, loss))) for step, loss, interval in found])


def _open_loop(run: Run) -> dict[str, list[Any]]:
    found = [(r["step"], (r.get("open_loop") or {}).get("normalised")) for r in run.val]
    return _with_intervals([(step, error, error, error) for step, error in found])


def _successes(runs: Sequence[Run]) -> dict[str, dict[str, list[Any]]]:
    rates = {run.letter: [(r["step"], r["success"]) for r in run.rollout] for run in runs}
    return {
        letter: _with_intervals([(step, rate["rate"], rate["low"], rate["high"]) for step, rate in own])
        for letter, own in rates.items()
    }


def _with_intervals(rows: Sequence[tuple[int, float | None, float | None, float | None]]) -> dict[str, list[Any]]:
    """Thin rows of (step, value, low, high) to every n-th and the last; rows without a value are left out."""
    known = [row for row in rows if row[1] is not None]
    chosen = sorted({round(i) for i in np.linspace(0, len(known) - 1, min(POINTS, len(known)))}) if known else []
    table = np.array([known[i] for i in chosen], np.float64).reshape(-1, 4)
    return {
        "step": table[:, 0].astype(int).tolist(),
        **{name: _short(table[:, column]) for column, name in enumerate(("value", "low", "high"), start=1)},
    }


def _knots(run: Run) -> dict[str, list[Any]]:
    """Steps with their samples and hours, at most `POINTS` of each."""
    steps = np.unique(np.concatenate([[0], run.positions[:, 0], run.speed["step"], run.train["step"][-1:]]))
    steps = np.unique(steps[np.linspace(0, len(steps) - 1, min(POINTS, len(steps))).round().astype(int)])
    hours = run.seconds_at(steps) / 3600
    return {
        "step": steps.tolist(),
        "samples": _short(run.samples_at(steps), 12),
        "hours": _short(hours) if np.isfinite(hours).all() else [],
    }


def _short(values: np.ndarray, digits: int = DIGITS) -> list[float]:
    return [float(f"{value:.{digits}g}") for value in values.tolist()]


def _box(number: int, chart: Mapping[str, Any]) -> str:
    title = escape(chart["title"])
    return html.card(f'<h3>{title}</h3><div class="curve" data-chart="{number}"></div>')


def _switch(name: str, legend: str, choices: Sequence[tuple[str, str]]) -> str:
    options = "".join(
        f'<label><input type="radio" name="{name}" value="{value}"{" checked" if i == 0 else ""}> {label}</label>'
        for i, (value, label) in enumerate(choices)
    )
    return f"<fieldset><legend>{legend}</legend>{options}</fieldset>"
