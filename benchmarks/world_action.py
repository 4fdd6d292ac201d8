"""A world-action model on the simulated table: the quality of its imagined futures, and its cost to the policy.

    python benchmarks/world_action.py [--json] [--out runs/world-action]

Two arms have the same recordings, seeds and number of steps. `policy` predicts actions alone. `joint` draws one
of the modes policy, forward dynamics and inverse dynamics for each position, and also predicts states and images.

On episodes that were not trained on, `joint` imagines the image behind each chunk of recorded actions:
    psnr_model     of the imagined image
    psnr_copy      of the present image: nothing changes
    psnr_state     of the training image with the nearest state to the imagined one: a model of states alone
    psnr_oracle    of the training image with the nearest state to the true future one
    psnr_moved     the same four over the pixels that change
    psnr_rollout   of images imagined from imagined images, `--chunks` chunks ahead, beside the copy
`inverse_mse` and `policy_mse` are errors of normalized actions, sampled given the future and without it. `success` are
[successes, episodes] of both arms in scenes without recordings. `follow` is a closed loop without a policy: among
`--candidates` recorded chunks it executes the one whose imagined image is nearest to a video of the expert. `states`
are errors of imagined states after each action, `modes` the validation losses of each task mode. Figures are means over
`--seeds`; `runs` has each one. `--out` keeps finished parts; a call with it continues.
"""

import argparse
import json
import math
import os
import platform
import sys
import time
from contextlib import redirect_stdout
from pathlib import Path
from typing import Any

os.environ.setdefault("OMP_NUM_THREADS", "1")

import torch

from memory import Part, command, finish
from understudy.config.schema import load as load_settings
from understudy.config.train import TrainConfig
from understudy.policies.policy import load
from understudy.policies.world_action.policy import WorldActionPolicy
from understudy.rollout.result import wilson_interval
from understudy.train.track import metrics_file
from world_action_futures import NAMES as KINDS
from world_action_futures import compare, follow

ARMS = ("policy", "joint")
"""Settings `mode` of the trainings."""
NAMES = ("psnr_model", "psnr_copy", "psnr_state", "psnr_oracle", "inverse_mse", "policy_mse", "moved")
"""Figures of `compare` that are averaged over the seeds."""


def recorded(args: argparse.Namespace) -> Part:
    """Recordings of the expert."""

    def record() -> dict[str, float]:
        options = ("--output-dir", str(args.out / "dataset"), "--episodes", str(args.episodes))
        return command(args.out / "record.log", "record", *options)

    return Part("record", args.out / "record.json", record)


def trained(args: argparse.Namespace, arm: str, seed: int) -> list[Part]:
    """Training of an arm, its rollouts, and for `joint` the imagined futures."""
    run = args.out / f"{arm}-{seed}"

    def train() -> dict[str, Any]:
        flags = {
            "data.root": args.out / "dataset",
            "data.robot-type": "tabletop",
            "data.control-mode": "ee_delta",
            "output-dir": run,
            "policy.type": "world_action",
            "policy.noise-samples": 1,
            "mode": arm,
            "steps": args.steps,
            "batch-size": args.batch_size,
            "augment.shift": args.shift,
            "optim.lr": args.lr,
            "seed": seed,
            "val.every": args.steps,
            "checkpoint.every": args.steps,
            "loader.num-threads": 1,
        }
        words = [word for name, value in flags.items() for word in (f"--{name}", str(value))]
        if arm == "joint":
            words += ["--optim.loss-weights", "images", str(args.image_weight)]
        used = command(run.with_suffix(".log"), "train", *words)
        (val,) = metrics_file.read(run / "metrics.jsonl", "val")
        return used | {name: val.get(name) for name in ("modes", "imagined", "terms", "open_loop")}

    def play() -> dict[str, Any]:
        options = ("--episodes", str(args.rollouts), "--seed", str(seed), "--films", "2")
        used = command(run.with_suffix(".rollout.log"), "rollout", str(run), *options)
        found = json.loads((run / "rollouts" / f"tabletop-seed{seed}.json").read_text())
        return used | {"success": found["success"]}

    def imagine() -> dict[str, Any]:
        policy, config, before = load(run / "policy").eval(), run_settings(run), time.process_time()
        assert isinstance(policy, WorldActionPolicy)
        found = compare(policy, config, args.chunks, args.frames)
        found["follow"] = follow(policy, config, args.scenes, args.candidates, seed) if args.scenes else {}
        parameters = sum(parameter.numel() for parameter in policy.parameters())
        return found | {"cpu_s": time.process_time() - before, "parameters": parameters}

    parts = [
        Part(f"train {arm}", run.with_suffix(".json"), train),
        Part("play", run.with_suffix(".rollout.json"), play),
    ]
    return [*parts, Part("imagine", run.with_suffix(".imagine.json"), imagine)] if arm == "joint" else parts


