"""Meta-World's MT10 as a mixture of ten datasets: validation loss and success per task, of one compact policy.

    python benchmarks/mt10.py [--json] [--seeds 10 11 12] [--inputs state pictures] [--out runs/mt10]

Commands do everything: `record` writes one dataset per task from the scripted experts (with noise on the executed
actions), `train` mixes them by the weights below and validates per task, and `rollout` plays scenes without recordings
for any seeds (`envs.env.layout_seed`). Two policies:

  state     all ten tasks from the 39 numbers of `observation.environment_state`, which each source maps to the policy's
            state; the goal is among them
  pictures  three tasks from two 64-pixel cameras and the hand's own four numbers, in which no goal is. Of the ten,
            the goals of reach, push and pick-place are marks that rays do not draw, and drawer-close succeeds by chance
            (random actions: 7 of 20); of the other six, one to press, one to pull and one to slide

WEIGHTS has the weights of the sources: tasks that need precision come more often than in proportion to their frames.
The weights and all settings below were fixed on other trainings, in scenes of the seeds 0 and 1, which no table
includes. `--out` keeps finished runs, which are not repeated. Losses are means over the seeds, with the mean of their
standard errors over validation episodes. Success is pooled over the seeds, with 95 % Wilson intervals.
"""

import argparse
import json
import os
import platform
import shutil
import statistics
import sys
from collections.abc import Sequence
from contextlib import redirect_stdout
from pathlib import Path
from typing import Any

os.environ.setdefault("OMP_NUM_THREADS", "1")

import torch

from understudy.cli.main import main as understudy
from understudy.envs.metaworld import TASKS
from understudy.rollout.result import wilson_interval
from understudy.train.track import metrics_file

WEIGHTS = {
    "reach-v3": 1.0,
    "push-v3": 1.0,
    "pick-place-v3": 1.5,
    "door-open-v3": 1.5,
    "drawer-open-v3": 1.0,
    "drawer-close-v3": 0.5,
    "button-press-topdown-v3": 1.0,
    "peg-insert-side-v3": 4.0,
    "window-open-v3": 1.0,
    "window-close-v3": 1.0,
}
ROBOT = {"robot_type": "metaworld", "control_mode": "ee_delta"}
STATE = "observation.environment_state"
POLICIES: dict[str, dict[str, Any]] = {
    "state": {
        "tasks": tuple(TASKS),
        "episodes": 60,  # recorded per task
        "cameras": (),
        "source": {"state": STATE},
        "execute": 4,
        "train": {
            "steps": 5000,
            "batch_size": 128,
            "data": {"chunk_size": 16},
            "policy": {"width": 192, "layers": 4, "draws": 1, "text_bytes": 48},
            "optim": {"lr": 1e-3, "ema": {"decay": 0.995}},
        },
    },
    "pictures": {
        "tasks": ("button-press-topdown-v3", "drawer-open-v3", "window-open-v3"),
        "episodes": 50,
        "cameras": ("corner2", "gripperPOV"),
        "source": {},
        "execute": 4,
        "train": {
            "steps": 1500,
            "batch_size": 64,
            "data": {"chunk_size": 16},
            "policy": {"draws": 4, "text_bytes": 48},
            "optim": {"lr": 1e-3, "ema": {"decay": 0.99}},
        },
    },
}


def recorded(inputs: str, args: argparse.Namespace) -> dict[str, Path]:
    """The datasets by task. Records missing ones."""
    wanted, folders = POLICIES[inputs], {}
    for task in wanted["tasks"]:
        folders[task] = Path(args.out) / inputs / "data" / task
        command = ["record", "--env", "metaworld", "--tasks", task, "--output-dir", str(folders[task])]
        command += ["--episodes", str(args.episodes or wanted["episodes"]), "--cameras", *wanted["cameras"]]
        _do(command)
    return folders


def settings(inputs: str, folders: dict[str, Path], seed: int, args: argparse.Namespace) -> dict[str, Any]:
    """The training's settings file."""
    wanted = POLICIES[inputs]
    chosen = wanted["train"]
    steps = args.steps or chosen["steps"]
    sources = [
        {"name": task, "root": str(root.resolve()), "weight": WEIGHTS[task], **ROBOT, **wanted["source"]}
        for task, root in folders.items()
    ]
    fixed = {
        "seed": seed,
        "steps": steps,
        "val": {"every": steps},
        "checkpoint": {"every": steps, "keep_last": 1},
        "log": {"every": 50, "report": False},
    }
    return {**chosen, **fixed, "data": {**chosen["data"], "sources": sources}}


