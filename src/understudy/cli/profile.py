"""`understudy profile CONFIG`: where the time and the memory of a training step go, as a table, a page and JSON."""

import json
import math
import os
from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

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
    "activations": "activations, left by forward for backward",
    "peak": "peak, all of it at once",
}


@dataclass(frozen=True)
class MeasureConfig:
    """How long is measured."""

    warmup: Annotated[int, Interval(ge=1, le=10**6)] = 5
    """Steps that are not measured: allocators, caches and compilers settle in them."""
    steps: Annotated[int, Interval(ge=1, le=10**6)] = 20
    """Steps that are measured, once as they are trained and once with the device awaited at every phase."""


@dataclass(frozen=True)
class ProfileConfig(TrainConfig):
    """Where the time and the memory of a training step with these settings go. Nothing that it trains is kept."""

    output_dir: str = "runs/profile"
    """Where profile.html and profile.json go, and nothing else."""
    profile: MeasureConfig = field(default_factory=MeasureConfig)
    json: bool = False
    """Print one JSON object instead of the table."""


def profile(config: ProfileConfig) -> None:
    """Measure on all ranks; rank 0 prints and writes."""
    # Before torch is there: that memory of before a trace is freed in it is no news, nor that it begins and ends.
    os.environ.setdefault("TORCH_CPP_LOG_LEVEL", "ERROR")
    os.environ.setdefault("KINETO_LOG_LEVEL", "9")
    from understudy.atomic import write_text
    from understudy.extras import require
    from understudy.report.html import refuse_foreign, write_page
    from understudy.train.profiling import profile as measuring

    require("report")
    _refuse_foreign_facts(Path(config.output_dir, "profile.json"))
    refuse_foreign(Path(config.output_dir, "profile.html"))
    found = measuring.profile(config, config.profile.warmup, config.profile.steps)
    if found is None:
        return
    facts, folder = found.plain(), Path(config.output_dir)
    folder.mkdir(parents=True, exist_ok=True)
    write_text(folder / "profile.json", json.dumps(facts, indent=2) + "\n")
    write_page(folder / "profile.html", page(found))
    print(json.dumps(facts) if config.json else f"{told(found)}\npage: {folder / 'profile.html'}")


def _refuse_foreign_facts(path: Path) -> None:
    """Raise ConfigError where `path` is anything but the figures of an earlier measurement."""
    from understudy.errors import ConfigError

    if not path.exists():
        return
    try:
        ours = {"conditions", "phases"} <= set(json.loads(path.read_text(encoding="utf-8")))
    except (OSError, ValueError, TypeError):
        ours = False
    if not ours:
        raise ConfigError(f"{path}: is not a profile of understudy; use another --output-dir, or move it away")


def told(found: "Profile") -> str:
    """The figures for a terminal."""
    step, width = found.step_s, max(len(name) for name in [*found.phases, *GROUPS.values()]) + 2
    lines = [_setting(found.conditions), ""]
    lines += [f"{name:<{width}}{value}" for value, name in _headlines(found)]
    lines += ["", f"{'phase, device awaited':<{width}}{'worst rank':>12}{'mean':>12}{'share':>8}"]
    for name, phase in found.phases.items():
        rank = f"  rank {phase.rank}" if found.conditions["ranks"] > 1 else ""
        share = f"{phase.worst / found.timed_step_s:.0%}"
        lines.append(f"{name:<{width}}{_ms(phase.worst):>12}{_ms(phase.mean):>12}{share:>8}{rank}")
    lines.append(f"{'step, device awaited':<{width}}{_ms(found.timed_step_s):>12}")
    lines.append(f"{'step, as it is trained':<{width}}{_ms(step):>12}")
    lines.append(why(found))
    lines += ["", f"{'memory per rank':<{width}}{'MiB':>12}"]
    lines += [f"{GROUPS[name]:<{width}}{size / 2**20:>12.2f}" for name, size in found.memory.items()]
    return "\n".join(lines)


