"""A small pi0.5, fine-tuned on a new task at the learning rate of a large one: does precision matter, or the order?

    python benchmarks/ablation.py [--json] [--out runs/ablation] [--seeds 0 1 2]

A pi0.5 of 0.4 million parameters is trained in float32 on two tasks of the simulated table (the red block, the green
block). From this one checkpoint it is fine-tuned on a third task (the blue block) with openpi's settings: AdamW, peak
learning rate 2.5e-5, warm-up, cosine. Compared are, for each seed of order and noise:

    precision    bf16-weights, bf16-rope, fp32-truth (`ablation_arms.py`)
    order        clips (shuffled), sequential (frames as stored)
    average      the last weights, or their moving average (decay 0.99, float32)

The average does not influence the training, so one run gives both. Samples, noise and times of a position are the same
in all runs of a seed and an order. Measured are the validation loss on other episodes of the new task, with the same
noise for all, success on the same layouts for all, and the share of weights that change in a step. `--out` keeps the
checkpoint and a line of `results.jsonl` for each finished run; these are not repeated.

Intervals of losses are 95 % (Student's t over seeds). Successes are pooled over seeds, with Wilson's interval: they
describe these layouts and this checkpoint.
"""

import argparse
import io
import json
import os
import platform
import statistics
import sys
import time
from collections.abc import Callable, Iterator
from contextlib import redirect_stdout
from dataclasses import asdict, replace
from itertools import product
from pathlib import Path
from typing import Any

os.environ.setdefault("OMP_NUM_THREADS", "1")

import torch
from torch.nn.attention import SDPBackend, sdpa_kernel

from ablation_arms import ARMS, changed, distance, matrices, positions_of, start, trained
from understudy.cli.main import main as understudy
from understudy.config.data import DataConfig
from understudy.config.train import AugmentConfig, EmaConfig, OptimConfig, ScheduleConfig, TrainConfig
from understudy.distributed.mesh import Mesh, join_mesh
from understudy.envs.registry import open_env
from understudy.load.validation.validation_data import ValidationData
from understudy.policies.common.towers.tower_sizes import TowerSizes
from understudy.policies.pi05.config import Pi05PolicyConfig, Pi05Settings
from understudy.policies.pi05.policy import Pi05Policy
from understudy.policies.pi05.sizes import Sizes, VisionSizes
from understudy.policies.policy import Policy
from understudy.rollout.play import rollout
from understudy.rollout.result import wilson_interval
from understudy.train.data.make_loader import make_loader, make_order
from understudy.train.data.run_data import RunData, choose_normalization, open_data
from understudy.train.state import TrainState, assemble
from understudy.train.validation.validation_loss import evaluate

OLD, NEW = ("red", "green"), "blue"
ORDERS = {"clips": "clips", "sequential": "sequential"}
REFERENCE = {"arm": "fp32-truth", "order": "clips", "weights": "last"}
BASE_LR, FINE_TUNE_LR = 1e-3, 2.5e-5
BASE_BATCH = 32
T95 = {1: 12.706, 2: 4.303, 3: 3.182, 4: 2.776, 5: 2.571, 6: 2.447, 7: 2.365, 8: 2.306, 9: 2.262}
"""Student's t at 0.975 by degrees of freedom."""
DECIDE = ("episodes", "new_episodes", "val_fraction", "base_steps", "steps", "batch_size", "lr", "rollouts")
"""Arguments that decide the results of a run, besides its own precision, order and seed."""
WATCH = 10
"""Steps between counts of the weights that change in a step."""
IMAGE = 48
TOWER = {"depth": 3, "num_heads": 4, "num_kv_heads": 1, "head_dim": 24}
SIZES = Sizes(
    vision=VisionSizes(width=64, depth=2, mlp=128, heads=4, patch=8, image=IMAGE),
    vlm=TowerSizes(width=64, mlp_dim=160, **TOWER),
    expert=TowerSizes(width=48, mlp_dim=128, **TOWER),
    vocab=320,
    chunk=8,
    dim=8,
)


# -- data, tokenizer and the checkpoint to start from


def recorded(args: argparse.Namespace, name: str, colors: tuple[str, ...], episodes: int) -> Path:
    folder = Path(args.out) / name
    command = ["record", "--output-dir", str(folder), "--episodes", str(episodes), "--tasks", *colors]
    command += [f"--image-size={IMAGE}"]
    if understudy(command) != 0:  # continues, or finds all episodes there
        raise SystemExit(1)
    return folder


