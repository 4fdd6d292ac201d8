"""`understudy profile CONFIG`: time and memory of a training step, as a table, a page and JSON."""

import json
import os
from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, ClassVar

from understudy.config.train import TrainConfig
from understudy_base import ConfigError, refuse_existing, write_text
from understudy_kit import Interval

if TYPE_CHECKING:
    from understudy.train.profiling.profile import Profile


@dataclass(frozen=True)
class MeasureConfig:
    """Length of the measurement."""

    warmup_steps: Annotated[int, Interval(ge=1, le=10**6)] = 5
    """Unmeasured steps, in which allocators, caches and compilers settle."""
    steps: Annotated[int, Interval(ge=1, le=10**6)] = 20
    """Measured steps, once as in training and once with a device synchronisation at every phase."""


@dataclass(frozen=True)
class ProfileConfig(TrainConfig):
    """Measure time and memory of a training step with these settings. The trained weights are
    discarded.
    """

    REFUSED_FLAGS: ClassVar[Mapping[str, str]] = {
        "steps": "a profile has no end of its own; --profile.steps N measures N"
    }

    steps: Annotated[int, Interval(ge=1, le=10**12)] = 2500
    """Steps of the run_profile run, from a settings file alone: the flag is refused.
    `--profile.steps` are measured.
    """
    output_dir: str = "runs/profile"
    """Folder of profile.html and profile.json; no other file is written. A run's report shows those
    in its folder.
    """
    profile: MeasureConfig = field(default_factory=MeasureConfig)
    overwrite: bool = False
    """Replace an earlier measurement of understudy at that place."""
    json: bool = False
    """Print one JSON object instead of the table."""


def profile(config: ProfileConfig) -> None:
    """Measure on all ranks; rank 0 prints and writes."""
    # Set before torch is imported: its profiler logs each start and stop, and each free of memory
    # from before a trace.
    os.environ.setdefault("TORCH_CPP_LOG_LEVEL", "ERROR")
    os.environ.setdefault("KINETO_LOG_LEVEL", "9")
    from understudy.report.step_profile import page
    from understudy.train.profiling import profile as measuring
    from understudy_kit import refuse_foreign, write_page

    _refuse_foreign_facts(Path(config.output_dir, "profile.json"))
    refuse_foreign(Path(config.output_dir, "profile.html"))
    for name in ("profile.json", "profile.html"):
        refuse_existing(Path(config.output_dir, name), "output_dir", config.overwrite)
    measured = measuring.profile(config, config.profile.warmup_steps, config.profile.steps)
    if measured is None:
        return
    facts = measured.plain()
    folder = Path(config.output_dir)
    folder.mkdir(parents=True, exist_ok=True)
    write_text(
        folder / "profile.json", json.dumps(facts, indent=2) + "\n", is_new=not config.overwrite
    )
    write_page(folder / "profile.html", page(measured))
    if config.json:
        print(json.dumps(facts))
    else:
        print(f"{format_profile(measured)}\npage: {folder / 'profile.html'}")


def _refuse_foreign_facts(path: Path) -> None:
    """Raise ConfigError if `path` exists and is not an earlier measurement."""
    if not path.exists():
        return
    try:
        ours = {"conditions", "phases"} <= set(json.loads(path.read_text(encoding="utf-8")))
    except (OSError, ValueError, TypeError):
        ours = False
    if not ours:
        message = (
            "exists and is no measurement of understudy; name another --output-dir, or move "
            "the file"
        )
        raise ConfigError(f"{path}: {message}")


def format_profile(run_profile: "Profile") -> str:
    """Format the measurement for a terminal."""
    from understudy.report.step_profile import (
        GROUPS,
        describe,
        explain_difference,
        headlines,
        memory_table,
        milliseconds,
    )

    step = run_profile.step_s
    width = max(len(name) for name in [*run_profile.phases, *GROUPS.values()]) + 2
    lines = [describe(run_profile.conditions), ""]
    lines += [f"{name:<{width - 1}} {value}" for value, name in headlines(run_profile)]
    lines += ["", f"{'phase, synchronised':<{width}}{'worst rank':>12}{'mean':>12}{'share':>8}"]
    for name, phase in run_profile.phases.items():
        rank = f"  rank {phase.rank}" if run_profile.conditions["ranks"] > 1 else ""
        share = f"{phase.worst / run_profile.timed_step_s:.0%}"
        lines.append(
            f"{name:<{width}}{milliseconds(phase.worst):>12}{milliseconds(phase.mean):>12}"
            f"{share:>8}{rank}"
        )
    lines.append(f"{'step, synchronised':<{width}}{milliseconds(run_profile.timed_step_s):>12}")
    lines.append(f"{'step, as in training':<{width}}{milliseconds(step):>12}")
    lines.append(explain_difference(run_profile))
    lines.append("")
    for name, *cells in memory_table(run_profile):
        lines.append(f"{name:<{width}}" + "".join(f"{cell:>12}" for cell in cells))
    return "\n".join(lines)