def page(found: "Profile") -> str:
    """The same as one HTML page that opens offline."""
    from understudy.report.html import card, grid, section, table, tiles
    from understudy.report.html import page as whole

    several = found.conditions["ranks"] > 1
    rows = [
        [name, _ms(phase.worst), *([f"rank {phase.rank}", _ms(phase.mean)] if several else [])]
        for name, phase in found.phases.items()
    ]
    head = ["phase", "worst rank", *(["which", "mean of ranks"] if several else [])]
    sizes = [[GROUPS[name], f"{size / 2**20:,.2f} MiB"] for name, size in found.memory.items()]
    return whole(
        "profile of a training step",
        "<h1>Profile of a training step</h1>",
        f'<p class="soft">{_setting(found.conditions)}</p>',
        tiles(_headlines(found)),
        section("Time", card(_time_chart(found)), card(table(head, rows)), note=why(found)),
        section("Memory", grid([card(_memory_chart(found)), card(table(["per rank", "size"], sizes))], "two")),
        section("Conditions", card(table(["what", "value"], [[k, str(v)] for k, v in found.conditions.items()]))),
    )


def why(found: "Profile") -> str:
    """Why a step as it is trained takes another time than its phases together."""
    timed, plain = found.timed_step_s, found.step_s
    measured = "The phases were timed in other steps than those of the figures above"
    if plain <= timed:
        return f"{measured}, and the device was awaited at both ends of each, so nothing overlaps there."
    wait = found.phases["data wait"].worst
    rest = max(0.0, plain - timed - max(0.0, found.waiting_s - wait))
    return (
        f"{measured}. There, a step waited {_ms(found.waiting_s)} for data, and {_ms(wait)} when it was timed; other "
        f"work on this machine explains the remaining {_ms(rest)}."
    )


def _headlines(found: "Profile") -> list[tuple[str, str]]:
    """(value, what it is)."""
    lines = [
        (f"{found.samples_per_s:,.1f}", "samples per second"),
        (_ms(found.step_s), "a step, as it is trained"),
        (f"{found.waiting_s / found.step_s:.1%}", "of it waiting for data"),
        (_operations(found.flops), "a step, over all ranks"),
        (f"{_operations(found.flops_per_s)}/s", "per device"),
        (f"{found.mfu:.1%}" if found.mfu is not None else "not known", "of the device's peak (MFU)"),
    ]
    if found.conditions["ranks"] > 1:
        lines.append((f"{found.collectives} in {_ms(found.collectives_s)}", "sums and gathers over ranks a step"))
    return lines


def _setting(conditions: Mapping[str, Any]) -> str:
    c = conditions
    mesh = f"{c['ranks']} ranks ({c['replicas']} replicas of {c['shards']} shards)" if c["ranks"] > 1 else "1 rank"
    extras = [f"in {c['micro_batches']} parts" if c["micro_batches"] > 1 else "", "compiled" if c["compile"] else ""]
    if c["activation_checkpoint"] != "none":
        extras.append(f"activation checkpointing {c['activation_checkpoint']}")
    words = [f"{c['parameters']:,} parameters", f"batch {c['batch']}", *filter(None, extras), c["precision"], mesh]
    return ", ".join([*words, c["device"]]) + f"; {c['steps']} steps after {c['warmup']} of warm-up"


def _operations(count: float) -> str:
    """Floating-point operations."""
    thousands = min(5, int(math.log10(max(1.0, count)) // 3))
    return f"{count / 1000**thousands:,.3g} {('', 'k', 'M', 'G', 'T', 'P')[thousands]}FLOP"


def _ms(seconds: float) -> str:
    return f"{1e3 * seconds:,.2f} ms"


def _time_chart(found: "Profile") -> str:
    """Two bars: the phases one after the other, and the step as it is trained."""
    from understudy.report import html

    def draw(chart: "Axes") -> None:
        left = 0.0
        for (name, phase), colour in zip(found.phases.items(), (*html.COLOURS, "#7a8591")):  # the rest is grey
            width = 1e3 * max(0.0, phase.worst)
            chart.barh(1, width, left=left, color=colour, label=name, height=0.55)
            left += width
        chart.barh(0, 1e3 * found.step_s, color="#7a8591", height=0.55)
        chart.set_yticks([1, 0], ["phases, worst rank", "as it is trained"])
        chart.set_xlabel("ms per step")
        chart.legend(fontsize=9, ncols=3, loc="upper center", bbox_to_anchor=(0.5, -0.35))

    return html.chart(draw, "time of each phase of a step, beside a step as it is trained", height=2.6, wide=True)


def _memory_chart(found: "Profile") -> str:
    from understudy.report import html

    def draw(chart: "Axes") -> None:
        sizes = [found.memory[name] / 2**20 for name in GROUPS]
        chart.barh([text.split(",")[0] for text in GROUPS.values()], sizes, color=html.COLOURS[0])
        chart.invert_yaxis()
        chart.set_xlabel("MiB per rank")

    return html.chart(draw, "memory of a rank by what it is for")
