"""Charts of a run, each from records of `metrics.jsonl`."""

from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING, Any

import numpy as np

from understudy.report import html
from understudy.report.html import COLORS
from understudy.report.run.tables import short

if TYPE_CHECKING:
    from matplotlib.axes import Axes

Records = Sequence[Mapping[str, Any]]


def loss(train: Records, val: Records) -> str:
    """Draw the training loss with its moving mean, and the validation loss with twice its standard error.

    One view has a linear axis, cut where the first steps would flatten the rest, with a note about the cut. The other
    view is logarithmic.
    """
    at, losses = _series(train, "loss")
    val_at, val_losses = _series(val, "loss")
    errors = np.array([2 * (r.get("se") or 0.0) for r in val if r.get("loss") is not None])
    top = 1.15 * float(np.percentile(losses, 98)) if len(losses) else 0.0
    top = max(1e-9, top, 1.05 * float(val_losses.max()) if len(val_losses) else 0.0)

    def draw(chart: "Axes", log: bool) -> None:
        if len(at):
            chart.plot(at, losses, color=COLORS[0], alpha=0.22, linewidth=0.7)
            chart.plot(at, smoothed(losses), color=COLORS[0], linewidth=1.8, label="training")
        if len(val_at):
            style: dict[str, Any] = {
                "marker": "o",
                "markersize": 3.5,
                "linewidth": 1.4,
                "capsize": 2.5,
                "elinewidth": 1,
            }
            low = np.minimum(errors, val_losses * 0.999) if log else errors  # a logarithm has no zero
            bars = np.stack([low, errors])
            label = "validation, ± 2 standard errors" if errors.any() else "validation"
            chart.errorbar(val_at, val_losses, bars, color=COLORS[1], label=label, **style)
        if log:
            html.log_scale(chart)
        else:
            chart.set_ylim(0, top)
        if len(at) or len(val_at):
            chart.legend(fontsize=9)
        _label(chart, "step", "loss")

    linear = html.chart(lambda chart: draw(chart, False), "loss per step", height=3.2, wide=True)
    above = int((losses > top).sum())
    if above:
        linear += f'<p class="soft">The axis ends at {top:.3g}: {above} of {len(losses)} losses lie above it.</p>'
    if not len(losses) or losses.min() <= 0 or (len(val_at) and val_losses.min() <= 0):
        return linear
    log = html.chart(lambda chart: draw(chart, True), "loss per step, logarithmic", height=3.2, wide=True)
    return html.views("loss", [("linear", linear), ("logarithmic", log)])


def series(records: Records, key: str, color: int, *, unit: str, log: bool = False, smooth: bool = False) -> str:
    """Draw one quantity over the steps; `unit` is the title of its axis."""
    steps, values = _series(records, key)

    def draw(chart: "Axes") -> None:
        if len(steps):
            faint: dict[str, Any] = {"alpha": 0.25, "linewidth": 0.7} if smooth else {"linewidth": 1.6}
            chart.plot(steps, values, color=COLORS[color], **faint)
            if smooth:
                chart.plot(steps, smoothed(values), color=COLORS[color], linewidth=1.8)
            if log and np.all(values > 0):
                html.log_scale(chart)
            else:
                chart.set_ylim(min(0, float(values.min())), max(0, 1.08 * float(values.max())) or None)
        _label(chart, "step", unit)

    return html.chart(draw, f"{key} per step")


def per_task(val: Records) -> str:
    """Draw the validation loss of each task over the steps."""
    tasks = sorted({task for record in val for task in record["tasks"]})

    def draw(chart: "Axes") -> None:
        for task in tasks:
            losses = [{"step": r["step"], **r["tasks"][task]} for r in val if task in r["tasks"]]
            label = f" {short(task)}" if len(tasks) <= 8 else None  # matplotlib hides labels that begin with _
            chart.plot(*_series(losses, "loss"), marker="o", markersize=3, linewidth=1.5, label=label)
        if tasks and len(tasks) <= 8:
            chart.legend(fontsize=9)
        chart.set_ylim(0, 1.08 * chart.get_ylim()[1])
        _label(chart, "step", "validation loss")

    return html.chart(draw, "validation loss per task and step", height=2.8, wide=True)


def success(rollouts: Records) -> str:
    """Draw the success rate per step with its 95 % interval, and faintly those of up to ten tasks."""
    records = sorted(rollouts, key=lambda record: record["step"])
    steps = [record["step"] for record in records]
    tasks = sorted({task for record in records for task in record["tasks"]})

    def draw(chart: "Axes") -> None:
        for number, task in enumerate(tasks if 1 < len(tasks) <= 10 else []):
            rates = [{"step": r["step"], **r["tasks"][task]} for r in records if task in r["tasks"]]
            chart.plot(*_series(rates, "rate"), linewidth=1, alpha=0.5, color=COLORS[(number + 2) % len(COLORS)])
        rate, low, high = (np.array([record["success"][key] for record in records]) for key in ("rate", "low", "high"))
        bars = np.clip([rate - low, high - rate], 0, None)  # at rates 0 and 1 rounding makes one of them negative
        chart.errorbar(steps, rate, bars, color=COLORS[1], marker="o", markersize=4, linewidth=1.6, capsize=3)
        chart.set_ylim(-0.03, 1.03)
        _label(chart, "step", "success rate")

    return html.chart(draw, "success per step", height=2.4, wide=True)


