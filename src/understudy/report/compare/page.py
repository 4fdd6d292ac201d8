"""The page of several runs, and the same as data. It needs only the run directories, and opens offline."""

from collections.abc import Callable, Iterable, Mapping, Sequence
from datetime import timedelta
from operator import itemgetter
from pathlib import Path
from typing import Any

import numpy as np

from understudy.records import Record, finite
from understudy.report.compare.differences import (
    differing_datasets,
    differing_settings,
    differing_versions,
    losses_differ,
)
from understudy.report.compare.intervals import loss_interval
from understudy.report.compare.results import VALIDATIONS, success_rates, validation_losses, worst_episodes
from understudy.report.compare.runs import Run, read_runs, speeds
from understudy.report.curves import POINTS, chart, line, thinned_line
from understudy.report.page import (
    COLORS,
    Block,
    Blocks,
    card,
    grid,
    refuse_foreign,
    render_page,
    section,
    swatch,
    table,
    table_card,
    text,
)
from understudy.report.run.page import format_setting
from understudy.report.run.validation import number

KIND = "comparison"
"""Word by which a page of several runs is recognized."""
AXES = ("step", "samples", "training time, hours")


def compare_runs(roots: Sequence[Path], worst: int = 3) -> dict[str, Any]:
    """Compare one or more runs; the result has only types of JSON.

    Args:
        roots: Run directories.
        worst: Number of validation episodes of each run to list, those with the largest losses.

    Returns:
        {"runs": [{"letter", "name", "path", "state", "step", "steps", "policy", "changed on resume"}], "settings",
        "versions", "datasets": those that differ, "losses are not comparable": reasons, "validation", "worst episodes"
        and "success": see `results.py`, "speed": see `runs.py`}.

    Raises:
        ConfigError: A folder is not a run, or is named twice.
    """
    return _data(read_runs(roots), worst)


def write_comparison(roots: Sequence[Path], path: Path, worst: int = 3) -> None:
    """Write the page of the runs to `path`; raises as `compare_runs` does."""
    from understudy.atomic import write_text

    runs = read_runs(roots)
    write_text(path, _page(runs, _data(runs, worst)))


def refuse_other_files(path: Path, runs: Sequence[Path]) -> None:
    """Raise ConfigError if `path` exists and is not a page of several runs, or lies in one of the folders `runs`."""
    from understudy.errors import ConfigError

    refuse_foreign(path, KIND)
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
_SPEED_NOTE = "Medians over the logs of a run; memory is of rank 0."


def _page(runs: Sequence[Run], data: Record) -> str:
    colors = {run.letter: COLORS[index % len(COLORS)] for index, run in enumerate(runs)}
    names = ", ".join(run["name"] for run in data["runs"])
    charts = render_curves(runs, colors)
    controls = [{"line": run.letter, "name": f"{run.letter} · {run.name}", "color": colors[run.letter]} for run in runs]
    sections = [
        section("Differences", *_differences(data)),
        section("Curves", *charts, note=_CURVES_NOTE),
        section("Validation", *_validation(data), note=_VALIDATION_NOTE),
        section("Worst validation episodes", _worst(data), note=_WORST_NOTE),
        section("Success of rollouts", *_success(data), note=_SUCCESS_NOTE),
        section("Speed and memory", _speed(data), note=_SPEED_NOTE),
    ]
    heading, panel = f"{len(runs)} runs side by side", {"section": "Curves", "runs": controls, "axes": AXES}
    return render_page(f"{names} · understudy", heading, sections, top=[_about(data, colors)], kind=KIND, panel=panel)


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


# -- curves -----------------------------------------------------------------------------------------------------------


