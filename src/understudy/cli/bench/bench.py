"""`understudy bench PATH|URL`: throughput of the loader on a dataset and the limit of its codec.

In each round the decode limits of the same files, our loader and optionally LeRobot's take turns on the same cores; the
command prints the medians. `decode_limit.py` describes the limits: sequential reading with a standard library, the bare
codec, and the bare codec with shuffled output.
"""

import json
import shutil
import sys
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any, Literal

from understudy.config.declare import Gt, Interval, Positional
from understudy.errors import ConfigError

if TYPE_CHECKING:
    from understudy.cli.bench.measure import Round, Setting, Trial


GLOSSARY = "docs/glossary.md explains them"


@dataclass(frozen=True)
class BenchConfig:
    """Measure shuffled loading: one frame of each camera and a chunk of actions per sample.

    With `--launch N`, or under torchrun, N processes share each batch. The command then prints samples and frames per
    second of all together and of each, without limits and figure.
    """

    path: Positional[str] = ""
    """Folder or URL of a LeRobot dataset."""
    batch_size: Annotated[int, Interval(ge=1, le=2**24)] = 32
    """Samples per batch, of all processes together."""
    chunk_size: Annotated[int, Interval(ge=1, le=2**16)] = 16
    """Actions per sample."""
    cameras: tuple[str, ...] = ()
    """Cameras to load; the default is all."""
    num_threads: Annotated[int, Interval(ge=0, le=2**12)] = 0
    """Loader threads of a process; 0: chosen by the loader."""
    memory: str = "4GB"
    """Memory of the loader, for all processes of a host. If all images fit, they are decoded once and then only copied.
    """
    seconds: Annotated[float, Gt(0)] | None = None
    """Seconds per round and loader or limit. The default is 5, and down to 1 for less than 10,000 frames."""
    rounds: Annotated[int, Interval(ge=1, le=10**6)] = 3
    """Number of rounds; medians are printed."""
    against: Literal["", "lerobot"] = ""
    """Also measure LeRobot's loader; needs a checkout of understudy."""
    lerobot: str = ""
    """Python interpreter with LeRobot; the default is the current one."""
    json: bool = False
    """Print one JSON object."""
    figure: str | None = None
    """Figure to write (.png, .svg, .pdf); the default is NAME-bench.png in the current folder, none with --json."""
    overwrite: bool = False
    """Replace an earlier figure of understudy at that place."""

    def problems(self) -> list[str]:
        """List errors in the settings, one line each."""
        from understudy.bytesize import parse_bytes
        from understudy.config.limits import LOADER_THREADS, too_many
        from understudy.report.figures import check_figure_path

        errors = [] if self.path else ["path: required, the folder or URL of a dataset: understudy bench PATH"]
        try:
            parse_bytes(self.memory)
        except ValueError as error:
            errors.append(str(error))
        errors += check_figure_path(self.figure)
        errors += too_many("num_threads", self.num_threads, LOADER_THREADS)

        if self.lerobot and shutil.which(self.lerobot) is None:
            errors.append(f"lerobot: {self.lerobot} is no program; give the Python interpreter that has LeRobot")
        if self.against and "://" in self.path:
            errors.append("against: LeRobot's loader reads local folders only; copy the dataset to disk to compare")
        return errors

    def setting(self) -> "Setting":
        """Settings of the measured loader."""
        from understudy.cli.bench.measure import Setting

        memory, cameras = self.memory, self.cameras or None
        return Setting(self.path, self.batch_size, self.chunk_size, self.num_threads, memory, cameras)


def bench(config: BenchConfig) -> None:
    """Measure, print the table, draw the figure."""
    from understudy.atomic import refuse_existing
    from understudy.optional_packages import require
    from understudy.process_rank import find_rank

    if (process := find_rank()).world_size > 1:
        from understudy.cli.bench.ranks import format_ranks, measure_ranks

        if config.against or config.figure:
            raise ConfigError("against and figure: of one process; leave them out, or leave out --launch")
        together = measure_ranks(config.setting(), config.rounds, config.seconds)
        if process.rank == 0:
            print(json.dumps(together, ensure_ascii=False) if config.json else format_ranks(together))
        return

    target = config.figure if config.figure or config.json else f"{Path(config.path).name or 'dataset'}-bench.png"
    if target:
        refuse_existing(target, "figure", config.overwrite)
        require("report")  # before the measurement, not after it
    report = measure(config)
    if target:
        from understudy.report.figures import draw_bench

        draw_bench(report, target)
    if config.json:
        print(json.dumps(report, ensure_ascii=False))
        return
    print(format_figures(report))
    print(f"\nfigure: {target}")


