"""Transcoding: the cost of decoding before and after, and the success of policies trained on either dataset.

    python benchmarks/transcode.py [--json] [--set DATASET] [--out runs/transcode]

The expert of the simulated table is recorded at `--image-size` pixels in AV1. `understudy edit` transcodes the
recording to 64 pixels, H.264 with a key frame every 2. The same recipe with the same seeds is trained on both, with
64-pixel images in the network. All policies play the same scenes, seen at `--image-size` pixels. Figures:

    success        dataset -> [successes, episodes] over all seeds
    intervals      dataset -> 95 % Wilson interval of the success rate
    runs           dataset -> seed, CPU seconds, validation loss and success of each training
    cost           CPU ms per image, original and transcoded, in a row and alone at a random place, and their ratios:
                   of the recording, and of each camera of `--set`, a dataset that is transcoded to 224 pixels
                   (medians over `--trials` measurements, original and transcoded in turns)

`--cost-only` measures the cost of `--set` alone, in about a minute, without recordings and trainings: {"cost",
"conditions"}. `--out` keeps finished parts; a call with it continues.
"""

import argparse
import json
import os
import platform
import shutil
import sys
from contextlib import redirect_stdout
from pathlib import Path
from statistics import median
from typing import Any

os.environ.setdefault("OMP_NUM_THREADS", "1")

import torch

from memory import Part, command, finish
from understudy.data.format.catalog import Catalog
from understudy.edit.decode_cost import measure_cost
from understudy.edit.plan import Piece
from understudy.rollout.result import wilson_interval
from understudy.train.track import metrics_file

ARMS = ("original", "transcoded")
SIZE = 64
"""Side of the network's images in pixels: the default of the policy."""


def prepared(args: argparse.Namespace) -> list[Part]:
    """Both datasets of the table, and the transcoded `--set`."""

    def record() -> Any:
        options = ("--episodes", str(args.episodes), "--image-size", str(args.image_size))
        return command(args.out / "record.log", "record", "--output-dir", str(args.out / "original"), *options)

    def transcode(source: Path, out: Path, size: int) -> Any:
        shutil.rmtree(out, ignore_errors=True)  # of a call that was killed
        words = ("edit", str(source), str(out), "--size", str(size), "--codec", "libx264", "--gop", "2")
        return command(out.with_suffix(".log"), *words)

    if args.cost_only:
        return [
            Part("transcode set", args.out / "set.json", lambda: transcode(args.set, args.out / "set", args.set_size))
        ]
    parts = [
        Part("record", args.out / "record.json", record),
        Part(
            "transcode",
            args.out / "transcode.json",
            lambda: transcode(args.out / "original", args.out / "transcoded", SIZE),
        ),
    ]
    if args.set is not None:
        parts.append(
            Part("transcode set", args.out / "set.json", lambda: transcode(args.set, args.out / "set", args.set_size))
        )
    return parts


def trained(args: argparse.Namespace, arm: str, seed: int) -> list[Part]:
    """Training on a dataset, and its rollouts."""
    run = args.out / f"{arm}-{seed}"

    def train() -> Any:
        flags = {
            "data.root": args.out / arm,
            "output-dir": run,
            "steps": args.steps,
            "seed": seed,
            "val.every": args.steps,
            "checkpoint.every": args.steps,
            "loader.num-threads": 1,
        }
        words = [word for name, value in flags.items() for word in (f"--{name}", str(value))]
        used = command(run.with_suffix(".log"), "train", *words, "--log.no-report")
        (val,) = metrics_file.read(run / "metrics.jsonl", "val")
        return used | {"val_loss": val["loss"]}

    def play() -> Any:
        options = ("--episodes", str(args.rollouts), "--seed", str(seed), "--films", "0")
        command(run.with_suffix(".rollout.log"), "rollout", str(run), "--image-size", str(args.image_size), *options)
        found = json.loads((run / "rollouts" / f"tabletop-seed{seed}.json").read_text())
        return {"success": found["success"]}

    return [Part("train", run.with_suffix(".json"), train), Part("play", run.with_suffix(".rollout.json"), play)]


