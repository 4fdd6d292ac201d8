"""The page of several runs, and the same as data. It needs only the run directories, and opens offline."""

from collections.abc import Mapping, Sequence
from datetime import timedelta
from html import escape
from pathlib import Path
from typing import Any

from understudy.report import html
from understudy.report.compare.curves import render_curves
from understudy.report.compare.differences import (
    differing_datasets,
    differing_settings,
    differing_versions,
    losses_differ,
)
from understudy.report.compare.losses import WHICH, validation_losses
from understudy.report.compare.runs import Run, read_runs
from understudy.report.compare.speed import speeds
from understudy.report.compare.success import success_rates
from understudy.report.compare.worst import worst_episodes
from understudy.report.run.validation import number
from understudy.train.track.metrics_file import finite

MARK = '<meta name="understudy-page" content="comparison">'
"""Text by which a page of several runs is recognized."""
FOLDED = 40
"""Most rows of a table that is not folded."""


def compare_runs(roots: Sequence[Path], worst: int = 3) -> dict[str, Any]:
    """Compare one or more runs; the result has only types of JSON.

    Args:
        roots: run directories.
        worst: number of validation episodes of each run to list, those with the largest losses.

    Returns:
        {"runs": [{"letter", "name", "path", "state", "step", "steps", "policy", "changed on resume"}], "settings",
        "versions", "datasets": those that differ, "losses are not comparable": reasons, "validation": `losses.py`,
        "worst episodes": `worst.py`,
        "success": `success.py`, "speed": `speed.py`}.

    Raises:
        ConfigError: a folder is no run, or is named twice.
    """
    return _data(read_runs(roots), worst)


def write_comparison(roots: Sequence[Path], path: Path, worst: int = 3) -> None:
    """Write the page of the runs to `path`; raises as `compare_runs` does."""
    from understudy.atomic import write_text

    runs = read_runs(roots)
    write_text(path, _page(runs, _data(runs, worst)))


def refuse_other_files(path: Path, runs: Sequence[Path]) -> None:
    """Raise ConfigError if `path` exists and is no page of several runs, or lies in one of the folders `runs`."""
    from understudy.errors import ConfigError

    if path.exists() and not (path.is_file() and MARK.encode() in path.read_bytes()):
        raise ConfigError(f"output: {path} exists and is no page of several runs; name another file, or move this one")
    for run in runs:
        if path.resolve().is_relative_to(run.resolve()):
            raise ConfigError(f"output: {path} would lie in the run {run}; name a file by --output")


_CURVES_NOTE = (
    "Each stretch of a long curve has its least and greatest value as a band around the smoothed one. Training time "
    "leaves out steps that a kill lost."
)
_VALIDATION_NOTE = (
    "In brackets is the interval of 95 %: Student's t, from the standard error over episodes, since the frames of an "
    "episode are correlated. Of few episodes it may reach below 0, which no loss does. A difference has an interval, "
    "paired by episode, where both validated the same samples."
)
_WORST_NOTE = (
    "The episodes with the largest losses of each run's latest validation. The page of one run has their frames and "
    "actions: understudy report RUN."
)
_SUCCESS_NOTE = "In brackets are intervals of 95 %: Wilson's for a rate, Newcombe's for a difference, in points."
_SPEED_NOTE = "Medians over the logs of a run; memory is that of rank 0."


def _page(runs: Sequence[Run], data: Mapping[str, Any]) -> str:
    colors = {run.letter: html.COLORS[i % len(html.COLORS)] for i, run in enumerate(runs)}
    names = ", ".join(run["name"] for run in data["runs"])
    return html.page(
        f"{names} · understudy",
        f"{MARK}<h1>{len(runs)} runs side by side</h1>{_about(data, colors)}",
        html.section("Differences", *_differences(data)),
        html.section("Curves", render_curves(runs, colors), note=_CURVES_NOTE),
        html.section("Validation", *_validation(data), note=_VALIDATION_NOTE),
        html.section("Worst validation episodes", _worst(data), note=_WORST_NOTE),
        html.section("Success of rollouts", *_success(data), note=_SUCCESS_NOTE),
        html.section("Speed and memory", _speed(data), note=_SPEED_NOTE),
    )