def tokenizer(out: Path) -> Path:
    """Fit a sentencepiece model on all prompts of the table: a token per word, and one per number of the state."""
    file = out / "tokenizer.model"
    if file.exists():
        return file
    from sentencepiece import SentencePieceTrainer

    texts = [f"Task: pick up the {c} block, State: {n};\nAction: " for c in (*OLD, NEW) for n in range(-1, 256)]
    made = io.BytesIO()
    SentencePieceTrainer.train(
        sentence_iterator=iter(texts * 2),
        model_writer=made,
        vocab_size=300,
        model_type="bpe",
        pad_id=0,
        eos_id=1,
        bos_id=2,
        unk_id=3,
        split_digits=False,
        user_defined_symbols=["\n"],
        normalization_rule_name="identity",
        remove_extra_whitespaces=False,
        add_dummy_prefix=False,
        hard_vocab_limit=False,
        minloglevel=2,
    )
    file.write_bytes(made.getvalue())
    return file


def settings(args: argparse.Namespace, data: Path, steps: int, lr: float, **changes: Any) -> TrainConfig:
    config = TrainConfig(
        steps=steps,
        batch_size=BASE_BATCH,
        device="cpu",
        data=DataConfig(root=str(data), val_fraction=args.val_fraction),
        policy=Pi05Settings(size="tiny", tokenizer=str(tokenizer(Path(args.out))), prompt_tokens=24, noise_samples=4),
        optim=OptimConfig(lr=lr, weight_decay=1e-10, ema=EmaConfig(decay=0.99)),  # openpi's
        augment=AugmentConfig(shift=0),
        schedule=ScheduleConfig(warmup_steps=max(1, steps // 30), final_lr_ratio=0.1),  # openpi's 1,000 of 30,000
    )
    return replace(config, **changes).resolved()


def checkpoint(args: argparse.Namespace) -> Path:
    """Train the policy to start from, unless it is there."""
    folder = Path(args.out) / "base"
    if folder.exists():
        return folder
    data = recorded(args, "old-tasks", OLD, args.episodes)
    config = settings(args, data, args.base_steps, BASE_LR)
    opened = open_data(config)
    with join_mesh(config) as mesh:
        facts: Pi05PolicyConfig = replace(opened.policy_config(config), dimensions=asdict(SIZES))
        torch.manual_seed(0)
        policy = Pi05Policy(facts, choose_normalization(config, opened))
        state = assemble(config, policy, mesh)
        steps(state, opened, lambda loss: None)
        state.eval_policy.save(folder)
    return folder


def base_policy(args: argparse.Namespace) -> Pi05Policy:
    policy = Pi05Policy.load(Path(args.out) / "base")
    policy.config = replace(policy.config, noise_samples=1)  # the ports draw one per sample
    return policy


def steps(state: TrainState, data: RunData, seen: Callable[[float], None]) -> None:
    """Train to the end of the run's steps; `seen` gets each loss."""
    config, began = state.config, time.monotonic()
    order = make_order(config, data, state.mesh)
    with make_loader(config, data, order, state.mesh, 0, state.prepare) as loader:
        while state.step < config.steps:
            result = state.train_step(next(loader))
            if result.skipped:
                raise SystemExit(f"step {state.step}: the gradient is not finite")
            seen(float(result.loss))
            if state.step % 200 == 0:
                left = (time.monotonic() - began) / state.step * (config.steps - state.step)
                print(f"  step {state.step} of {config.steps}, loss {result.loss:.4f}, {left:.0f} s left", flush=True)


# -- runs


def fine_tune(args: argparse.Namespace, arm: str, order: str, seed: int, mesh: Mesh) -> dict[str, Any]:
    """Train one run, and measure its last weights and their average."""
    began = time.monotonic()
    config = settings(args, Path(args.out) / "new-task", args.steps, args.lr, seed=seed, batch_size=args.batch_size)
    config = replace(config, data=replace(config.data, shuffle=ORDERS[order]))
    data = open_data(config)
    state = start(arm, base_policy(args), config, mesh)
    losses, shares = [], []
    first = last = matrices(state)

    def watch(loss: float) -> None:
        nonlocal last
        losses.append(loss)
        if state.step % WATCH == WATCH - 1:
            last = matrices(state)
        elif state.step % WATCH == 0:
            shares.append(changed(last, matrices(state), trained(state)))

    with positions_of(arm):
        steps(state, data, watch)
        end, marks = matrices(state), trained(state)
        found = {
            "arm": arm,
            "order": order,
            "seed": seed,
            "changed_in_a_step": statistics.fmean(shares) if shares else None,
            "moved": changed(first, end, marks),
            "distance": distance(first, end, marks),
            "train_loss": statistics.fmean(losses[-len(losses) // 5 :]),
        }
        for name, policy in (("last", state.policy), ("average", state.average)):
            found |= {f"{name}_{key}": value for key, value in measured(args, policy, data, mesh).items()}
    return found | {"seconds": time.monotonic() - began}


def measured(args: argparse.Namespace, policy: Policy, data: RunData, mesh: Mesh, color: str = NEW) -> dict[str, Any]:
    """Validation loss and successes of a policy, with the same noise and layouts whatever the run."""
    policy.eval()
    held = ValidationData.from_sources(data, mixed=False)
    assert held is not None
    loss = evaluate(policy, held, 0, mesh, dict.fromkeys(policy.loss_terms, 1.0))["loss"]
    return {"val_loss": loss, "successes": successes(policy, color, args.rollouts)}


def successes(policy: Policy, color: str, episodes: int) -> int:
    """Episodes that succeed, of those on the first layouts of seed 0 with one task."""
    worlds = [open_env("tabletop", IMAGE, tasks=(color,)) for _ in range(max(1, min(15, episodes)))]
    return sum(episode.success for episode in rollout(policy, worlds, episodes, 0, steps=5).episodes)


def before(args: argparse.Namespace, mesh: Mesh) -> dict[str, Any]:
    """Measures of the checkpoint: on the new task, and its success on the old ones."""
    file = Path(args.out) / "before.json"
    if not file.exists():
        policy, found = base_policy(args), {}
        for name, colors, folder in (("new", (NEW,), "new-task"), ("old", OLD, "old-tasks")):
            data = open_data(settings(args, Path(args.out) / folder, 1, args.lr))
            each = [measured(args, policy, data, mesh, color) for color in colors]
            found[name] = {
                "val_loss": each[0]["val_loss"],
                "successes": sum(one["successes"] for one in each),
                "episodes": args.rollouts * len(colors),
            }
        file.write_text(json.dumps(found))
    return json.loads(file.read_text())


def all_runs(args: argparse.Namespace, mesh: Mesh) -> list[dict[str, Any]]:
    """The lines of `results.jsonl` that were asked for; those that are missing are made."""
    file = Path(args.out) / "results.jsonl"
    done = [json.loads(line) for line in file.read_text().splitlines()] if file.exists() else []
    known = {(run["arm"], run["order"], run["seed"]): run for run in done}
    wanted = [(arm, order, seed) for seed, order, arm in product(args.seeds, args.orders, args.arms)]
    missing, began = [key for key in wanted if key not in known], time.monotonic()
    for number, key in enumerate(missing, 1):
        print(f"run {number} of {len(missing)}: {' '.join(map(str, key))}", flush=True)
        known[key] = fine_tune(args, *key, mesh)
        with file.open("a") as lines:
            lines.write(json.dumps(known[key]) + "\n")
        left = (time.monotonic() - began) / number * (len(missing) - number)
        brief = {k: round(v, 4) if isinstance(v, float) else v for k, v in known[key].items()}
        print(f"  {brief}\n  {left / 60:.0f} min left", flush=True)
    return [known[key] for key in wanted]


# -- results


def interval(values: list[float]) -> dict[str, float | None]:
    """Mean of the seeds and half the width of its 95 % interval; None for one seed."""
    half = T95[len(values) - 1] * statistics.stdev(values) / len(values) ** 0.5 if len(values) > 1 else None
    return {"mean": statistics.fmean(values), "half": half}


def summary(runs: list[dict[str, Any]], args: argparse.Namespace) -> list[dict[str, Any]]:
    """A row for each precision, order and kind of weights, with its loss beside each of `REFERENCE` in turn."""
    cells = {(run["arm"], run["order"], kind, run["seed"]): run for run in runs for kind in ("last", "average")}
    rows = []
    for arm, order, kind in product(args.arms, args.orders, ("last", "average")):
        own = {seed: run for (*cell, seed), run in cells.items() if cell == [arm, order, kind]}
        succeeded, episodes = sum(run[f"{kind}_successes"] for run in own.values()), args.rollouts * len(own)
        low, high = wilson_interval(succeeded, episodes)
        row: dict[str, Any] = {
            "arm": arm,
            "order": order,
            "weights": kind,
            "val_loss": interval([run[f"{kind}_val_loss"] for run in own.values()]),
            "successes": succeeded,
            "episodes": episodes,
            "success_low": low,
            "success_high": high,
            "moved": statistics.fmean(run["moved"] for run in own.values()),
            "changed_in_a_step": statistics.fmean(run["changed_in_a_step"] or 0.0 for run in own.values()),
            "distance": statistics.fmean(run["distance"] for run in own.values()),
        }
        for factor, level in REFERENCE.items():
            other = {**row, factor: level}
            beside = {seed: cells.get((other["arm"], other["order"], other["weights"], seed)) for seed in own}
            key, theirs = f"{kind}_val_loss", f"{other['weights']}_val_loss"
            apart = [own[seed][key] - run[theirs] for seed, run in beside.items() if run is not None]
            row[f"minus_{level}"] = interval(apart) if apart else None
        rows.append(row)
    return rows


def table(rows: list[dict[str, Any]]) -> Iterator[str]:
    beside = [f"minus {level}" for level in REFERENCE.values()]
    titles = ["precision", "order", "weights", "moved", "changed in a step", "validation loss", *beside, "success"]
    yield f"| {' | '.join(titles)} |"
    yield "|---" * len(titles) + "|"

    def written(found: dict[str, float | None] | None, sign: str = "") -> str:
        if found is None:
            return "-"
        half = "" if found["half"] is None else f" ± {found['half']:.4f}"
        return f"{found['mean']:{sign}.4f}{half}"

    for row in rows:
        apart = [written(row[f"minus_{level}"], "+") for level in REFERENCE.values()]
        cells = [row["arm"], row["order"], row["weights"], f"{row['moved']:.1%}", f"{row['changed_in_a_step']:.1%}"]
        rate = f"{row['successes']}/{row['episodes']} ({row['success_low']:.0%}–{row['success_high']:.0%})"
        yield f"| {' | '.join([*cells, written(row['val_loss']), *apart, rate])} |"


def check_settings(args: argparse.Namespace) -> None:
    """Write the settings that decide a run's results into its folder; refuse a folder with others."""
    file, now = Path(args.out) / "settings.json", {name: getattr(args, name) for name in DECIDE}
    if file.exists() and (then := json.loads(file.read_text())) != now:
        raise SystemExit(f"{args.out} holds runs with {then}, not {now}: name another --out")
    Path(args.out).mkdir(parents=True, exist_ok=True)
    file.write_text(json.dumps(now))


def report(args: argparse.Namespace) -> dict[str, Any]:
    check_settings(args)
    recorded(args, "new-task", (NEW,), args.new_episodes)
    checkpoint(args)
    with sdpa_kernel(SDPBackend.MATH), join_mesh(TrainConfig(device="cpu")) as mesh:  # flash is slow in bfloat16 here
        start_point = before(args, mesh)
        rows = summary(all_runs(args, mesh), args)
    return {
        "rows": rows,
        "before": start_point,
        "conditions": {
            **{name: value for name, value in vars(args).items() if name not in ("json", "out")},
            "parameters": sum(p.numel() for p in base_policy(args).parameters()),
            "machine": platform.machine(),
            "torch": torch.__version__,
            "threads": torch.get_num_threads(),
        },
    }


def main(arguments: list[str] | None = None) -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--json", action="store_true", help="print one JSON object")
    parser.add_argument("--out", default="runs/ablation", help="folder of recordings, checkpoint and results")
    parser.add_argument("--seeds", type=int, nargs="+", default=[0, 1, 2], help="of order and noise")
    parser.add_argument("--arms", nargs="+", choices=ARMS, default=list(ARMS[:3]))
    parser.add_argument("--orders", nargs="+", choices=ORDERS, default=list(ORDERS))
    parser.add_argument("--episodes", type=int, default=600, help="of the old tasks")
    parser.add_argument("--new-episodes", type=int, default=120, help="of the new task")
    parser.add_argument("--val-fraction", type=float, default=0.1, help="share of the episodes for validation")
    parser.add_argument("--base-steps", type=int, default=6000, help="on the old tasks")
    parser.add_argument("--steps", type=int, default=300, help="of fine-tuning")
    parser.add_argument("--batch-size", type=int, default=16, help="of fine-tuning")
    parser.add_argument("--lr", type=float, default=FINE_TUNE_LR, help="peak, of fine-tuning")
    parser.add_argument("--rollouts", type=int, default=30, help="layouts; 0 plays none")
    args = parser.parse_args(arguments)
    torch.set_num_threads(1)
    with redirect_stdout(sys.stderr):
        result = report(args)
    if args.json:
        print(json.dumps(result))
        return
    print("\n".join(table(result["rows"])))
    for name, found in result["before"].items():
        print(f"before, {name} tasks: loss {found['val_loss']:.4f}, success {found['successes']}/{found['episodes']}")
    print(", ".join(f"{key} {value}" for key, value in result["conditions"].items()), file=sys.stderr)


if __name__ == "__main__":
    main()
