"""A validation record as text: a table per kind of group, and open-loop errors."""

from collections.abc import Mapping, Sequence
from itertools import chain

from understudy.policies.common.settings import TaskMode
from understudy.train.validation.metrics import notes_on_groups
from understudy_base import Record

KINDS = {"heads": "norm head", "sources": "source", "tasks": "task"}


LONGEST = 80
"""Most characters of a name to show."""


def format_validation(result: Record, mode: str = "policy") -> str:
    """Format a validation with its `step` for a terminal.

    Args:
        result: The record of a validation.
        mode: Task mode of the validation (`TrainConfig.val_mode`).
    """
    terms = several_terms(result)
    trained = [term for term in terms if TaskMode.is_trained(term, mode)]
    suffix = f" of {' and '.join(trained)}, in mode {mode}" if trained else ""
    parts = [f"step {result['step']}, validation loss{suffix}"]
    head = ("", "loss", "standard error", *terms, "samples", "episodes")
    kinds = {} if result.get("scalar") else KINDS
    for kind, name in kinds.items():
        rows = [_row(group, entry, terms) for group, entry in result[kind].items()]
        parts.append(aligned((name, *head[1:]), rows))
    parts += notes_on_groups(result)
    samples = result["samples"]
    frames = result.get("held_out", result["samples"])
    everything = "all samples"
    if frames > samples:
        everything = f"{samples:,} of {frames:,} validation frames"
    means = [_row(everything, result, terms)]
    empty = [""] * (len(head) - 2)
    if not result.get("scalar"):
        means.append(("mean of the tasks", _number(result["macro"]), *empty))
    if len(result["sources"]) > 1:
        means.append(("mean of the sources", _number(result["macros"]["sources"]), *empty))
    if "weighted" in result and len(result["heads"]) > 1:
        means.append(("heads by their weights", _number(result["weighted"]), *empty))
    parts.append(aligned(head, means))
    for source, entry in result["sources"].items():
        if entry.get("dims") == {}:
            parts.append(f"{short_text(source)}: the policy gives no loss by dimension (`detail`)")
        elif "dims" in entry:
            rows = [(joint, _number(loss)) for joint, loss in entry["dims"].items()]
            parts.append(aligned((f"{short_text(source)}: dimension", "loss"), rows))
    if "open_loop" in result:
        parts += _open_loop(result["open_loop"])
    if "modes" in result:
        top, *table = mode_rows(result["modes"])
        parts.append(aligned(top, table))
    if "imagined" in result:
        parts += _imagined(result["imagined"])
    return "\n\n".join(parts)


def several_terms(result: Record) -> list[str]:
    """Return the names of the loss terms of a validation, none for a single one, which is the
    loss.
    """
    terms = list(result.get("terms", ()))
    return terms if len(terms) > 1 else []


def mode_rows(modes: Mapping[str, Record]) -> list[tuple[str, ...]]:
    """Return a table of validations in several task modes: a head, and for each mode all samples
    and every task.

    A loss term that a mode gives, and the open-loop error where a group has none, are empty cells.
    """
    terms = list(
        dict.fromkeys(chain.from_iterable(figures.get("terms", ()) for figures in modes.values()))
    )
    kinds = list(KINDS)
    if all(len(figures["heads"]) <= 1 for figures in modes.values()):
        kinds.remove("heads")
    rows = [("task mode", "of", *terms, "open-loop error", "samples")]
    for mode, figures in modes.items():
        groups = [("all", figures, (figures.get("open_loop") or {}).get("normalised"))]
        for kind in kinds:
            of_kind = figures[kind]
            if kind == "sources" and len(of_kind) < 2:
                continue
            errors = {}
            if kind == "sources":
                errors = (figures.get("open_loop") or {}).get("sources", {})
            groups += [
                (short_text(name), entry, errors.get(name, {}).get("normalised"))
                for name, entry in of_kind.items()
            ]
        for name, entry, error in groups:
            losses = entry.get("terms", {})
            cells = _term_cells(losses, terms)
            error_cell = "" if error is None else _number(error)
            rows.append((mode, name, *cells, error_cell, str(entry["samples"])))
    return rows


