"""Time and memory of a training step: tables and bars, for profile.html and for the report of a
run.

The run itself records the time of a step and the waiting in it, since phases take a synchronised
device. Those, and the memory, predicted and measured, are from `understudy profile` with the folder
of the run as its `--output-dir`.
"""

import json
import math
from datetime import timedelta
from pathlib import Path
from typing import TYPE_CHECKING

import numpy as np

from understudy_base import Record, Records
from understudy_kit import Block, Blocks, render_page

if TYPE_CHECKING:
    from understudy.config.train import TrainConfig
    from understudy.train.profiling.profile import Profile

GROUPS = {
    "parameters": "parameters",
    "gradients": "gradients",
    "optimizer state": "optimizer state",
    "average": "average of the weights",
    "activations": "activations, kept by forward for backward",
    "peak": "peak, all together",
}


def memory_table(profile: "Profile") -> list[list[str]]:
    """Lines of the table of memory, the head first: part, predicted, measured, difference; two
    without a prediction.
    """
    if profile.predicted is None:
        return [
            ["memory per rank, MiB", "measured"],
            *([GROUPS[n], _mib(size)] for n, size in profile.memory.items()),
        ]
    lines = [["memory per rank, MiB", "predicted", "measured", "difference"]]
    for name, size in profile.memory.items():
        planned = profile.predicted[name]
        if size:
            difference = f"{planned / size - 1:+.1%}"
        else:
            difference = "0.0%" if planned == size else "-"
        lines.append([GROUPS[name], _mib(planned), _mib(size), difference])
    return lines


def _mib(size: int) -> str:
    return f"{size / 2**20:,.2f}"


def page(profile: "Profile") -> str:
    """Render the measurement as one HTML page that opens offline."""
    conditions = Block.table(
        ["condition", "value"], [[key, str(value)] for key, value in profile.conditions.items()]
    )
    sections = [
        Block.section("Time", _time_card(profile), note=explain_difference(profile)),
        Block.section("Memory", _memory_card(profile)),
        Block.section("Conditions", Block.card("", conditions)),
    ]
    top = [Block.paragraph(describe(profile.conditions)), Block.tiles(headlines(profile))]
    return render_page(
        "profile of a training step", "Profile of a training step", sections, top=top
    )


def render_step(config: "TrainConfig", speed: Records, root: Path) -> Blocks:
    """Render the cards of one step; none for a run without logged steps and without a profile.

    Args:
        config: Settings of the run.
        speed: Its records of speed.
        root: Its folder, which may have a profile.json.
    """
    from understudy.train.profiling.profile import Profile, step_settings

    recorded = (
        Block.card("As recorded during training", _recorded(config, speed)) if speed else None
    )
    command = (
        f"understudy profile {root / 'config.yaml'} --output-dir {root} measures them, then "
        f"understudy report {root} shows them here"
    )
    try:
        profile = Profile.from_plain(
            json.loads((root / "profile.json").read_text(encoding="utf-8"))
        )
    except FileNotFoundError:
        return (
            [recorded, Block.card("", Block.paragraph(f"Phases and memory: {command}."))]
            if recorded
            else []
        )
    except (OSError, ValueError, RecursionError):
        return [
            recorded,
            Block.card(
                "",
                Block.paragraph(
                    f"profile.json is of another release, or not a profile: {command}."
                ),
            ),
        ]
    settings = step_settings(config)
    changed = [name for name in settings if settings[name] != profile.settings.get(name)]
    warning = None
    if changed:
        note = f"Measured with other settings than the run's: {', '.join(changed)}."
        warning = Block.paragraph(note, "bad")
    figures = Block.card(
        "Measured by profile",
        warning,
        Block.paragraph(explain_difference(profile)),
        Block.table(["figure", "value"], [[name, value] for value, name in headlines(profile)]),
        note=describe(profile.conditions),
    )
    return [recorded, figures, _time_card(profile), _memory_card(profile)]


def _recorded(config: "TrainConfig", speed: Records) -> Block:
    """Render the median step, the waiting for data in it, and the rest."""
    steps = np.array([config.batch_size / record["samples_per_s"] for record in speed])
    step = float(np.median(steps))
    wait = float(np.median(steps * np.array([record["wait"] for record in speed])))
    parts = {"step": step, "of it waiting for data": wait, "everything else": step - wait}
    rows = [[name, milliseconds(seconds)] for name, seconds in parts.items()]
    return Block.table([f"median of {len(speed)} logs", "per step"], rows)


def render_sources(order: Record, speed: Records) -> Block | None:
    """Render the throughput of each source of a mixture: its exact share in the order, of the run's
    median.

    Args:
        order: The order, as order.json holds it; its last shares count.
        speed: Records of speed.

    Returns:
        None for a single source, and for a run without logged steps.
    """
    sources = order["sources"]
    slots = order["schedule"][-1]["slots"]
    if len(sources) < 2 or not speed:
        return None
    rate = float(np.median([record["samples_per_s"] for record in speed]))
    rows = []
    # an entry may list fewer sources; the others do not take part
    for index, source in enumerate(sources):
        share = slots[index] / sum(slots) if index < len(slots) else 0.0
        seconds = source["frames"] / (share * rate) if share else None
        epoch = "never" if seconds is None else str(timedelta(seconds=round(seconds)))
        rows.append(
            [source["name"], f"{share:.2%}", f"{share * rate:,.1f}", f"{source['frames']:,}", epoch]
        )
    head = [
        "source",
        "share of the samples",
        "samples per second",
        "frames of an epoch",
        "time of an epoch",
    ]
    return Block.card("Throughput of each source", Block.table(head, rows))


