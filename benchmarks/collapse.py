"""Two ways to fail in training without an error message, on the demonstration's task.

    python benchmarks/collapse.py [--json] [--seeds 0 1 2] [--out runs/collapse] [--figures docs/img]

Order: the same episodes, settings and number of steps, once in the stored order (`sequential`) and once shuffled
(`clips`). Per order: distinct episodes in a batch, the gradient norms and the median of their last fifth, the
validation loss, and the success rate in scenes without recordings.

Precision: a policy trained without blue blocks is fine-tuned on all episodes at the learning rate of a large policy.
One variant is pure bfloat16 (weights, moments and arithmetic); the other has the same arithmetic and float32 weights
(`precision=bf16`). Per variant: the share of weights that changed (of the float32 truth, where there is one), the
validation loss, and the success rate with blue instructions. The table also has the policy before fine-tuning. Only
small learning rates fail so: with `--lr 1e-4` half of the weights move in bfloat16, too, and the policy learns the
color.

`understudy.train.run.train` trains everything. It refuses pure bfloat16, so this file has that optimizer and patches it
in. `--out` keeps finished runs, which are not repeated. Success is pooled over the seeds, with 95 % Wilson intervals.
"""

import argparse
import json
import os
import platform
import shutil
import statistics
import sys
from collections.abc import Iterator, Mapping
from contextlib import contextmanager, redirect_stdout
from dataclasses import replace
from pathlib import Path
from typing import Any
from unittest.mock import patch

os.environ.setdefault("OMP_NUM_THREADS", "1")

import numpy as np
import torch
from torch import Tensor, nn

from understudy.cli.main import main as understudy
from understudy.config.data import DataConfig
from understudy.config.train import (
    CheckpointConfig,
    LogConfig,
    OptimConfig,
    ScheduleConfig,
    TrainConfig,
    ValConfig,
)
from understudy.distributed.mesh import join_mesh
from understudy.envs.registry import open_env
from understudy.load.validation_data import ValidationData
from understudy.optim.param_groups import parameter_groups
from understudy.order import Order
from understudy.policies.flow.model import FlowPolicy
from understudy.rollout.play import rollout
from understudy.rollout.result import wilson_interval
from understudy.train import precision
from understudy.train.data.run_data import open_data
from understudy.train.run import train
from understudy.train.track import metrics_file
from understudy.train.validation.validation_loss import evaluate

FINE_TUNE_LR = 2.5e-5
NEW = "blue"
NEW_TEXT = f"pick up the {NEW} block"
ORDERS = {"sequential": "sequential", "shuffled": "clips"}
VARIANTS = ("bf16", "fp32_truth")


# -- pure bfloat16, which the trainer refuses


class PureAdamW(torch.optim.AdamW):
    """AdamW over bfloat16 weights with bfloat16 moments, with the interface of the trainer's optimizer."""

    def master(self, parameter: Tensor) -> Tensor:
        return parameter.detach().float()

    def set_master(self, parameter: Tensor, master: Tensor) -> None:
        parameter.data.copy_(master)

    def step(self, closure: Any = None, *, scale: Tensor | None = None, skip: Tensor | None = None) -> Any:
        gradients = [p.grad for group in self.param_groups for p in group["params"] if p.grad is not None]
        if scale is not None:
            torch._foreach_mul_(gradients, scale.bfloat16())
        self.found_inf = skip
        return super().step(closure)


def store_pure(policy: nn.Module, config: TrainConfig) -> dict[str, Tensor]:
    for parameter in policy.parameters():
        parameter.data = parameter.data.bfloat16()
    return {}


def make_pure(policy: nn.Module, config: TrainConfig, masters: Mapping[str, Tensor]) -> PureAdamW:
    c = config.optim
    groups = parameter_groups(policy.named_parameters(), c)
    return PureAdamW(groups, lr=c.lr, betas=(c.beta1, c.beta2), eps=c.eps, fused=True)


