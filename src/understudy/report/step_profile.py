"""Time and memory of a training step as tables and charts, and as the page profile.html."""

import math
from collections.abc import Mapping
from html import escape
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from matplotlib.axes import Axes

    from understudy.train.profiling.profile import Profile

GROUPS = {
    "parameters": "parameters",
    "gradients": "gradients",
    "optimizer state": "optimizer state",
    "average": "average of the weights",
    "activations": "activations, kept by forward for backward",
    "peak": "peak, all together",
}


def memory_table(found: "Profile") -> list[list[str]]:
    """Lines of the table of memory, the head first: part, predicted, measured, difference; two without a prediction."""
    if found.predicted is None:
        return [["memory per rank, MiB", "measured"], *([GROUPS[n], _mib(size)] for n, size in found.memory.items())]
    lines = [["memory per rank, MiB", "predicted", "measured", "difference"]]
    for name, size in found.memory.items():
        planned = found.predicted[name]
        difference = f"{planned / size - 1:+.1%}" if size else "0.0%" if planned == size else "-"
        lines.append([GROUPS[name], _mib(planned), _mib(size), difference])
    return lines


def _mib(size: int) -> str:
    return f"{size / 2**20:,.2f}"


def page(found: "Profile") -> str:
    """Render the measurement as one HTML page that opens offline."""
    from understudy.report.html import card, section, table, tiles
    from understudy.report.html import page as whole

    return whole(
        "profile of a training step",
        "<h1>Profile of a training step</h1>",
        f'<p class="soft">{escape(describe(found.conditions))}</p>',
        tiles(headlines(found)),
        section("Time", *time_cards(found), note=explain_difference(found)),
        section("Memory", memory_cards(found)),
        section("Conditions", card(table(["condition", "value"], [[k, str(v)] for k, v in found.conditions.items()]))),
    )


def time_cards(found: "Profile") -> list[str]:
    """Render the phases of a step: a chart and a table."""
    from understudy.report.html import card, table

    several = found.conditions["ranks"] > 1
    rows = [
        [name, milliseconds(phase.worst), *([f"rank {phase.rank}", milliseconds(phase.mean)] if several else [])]
        for name, phase in found.phases.items()
    ]
    head = ["phase", "worst rank", *(["which", "mean of ranks"] if several else [])]
    return [card(_time_chart(found)), card(table(head, rows))]


def memory_cards(found: "Profile") -> str:
    """Render the memory of a rank, predicted and measured: a chart and a table."""
    from understudy.report.html import card, grid, table

    head, *rows = memory_table(found)
    return grid([card(_memory_chart(found)), card(table(head, rows))], "two")


def explain_difference(found: "Profile") -> str:
    """Explain the difference between the time of a step in training and the sum of its phases."""
    timed, plain = found.timed_step_s, found.step_s
    measured = "The phases were timed in other steps than those of the figures above"
    if plain <= timed:
        return f"{measured}, with the device synchronised at both ends of each, so nothing overlaps there."
    wait = found.phases["data wait"].worst
    rest = max(0.0, plain - timed - max(0.0, found.waiting_s - wait))
    return (
        f"{measured}. Those above waited {milliseconds(found.waiting_s)} a step for data, the timed ones "
        f"{milliseconds(wait)}. Other work on this machine explains the remaining {milliseconds(rest)}."
    )


def headlines(found: "Profile") -> list[tuple[str, str]]:
    """Headline figures: (value, label)."""
    lines = [
        (f"{found.samples_per_s:,.1f}", "samples per second"),
        (milliseconds(found.step_s), "per step, as in training"),
        (f"{found.waiting_s / found.step_s:.1%}", "of it waiting for data"),
        (_operations(found.flops), "per step, over all ranks, without recomputation"),
        (f"{_operations(found.flops_per_s)}/s", "per device"),
        (f"{found.mfu:.1%}" if found.mfu is not None else "not known", "of the device's peak (MFU)"),
    ]
    if found.tokens_per_s is not None:
        lines.append((f"{found.tokens_per_s:,.0f}", "tokens per second"))
        lines.append((f"{found.valid_share:.1%}", "of the computed tokens are valid"))
    if found.conditions["micro_batches"] > 1:
        lines.append((f"{found.samples_per_part:,.1f}", "samples per micro-batch"))
    if found.conditions["ranks"] > 1:
        lines.append((f"{found.collectives} in {milliseconds(found.collectives_s)}", "collectives per step"))
    return lines


def describe(conditions: Mapping[str, Any]) -> str:
    """Describe the conditions of a measurement on one line."""
    c = conditions
    mesh = f"{c['ranks']} ranks ({c['replicas']} replicas of {c['shards']} shards)" if c["ranks"] > 1 else "1 rank"
    extras = [f"in {c['micro_batches']} parts" if c["micro_batches"] > 1 else "", "compiled" if c["compile"] else ""]
    if c["activation_checkpoint"] != "none":
        extras.append(f"activation checkpointing {c['activation_checkpoint']}")
    if c.get("attention", "sdpa") != "sdpa":
        extras.append(f"attention {c['attention']}")
    words = [
        *([f"policy {c['policy']}"] if "policy" in c else []),
        f"{c['parameters']:,} parameters",
        f"batch {c['batch']}",
        *filter(None, extras),
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


def _time_chart(found: "Profile") -> str:
    """Draw two bars: the phases one after the other, and the step as in training."""
    from understudy.report import html

    def draw(chart: "Axes") -> None:
        left = 0.0
        for (name, phase), color in zip(found.phases.items(), (*html.COLORS, "#7a8591")):  # the rest is grey
            width = 1e3 * max(0.0, phase.worst)
            chart.barh(1, width, left=left, color=color, label=name, height=0.55)
            left += width
        chart.barh(0, 1e3 * found.step_s, color="#7a8591", height=0.55)
        chart.set_yticks([1, 0], ["phases, worst rank", "as in training"])
        chart.set_xlabel("ms per step")
        wide = chart.get_figure().get_figwidth() > 6  # type: ignore[union-attr]
        columns, size = (5, 9) if wide else (3, 8)
        chart.legend(fontsize=size, ncols=columns, loc="upper center", bbox_to_anchor=(0.4, -0.3))

    return html.chart(draw, "time of each phase of a step, beside a step as in training", height=3.2, wide=True)


def _memory_chart(found: "Profile") -> str:
    from understudy.report import html

    def draw(chart: "Axes") -> None:
        sizes = [found.memory[name] / 2**20 for name in GROUPS]
        chart.barh([text.split(",")[0] for text in GROUPS.values()], sizes, color=html.COLORS[0])
        chart.invert_yaxis()
        chart.set_xlabel("MiB per rank")

    return html.chart(draw, "memory of a rank by purpose")
