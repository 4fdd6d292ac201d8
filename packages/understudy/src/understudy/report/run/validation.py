"""Sections of the report on losses, validation and imagined futures, from the records of
`metrics.jsonl`.
"""

import json
from collections.abc import Callable, Mapping, Sequence
from itertools import chain
from math import floor, inf, isfinite, log2, log10
from pathlib import Path
from typing import Any

import numpy as np

from understudy.report.run.tables import (
    KINDS,
    STILL,
    mode_rows,
    several_terms,
    short_text,
    with_error,
)
from understudy.train.track.metrics_file import STEPS, mean_loss
from understudy.train.validation.metrics import notes_on_groups
from understudy_base import Record, Records
from understudy_kit import Block, Blocks, Curve

LINES = 40
"""Most tasks with a line each in a chart; with more the chart is unreadable, and the heat-map shows
which matter.
"""


def number(value: float | None, digits: int = 4) -> str:
    """Format a figure; None is one that was not finite."""
    return "not finite" if value is None else f"{value:.{digits}f}"


def decimals(error: float | None) -> int:
    """Return the number of decimals that a figure with this standard error deserves: two digits of
    it; 4 without.
    """
    return 4 if not error or not isfinite(error) else min(6, max(0, 1 - floor(log10(error))))


# -- losses ----------------------------------------------------------------------------------------


def render_losses(train: Records, val: Records) -> Blocks:
    """Render the cards of the losses of a run, records oldest first."""
    if not train:
        return [Block.card("", Block.paragraph("No step has been logged yet."))]
    bounds = [(r["loss"], 2 * (r.get("se") or 0.0)) for r in val if r.get("loss") is not None]
    whiskers = {
        "low": [loss - half for loss, half in bounds],
        "high": [loss + half for loss, half in bounds],
    }
    steps = [r["step"] for r in val if r.get("loss") is not None]
    label = "validation, ± 2 standard errors" if any(half for _, half in bounds) else "validation"
    lines = [
        Curve.from_records("training", train, "loss", 0, smooth=True),
        Curve(label, steps, [loss for loss, _ in bounds], 1, points=True, **whiskers),
    ]
    latest = train[-STEPS:]
    names = chain.from_iterable(record.get("terms", ()) for record in latest)
    terms = several_terms({"terms": dict.fromkeys(names)})
    last_validation = val[-1] if val else {}
    return [
        Block.card(
            "Loss", Block.chart("loss", "step", "loss", lines, log=False, cut=True, height=300)
        ),
        Block.grid([Block.card(name, _term_chart(train, val, name)) for name in terms]),
        _group_losses(latest, last_validation),
    ]


def _term_chart(train: Records, val: Records, name: str) -> Block | None:
    """Draw a loss term: the moving mean in training, and the validations."""
    lines = [
        Curve.from_records("training", _records_of_term(train, name), "loss", 0, smooth=True),
        Curve.from_records("validation", _records_of_term(val, name), "loss", 1, points=True),
    ]
    return Block.chart(f"{name} loss", "step", f"{name} loss", lines, cut=True)


def _records_of_term(records: Records, name: str) -> list[Record]:
    """Step and figures of a loss term, of each record that has it."""
    having = [record for record in records if name in record.get("terms", {})]
    return [{"step": record["step"], **record["terms"][name]} for record in having]


def _group_losses(train: Records, last: Record) -> Block | None:
    """Render the mean loss of each term per source and task mode, in training and in the latest
    validation.
    """
    rows: list[list[str]] = []
    terms = _names_of(train, "terms")
    for kind, label in {"sources": "source", "modes": "task mode"}.items():
        for name in _names_of(train, kind):
            steps = [record[kind][name] for record in train if name in record.get(kind, {})]
            validation = last.get(kind, {}).get(name, {}).get("terms", {})
            losses = [mean_loss(steps, term) for term in terms]
            losses += [validation.get(term, {}).get("loss") for term in terms]
            row = [label, name]
            for loss in losses:
                cell = "" if loss is None else f"{loss:.4g}"
                row.append(cell)
            rows.append(row)
    head = [
        "group",
        "name",
        *(f"{term}, training" for term in terms),
        *(f"{term}, validation" for term in terms),
    ]
    note = f"Means over the last {len(train)} steps, without the weights of the terms."
    return Block.table_card("Loss terms per group", head, rows, note=note)


