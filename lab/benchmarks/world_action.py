"""World-action models on the simulated table: the cost of a future to the policy, and the gradients
of each loss.

    python lab/benchmarks/world_action.py [--json] [--out runs/world-action]
        [--arms policy joint ...]
    python lab/benchmarks/world_action.py --gradients RUN

All arms have the same recordings of one task, seeds, steps and batches, and start from the same
weights: those of `--first-steps` steps in mode `policy`, in the place of released ones. With 0 they
are fresh.
    policy     mode `policy`: pi0.5
    joint      mode `joint` with the default weights of the losses
    images 4   `joint` with weight 4 for the images
    future .1  `joint` with weight 0.1 for states and images
    shares     `joint`, where a sample trains the policy in mode `policy` alone: in a third of the
               samples
    stored     `joint` in the order of the files, without a shuffle

Of each arm: `flow`, the loss of the actions in mode `policy` on validation episodes; `success` in
scenes without recordings; `psnr` of the images 8 frames ahead, over all pixels and over those that
change: `model` imagines them from the recorded actions, `copy` is the present, `nearest` the
training frame with the nearest state to the true future one; `course`, medians of the gradient norm
and of the actions' training loss over each tenth of the steps; CPU minutes. `--gradients` takes a
run, and computes the norm of each loss's gradient on validation frames and its cosine with that of
the policy, by part of the network; runs of mode `joint` have the same in the results. `--out` keeps
finished runs; a call with it continues.
"""

import argparse
import json
import os
import platform
import sys
import time
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager, redirect_stdout
from dataclasses import replace
from itertools import pairwise
from pathlib import Path
from statistics import median
from typing import Any
from unittest import mock

os.environ.setdefault("OMP_NUM_THREADS", "1")

import numpy as np
import torch
from torch import Tensor
from torch.nn.functional import interpolate

from understudy.config.train import TrainConfig
from understudy.policies.common.settings import TaskMode
from understudy.policies.draws import make_draws
from understudy.policies.losses import scalar
from understudy.policies.policy import load
from understudy.train.data.run_data import RunData, open_data
from understudy.train.track import metrics_file
from understudy.train.validation.imagined import moved, psnr
from understudy.train.validation.validation_loss import read_validation_data
from understudy_base import MODE, STATE
from understudy_data.datasets.dataset import EpisodeDataset
from understudy_kit import load as load_settings
from understudy_kit import wilson_interval
from understudy_kit.cli import main as cli

TOWER = {"depth": 4, "num_heads": 4, "num_kv_heads": 1, "head_dim": 24}
NETWORK = {
    "vision": {"width": 64, "depth": 3, "mlp": 128, "heads": 4, "patch": 8, "image": 32},
    "vlm": {"width": 96, "mlp_dim": 256, **TOWER},
    "expert": {"width": 64, "mlp_dim": 192, **TOWER},
    "vocab": 512,
    "dim": 8,
}
"""Dimensions of `tiny` with images of 32 pixels."""
CAMERA = "observation.images.front"
ARMS: dict[str, dict[str, Any]] = {
    "policy": {"mode": "policy"},
    "joint": {"mode": "joint"},
    "images 4": {"mode": "joint", "optim.loss-weights": ("images", 4)},
    "future .1": {"mode": "joint", "optim.loss-weights": ("images", 0.1, "dynamics", 0.1)},
    "shares": {"mode": "joint"},
    "stored": {"mode": "joint", "data.shuffle": "sequential"},
}
"""Settings of each arm."""
OBJECTIVES = (
    ("policy", TaskMode.POLICY, "flow"),
    ("inverse", TaskMode.INVERSE, "flow"),
    *((t, TaskMode.FORWARD, t) for t in ("dynamics", "images")),
)
"""Name, mode and loss term of each gradient."""


def understudy(*words: object) -> None:
    """Run a command in this process."""
    if code := cli.main([str(word) for word in words]):
        raise SystemExit(code)


@contextmanager
def samples_of_mode_policy_alone() -> Iterator[None]:
    """Train the policy on the samples of mode `policy` alone, as if the run had no such mode for
    the others.
    """
    plain = RunData.policy_config

    def changed(data: RunData, config: TrainConfig) -> Any:
        return replace(plain(data, config), acts=False)

    with mock.patch.object(RunData, "policy_config", changed):
        yield