def run_settings(run: Path) -> TrainConfig:
    """Settings of a run."""
    return load_settings(TrainConfig, run / "config.yaml")


def summary(args: argparse.Namespace) -> dict[str, Any]:
    """Read the results of all parts and average them over the seeds."""
    runs: dict[str, list[dict[str, Any]]] = {arm: [] for arm in ARMS}
    for arm in ARMS:
        for seed in args.seeds:
            own = args.out / f"{arm}-{seed}"
            made = {"seed": seed, **json.loads(own.with_suffix(".json").read_text())}
            made["success"] = json.loads(own.with_suffix(".rollout.json").read_text())["success"]
            if arm == "joint":
                made["futures"] = json.loads(own.with_suffix(".imagine.json").read_text())
            runs[arm].append(made)
    futures = [made["futures"] for made in runs["joint"]]
    result: dict[str, Any] = {name: mean([each[name] for each in futures]) for name in NAMES}
    result["psnr_moved"] = average([each["psnr_moved"] for each in futures])
    result["psnr_rollout"] = average([each["psnr_rollout"] for each in futures])
    result["success"], result["intervals"] = {}, {}
    for arm in ARMS:
        successes, episodes = (sum(made["success"][name] for made in runs[arm]) for name in ("successes", "episodes"))
        result["success"][arm] = [successes, episodes]
        result["intervals"][arm] = wilson_interval(successes, episodes)
    for name in NAMES[:-1]:
        result["intervals"][name] = interval([each[name] for each in futures])
    result["intervals"]["psnr_moved"] = {
        name: interval([each["psnr_moved"][name] for each in futures]) for name in result["psnr_moved"]
    }
    result["follow"] = {
        scorer: {
            "distance": mean([each["follow"][scorer]["distance"] for each in futures]),
            "interval": interval([each["follow"][scorer]["distance"] for each in futures]),
            "success": [sum(each["follow"][scorer][name] for each in futures) for name in ("successes", "scenes")],
        }
        for scorer in futures[0]["follow"]
    }
    result["states"] = average([made["imagined"]["states"] for made in runs["joint"]])
    result["modes"] = average([made["modes"] for made in runs["joint"]])
    result["cpu_minutes"] = {arm: mean([made["cpu_s"] / 60 for made in runs[arm]]) for arm in ARMS}
    result["runs"] = {arm: [drop(made) for made in runs[arm]] for arm in ARMS}
    result["conditions"] = {key: str(value) for key, value in vars(args).items()} | {
        "parameters": futures[0]["parameters"],
        "device": platform.machine(),
        "threads": 1,
        "torch": torch.__version__,
    }
    return result


def drop(made: dict[str, Any]) -> dict[str, Any]:
    """Leave out the tables, which the means have."""
    return {name: value for name, value in made.items() if name not in ("modes", "imagined", "terms", "open_loop")}


def mean(values: list[float]) -> float:
    """Mean of a figure over the seeds."""
    return math.fsum(values) / len(values)