def _names_of(records: Records, kind: str) -> list[str]:
    """Distinct names that records have under a key, in the sequence of their first appearance."""
    return list(dict.fromkeys(chain.from_iterable(record.get(kind, ()) for record in records)))


# -- validation ------------------------------------------------------------------------------------


def render_validation(val: Records, spreads: Mapping[str, Sequence[float]] = {}) -> Blocks:
    """Render the cards of a run's validations, oldest first; none without any.

    Args:
        val: The records.
        spreads: Source -> spread of each action dimension in training, where it is known.
    """
    if not val:
        return []
    last = val[-1]
    groups_over_steps = heatmap(val) if len(val) > 1 else None
    cards = [
        groups_over_steps,
        Block.card(
            "", *map(Block.paragraph, notes_on_groups(last)), _overall_table(val), _group_table(val)
        ),
    ]
    if modes := last.get("modes"):
        head, *rows = mode_rows(modes)
        cards.append(Block.card("Losses in each task mode", Block.table(head, rows, "rows")))
    if len(val) > 1 and len(last["tasks"]) <= LINES:
        cards.append(Block.card("Per task", task_chart(val)))
    halves: Blocks = []
    if last.get("time"):
        note = (
            "Near 1 the policy chooses among motions, near 0 it refines one: a high end shows "
            "which of both is missing."
        )
        halves.append(Block.card("Over flow time (1 is noise)", _flow_time_chart(val), note=note))
    if errors := last.get("open_loop"):
        records = [{"step": r["step"], **r["open_loop"]} for r in val if r.get("open_loop")]
        lines = [Curve.from_records("open-loop error", records, "normalised", 4)]
        drawn = Block.chart("open-loop error", "step", "mean squared error, normalized", lines)
        if len(records) > 1:
            halves.append(Block.card("Open-loop error, normalized", drawn))
        cards.append(_open_loop(errors, spreads))
    return [*cards, Block.grid(halves)]


def _overall_table(val: Records) -> Block:
    """Render the last and the lowest loss of all samples, and the means of the tasks and heads."""
    last = val[-1]
    samples = sum(entry["samples"] for entry in last["tasks"].values())
    frames = last.get("held_out", samples)
    evaluated = f"all {samples:,} samples"
    if frames != samples:
        evaluated = f"{samples:,} of {frames:,} validation frames"
    rows = [[evaluated, *_figures(last, last, [(r["loss"], r["step"]) for r in val])]]
    means: dict[str, Callable[[Record], float | None]] = {"mean of the tasks": lambda r: r["macro"]}
    if len(last.get("heads", {})) > 1:
        means["heads by their weights"] = lambda r: r.get("weighted")
    for name, mean in means.items():
        history = [(mean(record), record["step"]) for record in val]
        rows.append([name, *_figures(last, {"loss": mean(last)}, history)])
    return Block.table(["samples", *_figure_head(last)], rows)


def _group_table(val: Records) -> Block:
    """Render the last and the lowest loss of each norm head, source and task."""
    last = val[-1]
    merged: dict[str, list[Any]] = {}  # a source of one robot and one task is one row
    for kind, name in KINDS.items():
        groups = last.get(kind, {})
        if kind != "tasks" and len(groups) < 2:
            continue  # a single head or source is all samples
        for group, entry in groups.items():
            history = [(r[kind][group]["loss"], r["step"]) for r in val if group in r.get(kind, {})]
            counts = [entry["samples"], entry.get("episodes", "")]
            figures = [*counts, *_figures(last, entry, history)]
            names = merged.setdefault(str(figures), [[], [], figures])
            names[0].append(name)
            names[1].append(group or "(no text)")
    rows = []
    for kinds, groups, figures in merged.values():
        rows.append([", ".join(dict.fromkeys(kinds)), " · ".join(groups), *figures])
    return Block.table(
        ["kind", "group", "samples", "episodes", *_figure_head(last)], rows, "groups"
    )


