"""Section of the report on validation: heat-map of the groups, table with standard errors, flow time, open loop.

It reads only the records of `metrics.jsonl`.
"""

from collections.abc import Callable, Mapping, Sequence
from html import escape
from math import floor, isfinite, log10
from typing import Any

from understudy.report import charts, html
from understudy.report.run import heatmap
from understudy.report.run.tables import KINDS, STILL, mode_rows, several_terms, with_error
from understudy.train.validation.metrics import notes_on_groups

Records = Sequence[Mapping[str, Any]]

LINES = 40
"""Most tasks with a line each in a chart; with more the chart is unreadable, and the heat-map shows which matter."""


def render_validation(val: Records) -> str:
    """Render the cards of a run's validations, oldest first; "" without any."""
    if not val:
        return ""
    last, cards = val[-1], []
    if len(val) > 1:
        cards.append(html.card("<h3>Each group over the steps</h3>", heatmap.heatmap(val)))
    cards.append(html.card(_table(val)))
    if modes := last.get("modes"):
        head, *rows = mode_rows(modes)
        cards.append(html.card("<h3>Losses in each task mode</h3>", _folded(html.table(head, rows), len(rows), "rows")))
    half_width = []
    if len(val) > 1 and len(last["tasks"]) <= LINES:
        cards.append(html.card("<h3>Per task</h3>", charts.per_task(val)))
    if last.get("time"):
        why = (
            "Near 1 the policy chooses among motions, near 0 it refines one: a high end shows which of both is missing."
        )
        title = f"<h3>Over flow time (1 is noise)</h3><p class='soft'>{why}</p>"
        half_width.append(html.card(title, charts.per_flow_time(val)))
    if last.get("open_loop"):
        records = [{"step": r["step"], **r["open_loop"]} for r in val if r.get("open_loop")]
        if len(records) > 1:
            chart = charts.series(records, "normalised", 4, unit="mean squared error")
            half_width.append(html.card("<h3>Open-loop error, normalized</h3>", chart))
        cards.append(html.card(_open_loop(last["open_loop"])))
    cards.append(html.grid(half_width, "two"))
    return "".join(card for card in cards if card)


def number(value: float | None, digits: int = 4) -> str:
    """Format a figure; None is one that was not finite."""
    return "not finite" if value is None else f"{value:.{digits}f}"


def decimals(error: float | None) -> int:
    """Number of decimals that a figure with this standard error deserves: two digits of the error; 4 without one."""
    return 4 if not error or not isfinite(error) else min(6, max(0, 1 - floor(log10(error))))


def _table(val: Records) -> str:
    """Render the figures of the last validation, and the lowest so far."""
    last = val[-1]
    step = f"at step {last['step']:,}"

    terms = several_terms(last)

    def figures(entry: Mapping[str, Any], before: Sequence[tuple[float | None, int]]) -> list[Any]:
        low, at = min(((x, step) for x, step in before if x is not None), default=(None, 0))
        se, means = entry.get("se"), entry.get("terms", {})
        digits = decimals(se)
        return [
            number(entry["loss"], digits),
            "" if se is None else f"± {se:.{digits}f}",
            *(number(means[term]["loss"], digits) if term in means else "" for term in terms),
            number(low, digits),
            "" if low is None else at,
        ]

    head, rows = [step, "standard error", *terms, "lowest so far", "at step"], []
    for kind, name in KINDS.items():
        groups = last.get(kind, {})
        if kind != "tasks" and len(groups) < 2:
            continue  # a single head or source is all samples
        for group, entry in groups.items():
            before = [(r[kind][group]["loss"], r["step"]) for r in val if group in r.get(kind, {})]
            rows.append(
                [name, group or "(no text)", entry["samples"], entry.get("episodes", ""), *figures(entry, before)]
            )
    samples = sum(entry["samples"] for entry in last["tasks"].values())
    frames = last.get("held_out", samples)
    evaluated = f"all {samples:,} samples" if frames == samples else f"{samples:,} of {frames:,} validation frames"
    over_all = [[evaluated, *figures(last, [(r["loss"], r["step"]) for r in val])]]
    means: dict[str, Callable[[Mapping[str, Any]], float | None]] = {"mean of the tasks": lambda r: r["macro"]}
    if len(last.get("heads", {})) > 1:
        means["heads by their weights"] = lambda r: r.get("weighted")
    over_all += [[name, *figures({"loss": of(last)}, [(of(r), r["step"]) for r in val])] for name, of in means.items()]
    per_group = html.table(["kind", "group", "samples", "episodes", *head], rows)
    notes = "".join(f'<p class="soft">{escape(note)}</p>' for note in notes_on_groups(last))
    return (
        notes
        + html.table(["samples", *head], over_all)
        + '<div class="gap"></div>'
        + _folded(per_group, len(rows), "groups")
    )


def _open_loop(result: Mapping[str, Any]) -> str:
    rows = []
    for source, entry in result["sources"].items():
        off = with_error(entry)
        rows += [[source, joint, number(entry["mse"][joint], 5), number(entry["mae"][joint], 5)] for joint in off]
        if still := len(entry["mse"]) - len(off):
            rows.append([source, f"{still} {STILL}", "", ""])
    note = (
        f"Predicted actions on one validation frame in {result['every']}, compared with the recorded ones, in the "
        f"robot's units. Mean squared error in normalized units over all joints: {number(result['normalised'])}."
    )
    table = html.table(["source", "joint", "mean squared error, units²", "mean absolute error, units"], rows)
    return f'<h3>Open-loop error</h3><p class="soft">{note}</p>{_folded(table, len(rows), "joints")}'


def _folded(table: str, rows: int, unit: str) -> str:
    """Fold a table of more than 40 rows."""
    return table if rows <= 40 else f"<details><summary>{rows} {unit}</summary>{table}</details>"