def train(args: argparse.Namespace, arm: str, seed: int) -> dict[str, Any]:
    """Train an arm, play it, and return its figures."""
    run = args.out / f"{arm.replace(' ', '-')}-{seed}"
    done = run.with_name(f"{run.name}.json")  # the name of an arm may have a dot
    if done.exists():
        figures: dict[str, Any] = json.loads(done.read_text())
        return figures
    settings = settings_of(args, run, args.steps, seed) | ARMS[arm]
    if args.first_steps:
        settings["policy.weights"] = first_weights(args)
    began = time.process_time()
    with samples_of_mode_policy_alone() if arm == "shares" else mock.MagicMock():
        understudy("train", *as_words(settings))
    figures = {"seed": seed, "cpu_minutes": (time.process_time() - began) / 60}
    figures["course"] = course(metrics_file.read(run / "metrics.jsonl", "train"))
    (val,) = metrics_file.read(run / "metrics.jsonl", "val")
    figures["flow"] = val["terms"]["flow"]["loss"]
    figures["open_loop"] = val["open_loop"]
    if val.get("imagined"):
        figures |= {"psnr": psnr_ahead(run), "gradients": gradients(run)}
    if args.rollouts:
        figures["success"] = play(args, run, seed)
    done.write_text(json.dumps(figures))
    return figures


def first_weights(args: argparse.Namespace) -> Path:
    """Train the policy that all arms start from, unless it is there, and return its folder."""
    run = args.out / "first"
    if not (run / "policy").exists():
        understudy("train", *as_words(settings_of(args, run, args.first_steps, 0) | ARMS["policy"]))
    return run / "policy"


def play(args: argparse.Namespace, run: Path, seed: int) -> dict[str, Any]:
    """Play a run's policy in scenes of the recorded task; returns its success."""
    understudy(
        "rollout",
        run,
        "--tasks",
        "red",
        "--episodes",
        args.rollouts,
        "--seed",
        seed,
        "--image-size",
        32,
    )
    success: dict[str, Any] = json.loads(
        (run / "rollouts" / f"tabletop-seed{seed}.json").read_text()
    )["success"]
    return success


def settings_of(args: argparse.Namespace, run: Path, steps: int, seed: int) -> dict[str, Any]:
    """Settings that all trainings share, by their flags."""
    return {
        "data.root": args.out / "dataset",
        "data.robot-type": "tabletop",
        "data.control-mode": "ee_delta",
        "output-dir": run,
        "policy.type": "world_action",
        "policy.size": "tiny",
        "policy.network": json.dumps(NETWORK),
        "policy.tokenizer": args.out / "tokenizer",
        "policy.prompt-tokens": 48,
        "policy.noise-samples": args.noise_samples,
        "steps": steps,
        "batch-size": args.batch_size,
        "augment.shift": 0,
        "optim.lr": args.lr,
        "seed": seed,
        "val.every": steps,
        "checkpoint.every": steps,
        "loader.num-threads": 1,
        "log.report": False,
    }


def as_words(settings: Mapping[str, Any]) -> list[str]:
    """The words of a command line with these settings."""
    return [
        str(word) for name, value in settings.items() for word in (f"--{name}", *as_tuple(value))
    ]


@torch.no_grad()
def psnr_ahead(run: Path) -> dict[str, dict[str, float | None]]:
    """PSNR in dB of images at the ends of the chunks inside the validation episodes: pixels -> kind
    -> figure.
    """
    policy = load(run / "policy").eval()
    settings = load_settings(TrainConfig, run / "config.yaml")
    data = open_data(settings)
    (training,), (validation,) = data.training, data.validation
    assert validation is not None
    size = policy.config.image_size
    recorded = [batch for batch, _ in batches(training)]
    states = torch.cat([batch[STATE][:, 0] for batch in recorded])
    images = torch.cat([batch[CAMERA][:, 0] for batch in recorded])
    parts: dict[str, list[Tensor]] = {}
    for number, (batch, whole) in enumerate(batches(validation)):
        draws = make_draws(policy.random_spec("act"), number, torch.arange(len(whole)))
        imagined = policy.imagine(policy.preprocess(batch), draws)
        assert imagined.images is not None
        nearest = torch.cdist(batch[STATE][:, -1], states).argmin(dim=1)
        kinds = {
            "model": imagined.images[:, -1, 0],
            "copy": batch[CAMERA][:, 0],
            "nearest": images[nearest],
        }
        for kind, predicted in {**kinds, "recorded": batch[CAMERA][:, -1]}.items():
            parts.setdefault(kind, []).append(resize(predicted, size)[whole])
    joined = {kind: torch.cat(pieces) for kind, pieces in parts.items()}
    after = joined.pop("recorded")
    changing = moved(joined["copy"], after)
    return {
        "all": {kind: psnr(images, after) for kind, images in joined.items()},
        "changing": {kind: psnr(images, after, changing) for kind, images in joined.items()},
        "share": {"changing": changing.double().mean().item()},
    }


