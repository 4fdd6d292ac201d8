"""`understudy bench PATH|URL`: throughput of the loader on a dataset and the limit of its codec.

In each round the decode limits of the same files and the loader take turns on the same cores; the command prints the
medians. `decode_limit.py` describes the limits. `benchmarks/loader.py` and `benchmarks/loader_rivals.py` measure other
loaders as well.
"""

import json
from contextlib import closing
from dataclasses import dataclass
from typing import TYPE_CHECKING, Annotated, Any

from understudy.bytesize import parse_bytes
from understudy.config.declare import Gt, Interval, Positional
from understudy.config.limits import LOADER_THREADS, too_many
from understudy.errors import page
from understudy.process_rank import find_rank
from understudy.progress import Progress

if TYPE_CHECKING:
    from understudy.cli.bench.measure import Round, Setting


GLOSSARY = f"{page('glossary.md')} explains them"


@dataclass(frozen=True)
class BenchConfig:
    """Measure shuffled loading: one frame of each camera and a chunk of actions per sample.

    With `--launch N`, or under torchrun, N processes share each batch. The command then prints samples and frames per
    second of all together and of each, without limits.
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
    json: bool = False
    """Print one JSON object."""

    def problems(self) -> list[str]:
        """List errors in the settings, one line each."""
        errors = [] if self.path else ["path: required, the folder or URL of a dataset: understudy bench PATH"]
        try:
            parse_bytes(self.memory)
        except ValueError as error:
            errors.append(str(error))
        return errors + too_many("num_threads", self.num_threads, LOADER_THREADS)

    def setting(self) -> "Setting":
        """Settings of the measured loader."""
        from understudy.cli.bench.measure import Setting

        memory, cameras = self.memory, self.cameras or None
        return Setting(self.path, self.batch_size, self.chunk_size, self.num_threads, memory, cameras)


def bench(config: BenchConfig) -> None:
    """Measure, and print the table."""
    if (process := find_rank()).world_size > 1:
        from understudy.cli.bench.ranks import format_ranks, measure_ranks

        together = measure_ranks(config.setting(), config.rounds, config.seconds)
        if process.rank == 0:
            print(json.dumps(together, ensure_ascii=False) if config.json else format_ranks(together))
        return

    report = measure(config)
    print(json.dumps(report, ensure_ascii=False) if config.json else format_figures(report))


def measure(config: BenchConfig) -> dict[str, Any]:
    """Measure; returns all figures as plain values for JSON."""
    from understudy.cli.bench.decode_limit import limits
    from understudy.cli.bench.machine_load import Others, doubt
    from understudy.cli.bench.measure import Trial, conditions, default_seconds, median_round

    with closing(Trial(config.setting())) as trial:
        seconds = config.seconds or default_seconds(len(trial.data))
        library, codec = limits(trial.data)
        others = Others()
        rounds: list[Round] = []
        title = f"rounds of {seconds:g} s per loader or limit"
        with Progress(config.rounds * 3, title, "part") as progress:
            for _ in range(config.rounds):
                with others.watched():
                    for limit in (library, codec):
                        limit.measure(seconds)
                        progress.update()
                    rounds.append(trial.measure(seconds))
                    progress.update()
        figures, spec = median_round(rounds), trial.order.spec.sources[0]
        report = {
            "path": config.path,
            "batch": config.batch_size,
            "chunk": config.chunk_size,
            **figures,
            "first_batch_s": trial.first_batch_s,
            "batch_mb": trial.batch_bytes / 1e6,
            "work": trial.work,
            "waited_share": trial.waited_share,
            "order": {"clip": spec.clip, "lanes": spec.lanes, "frames": spec.frames},
            "plan": str(trial.loader.plan),
            "limit": library.figures(),
            "over_limit": library.share(figures["samples_per_s"]),
            "codec_limit": codec.figures(),
            "over_codec_limit": codec.share(figures["samples_per_s"]),
            "conditions": conditions() | others.figures(),
        }
        return report | {"doubt": doubt(report)}


def _share(figures: dict[str, Any], limit: dict[str, Any], doubt: str) -> float:
    """Share of a limit, by samples per second, or by CPU time if wall time is unreliable."""
    if doubt:
        return float(limit["cpu_ms_per_sample"] / figures["cpu_ms_per_sample"])
    return float(figures["samples_per_s"] / limit["samples_per_s"])


def format_figures(facts: dict[str, Any]) -> str:
    """Format the figures as a table with some lines of text."""
    sides = {"understudy": facts}
    for key, name in (("limit", "decode limit"), ("codec_limit", "strictest")):
        if facts[key]:
            sides[f"{name} ({facts[key]['by']})"] = facts[key]
    width = max(map(len, sides))
    lines = [f"{'':<{width}}{'samples/s':>11}{'CPU ms/sample':>15}{'of limit':>10}{'of codec':>10}"]
    for name, figures in sides.items():
        cells = f"{figures['samples_per_s']:>11,.0f}{figures['cpu_ms_per_sample']:>15.3f}"
        for key in ("limit", "codec_limit"):
            share = f"{_share(figures, facts[key], facts['doubt']):.0%}" if facts[key] else ""
            cells += f"{share:>10}"
        lines.append(f"{name:<{width}}{cells}")
    if facts["doubt"]:
        lines.append(f"Do not quote these ratios, which are of CPU time per sample: {facts['doubt']}.")
    if facts["codec_limit"] and facts["work"]["decode"] < 0.01:
        lines.append("Nothing was decoded in these rounds: all images fit into memory. Less --memory shows decoding.")
    work, order, conditions = facts["work"], facts["order"], facts["conditions"]
    walk = f"{order['lanes']} lanes of clips of {order['clip']}" if order["clip"] > 1 else "uniform over frames"
    lines += [
        "",
        f"delivered     {facts['batch_mb'] * facts['samples_per_s'] / facts['batch']:,.0f} MB/s in batches of "
        f"{facts['batch']}, first batch after {facts['first_batch_s']:.2f} s",
        "work          " + ", ".join(f"{name} {share:.0%}" for name, share in work.items())
        + f"; the idle consumer waited {facts['waited_share']:.0%} of the time",
        f"order         {walk}; `understudy order explain` shows how well it mixes",
        *(f"{'' if i else 'plan':<14}{line}" for i, line in enumerate(facts["plan"].splitlines())),
        f"measured      {conditions['date']} UTC, {conditions['cpu']}, {conditions['cores']} cores, load average "
        + ", ".join(f"{value:.1f}" for value in conditions["load_average"])
        + ("" if conditions["loops"] == "compiled" else f"; decoding in {conditions['loops']}"),
        f"terms         {GLOSSARY}",
    ]  # fmt: skip
    return "\n".join(lines)
