"""`understudy profile CONFIG`: time and memory of a training step, as a table, a page and JSON."""

import json
import math
import os
from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any, ClassVar

from understudy.config.declare import Interval
from understudy.config.train import TrainConfig

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


@dataclass(frozen=True)
class MeasureConfig:
    """Length of the measurement."""

    warmup_steps: Annotated[int, Interval(ge=1, le=10**6)] = 5
    """Unmeasured steps, in which allocators, caches and compilers settle."""
    steps: Annotated[int, Interval(ge=1, le=10**6)] = 20
    """Measured steps, once as in training and once with a device synchronisation at every phase."""


@dataclass(frozen=True)
class ProfileConfig(TrainConfig):
    """Measure time and memory of a training step with these settings. The trained weights are discarded."""

    RENAMED: ClassVar[Mapping[str, str]] = {**TrainConfig.RENAMED, "profile.warmup": "profile.warmup_steps"}

    output_dir: str = "runs/profile"
    """Folder of profile.html and profile.json; no other file is written."""
    profile: MeasureConfig = field(default_factory=MeasureConfig)
    json: bool = False
    """Print one JSON object instead of the table."""


def profile(config: ProfileConfig) -> None:
    """Measure on all ranks; rank 0 prints and writes."""
    # Set before torch is imported: its profiler logs each start and stop, and each free of memory from before a trace.
    os.environ.setdefault("TORCH_CPP_LOG_LEVEL", "ERROR")
    os.environ.setdefault("KINETO_LOG_LEVEL", "9")
    from understudy.atomic import write_text
    from understudy.optional_packages import require
    from understudy.report.html import refuse_foreign, write_page
    from understudy.train.profiling import profile as measuring

    require("report")
    _refuse_foreign_facts(Path(config.output_dir, "profile.json"))
    refuse_foreign(Path(config.output_dir, "profile.html"))
    measured = measuring.profile(config, config.profile.warmup_steps, config.profile.steps)
    if measured is None:
        return
    facts, folder = measured.plain(), Path(config.output_dir)
    folder.mkdir(parents=True, exist_ok=True)
    write_text(folder / "profile.json", json.dumps(facts, indent=2) + "\n")
    write_page(folder / "profile.html", page(measured))
    print(json.dumps(facts) if config.json else f"{format_profile(measured)}\npage: {folder / 'profile.html'}")


def _refuse_foreign_facts(path: Path) -> None:
    """Raise ConfigError if `path` exists and is no earlier measurement."""
    from understudy.errors import ConfigError

    if not path.exists():
        return
    try:
        ours = {"conditions", "phases"} <= set(json.loads(path.read_text(encoding="utf-8")))
    except (OSError, ValueError, TypeError):
        ours = False
    if not ours:
        message = "exists and is no measurement of understudy; name another --output-dir, or move the file"
        raise ConfigError(f"{path}: {message}")


def format_profile(found: "Profile") -> str:
    """Format the measurement for a terminal."""
    step, width = found.step_s, max(len(name) for name in [*found.phases, *GROUPS.values()]) + 2
    lines = [_describe(found.conditions), ""]
    lines += [f"{name:<{width}}{value}" for value, name in _headlines(found)]
    lines += ["", f"{'phase, synchronised':<{width}}{'worst rank':>12}{'mean':>12}{'share':>8}"]
    for name, phase in found.phases.items():
        rank = f"  rank {phase.rank}" if found.conditions["ranks"] > 1 else ""
        share = f"{phase.worst / found.timed_step_s:.0%}"
        lines.append(f"{name:<{width}}{_ms(phase.worst):>12}{_ms(phase.mean):>12}{share:>8}{rank}")
    lines.append(f"{'step, synchronised':<{width}}{_ms(found.timed_step_s):>12}")
    lines.append(f"{'step, as in training':<{width}}{_ms(step):>12}")
    lines.append(explain_difference(found))
    head, *rows = memory_table(found)
    lines += ["", *(f"{name:<{width}}" + "".join(f"{cell:>12}" for cell in cells) for name, *cells in [head, *rows])]
    return "\n".join(lines)


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
    from understudy.report.html import card, grid, section, table, tiles
    from understudy.report.html import page as whole

    several = found.conditions["ranks"] > 1
    rows = [
        [name, _ms(phase.worst), *([f"rank {phase.rank}", _ms(phase.mean)] if several else [])]
        for name, phase in found.phases.items()
    ]
    head = ["phase", "worst rank", *(["which", "mean of ranks"] if several else [])]
    sizes = memory_table(found)
    return whole(
        "profile of a training step",
        "<h1>Profile of a training step</h1>",
        f'<p class="soft">{_describe(found.conditions)}</p>',
        tiles(_headlines(found)),
        section("Time", card(_time_chart(found)), card(table(head, rows)), note=explain_difference(found)),
        section("Memory", grid([card(_memory_chart(found)), card(table(sizes[0], sizes[1:]))], "two")),
        section("Conditions", card(table(["condition", "value"], [[k, str(v)] for k, v in found.conditions.items()]))),
    )


