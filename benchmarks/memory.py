"""A task that needs memory: success of one recipe with `policy.history` and without, and the loader's cost of it.

    python benchmarks/memory.py [--json] [--out runs/memory]

In the environment `recall` a pad is lit for the first second, and the hand may move a second later: without memory
success is 1 in 4. Both arms train a small pi0.5 on the same recordings with the same seeds, samples, noises and steps.
`with_memory` also sees the frames of 5, 4, 3, 2 and 1 seconds ago. Each policy plays `--rollouts` scenes that no
recording has. Figures:

    with_memory, without      [successes, episodes] over all seeds
    arms                      each seed: successes, CPU seconds, losses; 95 % Wilson intervals of the sums
    decode_ratio_history6     frames decoded per sample of a history of 6 over those of a history of 1
    history1_samples_per_s    of the loader, on recordings of 30 frames per second (`benchmarks/history.py`)
    history6_samples_per_s    with 6 frames one second apart

`--out` keeps finished parts; a call with it continues.
"""

import argparse
import json
import os
import platform
import subprocess
import sys
import time
from collections.abc import Callable
from contextlib import redirect_stdout
from dataclasses import dataclass
from pathlib import Path
from typing import Any

os.environ.setdefault("OMP_NUM_THREADS", "1")

import torch

from understudy.rollout.result import wilson_interval
from understudy.train.track import metrics_file

HISTORY = (5, 4, 3, 2, 1)
"""Ages in seconds: in each step in which the hand moves, one of these frames shows the lit pad."""
ARMS: dict[str, dict[str, Any]] = {"with_memory": {"history": HISTORY}, "without": {}}
"""Arm -> its settings of the policy."""
IMAGE = 32
"""Side of the images in pixels."""
NETWORK = {
    "vision": {"width": 64, "depth": 3, "mlp": 128, "heads": 4, "patch": 8, "image": IMAGE},
    "vlm": {"width": 96, "depth": 4, "mlp_dim": 256, "num_heads": 4, "num_kv_heads": 1, "head_dim": 24},
    "expert": {"width": 64, "depth": 4, "mlp_dim": 192, "num_heads": 4, "num_kv_heads": 1, "head_dim": 24},
    "vocab": 1024,
    "dim": 32,
}
"""Dimensions of size `tiny`, for smaller images."""
TRAIN: dict[str, Any] = {
    "batch_size": 32,
    "policy": {"type": "pi05", "network": json.dumps(NETWORK), "noise_samples": 4, "prompt_tokens": 48},
    "augment": {"shift": 0},
    "optim": {"lr": 1e-3},
    "val": {"every": 0},
    "log": {"report": False},
}
"""Settings of all trainings."""
WAITING = 15
"""First frames of an episode that are no samples: the hand is locked then, so a policy may do anything. Windows still
contain them."""


@dataclass(frozen=True)
class Part:
    """A piece of the work, whose result is kept in a file."""

    kind: str
    """Parts of one kind take equally long."""
    file: Path
    make: Callable[[], Any]


def command(log: Path, *arguments: str) -> dict[str, float]:
    """Run an `understudy` command in a process of its own; its output goes to `log`. Returns its `cpu_s`."""
    log.parent.mkdir(parents=True, exist_ok=True)
    with log.open("w") as file:
        process = subprocess.Popen([sys.executable, "-m", "understudy", *arguments], stdout=file, stderr=file)
        _, status, usage = os.wait4(process.pid, 0)
    if os.waitstatus_to_exitcode(status) != 0:
        raise SystemExit(f"understudy {arguments[0]} failed: {log}")
    return {"cpu_s": usage.ru_utime + usage.ru_stime}


def recorded(args: argparse.Namespace) -> list[Part]:
    """Recordings of the expert, and a tokenizer of the instruction."""
    data, fit = args.out / "dataset", args.out / "tokenizer.yaml"

    def record() -> dict[str, float]:
        options = ("--episodes", str(args.episodes), "--image-size", str(IMAGE))
        return command(args.out / "record.log", "record", "--env", "recall", "--output-dir", str(data), *options)

    def tokenize() -> dict[str, float]:
        fit.write_text(json.dumps({"data": {"root": str(data)}, "policy": TRAIN["policy"]}))  # JSON is YAML
        folder = str(args.out / "tokenizer")
        return command(args.out / "tokenizer.log", "tokenizer", "fit", str(fit), "--output-dir", folder)

    return [Part("record", args.out / "record.json", record), Part("tokenizer", args.out / "tokenizer.json", tokenize)]


def trained(args: argparse.Namespace, arm: str, seed: int) -> list[Part]:
    """Training of an arm, and its rollouts."""
    run = args.out / f"{arm}-{seed}"

    def train() -> dict[str, Any]:
        policy = TRAIN["policy"] | {"tokenizer": str(args.out / "tokenizer")} | ARMS[arm]
        data = {"root": str(args.out / "dataset"), "drop_n_first_frames": WAITING, "val_fraction": 0}
        own = {"policy": policy, "data": data, "steps": args.steps, "seed": seed, "output_dir": str(run)}
        file = run.with_suffix(".yaml")
        file.write_text(json.dumps(TRAIN | own, indent=2))
        used = command(run.with_suffix(".log"), "train", str(file))
        losses = [record["loss"] for record in metrics_file.read(run / "metrics.jsonl", "train")[-20:]]
        return used | {"train_loss": sum(losses) / len(losses)}

    def play() -> dict[str, Any]:
        options = ("--episodes", str(args.rollouts), "--seed", str(seed), "--image-size", str(IMAGE), "--films", "0")
        used = command(run.with_suffix(".rollout.log"), "rollout", str(run), "--env", "recall", *options)
        found = json.loads((run / "rollouts" / f"recall-seed{seed}.json").read_text())
        return used | {"taken": [episode["taken"] for episode in found["episodes"]], "success": found["success"]}

    return [Part(f"train {arm}", run.with_suffix(".json"), train), Part("play", run.with_suffix(".rollout.json"), play)]