def _data(runs: Sequence[Run], worst: int) -> dict[str, Any]:
    reasons = losses_differ(runs)
    content = {
        "runs": [_run(run) for run in runs],
        "settings": differing_settings(runs),
        "versions": differing_versions(runs),
        "datasets": differing_datasets(runs),
        "losses are not comparable": reasons,
        "validation": validation_losses(runs, reasons),
        "worst episodes": worst_episodes(runs, worst),
        "success": success_rates(runs),
        "speed": speeds(runs),
    }
    return dict(finite(content))


def _run(run: Run) -> dict[str, Any]:
    return {
        "letter": run.letter,
        "name": run.name,
        "path": str(run.root),
        "state": run.state,
        "step": run.step,
        "steps": run.config.steps,
        "policy": run.record["policy"].get("type", "flow"),
        "validations": len(run.val),
        "changed on resume": {path: list(pair) for path, pair in run.changed.items()},
    }


def _about(data: Mapping[str, Any], colors: Mapping[str, str]) -> str:
    rows = []
    for run in data["runs"]:
        key = f'<span class="key" style="background:{colors[run["letter"]]}"></span>'
        letter = html.Raw(f'<span style="white-space:nowrap">{key}{run["letter"]}</span>')
        changed = ", ".join(f"{path} {one} → {other}" for path, (one, other) in run["changed on resume"].items())
        progress = f"step {run['step']:,} of {run['steps']:,}, {run['state']}"
        rows.append([letter, run["name"], run["policy"], progress, changed])
    head = ["", "run", "policy", "progress", "changed on resume"]
    if not any(row[-1] for row in rows):
        head, rows = head[:-1], [row[:-1] for row in rows]
    return f'<div class="gap"></div>{html.card(html.table(head, rows))}'


def _differences(data: Mapping[str, Any]) -> list[str]:
    letters = [run["letter"] for run in data["runs"]]
    cards = []
    if reasons := data["losses are not comparable"]:
        rows = [[" and ".join(r["runs"]), r["property"], r["why"], _joined(r["sources"])] for r in reasons]
        title = '<h3 class="bad">Some validation losses are not comparable</h3>'
        cards.append(html.card(title, html.table(["runs", "difference", "", "datasets"], rows)))
    kinds = {"settings": "setting", "versions": "package", "datasets": "dataset"}
    for kind, name in kinds.items():
        rows = [[key, *(_value(values.get(letter)) for letter in letters)] for key, values in data[kind].items()]
        if rows:
            table = _folded(html.table([name, *letters], rows), len(rows))
            cards.append(html.card(f"<h3>{kind.capitalize()} that differ</h3>", table))
    if equal := [kind for kind in kinds if not data[kind]]:
        cards.append(html.card(f'<p class="soft">Equal in all runs: {_joined(equal)}.</p>'))
    return cards


def _validation(data: Mapping[str, Any]) -> list[str]:
    letters = [run["letter"] for run in data["runs"]]
    without = [run["letter"] for run in data["runs"] if not run["validations"]]
    cards = []
    for which in WHICH:
        rows = []
        for group in data["validation"]:
            cells = [_loss(group["losses"].get(letter, {}).get(which)) for letter in letters]
            others = [_difference(group["differences"].get(letter, {}).get(which)) for letter in letters[1:]]
            rows.append([group["group"], group["head"], *cells, *others])
        head = ["dataset", "norm head", *letters, *(f"{letters[0]} − {letter}" for letter in letters[1:])]
        title = {"last": "Last validation", "lowest": "Lowest loss"}[which]
        if rows:
            cards.append(html.card(f"<h3>{title}</h3>", _folded(html.table(head, rows), len(rows))))
    if without:
        cards.append(html.card(f'<p class="soft">No validation yet: {_joined(without)}.</p>'))
    return cards


def _worst(data: Mapping[str, Any]) -> str:
    letters = [run["letter"] for run in data["runs"]]
    rows = []
    for entry in data["worst episodes"]:
        losses = entry["losses"]
        shown = ["–" if one not in losses else number(losses[one]) for one in letters]
        rows.append([entry["source"], entry["episode"], *shown])
    return html.card(_folded(html.table(["dataset", "episode", *letters], rows), len(rows))) if rows else ""