def _time_card(profile: "Profile") -> Block:
    """Render the phases of a step, one after the other, and the step as in training below them."""
    several = profile.conditions["ranks"] > 1
    whole = max(profile.step_s, sum(max(0.0, phase.worst) for phase in profile.phases.values()))
    rows = []
    end = 0.0
    for name, phase in profile.phases.items():
        start = end
        end = end + max(0.0, phase.worst)
        ranks = [f"rank {phase.rank}", milliseconds(phase.mean)] if several else []
        rows.append(
            [
                name,
                milliseconds(phase.worst),
                *ranks,
                Block.interval_bar(start / whole, None, end / whole),
            ]
        )
    no_ranks = ["", ""] if several else []
    rows.append(
        [
            "as in training",
            milliseconds(profile.step_s),
            *no_ranks,
            Block.interval_bar(0, None, profile.step_s / whole),
        ]
    )
    head_of_ranks = ["rank", "mean of ranks"] if several else []
    head = ["phase", "worst rank", *head_of_ranks, "one step"]
    return Block.card("", Block.table(head, rows))


def _memory_card(profile: "Profile") -> Block:
    """Render the memory of a rank by purpose, predicted and measured."""
    head, *rows = memory_table(profile)
    most = max(1, *profile.memory.values())
    bars = [Block.interval_bar(0, None, size / most) for size in profile.memory.values()]
    return Block.card("", Block.table([*head, ""], [[*row, bar] for row, bar in zip(rows, bars)]))


def explain_difference(profile: "Profile") -> str:
    """Explain the difference between the time of a step in training and the sum of its phases."""
    timed = profile.timed_step_s
    plain = profile.step_s
    measured = "The phases were timed in other steps than the figures above"
    if plain <= timed:
        return (
            f"{measured}, with the device synchronised at both ends of each, so nothing "
            "overlaps there."
        )
    wait = profile.phases["data wait"].worst
    rest = max(0.0, plain - timed - max(0.0, profile.waiting_s - wait))
    return (
        f"{measured}. Those above waited {milliseconds(profile.waiting_s)} a step for data, the "
        f"timed ones {milliseconds(wait)}. Other work on this machine explains the remaining "
        f"{milliseconds(rest)}."
    )


def headlines(profile: "Profile") -> list[tuple[str, str]]:
    """Headline figures: (value, label)."""
    utilization = f"{profile.mfu:.1%}" if profile.mfu is not None else "not known"
    lines = [
        (f"{profile.samples_per_s:,.1f}", "samples per second"),
        (milliseconds(profile.step_s), "per step, as in training"),
        (f"{profile.waiting_s / profile.step_s:.1%}", "of it waiting for data"),
        (_operations(profile.flops), "per step, over all ranks, without recomputation"),
        (f"{_operations(profile.flops_per_s)}/s", "per device"),
        (utilization, "of the device's peak (MFU)"),
    ]
    if profile.tokens_per_s is not None:
        lines.append((f"{profile.tokens_per_s:,.0f}", "tokens per second"))
        lines.append((f"{profile.valid_share:.1%}", "of the computed tokens are valid"))
    if profile.conditions["micro_batches"] > 1:
        lines.append((f"{profile.samples_per_part:,.1f}", "samples per micro-batch"))
    if profile.conditions["ranks"] > 1:
        lines.append(
            (
                f"{profile.collectives} in {milliseconds(profile.collectives_s)}",
                "collectives per step",
            )
        )
    return lines


def describe(conditions: Record) -> str:
    """Describe the conditions of a measurement on one line."""
    c = conditions
    mesh = "1 rank"
    if c["ranks"] > 1:
        mesh = f"{c['ranks']} ranks ({c['replicas']} replicas of {c['shards']} shards)"
    extras = []
    if c["micro_batches"] > 1:
        extras.append(f"in {c['micro_batches']} parts")
    if c["compile"]:
        extras.append("compiled")
    if c["activation_checkpoint"] != "none":
        extras.append(f"activation checkpointing {c['activation_checkpoint']}")
    if c.get("attention", "sdpa") != "sdpa":
        extras.append(f"attention {c['attention']}")
    policy = [f"policy {c['policy']}"] if "policy" in c else []
    words = [
        *policy,
        f"{c['parameters']:,} parameters",
        f"batch {c['batch']}",
        *extras,
        c["precision"],
        mesh,
    ]
    return ", ".join([*words, c["device"]]) + f"; {c['steps']} steps after {c['warmup']} of warm-up"


def _operations(count: float) -> str:
    """Format a number of floating-point operations."""
    thousands = min(5, int(math.log10(max(1.0, count)) // 3))
    return f"{count / 1000**thousands:,.3g} {('', 'k', 'M', 'G', 'T', 'P')[thousands]}FLOP"


def milliseconds(seconds: float) -> str:
    """Format seconds as milliseconds."""
    return f"{1e3 * seconds:,.2f} ms"