def render_curves(runs: Sequence[Run], colors: Mapping[str, str]) -> Blocks:
    """Draw the curves of the runs over each other, by step, samples and training time; `colors` by letter."""

    def values(table: str, key: str, smooth: bool = True) -> Iterable[Block]:
        for run in runs:
            logged = getattr(run, table)
            yield _with_axes(
                run, thinned_line(run.letter, logged["step"], logged[key], colors[run.letter], smooth=smooth)
            )

    def points(table: str, row_of: Callable[[Record], tuple[Any, Any, Any]]) -> Iterable[Block]:
        for run in runs:
            rows = [(record["step"], *row_of(record)) for record in getattr(run, table)]
            yield _with_axes(run, _interval_line(run.letter, rows, colors[run.letter]))

    def loss(record: Record) -> tuple[Any, Any, Any]:
        bounds = loss_interval(record["loss"], record.get("se"), record.get("episodes", 0))
        return record["loss"], *(bounds or 2 * [record["loss"]])

    losses = points("val", loss)
    errors = points("val", lambda record: 3 * ((record.get("open_loop") or {}).get("normalised"),))
    successes = points("rollout", lambda record: itemgetter("rate", "low", "high")(record["success"]))
    success = "Success of rollouts during training, with 95 % intervals"
    wide = {
        "Training loss": chart("Training loss", AXES, "loss", values("train", "loss"), log=False, cut=True, height=280),
        "Validation loss, with 95 % intervals": chart("Validation loss", AXES, "loss", losses, log=False, height=280),
        success: chart("Success of rollouts", AXES, "success rate", successes, height=280),
    }
    norm = values("train", "grad_norm")
    waiting = "Share of the time spent waiting for data"
    half = {
        "Open-loop error, normalized": chart("Open-loop error", AXES, "mean squared error", errors, log=False),
        "Gradient norm, before clipping": chart("Gradient norm", AXES, "norm", norm, log=False, cut=True),
        "Learning rate": chart("Learning rate", AXES, "learning rate", values("train", "lr", smooth=False), log=False),
        "Samples per second": chart(
            "Samples per second", AXES, "samples / s", values("speed", "samples_per_s"), log=False
        ),
        waiting: chart("Waiting for data", AXES, "share of the time", values("speed", "wait"), log=False),
    }
    cards = [card(title, drawn) for title, drawn in wide.items() if drawn]
    rest = grid([card(title, drawn) for title, drawn in half.items() if drawn])
    return [*cards, rest] if cards or rest else [card("", text("No step has been logged yet."))]


def _with_axes(run: Run, line: Block) -> Block:
    """Add samples and hours to a line over steps."""
    steps = np.array(line["x"][0], np.float64)
    hours = run.seconds_at(steps) / 3600
    samples = [round(count) for count in run.samples_at(steps).tolist()]
    return line | {
        "x": [line["x"][0], samples, [float(f"{hour:.5g}") if np.isfinite(hour) else None for hour in hours]]
    }


def _interval_line(letter: str, rows: Sequence[tuple[int, Any, Any, Any]], color: str) -> Block:
    """Make points with whiskers of rows (step, value, low, high), every n-th and the last; None leaves a row out."""
    rows = [row for row in rows if row[1] is not None]
    chosen = sorted({round(place) for place in np.linspace(0, len(rows) - 1, min(POINTS, len(rows)))}) if rows else []
    steps, values, low, high = np.array([rows[index] for index in chosen], np.float64).reshape(-1, 4).T
    return line(letter, steps, values, color, low=low, high=high, points=True)


# -- tables -----------------------------------------------------------------------------------------------------------


def _about(data: Record, colors: Mapping[str, str]) -> Block:
    rows = []
    for run in data["runs"]:
        changed = ", ".join(f"{path} {old} → {new}" for path, (old, new) in run["changed on resume"].items())
        progress = f"step {run['step']:,} of {run['steps']:,}, {run['state']}"
        rows.append([swatch(run["letter"], colors[run["letter"]]), run["name"], run["policy"], progress, changed])
    head = ["", "run", "policy", "progress", "changed on resume"]
    if not any(row[-1] for row in rows):
        head, rows = head[:-1], [row[:-1] for row in rows]
    return card("", table(head, rows))


def _letters(data: Record) -> list[str]:
    return [run["letter"] for run in data["runs"]]


def _differences(data: Record) -> Blocks:
    letters, cards = _letters(data), Blocks()
    if reasons := data["losses are not comparable"]:
        rows = [[" and ".join(r["runs"]), r["property"], r["why"], ", ".join(r["sources"])] for r in reasons]
        reason_table = table(["runs", "difference", "", "datasets"], rows)
        cards.append(card("Some validation losses are not comparable", reason_table, style="bad"))
    kinds = {"settings": "setting", "versions": "package", "datasets": "dataset"}
    for kind, name in kinds.items():
        rows = [[key, *(format_setting(row.get(letter)) for letter in letters)] for key, row in data[kind].items()]
        cards.append(table_card(f"{kind.capitalize()} that differ", [name, *letters], rows, "rows"))
    if equal := [kind for kind in kinds if not data[kind]]:
        cards.append(card("", text(f"Equal in all runs: {', '.join(equal)}.")))
    return cards


