"""Validation time of one source beside 400 sources of 1 to 50 frames with the same total size.

    python benchmarks/validation.py              state only, where reading weighs most beside the network
    python benchmarks/validation.py --images     with a camera, every image decoded again in each validation
    python benchmarks/validation.py --json

The alternative is a torch DataLoader per source, one after the other, without workers (the cheapest) and with two
workers each (the usual way). It gives the same loss. The first validation reads the files, later ones have the rows in
memory. The table has the median of the later ones, taken in turns: wall time, and CPU time, which a busy machine
disturbs less. The bar: 400 sources within 1.2 times one source.
"""

import argparse
import json
import os
import platform
import statistics
import tempfile
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import torch

from understudy.batch_keys import ACTION, STATE, TASK
from understudy.config.data import SourceConfig
from understudy.config.train import DataConfig, TrainConfig
from understudy.data.write.writer import EpisodeWriter
from understudy.distributed import mesh as parallel
from understudy.distributed.mesh import Mesh
from understudy.load.validation.validation_data import ValidationData
from understudy.policies.draws import make_draws
from understudy.policies.flow.config import FlowSettings
from understudy.policies.flow.model import FlowPolicy
from understudy.train.data.run_data import RunData, open_data
from understudy.train.validation.validation_loss import BATCH, evaluate

CAMERA, DIMS, CHUNK, BAR = "observation.images.front", 7, 8, 1.2


def write(root: Path, lengths: list[int], images: bool) -> None:
    """Write a dataset: even episodes have these lengths and are for validation, odd ones have one frame."""
    features: dict[str, Any] = {key: {"dtype": "float32", "shape": (DIMS,)} for key in (ACTION, STATE)}
    features |= {CAMERA: {"dtype": "video", "shape": (64, 64, 3)}} if images else {}
    rng = np.random.default_rng(len(lengths))
    with EpisodeWriter(root, fps=10, features=features, codec="libx264") as writer:
        for length in [part for own in lengths for part in (own, 1)]:
            for _ in range(length):
                frame = {key: rng.normal(size=DIMS).astype(np.float32) for key in (ACTION, STATE)}
                frame |= {CAMERA: rng.integers(0, 255, (64, 64, 3), np.uint8)} if images else {}
                writer.add_frame(frame, task="move")
            writer.save_episode()


def opened(root: Path, names: list[str], episodes: list[int]) -> tuple[RunData, ValidationData, TrainConfig]:
    """Open sources with these numbers of validation episodes."""
    sources = tuple(
        SourceConfig(str(root / name), "arm", "joint", name=name, val_episodes=tuple(range(0, 2 * count, 2)))
        for name, count in zip(names, episodes)
    )
    policy = FlowSettings(width=192)
    config = TrainConfig(data=DataConfig(sources=sources, chunk_size=CHUNK), policy=policy, device="cpu")
    data = open_data(config)
    held = ValidationData.from_sources(data, mixed=True)
    assert held is not None
    return data, held, config


def network(data: RunData, config: TrainConfig) -> FlowPolicy:
    torch.manual_seed(0)
    one = {"offset": [0.0] * DIMS, "spread": [1.0] * DIMS}
    return FlowPolicy(data.policy_config(config), {ACTION: one, STATE: one})


@torch.no_grad()
def loader_each(policy: FlowPolicy, held: ValidationData, seed: int, workers: int) -> float:
    """The loss, by one DataLoader per source."""
    total, count, low = 0.0, 0, 0
    for part in held.datasets:
        for samples in torch.utils.data.DataLoader(part, BATCH, num_workers=workers, collate_fn=collated):
            here = slice(low, low + len(samples[TASK]))
            loss = policy.losses(samples, make_draws(policy.random_spec("validation"), seed, held.identity(here)))[
                "flow"
            ]
            total, count, low = total + float(loss.sum.sum()), count + int(loss.count.sum()), here.stop
    return total / count


def collated(samples: list[dict[str, Any]]) -> dict[str, Any]:
    first = samples[0]
    return {
        key: torch.stack([sample[key] for sample in samples])
        if isinstance(first[key], torch.Tensor)
        else [sample[key] for sample in samples]
        for key in first
    }