def measured(before: Path, after: Path, trials: int) -> dict[str, Any]:
    """Camera -> cost of decoding before and after."""
    source, out, found = Catalog.open(before), Catalog.open(after), dict[str, Any]()
    pieces = [Piece(0, row, 0, int(length)) for row, length in enumerate(source.episodes.lengths)]
    for camera in source.camera_keys:
        costs = [measure_cost([source], pieces, out, camera, rounds=15) for _ in range(trials)]
        found[camera] = {}
        for name in ("stretch", "single"):
            one, other = (median(getattr(cost[at], name) for cost in costs) for at in (0, 1))
            ratios = sorted(getattr(cost[0], name) / getattr(cost[1], name) for cost in costs)
            found[camera][name] = {"original_ms": one, "transcoded_ms": other, "ratio": median(ratios), "all": ratios}
    return found


def summary(args: argparse.Namespace) -> dict[str, Any]:
    """Read the results of all parts, and measure the cost of decoding."""
    conditions = {key: str(value) for key, value in vars(args).items()}
    conditions |= {"device": platform.machine(), "threads": "1", "torch": torch.__version__}
    if args.cost_only:
        return {"cost": {"set": measured(args.set, args.out / "set", args.trials)}, "conditions": conditions}
    runs: dict[str, list[dict[str, Any]]] = {arm: [] for arm in ARMS}
    for arm in ARMS:
        for seed in args.seeds:
            train, played = (
                json.loads((args.out / f"{arm}-{seed}{end}").read_text()) for end in (".json", ".rollout.json")
            )
            runs[arm].append({"seed": seed, **train, **played})
    success = {
        arm: [sum(run["success"][name] for run in runs[arm]) for name in ("successes", "episodes")] for arm in ARMS
    }
    cost = {"table": measured(args.out / "original", args.out / "transcoded", args.trials)}
    if args.set is not None:
        cost["set"] = measured(args.set, args.out / "set", args.trials)
    return {
        "success": success,
        "intervals": {arm: wilson_interval(*counts) for arm, counts in success.items()},
        "cost": cost,
        "runs": runs,
        "conditions": conditions,
    }


def table(result: dict[str, Any]) -> str:
    """Format the results as text."""
    lines = []
    for arm in ARMS if "success" in result else ():
        (good, count), (low, high) = result["success"][arm], result["intervals"][arm]
        lines.append(f"{arm:12} {good}/{count} ({100 * low:.0f}-{100 * high:.0f} %)")
    for name, cameras in result["cost"].items():
        for camera, cost in cameras.items():
            for way, words in (("stretch", "in a row"), ("single", "at random places")):
                one = cost[way]
                lines.append(
                    f"{name} {camera} {words}: {one['original_ms']:.3f} -> {one['transcoded_ms']:.3f} CPU ms "
                    f"per image, 1/{one['ratio']:.1f}"
                )
    return "\n".join(lines)


def main(arguments: list[str] | None = None) -> None:
    """Parse the command line and print the results."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--json", action="store_true", help="print one JSON object")
    parser.add_argument("--out", type=Path, default=Path("runs/transcode"))
    parser.add_argument("--set", type=Path, help="another dataset, whose cost of decoding is measured")
    parser.add_argument("--set-size", type=int, default=224, help="its longer side after transcoding")
    parser.add_argument("--cost-only", action="store_true", help="transcode and measure `--set`, and train nothing")
    parser.add_argument("--episodes", type=int, default=200, help="to record")
    parser.add_argument("--image-size", type=int, default=128, help="of the recording")
    parser.add_argument("--steps", type=int, default=2500, help="of each training")
    parser.add_argument("--seeds", type=int, nargs="+", default=[0, 1, 2], help="of trainings and scenes")
    parser.add_argument("--rollouts", type=int, default=30, help="per policy")
    parser.add_argument("--trials", type=int, default=5, help="measurements of the cost")
    args = parser.parse_args(arguments)
    if args.cost_only and args.set is None:
        parser.error("--cost-only: needs --set DATASET")
    torch.set_num_threads(1)
    with redirect_stdout(sys.stderr):
        args.out.mkdir(parents=True, exist_ok=True)
        seeds = () if args.cost_only else args.seeds
        finish([*prepared(args), *(part for seed in seeds for arm in ARMS for part in trained(args, arm, seed))])
        result = summary(args)
    print(json.dumps(result) if args.json else table(result))


if __name__ == "__main__":
    main()