def measure(config: BenchConfig) -> dict[str, Any]:
    """Measure; returns all figures as plain values for JSON."""
    from contextlib import ExitStack

    from understudy.cli.bench import measure as by
    from understudy.cli.bench.decode_limit import limits
    from understudy.cli.bench.machine_load import Others, doubt
    from understudy.progress import Progress

    with ExitStack() as stack:
        trial = by.Trial(config.setting())
        stack.callback(trial.close)
        library, codec, shuffled = limits(trial.data, trial.held)
        rival = stack.enter_context(by.lerobot(config.lerobot or sys.executable)) if config.against else None
        ours: list[Round] = []
        others = Others()
        theirs: list[dict[str, Any]] = []
        seconds = config.seconds or by.default_seconds(len(trial.data))

        def measure_ours(time: float) -> None:
            ours.append(trial.measure(time))

        parts: list[Callable[[float], object]] = [library.measure, codec.measure, shuffled.measure, measure_ours]
        title = f"rounds of {seconds:g} s per loader or limit"
        progress = stack.enter_context(Progress(config.rounds * len(parts), title, "part"))
        for _ in range(config.rounds):
            with others.watched():
                for part in parts:
                    part(seconds)
                    progress.update()
            if rival:
                theirs.append(
                    rival.measure(
                        root=config.path,
                        batch=config.batch_size,
                        chunk=config.chunk_size,
                        workers=2,
                        seconds=seconds,
                    )
                )
                by.wait_for_quiet()
        figures = by.median_round(ours)
        report = {
            "path": config.path,
            "batch": config.batch_size,
            "chunk": config.chunk_size,
            **figures,
            **_facts(trial),
            "limit": library.found(),
            "over_limit": library.share(figures["samples_per_s"]),
            "codec_limit": codec.found(),
            "over_codec_limit": codec.share(figures["samples_per_s"]),
            "shuffled_limit": shuffled.found(),
            "over_shuffled_limit": shuffled.share(figures["samples_per_s"]),
            "lerobot": rival and by.other_figures(rival, theirs),
            "conditions": by.conditions() | others.found(),
        }
        return report | {"doubt": doubt(report)}


def _facts(trial: "Trial") -> dict[str, Any]:
    """Figures of our loader alone."""
    from understudy.cli.bench.measure import quality

    spec = trial.order.spec.sources[0]
    return {
        "first_batch_s": trial.first_batch_s,
        "batch_mb": trial.batch_bytes / 1e6,
        "work": trial.work,
        "waited_share": trial.waited_share,
        "order": {"clip": spec.clip, "lanes": spec.lanes, "frames": spec.frames, **quality(trial.order)},
        "plan": str(trial.loader.plan),
    }


def _share(figures: dict[str, Any], limit: dict[str, Any], doubt: str) -> float:
    """Share of a limit, by samples per second, or by CPU time if wall time is unreliable."""
    if doubt:
        return float(limit["cpu_ms_per_sample"] / figures["cpu_ms_per_sample"])
    return float(figures["samples_per_s"] / limit["samples_per_s"])


def format_figures(facts: dict[str, Any]) -> str:
    """Format the figures as a table with some lines of text."""
    rate, rival = facts["samples_per_s"], facts["lerobot"]
    sides: list[tuple[str, dict[str, Any], float | None]] = [("understudy", facts, facts["order"]["distinct_episodes"])]
    for key, name in (("limit", "decode limit"), ("codec_limit", "strictest"), ("shuffled_limit", "shuffled")):
        if facts[key]:
            sides.append((f"{name} ({facts[key]['by']})", facts[key], None))
    if rival and "missing" not in rival:
        sides.append((f"LeRobot {rival['version']}, 2 workers", rival, rival["distinct_episodes"]))
    width = max(len(side[0]) for side in sides)
    lines = [
        f"{'':<{width}}{'samples/s':>11}{'CPU ms/sample':>15}{'of limit':>10}{'of codec':>10}{'of shuffled':>13}"
        f"{'episodes/batch':>16}"
    ]
    for name, figures, episodes in sides:
        cells = f"{figures['samples_per_s']:>11,.0f}{figures['cpu_ms_per_sample']:>15.3f}"
        for key, wide in (("limit", 10), ("codec_limit", 10), ("shuffled_limit", 13)):
            share = f"{_share(figures, facts[key], facts['doubt']):.0%}" if facts[key] else ""
            cells += f"{share:>{wide}}"
        lines.append(f"{name:<{width}}{cells}" + f"{'' if episodes is None else f'{episodes:.1f}':>16}")
    if facts["doubt"]:
        lines.append(f"Do not quote these ratios, which are of CPU time per sample: {facts['doubt']}.")
    if rival and "missing" in rival:
        lines.append(f"LeRobot was not measured: {rival['missing']}")
    if facts["codec_limit"] and facts["work"]["decode"] < 0.01:
        lines.append("Nothing was decoded in these rounds: all images fit into memory. Less --memory shows decoding.")
    work, order, conditions = facts["work"], facts["order"], facts["conditions"]
    walk = f"{order['lanes']} lanes of clips of {order['clip']}" if order["clip"] > 1 else "uniform over frames"
    deff = ", ".join(f"{value:.2f}" for value in order["deff"])
    lines += [
        "",
        f"delivered     {facts['batch_mb'] * rate / facts['batch']:,.0f} MB/s in batches of {facts['batch']}, "
        f"first batch after {facts['first_batch_s']:.2f} s",
        "work          " + ", ".join(f"{name} {share:.0%}" for name, share in work.items())
        + f"; the idle consumer waited {facts['waited_share']:.0%} of the time",
        f"order         {walk}; deff over 1, 8, 64 batches: {deff} "
        f"(1 batch of a uniform shuffle: {order['deff_uniform']:.2f})",
        *(f"{'' if i else 'plan':<14}{line}" for i, line in enumerate(facts["plan"].splitlines())),
        f"measured      {conditions['date']} UTC, {conditions['cpu']}, {conditions['cores']} cores, load average "
        + ", ".join(f"{value:.1f}" for value in conditions["load_average"])
        + ("" if conditions["loops"] == "compiled" else f"; decoding in {conditions['loops']}"),
        f"terms         {GLOSSARY}",
    ]  # fmt: skip
    return "\n".join(lines)
