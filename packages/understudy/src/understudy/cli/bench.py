"""`understudy bench PATH|URL`: samples per second of the loader, and their ratio to decoding in a
row.

In each round the loader and the decoding of the same videos from front to back take turns on the
same cores. The figures are medians over the rounds.
"""

import json
import os
import time
from collections.abc import Callable
from dataclasses import dataclass
from statistics import median
from typing import TYPE_CHECKING, Annotated, Any, Literal

from understudy_base import (
    MOST_LOADER_THREADS,
    ConfigError,
    DatasetError,
    Progress,
    available_cores,
    page,
    parse_bytes,
    processes_here,
)
from understudy_data import ProcessRank
from understudy_kit import HostLimit, Interval, Positional, Positive

if TYPE_CHECKING:
    from understudy_data import EpisodeDataset, Loader

WARM_BATCHES = 8
"""Batches discarded before each round: more than the loader prepares ahead between rounds."""


@dataclass(frozen=True)
class BenchConfig:
    """Measure shuffled loading: one frame of each camera and a chunk of actions per sample.

    With `--launch N`, or under torchrun, N processes share each batch, and the figures are those of
    all together and of each.
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
    """Memory of the loader, for all processes of a host. If all images fit, they are decoded once
    and then only copied.
    """
    seconds: Positive | None = None
    """Seconds of a round, once for the loader and once for the decoding. The default is 5, and down
    to 1 for less than 10,000 frames.
    """
    rounds: Annotated[int, Interval(ge=1, le=10**6)] = 3
    """Number of rounds; medians are printed."""
    json: bool = False
    """Print one JSON object."""

    def problems(self) -> list[str]:
        """List errors in the settings, one line each."""
        errors = (
            []
            if self.path
            else ["path: required, the folder or URL of a dataset: understudy bench PATH"]
        )
        try:
            parse_bytes(self.memory)
        except ValueError as error:
            errors.append(str(error))
        return errors + HostLimit.LOADER_THREADS.problems("num_threads", self.num_threads)


def bench(config: BenchConfig) -> None:
    """Measure, and print the table.

    Raises:
        ConfigError: a batch that the processes cannot share evenly, or memory for less than one.
        DatasetError: the dataset cannot be read, or has no such camera.
    """
    import torch.distributed as dist

    process = ProcessRank.find()
    if process.world_size == 1:
        ranks = [measure(config)]
    elif config.batch_size % process.world_size:
        raise ConfigError(
            f"batch_size: {config.batch_size} over {process.world_size} processes; give a multiple"
        )
    else:
        ranks = [{}] * process.world_size
        dist.init_process_group("gloo")
        try:
            dist.all_gather_object(ranks, measure(config, dist.barrier))
        finally:
            dist.destroy_process_group()
    if process.rank == 0:
        report = {
            "path": config.path,
            "batch": config.batch_size,
            "chunk": config.chunk_size,
            **summarize(ranks),
        }
        text = json.dumps(report, ensure_ascii=False) if config.json else format_report(report)
        print(text)


def measure(config: BenchConfig, meet: Callable[[], object] = lambda: None) -> dict[str, Any]:
    """Measure in this process; `meet` is called before each measurement, to begin with other
    processes.
    """
    from understudy_data import Loader, choose_order, decode_in_a_row, loops_status

    process = ProcessRank.find()
    data = open_data(config)
    memory = parse_bytes(config.memory) // processes_here()
    resources: dict[str, Any] = {"memory": memory, "world_size": process.world_size}
    try:
        choice = choose_order(
            [data], num_threads=MOST_LOADER_THREADS, batch_size=config.batch_size, **resources
        )
    except ValueError as error:
        raise ConfigError(str(error)) from error
    # more would decode a small set again
    seconds = config.seconds or min(5.0, max(1.0, 5.0 * len(data) / 10_000))
    rates = []
    costs = []
    decoded = []
    threads: int | Literal["auto"] = config.num_threads or "auto"
    progress = Progress(
        config.rounds, f"rounds of 2 x {seconds:g} s", "round", shown=process.rank == 0
    )
    with (
        progress,
        Loader(
            [data], order=choice.order, num_threads=threads, rank=process.rank, **resources
        ) as loader,
    ):
        for _ in range(first_turn(loader)):
            next(loader)
        start = loader.position
        frames_before = loader.timings.frames
        for _ in range(config.rounds):
            for _ in range(WARM_BATCHES):
                next(loader)
            meet()
            begin = time.perf_counter()
            begin_cpu = time.process_time()
            samples = 0
            while not samples or time.perf_counter() - begin < seconds:
                next(loader)
                samples += config.batch_size // process.world_size
            rates.append(samples / (time.perf_counter() - begin))
            costs.append(1000 * (time.process_time() - begin_cpu) / samples)
            meet()
            decoded.append(decode_in_a_row(data, seconds))
            progress.update()
        frames = loader.timings.frames - frames_before
        images = (loader.position - start) // process.world_size * len(cameras_of(data))
    status = loops_status()
    loops = f"Python: {status.reason}" if status.library is None else "compiled"
    load_average = list(os.getloadavg()) if hasattr(os, "getloadavg") else []
    return {
        "samples_per_s": median(rates),
        "cpu_ms_per_sample": median(costs),
        "in_a_row_per_s": median(decoded),
        "decoded_share": frames / max(1, images),
        "plan": str(loader.plan),
        "loops": loops,
        "cores": available_cores(),
        "load_average": load_average,
    }


def open_data(config: BenchConfig) -> "EpisodeDataset":
    """Open the dataset with one frame of each camera and chunks of actions."""
    from understudy_data import Catalog, EpisodeDataset

    catalog = Catalog.open(config.path)
    cameras = catalog.camera_keys
    for camera in config.cameras:
        if camera not in cameras:
            fix = f"cameras: {', '.join(cameras)}"
            raise DatasetError(f"unknown camera {camera!r}", where=config.path, fix=fix)
    left_out = set(cameras).difference(config.cameras or cameras)
    keys = [key for key in EpisodeDataset(catalog).keys if key not in left_out]
    windows = (
        {"action": [step / catalog.fps for step in range(config.chunk_size)]}
        if "action" in keys
        else {}
    )
    return EpisodeDataset(catalog, delta_timestamps=windows, keys=keys)


def cameras_of(data: "EpisodeDataset") -> list[str]:
    """Return the cameras that are video."""
    return [key for key in data.keys if key in data.catalog.episodes.videos]


def first_turn(loader: "Loader") -> int:
    """Return the batches until each lane has read its first run: until then more is decoded than
    delivered.
    """
    sources = zip(loader.order.spec.sources, loader.plan.policies, loader.plan.keeps_decoded)
    read = [
        source.lanes * policy.run_length
        for source, policy, keep in sources
        if source.shuffle and not keep
    ]
    return -(-sum(read) // loader.order.batch_size)


def summarize(ranks: list[dict[str, Any]]) -> dict[str, Any]:
    """Return the figures of all ranks together, with the ratios of all and of each."""
    total = {}
    for name in ("samples_per_s", "in_a_row_per_s"):
        total[name] = sum(rank[name] for rank in ranks)
    cpu = sum(rank["cpu_ms_per_sample"] * rank["samples_per_s"] for rank in ranks)
    together = {**ranks[0], **total, "cpu_ms_per_sample": cpu / total["samples_per_s"]}
    for figures in (together, *ranks):
        in_a_row = figures["in_a_row_per_s"]
        figures["over_in_a_row"] = figures["samples_per_s"] / in_a_row if in_a_row else None
    return {**together, "ranks": ranks}


def format_report(report: dict[str, Any]) -> str:
    """Format the figures as a table with some lines of text."""
    ranks = report["ranks"]
    rows = {"understudy": report}
    if len(ranks) > 1:
        rows = {
            f"all {len(ranks)} ranks": report,
            **{f"rank {number}": rank for number, rank in enumerate(ranks)},
        }
    lines = [f"{'':<14}{'samples/s':>12}{'CPU ms/sample':>15}{'in a row/s':>12}{'ratio':>8}"]
    for name, figures in rows.items():
        line = f"{name:<14}{figures['samples_per_s']:>12,.0f}{figures['cpu_ms_per_sample']:>15.3f}"
        if figures["over_in_a_row"]:
            line += f"{figures['in_a_row_per_s']:>12,.0f}{figures['over_in_a_row']:>8.0%}"
        lines.append(line)
    if report["over_in_a_row"] and report["decoded_share"] < 0.5:
        lines.append(
            "Most images were in memory and not decoded again in these rounds. Less --memory shows "
            "decoding."
        )
    lines.append("")
    lines += [
        f"{'plan' * (not number):<14}{line}"
        for number, line in enumerate(report["plan"].splitlines())
    ]
    load = ", ".join(f"{value:.1f}" for value in report["load_average"])
    lines.append(
        f"{'measured':<14}on {report['cores']} cores, load average {load}, loops {report['loops']}"
    )
    lines.append(f"{'terms':<14}{page('glossary.md')} explains them")
    return "\n".join(lines)
