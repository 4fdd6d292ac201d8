"""An account of the samples of a run or order file, as text and as a page."""

from collections.abc import Mapping
from typing import Any

from understudy_base import plural
from understudy_kit import Block, render_page

_LISTED = 20  # rows of a table in the text
_TIMES = "times each frame"
_PLACE = "step {step}, position {position}, frame {frame} of episode {episode} of {source}"


def _statements(result: Mapping[str, Any]) -> list[str]:
    """Return the statements of an account, in sentences."""
    subject = result["of"]
    if "checkpoint" in result:
        subject += f", checkpoint {result['checkpoint']}"
    if result.get("training"):
        subject += " of a run that is training"
    lines = [subject]
    lines.append(f"trained on {result['samples']:,} samples")
    if result["not_trained"]:
        lines.append(
            f"not trained on {result['not_trained']:,} samples: of steps that changed no weight, "
            "or without a return"
        )
    for mark, label in (("validation", "reserved for validation"), ("without", "withdrawn")):
        part = result[mark]
        unknown = []
        if part.get("unknown"):
            unknown = [f"no such episode is here: {', '.join(part['unknown'])}"]
        if part["episodes"] or unknown:
            place = part["first"] and _PLACE.format(**part["first"])
            seen = "none was trained on"
            if place:
                seen = f"{part['samples']:,} samples, the first at {place}"
            count = f"{plural(part['episodes'], 'episode')} ({plural(part['frames'], 'frame')})"
            lines += [f"{count} {label}: {seen}", *unknown]
    if result["without"].get("episodes") and "checkpoints" in result:
        lines.append(
            f"checkpoints {result['without']['checkpoints']} of {result['checkpoints']} were "
            "trained on them"
        )
        if result["without"]["in_statistics"]:
            lines.append(
                "the statistics for the normalization were computed with them, before step 1"
            )
    if result.get("init_from"):
        lines.append(
            f"the weights started from {result['init_from']}, whose samples are not in this account"
        )
    for row in result.get("versions", ()):
        version = row["version"] or "a version without a name"
        line = f"{row['source']} was read from step {row['step']} on in the version: {version}"
        if row["address"]:
            line += f", which is {row['address']}"
        lines.append(line)
    return lines


def _tables(result: Mapping[str, Any]) -> dict[str, list[list[Any]]]:
    """Return the tables of an account by title, the head first."""
    sources = result["sources"]
    starts = [["step", "position", "batch", "ranks", "source", "share", "asked"]]
    for start in result.get("starts", ()):
        place = [start["step"], start["position"], start["batch"], start["world"]]
        pairs = zip(sources, start["shares"], start["weights"])
        starts += [[*place, name, f"{share:.3%}", f"{weight:.3%}"] for name, share, weight in pairs]
    entries = [
        dict(sorted(entry.items(), key=lambda pair: pair[0] == "reason"))
        for entry in result.get("substitutions", ())
    ]
    head_of_entries = list(entries[0]) if entries else []
    times = [[name, *of.values(), f"{_times(of):.2f}"] for name, of in sources.items()]
    return {
        "Sources": [
            ["source", *next(iter(sources.values())), _TIMES],
            *times,
        ],
        "Starts and shares": starts,
        "Episodes appended": [["step", "source", "first", "last"], *result.get("updates", ())],
        "Tasks": [
            ["task", "samples"],
            *([task, count] for task, count in result["tasks"].items() if task),
        ],
        "Substituted samples": [
            head_of_entries,
            *(list(entry.values()) for entry in entries),
        ],
        "Skipped steps": [["step"], *([step] for step in result.get("skipped_steps", ()))],
    }


def _times(of: Mapping[str, int]) -> float:
    """Return how often a frame of a source was a sample, in the mean."""
    return of["samples"] / max(1, of["frames"])


def _text(cell: Any) -> str:
    return f"{cell:,}" if isinstance(cell, int) else str(cell)


def audit_text(result: Mapping[str, Any]) -> str:
    """Format an account for a terminal."""
    lines = _statements(result)
    for title, (head, *rows) in _tables(result).items():
        if rows:
            cells = [list(map(_text, row)) for row in (head, *rows[:_LISTED])]
            widths = [max(map(len, column)) for column in zip(*cells)]
            if len(rows) > _LISTED:
                title += f", {_LISTED} of {len(rows)}"
            lines += ["", title]
            lines += ["  " + "  ".join(map(str.ljust, row, widths)).rstrip() for row in cells]
    return "\n".join(
        [
            *lines,
            "",
            f"counted in {result['seconds']:.2f} s, {result['samples_per_s']:,.0f} samples/s",
        ]
    )


def audit_page(result: Mapping[str, Any]) -> str:
    """Render an account as one HTML page."""
    title, *lines = _statements(result)
    tables = _tables(result)
    head, *rows = tables["Sources"]
    times = [_times(of) for of in result["sources"].values()]
    most = max([1.0, *times])
    bars = [[*row, Block.interval_bar(0.0, None, mean / most)] for row, mean in zip(rows, times)]
    tables["Sources"] = [[*head, ""], *bars]
    notes = {"Sources": f"Epochs are the {_TIMES}: samples over frames; 1 is one epoch."}
    sections = [
        Block.section(name, Block.table_card("", head, rows, "rows", notes.get(name, "")))
        for name, (head, *rows) in tables.items()
    ]
    is_seen = result["validation"]["samples"] > 0
    verdict = "Sound: no validation frame was trained on."
    if is_seen:
        verdict = (
            f"{result['validation']['samples']:,} samples are of validation frames: its losses "
            "prove nothing; train anew without them."
        )
    top = [Block.paragraph(verdict, "verdict")]
    for line in lines:
        style = "bad" if is_seen and "reserved for validation: " in line else "soft"
        top.append(Block.paragraph(line, style))
    return render_page("understudy audit", title, sections, top=top)