def explain_difference(found: "Profile") -> str:
    """Explain the difference between the time of a step in training and the sum of its phases."""
    timed, plain = found.timed_step_s, found.step_s
    measured = "The phases were timed in other steps than those of the figures above"
    if plain <= timed:
        return f"{measured}, with the device synchronised at both ends of each, so nothing overlaps there."
    wait = found.phases["data wait"].worst
    rest = max(0.0, plain - timed - max(0.0, found.waiting_s - wait))
    return (
        f"{measured}. Those above waited {_ms(found.waiting_s)} a step for data, the timed ones {_ms(wait)}. Other "
        f"work on this machine explains the remaining {_ms(rest)}."
    )


def _headlines(found: "Profile") -> list[tuple[str, str]]:
    """Headline figures: (value, label)."""
    lines = [
        (f"{found.samples_per_s:,.1f}", "samples per second"),
        (_ms(found.step_s), "per step, as in training"),
        (f"{found.waiting_s / found.step_s:.1%}", "of it waiting for data"),
        (_operations(found.flops), "per step, over all ranks"),
        (f"{_operations(found.flops_per_s)}/s", "per device"),
        (f"{found.mfu:.1%}" if found.mfu is not None else "not known", "of the device's peak (MFU)"),
    ]
    if found.tokens_per_s is not None:
        lines.append((f"{found.tokens_per_s:,.0f}", "tokens per second"))
        lines.append((f"{found.valid_share:.1%}", "of the computed tokens are valid"))
    if found.conditions["micro_batches"] > 1:
        lines.append((f"{found.samples_per_part:,.1f}", "samples per micro-batch"))
    if found.conditions["ranks"] > 1:
        lines.append((f"{found.collectives} in {_ms(found.collectives_s)}", "collectives per step"))
    return lines


def _describe(conditions: Mapping[str, Any]) -> str:
    c = conditions
    mesh = f"{c['ranks']} ranks ({c['replicas']} replicas of {c['shards']} shards)" if c["ranks"] > 1 else "1 rank"
    extras = [f"in {c['micro_batches']} parts" if c["micro_batches"] > 1 else "", "compiled" if c["compile"] else ""]
    if c["activation_checkpoint"] != "none":
        extras.append(f"activation checkpointing {c['activation_checkpoint']}")
    words = [f"{c['parameters']:,} parameters", f"batch {c['batch']}", *filter(None, extras), c["precision"], mesh]
    return ", ".join([*words, c["device"]]) + f"; {c['steps']} steps after {c['warmup']} of warm-up"


def _operations(count: float) -> str:
    """Format a number of floating-point operations."""
    thousands = min(5, int(math.log10(max(1.0, count)) // 3))
    return f"{count / 1000**thousands:,.3g} {('', 'k', 'M', 'G', 'T', 'P')[thousands]}FLOP"


def _ms(seconds: float) -> str:
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
        chart.legend(fontsize=9, ncols=3, loc="upper center", bbox_to_anchor=(0.5, -0.35))

    return html.chart(draw, "time of each phase of a step, beside a step as in training", height=2.6, wide=True)


def _memory_chart(found: "Profile") -> str:
    from understudy.report import html

    def draw(chart: "Axes") -> None:
        sizes = [found.memory[name] / 2**20 for name in GROUPS]
        chart.barh([text.split(",")[0] for text in GROUPS.values()], sizes, color=html.COLORS[0])
        chart.invert_yaxis()
        chart.set_xlabel("MiB per rank")

    return html.chart(draw, "memory of a rank by purpose")