def _validation(data: Record) -> Blocks:
    letters = _letters(data)
    without = [run["letter"] for run in data["runs"] if not run["validations"]]
    head = ["dataset", "norm head", *letters, *(f"{letters[0]} − {letter}" for letter in letters[1:])]
    cards = Blocks()
    for kind, title in zip(VALIDATIONS, ("Last validation", "Lowest loss")):
        rows = []
        for group in data["validation"]:
            cells = [_loss(group["losses"].get(letter, {}).get(kind)) for letter in letters]
            others = [_difference(group["differences"].get(letter, {}).get(kind)) for letter in letters[1:]]
            rows.append([group["group"], group["head"], *cells, *others])
        cards.append(table_card(title, head, rows, "rows"))
    if without:
        cards.append(card("", text(f"No validation yet: {', '.join(without)}.")))
    return cards


def _worst(data: Record) -> Block | None:
    letters, rows = _letters(data), []
    for entry in data["worst episodes"]:
        losses = entry["losses"]
        shown = [number(losses[letter]) if letter in losses else "–" for letter in letters]
        rows.append([entry["source"], entry["episode"], *shown])
    return table_card("", ["dataset", "episode", *letters], rows, "rows")


def _success(data: Record) -> Blocks:
    letters, cards = _letters(data), Blocks()
    head = ["task", *letters, *(f"difference to {letter}" for letter in letters[1:])]
    for entry in data["success"]:
        rows = []
        for task, result in entry["tasks"].items():
            rates = [_rate(result["rates"].get(letter)) for letter in letters]
            differences = [_points(result["differences"].get(letter)) for letter in letters[1:]]
            rows.append([task or "(no text)", *rates, *differences])
        notes = [f"not compared: {run}, other {', '.join(names)}" for run, names in entry["not comparable"].items()]
        cards.append(card(entry["title"], table(head, rows, "rows"), note="; ".join([*notes, *entry["notes"]])))
    present = {letter for entry in data["success"] for result in entry["tasks"].values() for letter in result["rates"]}
    if present and (absent := [letter for letter in letters if letter not in present]):
        cards.append(card("", text(f"No rollouts: {', '.join(absent)}.")))
    return cards


def _speed(data: Record) -> Block:
    names = {
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
    for key, (name, form) in names.items():
        values = [figures[key] for figures in data["speed"].values()]
        if any(value is not None for value in values) or key == "host_bytes":
            rows.append([name, *(_figure(key, value, form) for value in values)])
    return card("", table(["", *data["speed"]], rows))


# -- cells ------------------------------------------------------------------------------------------------------------


def _figure(key: str, value: float | None, form: str) -> str:
    if value is None:
        return "not logged"
    if key == "seconds":
        return str(timedelta(seconds=round(value)))
    return f"{value / 2**30:.2f} GiB" if key.endswith("bytes") else form.format(value)


def _loss(figures: Record | None) -> str:
    if figures is None:
        return "–"
    if figures["loss"] is None:
        return f"not finite, step {figures['step']:,}"
    interval = _brackets(figures["interval"]) if figures["interval"] else " (one episode: no interval)"
    return f"{figures['loss']:.4f}{interval}, step {figures['step']:,}"


def _difference(figures: Record | None) -> str:
    if figures is None or figures["difference"] is None:
        return "–"
    return f"{figures['difference']:+.4f}" + (_brackets(figures["interval"], "+") if figures["interval"] else "")


def _brackets(interval: Sequence[float], sign: str = "") -> str:
    return f" [{interval[0]:{sign}.4f}, {interval[1]:{sign}.4f}]"


def _rate(rate: Record | None) -> str:
    if rate is None:
        return "–"
    return f"{rate['successes']}/{rate['episodes']} [{rate['low']:.0%}, {rate['high']:.0%}]"


def _points(figures: Record | None) -> str:
    if figures is None:
        return "–"
    low, high = figures["interval"]
    return f"{100 * figures['difference']:+.0f} [{100 * low:+.0f}, {100 * high:+.0f}]"