def batches(data: EpisodeDataset, size: int = 128) -> Iterator[tuple[dict[str, Any], Tensor]]:
    """Yield all samples in stored order, and a mark of those whose chunk lies inside the
    episode.
    """
    for first in range(0, len(data), size):
        batch = data.batch(*data.locate(np.arange(first, min(first + size, len(data)))))
        yield batch, ~batch[f"{CAMERA}_is_pad"].any(dim=1)


def resize(images: Tensor, size: tuple[int, int]) -> Tensor:
    """Average images uint8 [B, 3, H, W] over areas to `size`."""
    return interpolate(images.float(), size=size, mode="area").round().to(torch.uint8)


def course(rows: Sequence[Mapping[str, Any]], parts: int = 10) -> list[dict[str, float]]:
    """Medians of the gradient norm and of the actions' training loss over each part of the
    steps.
    """
    bounds = [round(i * len(rows) / parts) for i in range(parts + 1)]
    pieces = [rows[first:stop] for first, stop in pairwise(bounds) if first < stop]
    return [
        {
            "step": piece[-1]["step"],
            "grad_norm": median(row["grad_norm"] for row in piece),
            "flow": median(
                row["terms"]["flow"]["loss"] if "terms" in row else row["loss"] for row in piece
            ),
        }
        for piece in pieces
    ]


def as_tuple(value: Any) -> tuple[Any, ...]:
    """The words of a flag's value."""
    return value if isinstance(value, tuple) else (value,)


def gradients(run: Path, count: int = 64) -> dict[str, dict[str, dict[str, float]]]:
    """Norm of the gradient of each loss, and its cosine with the policy's: part of the network ->
    loss -> figures.
    """
    policy = load(run / "policy").eval()
    settings = load_settings(TrainConfig, run / "config.yaml")
    held = read_validation_data(settings, open_data(settings))
    assert held is not None
    part = slice(0, min(count, len(held)))
    batch = policy.preprocess(held.batch(part))
    draws = make_draws(policy.random_spec("validation"), 0, torch.arange(part.stop))
    shared = {
        name: parameter
        for name, parameter in policy.named_parameters()
        if not name.startswith("future.")
    }
    found: dict[str, dict[str, Tensor]] = {}
    for objective, mode, term in OBJECTIVES:
        modes = torch.full((part.stop,), TaskMode.ALL.index(mode))
        losses: Mapping[str, Any] = policy.losses({**batch, MODE: modes}, draws, terms=[term])
        computed = torch.autograd.grad(scalar(losses), list(shared.values()), allow_unused=True)
        found[objective] = {
            name: g.flatten() for name, g in zip(shared, computed, strict=True) if g is not None
        }
    figures: dict[str, dict[str, dict[str, float]]] = {}
    for of_part, firsts in {
        "vision": ("vision.",),
        "vlm": ("vlm", "projector", "embedding"),
        "expert": ("expert", "action", "time"),
    }.items():
        inside = [
            name for name in shared if name.startswith(firsts) or name.split(".")[2:3] == [of_part]
        ]
        names = [name for name in inside if all(name in own for own in found.values())]
        joined = {
            objective: torch.cat([own[name] for name in names]) for objective, own in found.items()
        }
        figures[of_part] = {
            objective: {
                "norm": float(vector.norm()),
                "cosine": float(torch.cosine_similarity(vector, joined["policy"], dim=0)),
            }
            for objective, vector in joined.items()
        }
    return figures