def loaded(args: argparse.Namespace) -> Part:
    """The loader with histories of 1 and 6 frames."""

    def measure() -> Any:
        script = Path(__file__).with_name("history.py")
        options = ["--json", "--gop", str(args.gop), "--cache", str(args.out), "--seconds", str(args.seconds)]
        found = subprocess.run([sys.executable, str(script), *options], capture_output=True, text=True, check=True)
        return json.loads(found.stdout)

    return Part("loader", args.out / "loader.json", measure)


def finish(parts: list[Part]) -> None:
    """Make the parts whose file is not there; after each one, log the time that the rest will take."""
    rest, took = [part for part in parts if not part.file.exists()], dict[str, float]()
    for number, part in enumerate(rest):
        left = [took.get(other.kind) for other in rest[number:]]
        known = sum(seconds for seconds in left if seconds is not None)
        more = f", and {left.count(None)} of unknown length" if None in left else ""
        print(f"{part.file.stem}: {len(left)} parts left, {known / 60:.1f} minutes{more}", file=sys.stderr, flush=True)
        began = time.perf_counter()
        found = part.make()
        took[part.kind] = time.perf_counter() - began
        part.file.write_text(json.dumps(found))


def summary(args: argparse.Namespace) -> dict[str, Any]:
    """Read the results of all parts."""
    arms = {}
    for arm in ARMS:
        runs = []
        for seed in args.seeds:
            train, played = (
                json.loads((args.out / f"{arm}-{seed}{end}").read_text()) for end in (".json", ".rollout.json")
            )
            success = played["success"]
            runs.append({"seed": seed, **train, "successes": success["successes"], "episodes": success["episodes"]})
        successes, episodes = (sum(run[name] for run in runs) for name in ("successes", "episodes"))
        low, high = wilson_interval(successes, episodes)
        arms[arm] = {"runs": runs, "successes": successes, "episodes": episodes, "low": low, "high": high}
    loader = {row["history"]: row for row in json.loads((args.out / "loader.json").read_text())}
    return {
        **{arm: [found["successes"], found["episodes"]] for arm, found in arms.items()},
        "decode_ratio_history6": loader[6]["decode_ratio"],
        "history1_samples_per_s": loader[1]["samples_per_s"],
        "history6_samples_per_s": loader[6]["samples_per_s"],
        "arms": arms,
        "conditions": {key: str(value) for key, value in vars(args).items()}
        | {"chance": 0.25, "history": HISTORY, "device": platform.machine(), "torch": torch.__version__},
    }


def table(result: dict[str, Any]) -> str:
    """Format the results for a terminal."""
    lines = [f"{'':<13}{'success':>9}{'95 %':>12}   {'each seed':<24}{'CPU s':>7}{'loss':>8}"]
    for arm, found in result["arms"].items():
        runs = found["runs"]
        each = ", ".join(f"{run['successes']}/{run['episodes']}" for run in runs)
        cpu, loss = (sum(run[name] for run in runs) / len(runs) for name in ("cpu_s", "train_loss"))
        cells = f"{found['successes']}/{found['episodes']}", f"{found['low']:.0%} to {found['high']:.0%}"
        lines.append(f"{arm:<13}{cells[0]:>9}{cells[1]:>12}   {each:<24}{cpu:>7.0f}{loss:>8.4f}")
    rates = f"{result['history1_samples_per_s']:.0f} and {result['history6_samples_per_s']:.0f} samples/s"
    lines.append(f"loader: {rates}, {result['decode_ratio_history6']:.2f} times the decoding")
    return "\n".join(lines)


def main(arguments: list[str] | None = None) -> None:
    """Parse the command line and print the results."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--json", action="store_true", help="print one JSON object")
    parser.add_argument("--out", type=Path, default=Path("runs/memory"))
    parser.add_argument("--episodes", type=int, default=400, help="to record")
    parser.add_argument("--steps", type=int, default=1000, help="of each training")
    parser.add_argument("--seeds", type=int, nargs="+", default=[0, 1, 2], help="of trainings and scenes")
    parser.add_argument("--rollouts", type=int, default=60, help="per policy")
    parser.add_argument("--gop", type=int, default=30, help="frames between key frames of the loader's recordings")
    parser.add_argument("--seconds", type=float, default=10.0, help="measured time of each loader")
    args = parser.parse_args(arguments)
    with redirect_stdout(sys.stderr):
        args.out.mkdir(parents=True, exist_ok=True)
        runs = [part for seed in args.seeds for arm in ARMS for part in trained(args, arm, seed)]
        finish([*recorded(args), *runs, loaded(args)])
        result = summary(args)
    print(json.dumps(result) if args.json else table(result))


if __name__ == "__main__":
    main()