def _figure_head(last: Record) -> list[str]:
    return [
        f"at step {last['step']:,}",
        "standard error",
        *several_terms(last),
        "lowest so far",
        "at step",
    ]


def _figures(last: Record, entry: Record, history: Sequence[tuple[float | None, int]]) -> list[Any]:
    """Loss of a group with its standard error and terms, and the lowest of its `history` with its
    step.
    """
    lowest, step = min(
        ((loss, step) for loss, step in history if loss is not None), default=(None, 0)
    )
    error = entry.get("se")
    means = entry.get("terms", {})
    digits = decimals(error)
    error_cell = "" if error is None else f"± {error:.{digits}f}"
    term_cells = []
    for term in several_terms(last):
        term_cell = number(means[term]["loss"], digits) if term in means else ""
        term_cells.append(term_cell)
    step_cell = "" if lowest is None else step
    return [
        number(entry["loss"], digits),
        error_cell,
        *term_cells,
        number(lowest, digits),
        step_cell,
    ]


def task_chart(val: Records) -> Block | None:
    """Draw the validation loss of each task over the steps."""
    tasks = sorted(set(chain.from_iterable(record["tasks"] for record in val)))
    lines = []
    for index, task in enumerate(tasks):
        losses = [{"step": r["step"], **r["tasks"][task]} for r in val if task in r["tasks"]]
        lines.append(Curve.from_records(short_text(task), losses, "loss", index, points=True))
    return Block.chart("validation loss per task", "step", "validation loss", lines)


def _flow_time_chart(val: Records) -> Block | None:
    """Draw the validation loss per interval of flow time, in the first and the last validation.

    Loss terms with other intervals have a line each.
    """
    lines = []
    records = [val[0], val[-1]] if len(val) > 1 else [val[-1]]
    for record in records:
        intervals: dict[str, list[Record]] = {}
        for interval in record.get("time", []):
            if interval["loss"] is not None:
                intervals.setdefault(" and ".join(interval.get("terms", ())), []).append(interval)
        for index, (terms, bins) in enumerate(intervals.items()):
            edges = [bins[0]["from"], *(bin["to"] for bin in bins)]
            name = f"step {record['step']:,}"
            if terms:
                name += f", {terms}"
            color = 1 if record is val[-1] else 0
            lines.append(
                Curve.from_edges(
                    name, edges, [bin["loss"] for bin in bins], color, dashed=index % 2 == 1
                )
            )
    return Block.chart("validation loss over flow time", "flow time", "validation loss", lines)


def _open_loop(errors: Record, spreads: Mapping[str, Sequence[float]]) -> Block:
    """Render the errors of each joint, those of a source by their share of the joint's spread."""
    rows = []
    for source, entry in errors["sources"].items():
        spread = dict(zip(entry["mae"], spreads.get(source, ())))
        moved = with_error(entry)
        shares = dict.fromkeys(moved, 0.0)
        for joint in moved:
            if entry["mae"][joint] is not None and spread.get(joint):
                shares[joint] = entry["mae"][joint] / spread[joint]
        for joint in sorted(moved, key=shares.__getitem__, reverse=True):
            figures = [number(entry[error][joint], 5) for error in ("mse", "mae")]
            share = f"{100 * shares[joint]:.0f} %" if shares[joint] else ""
            bar = Block.interval_bar(0.0, None, min(1.0, shares[joint])) if share else ""
            rows.append([source, joint, *figures, share, bar])
        if still := len(entry["mse"]) - len(moved):
            rows.append([source, f"{still} {STILL}", "", "", "", ""])
    note = (
        f"Predicted actions on one validation frame in {errors['every']}, compared with the "
        "recorded ones, in the robot's units. The spread is that of the joint in training, by "
        "which the policy normalizes it. Mean squared error in normalized units over all "
        f"joints: {number(errors['normalised'])}."
    )
    head = ["source", "joint", "mean squared error, units²", "mean absolute error, units"]
    head += ["of the spread", ""]
    return Block.card("Open-loop error", Block.table(head, rows, "joints"), note=note)