def _term_cells(losses: Mapping[str, Record], terms: Sequence[str]) -> list[str]:
    """Format the loss of each term, "" where it has none."""
    cells = []
    for term in terms:
        cell = _number(losses[term]["loss"]) if term in losses else ""
        cells.append(cell)
    return cells


def _imagined(figures: Record) -> list[str]:
    """Format errors of imagined states and images, and of a copy of the present."""
    parts = []
    if states := figures.get("states"):
        rows = []
        for ahead, errors in enumerate(zip(states["model"], states["copy"]), start=1):
            row = [str(ahead)]
            for error in errors:
                cell = "" if error is None else _number(error)
                row.append(cell)
            rows.append(row)
        title = f"imagined states, {figures['frames']} frames: actions ahead"
        parts.append(aligned((title, "mean squared error", "copy of the present"), rows))
    if images := figures.get("images"):
        columns = []
        for kind in ("psnr", "psnr_moved"):
            columns += [images[kind]["model"], images[kind]["copy"]]
        rows = []
        for number, ahead in enumerate(images["ahead"]):
            rows.append([str(ahead), *(_decibels(ratios[number]) for ratios in columns)])
        head = (
            "imagined images, PSNR in dB: frames ahead",
            "imagined",
            "copy",
            "where pixels change",
            "copy there",
        )
        parts.append(aligned(head, rows))
    return parts


def _decibels(value: float | None) -> str:
    return "" if value is None else f"{value:.2f}"


def short_text(name: str) -> str:
    """Put a name, any text of a dataset's task, on one line and cut it to `LONGEST` characters."""
    characters = list(name)
    for index, character in enumerate(characters):
        if not character.isprintable():
            characters[index] = " "
    line = " ".join("".join(characters).split()) or "(no text)"
    return line if len(line) <= LONGEST else f"{line[: LONGEST - 1]}…"


def _open_loop(result: Record) -> list[str]:
    parts = [
        f"open-loop error of predicted actions on one frame in {result['every']}: mean squared "
        f"error {_number(result['normalised'])} in normalized units"
    ]
    for source, entry in result["sources"].items():
        off = with_error(entry)
        rows = [
            (joint, _number(entry["mse"][joint]), _number(entry["mae"][joint])) for joint in off
        ]
        if still := len(entry["mse"]) - len(off):
            rows.append((f"{still} {STILL}", "", ""))
        title = f"{short_text(source)}, {entry['samples']} frames: joint, in the robot's units"
        parts.append(aligned((title, "mean squared error", "mean absolute error"), rows))
    return parts


def with_error(entry: Record) -> list[str]:
    """Return the joints of a source (`OpenLoop.result`) with any open-loop error; a joint that
    never moves has none.
    """
    return [joint for joint, mse in entry["mse"].items() if mse != 0 or entry["mae"][joint] != 0]


STILL = "more without any error: they never move"


def _row(name: str, entry: Record, terms: Sequence[str]) -> tuple[str, ...]:
    se = "" if entry["se"] is None else f"± {_number(entry['se'])}"
    means = entry.get("terms", {})
    losses = _term_cells(means, terms)
    return (
        short_text(name),
        _number(entry["loss"]),
        se,
        *losses,
        str(entry["samples"]),
        str(entry["episodes"]),
    )


def _number(value: float | None) -> str:
    return "not finite" if value is None else f"{value:.5g}"


def aligned(head: Sequence[str], rows: Sequence[Sequence[str]]) -> str:
    """Align columns to their widest cell, the first one left, the others right."""
    table = (head, *rows)
    widths = []
    for column in range(len(head)):
        widths.append(max(len(row[column]) for row in table))
    lines = []
    for name, *figures in table:
        cells = [name.ljust(widths[0])]
        cells += [figure.rjust(width) for figure, width in zip(figures, widths[1:])]
        lines.append("  ".join(cells).rstrip())
    return "\n".join(f"  {line}" for line in lines)
