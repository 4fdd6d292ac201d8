"""Throughput of the loader in several processes at once: of all together, and of each."""

from collections.abc import Sequence
from contextlib import closing
from dataclasses import replace
from statistics import median
from typing import Any

import torch.distributed as dist

from understudy.bytesize import parse_bytes
from understudy.cli.bench.measure import Round, Setting, Trial, conditions, default_seconds, median_round
from understudy.cores import fair_threads, processes_here
from understudy.errors import ConfigError
from understudy.process_rank import find_rank


def measure_ranks(setting: Setting, rounds: int, seconds: float | None) -> dict[str, Any]:
    """Measure in this process and the others at once; returns the figures of all and of each as plain values for JSON.

    Args:
        setting: of one process; its memory is that of all on this host.
        rounds: number of rounds.
        seconds: of a round; None chooses them.

    Raises:
        ConfigError: a batch that the processes cannot share evenly.
    """
    process = find_rank()
    if setting.batch % process.world_size:
        raise ConfigError(f"batch_size: {setting.batch} over {process.world_size} processes; give a multiple")
    on_host = processes_here()
    setting = replace(
        setting,
        threads=setting.threads or fair_threads(on_host),
        memory=str(parse_bytes(setting.memory) // on_host),
        rank=process.rank,
        world_size=process.world_size,
    )
    dist.init_process_group("gloo")
    try:
        with closing(Trial(setting)) as trial:
            time = seconds or default_seconds(len(trial.data))
            measured = [trial.measure(time, dist.barrier) for _ in range(rounds)]
            waits = {"first_batch_s": trial.first_batch_s, "waited_share": trial.waited_share}
            cameras = len([key for key in trial.data.keys if key in trial.data.catalog.camera_keys])
        ranks: list[Any] = [None] * process.world_size
        dist.all_gather_object(ranks, (measured, waits))
    finally:
        dist.destroy_process_group()
    return {"path": setting.path, "batch": setting.batch, "chunk": setting.chunk, **_summarize(cameras, ranks)}


def _summarize(cameras: int, ranks: Sequence[tuple[Sequence[Round], dict[str, float]]]) -> dict[str, Any]:
    """Figures of all processes and of each, from rounds and further figures of each."""
    together = [
        Round(
            sum(part.samples for part in parts),
            sum(part.samples for part in parts) / sum(part.per_s for part in parts),
            sum(part.cpu_seconds for part in parts),
        )
        for parts in zip(*(rounds for rounds, _ in ranks))
    ]
    figures = [_with_frames(median_round(rounds), cameras) | further for rounds, further in ranks]
    return {
        "world_size": len(ranks),
        **_with_frames(median_round(together), cameras),
        "waited_share": median(rank["waited_share"] for rank in figures),
        "ranks": figures,
        "conditions": conditions(),
    }


def format_ranks(figures: dict[str, Any]) -> str:
    """Format the figures as a table."""
    ranks, conditions = figures["ranks"], figures["conditions"]
    rows = [(f"all {len(ranks)} ranks", figures), *((f"rank {n}", rank) for n, rank in enumerate(ranks))]
    width = max(len(name) for name, _ in rows)
    lines = [f"{'':<{width}}{'samples/s':>12}{'frames/s':>12}{'CPU ms/sample':>15}{'waited':>9}"]
    for name, row in rows:
        rates = f"{row['samples_per_s']:>12,.0f}{row['frames_per_s']:>12,.0f}"
        lines.append(f"{name:<{width}}{rates}{row['cpu_ms_per_sample']:>15.3f}{row['waited_share']:>9.0%}")
    slowest = max(rank["first_batch_s"] for rank in ranks)
    lines += [
        "",
        f"first batch of the slowest rank after {slowest:.2f} s; frames are images of all cameras",
        f"measured {conditions['date']} UTC, rank 0 on {conditions['cpu']}, {conditions['cores']} cores",
    ]
    return "\n".join(lines)


def _with_frames(figures: dict[str, float], cameras: int) -> dict[str, Any]:
    return {**figures, "frames_per_s": figures["samples_per_s"] * cameras}