@contextmanager
def watched(pure: bool) -> Iterator[dict[str, float]]:
    """Train with pure bfloat16 or the trainer's own optimizer. At exit, fills in `weights_moved` of the last run."""
    seen: dict[str, Any] = {}
    moved: dict[str, float] = {}
    make = make_pure if pure else precision.make_optimizer

    def made(policy: FlowPolicy, config: TrainConfig, masters: Mapping[str, Tensor]) -> Any:
        optimizer = make(policy, config, masters)
        seen.update(policy=policy, optimizer=optimizer, start=truth(policy, optimizer))
        return optimizer

    with patch.multiple(precision, make_optimizer=made, store=store_pure if pure else precision.store):
        yield moved
    now = truth(seen["policy"], seen["optimizer"])
    moved["weights_moved"] = float((now != seen["start"]).double().mean())


def truth(policy: nn.Module, optimizer: Any) -> Tensor:
    return torch.cat([optimizer.master(p).flatten().clone() for p in policy.parameters()])


# -- runs


def settings(args: argparse.Namespace, seed: int, name: str, steps: int, **changes: Any) -> TrainConfig:
    """The demonstration's settings with `changes`."""
    config = TrainConfig(
        output_dir=str(Path(args.out) / f"seed{seed}" / name),
        steps=steps,
        seed=seed,
        data=DataConfig(root=str(Path(args.out) / "dataset")),
        checkpoint=CheckpointConfig(every=steps, keep_last=1),
        val=ValConfig(every=steps),
        log=LogConfig(every=10, report=False),
    )
    return replace(config, **changes)