def outcome(inputs: str, seed: int, args: argparse.Namespace) -> dict[str, Any]:
    """Results of a run, which is trained first unless it is there."""
    folder = Path(args.out) / inputs / f"seed{seed}"
    file = folder / "outcome.json"
    if file.exists():
        return dict(json.loads(file.read_text()))
    folders = recorded(inputs, args)
    shutil.rmtree(folder, ignore_errors=True)  # an unfinished run
    folder.mkdir(parents=True)
    (folder / "settings.yaml").write_text(json.dumps(settings(inputs, folders, seed, args)))  # JSON is YAML
    run, tasks = folder / "run", POLICIES[inputs]["tasks"]
    train_cpu_s = _do(["train", str(folder / "settings.yaml"), "--output-dir", str(run)])
    command = ["rollout", str(run), "--env", "metaworld", "--tasks", *tasks, "--seed", str(seed), "--films", "0"]
    command += ["--episodes", str(args.rollouts * len(tasks)), "--action-steps", str(POLICIES[inputs]["execute"])]
    rollout_cpu_s = _do([*command, "--num-envs", str(min(args.rollouts * len(tasks), 20))])
    result = json.loads((run / f"rollouts/metaworld-seed{seed}.json").read_text())
    evaluated = metrics_file.read(run / "metrics.jsonl", "val")[-1]
    found = {
        "val_loss": evaluated["loss"],
        "val_macro": evaluated["macro"],
        "tasks": {
            task: {"val": evaluated["tasks"][TASKS[task]], "success": result["tasks"][TASKS[task]]} for task in tasks
        },
        "train_cpu_s": train_cpu_s,
        "rollout_cpu_s": rollout_cpu_s,
    }
    file.write_text(json.dumps(found))
    return found


def _do(command: Sequence[str]) -> float:
    """Run one command; returns its CPU seconds."""
    began = os.times()
    if (code := understudy(command)) != 0:
        raise SystemExit(code)
    return sum(os.times()[:4]) - sum(began[:4])


def pooled(inputs: str, runs: list[dict[str, Any]]) -> dict[str, Any]:
    """Mean losses and pooled successes over the seeds, per task and in all."""

    def row(successes: int, episodes: int) -> dict[str, Any]:
        low, high = wilson_interval(successes, episodes)
        rate = successes / max(1, episodes)
        return {"successes": successes, "episodes": episodes, "success": rate, "low": low, "high": high}

    tasks = {}
    for task in POLICIES[inputs]["tasks"]:
        each = [run["tasks"][task] for run in runs]
        counts = [sum(one["success"][key] for one in each) for key in ("successes", "episodes")]
        errors = [one["val"]["se"] for one in each]
        losses = {
            "loss": statistics.fmean(one["val"]["loss"] for one in each),
            "se": None if None in errors else statistics.fmean(errors),  # one validation episode has none
        }
        per_seed = [one["success"]["successes"] for one in each]
        tasks[task] = {"weight": WEIGHTS[task], **losses, **row(*counts), "successes_per_seed": per_seed}
    return {
        "tasks": tasks,
        "all": {
            "loss": statistics.fmean(run["val_loss"] for run in runs),
            **row(*(sum(task[key] for task in tasks.values()) for key in ("successes", "episodes"))),
        },
        "train_cpu_s": [run["train_cpu_s"] for run in runs],
        "rollout_cpu_s": [run["rollout_cpu_s"] for run in runs],
    }


def table(found: dict[str, Any], seeds: int) -> str:
    """Markdown."""
    lines = [f"| task | weight | validation loss | success over {seeds} seeds | 95 % |", "|---|---|---|---|---|"]

    def row(name: str, weight: str, loss: str, entry: dict[str, Any]) -> str:
        share = f"{entry['successes']}/{entry['episodes']}"
        return f"| {name} | {weight} | {loss} | {share} | {entry['low']:.0%} to {entry['high']:.0%} |"

    for task, entry in found["tasks"].items():
        loss = f"{entry['loss']:.3f}" + (f" ± {entry['se']:.3f}" if entry["se"] is not None else "")
        lines.append(row(task.removesuffix("-v3"), f"{entry['weight']:g}", loss, entry))
    lines.append(row("**all**", "", f"{found['all']['loss']:.3f}", found["all"]))
    return "\n".join(lines)


def main(arguments: list[str] | None = None) -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--json", action="store_true", help="print one JSON object")
    parser.add_argument("--seeds", type=int, nargs="+", default=[10, 11, 12], help="of training and of scenes")
    parser.add_argument("--inputs", nargs="+", choices=list(POLICIES), default=list(POLICIES))
    parser.add_argument("--rollouts", type=int, default=20, help="per task and seed")
    parser.add_argument("--episodes", type=int, default=0, help="to record per task; 0: those of the table")
    parser.add_argument("--steps", type=int, default=0, help="of training; 0: those of the table")
    parser.add_argument("--out", default="runs/mt10")
    args = parser.parse_args(arguments)
    torch.set_num_threads(1)
    with redirect_stdout(sys.stderr):
        found = {inputs: pooled(inputs, [outcome(inputs, seed, args) for seed in args.seeds]) for inputs in args.inputs}
    conditions = {
        "seeds": args.seeds,
        "rollouts_per_task_and_seed": args.rollouts,
        "settings": {
            inputs: {key: value for key, value in POLICIES[inputs].items() if key != "source"}
            | {"episodes": args.episodes or POLICIES[inputs]["episodes"]}
            for inputs in args.inputs
        },
        "device": torch.cuda.get_device_name() if torch.cuda.is_available() else platform.machine(),
        "threads": torch.get_num_threads(),
        "torch": torch.__version__,
    }
    if args.json:
        print(json.dumps({**found, "conditions": conditions}))
        return
    for inputs, each in found.items():
        print(f"\n{inputs}\n{table(each, len(args.seeds))}")
        seconds = ", ".join(f"{one:.0f}" for one in each["train_cpu_s"])
        print(f"\ntraining and validation, CPU seconds per seed: {seconds}")
    print(json.dumps(conditions), file=sys.stderr)


if __name__ == "__main__":
    main()