def _success(data: Mapping[str, Any]) -> list[str]:
    letters, cards = [run["letter"] for run in data["runs"]], []
    for entry in data["success"]:
        rows = []
        for task, own in entry["tasks"].items():
            cells = [_rate(own["rates"].get(letter)) for letter in letters]
            differences = [_points(own["differences"].get(letter)) for letter in letters[1:]]
            rows.append([task or "(no text)", *cells, *differences])
        head = ["task", *letters, *(f"difference to {letter}" for letter in letters[1:])]
        notes = f'<p class="soft">{escape("; ".join(entry["notes"]))}</p>' if entry["notes"] else ""
        cards.append(html.card(f"<h3>{escape(entry['title'])}</h3>", notes, _folded(html.table(head, rows), len(rows))))
    present = {letter for entry in data["success"] for own in entry["tasks"].values() for letter in own["rates"]}
    if present and (absent := [letter for letter in letters if letter not in present]):
        cards.append(html.card(f'<p class="soft">No rollouts: {_joined(absent)}.</p>'))
    return cards


def _speed(data: Mapping[str, Any]) -> str:
    shown = {
        "samples_per_s": ("samples per second", "{:,.1f}"),
        "tokens_per_s": ("tokens per second", "{:,.0f}"),
        "valid_share": ("valid share of the computed tokens", "{:.1%}"),
        "wait": ("waiting for data", "{:.1%}"),
        "seconds": ("training time", ""),
        "gpu_bytes": ("largest GPU memory", ""),
        "host_bytes": ("largest resident memory", ""),
        "skipped": ("steps skipped, gradient not finite", "{:,}"),
        "loss": ("training loss, mean of the last 100 steps", "{:.4f}"),
    }
    rows = []
    for key, (name, form) in shown.items():
        values = [own[key] for own in data["speed"].values()]
        if all(value is None for value in values) and not key.endswith("host_bytes"):
            continue
        rows.append([name, *(_figure(key, value, form) for value in values)])
    return html.card(html.table(["", *data["speed"]], rows))


# -- cells ------------------------------------------------------------------------------------------------------------


def _figure(key: str, value: float | None, form: str) -> str:
    if value is None:
        return "not logged"
    if key == "seconds":
        return str(timedelta(seconds=round(value)))
    return f"{value / 2**30:.2f} GiB" if key.endswith("bytes") else form.format(value)


def _value(value: Any) -> str:
    return "–" if value is None else "(empty)" if value in ("", [], {}) else str(value)


def _loss(figures: Mapping[str, Any] | None) -> str:
    if figures is None:
        return "–"
    if figures["loss"] is None:
        return f"not finite, step {figures['step']:,}"
    interval = _brackets(figures["interval"]) if figures["interval"] else " (one episode: no interval)"
    return f"{figures['loss']:.4f}{interval}, step {figures['step']:,}"


def _difference(figures: Mapping[str, Any] | None) -> str:
    if figures is None or figures["difference"] is None:
        return "–"
    return f"{figures['difference']:+.4f}" + (_brackets(figures["interval"], "+") if figures["interval"] else "")


def _brackets(interval: Sequence[float], sign: str = "") -> str:
    return f" [{interval[0]:{sign}.4f}, {interval[1]:{sign}.4f}]"


def _rate(rate: Mapping[str, Any] | None) -> str:
    if rate is None:
        return "–"
    return f"{rate['successes']}/{rate['episodes']} [{rate['low']:.0%}, {rate['high']:.0%}]"


def _points(figures: Mapping[str, Any] | None) -> str:
    if figures is None:
        return "–"
    low, high = figures["interval"]
    return f"{100 * figures['difference']:+.0f} [{100 * low:+.0f}, {100 * high:+.0f}]"


def _joined(names: Sequence[str]) -> str:
    return escape(", ".join(names))


def _folded(table: str, rows: int) -> str:
    return table if rows <= FOLDED else f"<details><summary>{rows} rows</summary>{table}</details>"