def per_flow_time(val: Records) -> str:
    """Draw the validation loss per interval of flow time, in the first and the last validation.

    Loss terms with intervals of their own have a line each.
    """

    def draw(chart: "Axes") -> None:
        for record in [val[0], val[-1]] if len(val) > 1 else [val[-1]]:
            lines: dict[str, list[Mapping[str, Any]]] = {}
            for bin in record.get("time", []):
                if bin["loss"] is not None:
                    lines.setdefault(" and ".join(bin.get("terms", ())), []).append(bin)
            for number, (terms, bins) in enumerate(lines.items()):
                edges = [bins[0]["from"], *(bin["to"] for bin in bins)]
                losses = [bin["loss"] for bin in bins]
                color, dashes = COLORS[1] if record is val[-1] else COLORS[0], ("-", "--", ":")[number % 3]
                label = f"step {record['step']:,}" + (f", {terms}" if terms else "")
                chart.step(edges, [losses[0], *losses], where="pre", color=color, ls=dashes, linewidth=1.8, label=label)
        chart.set_ylim(0, 1.08 * chart.get_ylim()[1])
        _label(chart, "flow time", "validation loss", whole=False)
        chart.legend(fontsize=9)

    return html.chart(draw, "validation loss over flow time")


def chunk(actions: np.ndarray, padded: np.ndarray) -> str:
    """Draw a small chart of an action chunk [T, A]: one line per dimension, padded steps faint."""
    figure, chart = html.axes(2.3, 1.25, size=8)
    frames = np.arange(len(actions))
    for dimension in range(actions.shape[1]):
        color = COLORS[dimension % len(COLORS)]
        chart.plot(frames, actions[:, dimension], color=color, alpha=0.25, linewidth=1.2)
        chart.plot(frames, np.where(padded, np.nan, actions[:, dimension]), color=color, linewidth=1.6)
    return html.svg(figure, "action chunk, one line per dimension")


def term(train: Records, val: Records, name: str) -> str:
    """Draw a loss term: the moving mean in training, and the validations."""
    curves = [
        [{"step": r["step"], **r["terms"][name]} for r in records if name in r.get("terms", {})]
        for records in (train, val)
    ]

    def draw(chart: "Axes") -> None:
        (at, losses), (val_at, val_losses) = (_series(records, "loss") for records in curves)
        if len(at):
            chart.plot(at, losses, color=COLORS[0], alpha=0.22, linewidth=0.7)
            chart.plot(at, smoothed(losses), color=COLORS[0], linewidth=1.8, label="training")
        if len(val_at):
            chart.plot(val_at, val_losses, color=COLORS[1], marker="o", markersize=3.5, label="validation")
        if len(at) or len(val_at):
            chart.legend(fontsize=9)
            top = max(float(np.percentile(values, 98)) for values in (losses, val_losses) if len(values))
            chart.set_ylim(0, max(1e-9, 1.15 * top))
        _label(chart, "step", f"{name} loss")

    return html.chart(draw, f"{name} loss per step")


def _label(chart: "Axes", x: str, y: str, *, whole: bool = True) -> None:
    """Name the axes; with `whole` the ticks of x are whole numbers."""
    from matplotlib.ticker import MaxNLocator

    chart.set_xlabel(x)
    chart.set_ylabel(y)
    if whole:
        chart.xaxis.set_major_locator(MaxNLocator("auto", integer=True, steps=[1, 2, 5, 10]))


def smoothed(values: np.ndarray) -> np.ndarray:
    """Centred moving mean over about a fiftieth of the series; the window is cut at both ends."""
    half = max(1, len(values) // 100)
    total = np.concatenate([[0.0], np.cumsum(values)])
    at = np.arange(len(values))
    low, high = np.maximum(0, at - half), np.minimum(len(values), at + half + 1)
    return (total[high] - total[low]) / (high - low)


def _series(records: Records, key: str) -> tuple[np.ndarray, np.ndarray]:
    """Steps and values of the records with a finite value, thinned to at most 8,000 points."""
    points = [(record["step"], record[key]) for record in records if record.get(key) is not None]
    every = max(1, len(points) // 4000)
    array = np.array(points[::every], dtype=np.float64).reshape(-1, 2)
    return array[:, 0], array[:, 1]