# -- heat-map --------------------------------------------------------------------------------------

MISSING = object()
COLUMNS = 12
ROWS = 40
WORSE = 0.05
"""Rise above a group's lowest loss that is marked."""
DEEPEST = 4.0
"""Factor above the lowest loss of the full color."""


def describe_worse(val: Records) -> str:
    """Name the groups with a marked rise, worst first, and the step of their lowest loss; ""
    without any.
    """
    rises = []
    for name, history in _histories(val).items():
        rise, best = since_lowest(history)
        if rise > WORSE:
            rises.append((rise, short_text(name), val[best]["step"]))
    rises.sort(reverse=True)
    named = [f"{name} since step {step:,}" for _, name, step in rises[:3]]
    more = f", and {len(rises) - 3} more" if len(rises) > 3 else ""
    return f"Worse: {', '.join(named)}{more}." if named else ""


def _histories(val: Records) -> dict[str, list[Any]]:
    """Return the losses of each group over the validations, MISSING where one lacks it."""
    losses = []
    for record in val:
        losses.append({name: entry["loss"] for name, entry in _groups_of(record).items()})
    names = sorted(set(chain.from_iterable(losses)))
    return {name: [record.get(name, MISSING) for record in losses] for name in names}


def heatmap(val: Records) -> Block | None:
    """Render the loss of every group over the steps as colored cells; None if no record has groups.

    Rows are sources and their tasks (tasks alone for a single source), those with a marked rise
    first, at most `ROWS`. Columns are validations, thinned evenly to `COLUMNS`, the last one
    included. The color of a cell is the distance of its loss to the lowest loss of its group, so
    that easy and hard groups are comparable.
    """
    histories = _histories(val)
    names = list(histories)
    if not names:
        return None
    rises = {name: since_lowest(history)[0] for name, history in histories.items()}

    def rank(name: str) -> float:
        return -rises[name] if rises[name] > WORSE else 0.0

    ranked = sorted(names, key=rank)
    steps = [record["step"] for record in val]
    columns = sorted(
        {round(place) for place in np.linspace(0, len(val) - 1, min(COLUMNS, len(val)))}
    )
    rows = [_heat_row(name, histories[name], steps, columns) for name in ranked[:ROWS]]
    worse = sum(rise > WORSE for rise in rises.values())
    count = "No group is"
    if worse:
        verb = "are" if worse > 1 else "is"
        count = f"{worse} of {len(names)} groups {verb}"
    note = (
        f"{count} more than {100 * WORSE:.0f} % above the lowest loss of the group, which is "
        f"framed. Deeper colors are further above it; the deepest is {DEEPEST:g} times it."
    )
    rest = Block.paragraph(f"and {len(names) - ROWS} more groups") if len(names) > ROWS else None
    head = ["step", *(f"{steps[column]:,}" for column in columns), ""]
    return Block.card("Each group over the steps", Block.table(head, rows), rest, note=note)


def _groups_of(record: Record) -> dict[str, Record]:
    """Entries of the groups of one validation by name: tasks, with their sources if there are
    several.
    """
    groups = record.get("groups", [])
    if len({group["source"] for group in groups}) > 1:
        return {f"{group['source']} · {group['task']}": group for group in groups}
    return dict(record.get("tasks", {}))


def since_lowest(history: Sequence[Any]) -> tuple[float, int]:
    """Return the rise of a group's last loss above its lowest, as a share of the lowest, and the
    index of the lowest.

    In `history`, None is a loss that was not finite, and MISSING an absent one. The rise is
    infinite if the last loss is not finite and another one is.
    """
    finite = [
        (loss, index)
        for index, loss in enumerate(history)
        if loss is not None and loss is not MISSING
    ]
    if not finite:
        return 0.0, -1
    lowest, index = min(finite)
    if history[-1] is MISSING:
        return 0.0, index
    if history[-1] is None:
        return inf, index
    rise = history[-1] / lowest - 1 if lowest > 0 else 0.0
    return rise, index