def main(arguments: list[str] | None = None) -> None:
    """Parse the command line and print the results."""
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--json", action="store_true", help="print one JSON object")
    parser.add_argument("--out", type=Path, default=Path("runs/world-action"))
    parser.add_argument(
        "--gradients",
        type=Path,
        metavar="RUN",
        help="a run that trains a future; nothing is trained",
    )
    parser.add_argument("--arms", nargs="+", choices=ARMS, default=list(ARMS))
    parser.add_argument("--episodes", type=int, default=1000, help="to record")
    parser.add_argument(
        "--first-steps", type=int, default=3000, help="of the policy that all start from; 0: none"
    )
    parser.add_argument("--steps", type=int, default=800, help="of each training")
    parser.add_argument("--batch-size", type=int, default=32)
    parser.add_argument("--noise-samples", type=int, default=2)
    parser.add_argument("--lr", type=float, default=1e-3, help="peak learning rate")
    parser.add_argument(
        "--seeds", type=int, nargs="+", default=[0, 1, 2], help="of trainings and scenes"
    )
    parser.add_argument("--rollouts", type=int, default=30, help="per policy; 0: none")
    args = parser.parse_args(arguments)
    torch.set_num_threads(1)
    with redirect_stdout(sys.stderr):
        result: dict[str, Any] = (
            {"gradients": gradients(args.gradients)} if args.gradients else {"arms": measure(args)}
        )
        if not args.gradients and args.first_steps and args.rollouts:
            result["first"] = play(args, first_weights(args).parent, 0)
    result["conditions"] = {key: str(value) for key, value in vars(args).items()}
    result["conditions"] |= {"device": platform.machine(), "threads": 1, "torch": torch.__version__}
    print(json.dumps(result) if args.json else "\n".join(table(result)))


def measure(args: argparse.Namespace) -> dict[str, Any]:
    """Train all arms, seed by seed."""
    args.out.mkdir(parents=True, exist_ok=True)
    if not (args.out / "dataset/meta/info.json").exists():
        small = ("--image-size", 32, "--codec", "libx264", "--tasks", "red")
        understudy(
            "record", "--output-dir", args.out / "dataset", "--episodes", args.episodes, *small
        )
    if not (args.out / "tokenizer").exists():
        kind = (
            "--policy.type",
            "world_action",
            "--policy.size",
            "tiny",
            "--data.root",
            args.out / "dataset",
        )
        understudy("tokenizer", "fit", *kind, "--output-dir", args.out / "tokenizer")
    runs: dict[str, list[dict[str, Any]]] = {arm: [] for arm in args.arms}
    for seed in args.seeds:
        for arm in args.arms:
            runs[arm].append(train(args, arm, seed))
    result: dict[str, Any] = {}
    for arm, made in runs.items():
        entry: dict[str, Any] = {"runs": made}
        entry |= {
            name: sum(own[name] for own in made) / len(made) for name in ("flow", "cpu_minutes")
        }
        if args.rollouts:
            entry["success"] = [
                sum(own["success"][name] for own in made) for name in ("successes", "episodes")
            ]
            entry["interval"] = wilson_interval(*entry["success"])
        result[arm] = entry
    return result


def table(result: Mapping[str, Any]) -> Iterator[str]:
    """Format the results for a terminal."""
    if "first" in result:
        yield f"at the start: success {result['first']['successes']}/{result['first']['episodes']}"
    for arm, entry in result.get("arms", {}).items():
        played = ""
        if "success" in entry:
            low, high = entry["interval"]
            played = (
                f", success {entry['success'][0]}/{entry['success'][1]} ({low:.0%} to {high:.0%})"
            )
        yield f"{arm:<10} flow {entry['flow']:.4f}{played}, {entry['cpu_minutes']:.1f} CPU minutes"
    found = [
        run["gradients"]
        for entry in result.get("arms", {}).values()
        for run in entry["runs"]
        if "gradients" in run
    ]
    for parts in [result["gradients"]] if "gradients" in result else found[:1]:
        for part, losses in parts.items():
            shown = (
                f"{name} {own['norm']:.3g} (cosine {own['cosine']:+.2f})"
                for name, own in losses.items()
            )
            yield f"{part:<10} {', '.join(shown)}"


if __name__ == "__main__":
    main()