def timed(works: dict[str, Callable[[], float]], rounds: int) -> dict[str, Any]:
    """Seconds of each first call, medians of `rounds` more taken in turns, and the losses."""
    walls: dict[str, list[float]] = {name: [] for name in works}
    cpus: dict[str, list[float]] = {name: [] for name in works}
    loss = {}
    for turn in range(rounds + 1):
        for name in list(works)[:: 1 if turn % 2 else -1]:
            wall, cpu = time.perf_counter(), cpu_seconds()
            loss[name] = works[name]()
            walls[name].append(time.perf_counter() - wall)
            cpus[name].append(cpu_seconds() - cpu)
    return {
        name: {
            "first_wall_s": walls[name][0],
            "first_cpu_s": cpus[name][0],
            "wall_s": statistics.median(walls[name][1:] or walls[name]),
            "cpu_s": statistics.median(cpus[name][1:] or cpus[name]),
            "loss": loss[name],
        }
        for name in works
    }


def cpu_seconds() -> float:
    """CPU seconds of this process and of finished workers."""
    times = os.times()
    return times.user + times.system + times.children_user + times.children_system


def report(args: argparse.Namespace, root: Path, mesh: Mesh) -> dict[str, Any]:
    rng = np.random.default_rng(0)
    lengths = rng.integers(1, 51, args.sources).tolist()
    names = [f"source-{number:04d}" for number in range(args.sources)]
    write(root / "one", lengths, args.images)
    for name, length in zip(names, lengths):
        write(root / name, [length], args.images)
    works: dict[str, Callable[[], float]] = {}
    for label, sources, counts in (("one", ["one"], [len(lengths)]), ("many", names, [1] * len(names))):
        data, held, config = opened(root, sources, counts)
        policy, seed = network(data, config), 0

        def ours(held: ValidationData = held, policy: FlowPolicy = policy, seed: int = seed) -> float:
            return float(evaluate(policy, held, seed, mesh, {"flow": 1.0}, threads=args.threads)["loss"])

        works[label] = ours
    works["loader_each"] = lambda: loader_each(policy, held, seed, 0)
    found = timed(works, args.rounds)
    if args.workers:  # workers start for each validation: every one is a first
        found |= timed({"loader_each_two_workers": lambda: loader_each(policy, held, seed, 2)}, 0)
    ratio = {
        name: {t: found[name][t] / found["one"][t] for t in ("wall_s", "cpu_s")} for name in found if name != "one"
    }
    return {
        "seconds": found,
        "ratio_to_one_source": ratio,
        "first_ratio": {t: found["many"][t] / found["one"][t] for t in ("first_wall_s", "first_cpu_s")},
        "bar": {"limit": BAR, "wall_met": ratio["many"]["wall_s"] <= BAR, "cpu_met": ratio["many"]["cpu_s"] <= BAR},
        "conditions": {
            "sources": args.sources,
            "held_out_frames": int(sum(lengths)),
            "pictures": "64x64 H.264, decoded in each validation" if args.images else "none",
            "threads": args.threads,
            "rounds": args.rounds,
            "draws": FlowPolicy.validation_draws,
            "machine": platform.machine(),
            "cores": os.cpu_count(),
            "load_1min": os.getloadavg()[0],
            "torch": torch.__version__,
        },
    }


def main(arguments: list[str] | None = None) -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--json", action="store_true", help="print one JSON object")
    parser.add_argument("--images", action="store_true", help="with a camera")
    parser.add_argument("--sources", type=int, default=400)
    parser.add_argument("--rounds", type=int, default=5, help="validations after the first, in turns")
    parser.add_argument("--no-workers", dest="workers", action="store_false", help="leave out the loaders with workers")
    parser.add_argument("--threads", type=int, default=1, help="prefetch threads")
    args = parser.parse_args(arguments)
    torch.set_num_threads(1)
    with tempfile.TemporaryDirectory() as folder, parallel.join_mesh(TrainConfig(device="cpu")) as mesh:
        result = report(args, Path(folder), mesh)
    if args.json:
        print(json.dumps(result))
        return
    print(f"{'':<26}{'wall s':>8}{'CPU s':>8}{'CPU to one':>12}{'first':>8}   loss")
    for name, r in result["seconds"].items():
        to_one = r["cpu_s"] / result["seconds"]["one"]["cpu_s"]
        print(
            f"{name:<26}{r['wall_s']:>8.2f}{r['cpu_s']:>8.2f}{to_one:>12.2f}{r['first_wall_s']:>8.2f}   {r['loss']:.6f}"
        )
    print(f"{args.sources} sources within {BAR} times one: {result['bar']}")
    print(", ".join(f"{k} {v}" for k, v in result["conditions"].items()))


if __name__ == "__main__":
    main()