def outcome(config: TrainConfig, args: argparse.Namespace, tasks: tuple[str, ...] = (), pure: bool = False) -> dict:
    """Results of a run, which is trained first unless it is there."""
    file = Path(config.output_dir) / "outcome.json"
    if file.exists():
        return json.loads(file.read_text())
    shutil.rmtree(config.output_dir, ignore_errors=True)  # an unfinished run
    began = os.times()
    with watched(pure) as moved:
        train(config)
    cpu = sum(os.times()[:2]) - sum(began[:2])
    records = metrics_file.read(Path(config.output_dir) / "metrics.jsonl", "train")
    evaluated = metrics_file.read(Path(config.output_dir) / "metrics.jsonl", "val")[-1]
    norms = [record["grad_norm"] for record in records]
    found = {
        "val_loss": evaluated["loss"],
        "val_loss_new": evaluated["tasks"].get(NEW_TEXT, {}).get("loss"),
        "grad_norm_median_last": statistics.median(norms[-len(norms) // 5 :]),
        "grad_norm": norms,
        "train_loss": [record["loss"] for record in records],
        "train_cpu_s": cpu,
        **moved,
        **success(Path(config.output_dir), args, config.seed, tasks),
    }
    file.write_text(json.dumps(found))
    return found


def success(run: Path, args: argparse.Namespace, seed: int, tasks: tuple[str, ...]) -> dict[str, int]:
    """Successes of a run's policy in scenes of the run's seed."""
    worlds = [open_env("tabletop", tasks=tasks) for _ in range(min(20, args.rollouts))]
    result = rollout(FlowPolicy.load(run / "policy"), worlds, args.rollouts, seed)
    return {"successes": sum(episode.success for episode in result.episodes), "episodes": args.rollouts}


def validation_losses(config: TrainConfig) -> dict[str, float]:
    """Losses of the exported policy of a run on the validation episodes of `config`."""
    policy, held = (
        FlowPolicy.load(Path(config.output_dir) / "policy"),
        ValidationData.from_sources(open_data(config), mixed=False),
    )
    assert held is not None
    with join_mesh(config) as mesh:
        evaluated = evaluate(policy, held, config.seed, mesh, dict.fromkeys(policy.loss_terms, 1.0))
    return {"val_loss": evaluated["loss"], "val_loss_new": evaluated["tasks"][NEW_TEXT]["loss"]}


def distinct_episodes(config: TrainConfig) -> float:
    """Mean number of different episodes in a batch, over all batches of the run."""
    data = open_data(config)
    order: Order = data.order(config)
    counts = []
    for step in range(config.steps):
        _, episode, _ = order.locate(
            np.arange(step * config.batch_size, (step + 1) * config.batch_size, dtype=np.int64)
        )
        counts.append(len(np.unique(episode)))
    return statistics.fmean(counts)


def orders(args: argparse.Namespace, seed: int) -> dict[str, dict[str, Any]]:
    found = {}
    for name, order in ORDERS.items():
        config = settings(args, seed, name, args.steps)
        config = replace(config, data=replace(config.data, shuffle=order))
        found[name] = {**outcome(config, args), "distinct_episodes_per_batch": distinct_episodes(config)}
    return found


def precisions(args: argparse.Namespace, seed: int) -> dict[str, dict[str, Any]]:
    """The policy before, and after fine-tuning in both ways: same samples, noise and times."""
    whole = settings(args, args.seeds[0], "before", args.base_steps)
    catalog = open_data(whole).training[0].catalog
    new = catalog.tasks.index(NEW_TEXT)
    excluded = tuple(int(e) for i, e in enumerate(catalog.episodes.ids) if new in list(catalog.episodes.tasks_of(i)))
    plan = replace(whole, data=replace(whole.data, exclude_episodes=excluded))
    # Its own validation episodes have known colors only: evaluate it on those of the other variants.
    found = {"before": outcome(plan, args, (NEW,)) | validation_losses(whole)}
    for name in VARIANTS:
        config = settings(
            args,
            seed,
            name,
            args.tune_steps,
            init_from=f"{plan.output_dir}/policy",
            precision="bf16",
            optim=OptimConfig(lr=args.lr),
            schedule=ScheduleConfig(kind="constant", warmup_steps=20),
        )
        found[name] = outcome(config, args, (NEW,), pure=name == "bf16")
    return found


# -- results


def pooled(runs: list[dict[str, Any]], keys: tuple[str, ...]) -> dict[str, Any]:
    """Means over the seeds, their pooled success, and the values of each seed."""
    successes, episodes = sum(r["successes"] for r in runs), sum(r["episodes"] for r in runs)
    low, high = wilson_interval(successes, episodes)
    return {
        **{key: statistics.fmean(r[key] for r in runs) for key in keys},
        "success": successes / episodes,
        "success_low": low,
        "success_high": high,
        "successes": successes,
        "episodes": episodes,
        "seeds": [{key: r[key] for key in (*keys, "successes")} for r in runs],
    }


def report(args: argparse.Namespace) -> dict[str, Any]:
    dataset = Path(args.out) / "dataset"
    if (
        not dataset.exists()
        and understudy(["record", "--output-dir", str(dataset), "--episodes", str(args.episodes)]) != 0
    ):
        raise SystemExit(1)
    by_precision = [precisions(args, seed) for seed in args.seeds]
    by_order = [orders(args, seed) for seed in args.seeds]
    order_keys = ("distinct_episodes_per_batch", "grad_norm_median_last", "val_loss")
    result = {
        "order": {name: pooled([runs[name] for runs in by_order], order_keys) for name in ORDERS},
        "precision": {
            name: pooled([runs[name] for runs in by_precision], ("weights_moved", "val_loss", "val_loss_new"))
            for name in VARIANTS
        },
        "before": pooled([by_precision[0]["before"]], ("val_loss", "val_loss_new")),
        "conditions": {
            "seeds": args.seeds,
            "episodes": args.episodes,
            "steps": args.steps,
            "base_steps": args.base_steps,
            "tune_steps": args.tune_steps,
            "lr": args.lr,
            "rollouts_per_seed": args.rollouts,
            "train_cpu_s": sum(
                run["train_cpu_s"]
                for runs in [*by_order, *by_precision]
                for name, run in runs.items()
                if name != "before" or runs is by_precision[0]
            ),
            "device": torch.cuda.get_device_name() if torch.cuda.is_available() else platform.machine(),
            "threads": torch.get_num_threads(),
            "torch": torch.__version__,
        },
    }
    if args.figures:
        draw(result, by_order, Path(args.figures))
    return result


def draw(result: dict[str, Any], by_order: list[dict[str, Any]], folder: Path) -> None:
    """collapse-order.png: gradient norms over the steps, and bars; collapse-precision.png: bars."""
    import matplotlib

    matplotlib.use("Agg")
    from matplotlib import pyplot

    folder.mkdir(parents=True, exist_ok=True)
    colors = {"sequential": "#c44e52", "shuffled": "#4c72b0", "bf16": "#c44e52", "fp32_truth": "#4c72b0"}

    def bars(axes: Any, part: str, key: str, title: str, before: float | None = None) -> None:
        rows, top = result[part], before or 0.0
        if before is not None:
            axes.axhline(before, color="grey", linewidth=1, linestyle="--")
            axes.annotate("before", (0.5, before), fontsize=8, ha="center", va="bottom", color="grey")
        for place, (name, row) in enumerate(rows.items()):
            low, high = (row["success_low"], row["success_high"]) if key == "success" else (row[key], row[key])
            axes.bar(place, row[key], color=colors[name], width=0.6)
            if low < high:
                axes.errorbar(place, row[key], [[row[key] - low], [high - row[key]]], color="black", capsize=4)
            top = max(top, high)
            value = f"{row[key]:.0%}" if key in ("success", "weights_moved") else f"{row[key]:.3g}"
            axes.annotate(value, (place, high), (0, 3), textcoords="offset points", ha="center", fontsize=9)
        axes.set_xticks(range(len(rows)), [name.replace("_", " ") for name in rows])
        axes.set_title(title, fontsize=10)
        axes.set_ylim(0, 1.15 * top)
        axes.spines[["top", "right"]].set_visible(False)

    figure, all_axes = pyplot.subplots(1, 4, figsize=(12, 3), width_ratios=(2.2, 1, 1, 1), layout="constrained")
    for name in ORDERS:
        series = np.array([runs[name]["grad_norm"] for runs in by_order])
        window = max(1, series.shape[1] // 100)
        for row in series:
            smooth = np.convolve(row, np.ones(window) / window, mode="valid")
            all_axes[0].plot(smooth, color=colors[name], linewidth=1, alpha=0.8, label=name if row is series[0] else "")
    for line, name in zip(list(all_axes[0].get_lines())[:: len(by_order)], ORDERS):
        line.set_label(name)
    all_axes[0].set_yscale("log")
    all_axes[0].set_xlabel("step")
    all_axes[0].set_title("gradient norm, a line per seed", fontsize=10)
    all_axes[0].legend(fontsize=8, frameon=False)
    bars(all_axes[1], "order", "distinct_episodes_per_batch", "episodes in a batch of 64")
    bars(all_axes[2], "order", "val_loss", "validation loss")
    bars(all_axes[3], "order", "success", "success")
    figure.savefig(folder / "collapse-order.png", dpi=110)

    figure, all_axes = pyplot.subplots(1, 3, figsize=(9, 3), layout="constrained")
    bars(all_axes[0], "precision", "weights_moved", "share of weights that moved")
    before = result["before"]
    bars(all_axes[1], "precision", "val_loss", "validation loss", before["val_loss"])
    bars(all_axes[2], "precision", "success", f"success, {NEW} asked for", before["success"])
    figure.savefig(folder / "collapse-precision.png", dpi=110)


def main(arguments: list[str] | None = None) -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--json", action="store_true", help="print one JSON object")
    parser.add_argument("--seeds", type=int, nargs="+", default=[0, 1, 2])
    parser.add_argument("--episodes", type=int, default=200, help="to record")
    parser.add_argument("--steps", type=int, default=1500, help="of the two orders")
    parser.add_argument("--base-steps", type=int, default=700, help="before fine-tuning")
    parser.add_argument("--tune-steps", type=int, default=400, help="of fine-tuning")
    parser.add_argument("--lr", type=float, default=FINE_TUNE_LR, help="of fine-tuning")
    parser.add_argument("--rollouts", type=int, default=60, help="per policy")
    parser.add_argument("--out", default="runs/collapse")
    parser.add_argument("--figures", default="docs/img", help="folder; empty draws none")
    args = parser.parse_args(arguments)
    torch.set_num_threads(1)
    with redirect_stdout(sys.stderr):
        result = report(args)
    if args.json:
        print(json.dumps(result))
        return
    for part, column in (("order", "distinct_episodes_per_batch"), ("precision", "weights_moved")):
        print(f"{part:<12}{column:>30}{'validation loss':>16}{'success':>12}   95 % interval")
        for name, row in result[part].items():
            print(
                f"{name:<12}{row[column]:>30.3g}{row['val_loss']:>16.4f}{row['successes']:>8}/{row['episodes']:<4}"
                f"  {row['success_low']:.0%} to {row['success_high']:.0%}"
            )
    before = result["before"]
    print(f"before fine-tuning: validation loss {before['val_loss']:.4f}, {before['successes']}/{before['episodes']}")
    print(", ".join(f"{k} {v}" for k, v in result["conditions"].items()), file=sys.stderr)


if __name__ == "__main__":
    main()