def average(tables: list[Any]) -> Any:
    """Average equal tables number by number; other values, and numbers that some table lacks, are the first one's."""
    first = tables[0]
    if isinstance(first, dict):
        return {key: average([each[key] for each in tables]) for key in first if all(key in each for each in tables)}
    if isinstance(first, list):
        return [average(list(each)) for each in zip(*tables)]
    numbers = [each for each in tables if isinstance(each, int | float)]
    return mean(numbers) if len(numbers) == len(tables) else first


T95 = {2: 12.706, 3: 4.303, 4: 3.182, 5: 2.776, 6: 2.571}
"""Number of seeds -> quantile of Student's t for a 95 % interval of their mean."""


def interval(values: list[float]) -> list[float] | None:
    """95 % interval of the mean over seeds, by Student's t; None for another number of seeds than in `T95`."""
    if len(values) not in T95:
        return None
    middle = mean(values)
    spread = math.sqrt(math.fsum((value - middle) ** 2 for value in values) / (len(values) - 1))
    half = T95[len(values)] * spread / math.sqrt(len(values))
    return [middle - half, middle + half]


def main(arguments: list[str] | None = None) -> None:
    """Parse the command line and print the results."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--json", action="store_true", help="print one JSON object")
    parser.add_argument("--out", type=Path, default=Path("runs/world-action"))
    parser.add_argument("--episodes", type=int, default=200, help="to record")
    parser.add_argument("--steps", type=int, default=900, help="of each training")
    parser.add_argument("--batch-size", type=int, default=32)
    parser.add_argument("--lr", type=float, default=2e-3, help="peak learning rate")
    parser.add_argument("--image-weight", type=float, default=4.0, help="weight of the loss of the images")
    parser.add_argument("--shift", type=int, default=0, help="largest random shift of images in pixels")
    parser.add_argument("--seeds", type=int, nargs="+", default=[0, 1, 2], help="of trainings and scenes")
    parser.add_argument("--rollouts", type=int, default=30, help="per policy")
    parser.add_argument("--frames", type=int, default=256, help="chunks to imagine")
    parser.add_argument("--chunks", type=int, default=2, help="chunks to imagine in sequence")
    parser.add_argument("--scenes", type=int, default=12, help="videos to follow; 0: none")
    parser.add_argument("--candidates", type=int, default=128, help="chunks to choose from")
    args = parser.parse_args(arguments)
    torch.set_num_threads(1)
    with redirect_stdout(sys.stderr):
        args.out.mkdir(parents=True, exist_ok=True)
        finish([recorded(args), *(part for seed in args.seeds for arm in ARMS for part in trained(args, arm, seed))])
        result = summary(args)
    print(json.dumps(result) if args.json else table(result))


def table(result: dict[str, Any]) -> str:
    """Format the results for a terminal."""
    lines = [f"{'PSNR in dB':<34}{'imagined':>9}{'copy':>9}{'state':>9}{'oracle':>9}"]
    rows = {
        "all pixels": [result[f"psnr_{name}"] for name in KINDS],
        f"pixels that change ({result['moved']:.1%})": [result["psnr_moved"][name] for name in KINDS],
    }
    if rollout := result["psnr_rollout"]:
        rows[f"{rollout['chunks']:.0f} chunks ahead"] = [rollout[name] for name in ("model", "copy")]
        rows["  pixels that change"] = [rollout["moved"][name] for name in ("model", "copy")]
    lines += [f"{name:<34}" + "".join(f"{value:>9.2f}" for value in row) for name, row in rows.items()]
    lines.append(f"error of actions: {result['inverse_mse']:.4f} given the future, {result['policy_mse']:.4f} without")
    for scorer, found in result["follow"].items():
        took = "/".join(map(str, found["success"]))
        lines.append(f"following a video, by {scorer}: hand {100 * found['distance']:.1f} cm off, success {took}")
    for arm, (successes, episodes) in result["success"].items():
        low, high = result["intervals"][arm]
        cpu = result["cpu_minutes"][arm]
        lines.append(f"success in mode {arm}: {successes}/{episodes} ({low:.0%} to {high:.0%}), {cpu:.1f} CPU minutes")
    return "\n".join(lines)


if __name__ == "__main__":
    main()