def _heat_row(
    name: str, history: Sequence[Any], steps: Sequence[int], columns: Sequence[int]
) -> list[Any]:
    rise, best = since_lowest(history)
    lowest = history[best] if best >= 0 else None
    cells = [_heat_cell(history[column], lowest, column == best) for column in columns]
    if rise > WORSE:
        amount = "not finite, lowest at" if rise == inf else f"+{100 * rise:.0f} % since"
        note = Block.styled(f"▲ worse: {amount} step {steps[best]:,}", "bad")
    elif rise > 0:
        note = Block.styled(f"+{100 * rise:.1f} % since step {steps[best]:,}", "soft")
    else:
        remark = "at its lowest" if best == len(history) - 1 else ""
        note = Block.styled(remark, "soft")
    return [name or "(no text)", *cells, note]


def _heat_cell(loss: Any, lowest: float | None, is_best: bool) -> Any:
    if loss is MISSING:
        return ""
    if loss is None:
        return Block.styled("NaN", "cell bad", depth="0", hint="not finite")
    above = log2(loss / lowest) / log2(DEEPEST) if lowest else 0.0
    depth = 0.06 + 0.64 * min(1.0, max(0.0, above))
    style = "cell best" if is_best else "cell"
    return Block.styled(f"{loss:.3g}", style, depth=f"{depth:.2f}", hint="")


# -- imagined futures ------------------------------------------------------------------------------


def render_imagined(val: Records, strips: Path) -> Blocks:
    """Render the imagined futures of the latest validation; none if the run has none.

    Args:
        val: Validation records, oldest first.
        strips: PNG file with images, which may be absent.
    """
    latest = next((record for record in reversed(val) if record.get("imagined")), None)
    if latest is None:
        return []
    figures = latest["imagined"]
    note = (
        f"{figures['frames']} validation frames at step {latest['step']:,}: the policy gets the "
        "recorded observation and the recorded actions. A copy of the present, nothing changes, "
        "is the reference."
    )
    cards = [Block.card("", _imagined_images(images))] if (images := figures.get("images")) else []
    if states := figures.get("states"):
        lines = [
            Curve(
                label,
                range(1, len(states[name]) + 1),
                np.array(states[name], np.float64),
                color,
                points=True,
            )
            for color, (name, label) in enumerate(
                {"model": "imagined", "copy": "copy of the present"}.items()
            )
        ]
        drawn = Block.chart(
            "error of imagined states",
            "actions ahead",
            "mean squared error, normalized",
            lines,
            log=True,
        )
        cards.append(Block.card("Error of imagined states after each action", drawn))
    if shown := _strips(strips):
        cards.append(Block.card("Recorded and imagined images", *shown))
    return [Block.paragraph(note), *cards]


def _imagined_images(images: Record) -> Block:
    rows = []
    for index, ahead in enumerate(images["ahead"]):
        for kind, pixels in (("psnr", "all"), ("psnr_moved", "changing")):
            row = [ahead, pixels]
            for name in ("model", "copy"):
                ratio = images[kind][name][index]
                cell = "" if ratio is None else f"{ratio:.2f}"
                row.append(cell)
            rows.append(row)
    return Block.table(["frames ahead", "pixels", "imagined, PSNR in dB", "copy"], rows)


def _strips(path: Path) -> list[Block]:
    """Render the rows of images; none if the file is absent or not an image of this kind."""
    from PIL import Image

    try:
        with Image.open(path) as image:
            content = json.loads(image.text["understudy"])  # type: ignore[attr-defined]
            pixels = np.asarray(image.convert("RGB"))
        rows = content["rows"]
        columns = content["columns"]
        bands = np.split(pixels, len(rows), axis=0)
        cells = [np.split(band, len(columns), axis=1) for band in bands]
    except (OSError, ValueError, KeyError, AttributeError, ZeroDivisionError):
        return []
    blocks: list[Block] = []
    for title, images in zip(rows, cells):
        blocks += [Block.paragraph(title), Block.film(images, columns, title)]
    return blocks
