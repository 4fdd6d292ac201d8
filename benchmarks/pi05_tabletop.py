"""A tiny pi0.5 that follows words on the simulated table; with `--lora`, adapters beside full fine-tuning.

    python benchmarks/pi05_tabletop.py [--json] [--lora] [--out runs/pi05-tabletop]

Words: `understudy record` demonstrates one task per color ("pick up the red block", green, blue), each in the same
scenes, so that the words alone distinguish the recordings of a scene. `tokenizer fit` fits a tokenizer, and `train`
trains a pi0.5 of 0.9 million parameters (`size: tiny`) from fresh weights on the flow loss alone, in the stages of
`STAGES`. The first stage learns the scene. The second learns words: two thirds of its samples are from the start of
episodes, where the hand has not yet shown its target. The others have the state in the prompt. One training with the
mixture and the prompt of the last stages, from fresh weights, ignores words even after 10,000 steps. `rollout` plays
scenes without recordings, once with the scene's own instruction and once with that of another block. The flow loss on
unseen layouts with swapped words shows earlier whether words are read: a policy that ignores them has the same.

LoRA: the camera has moved around the table by `ANGLE` degrees. From the policy above, one run trains all weights and
one trains adapters of rank `--rank` on the language tower, the expert, the vision encoder and the layers of actions and
flow time. Both have the same recordings, order, noise and number of steps. The table also has the policy before.

Each training is a process of its own: `cpu_s` and `peak_bytes` are of that process, `optimizer_bytes` is the statement
that the run prints at its start. `--out` keeps finished parts, which are not repeated. Success is pooled over seeds,
with 95 % Wilson intervals. The seeds of the scenes differ from those of the recordings.
"""

import argparse
import json
import math
import os
import platform
import re
import shutil
import subprocess
import sys
import time
from collections.abc import Callable, Sequence
from contextlib import redirect_stdout
from functools import partial
from pathlib import Path
from typing import Any, NamedTuple

os.environ.setdefault("OMP_NUM_THREADS", "1")

import numpy as np
import torch

from understudy.batch_keys import HEAD
from understudy.checksums import write_checksums
from understudy.cli.record import RecordConfig, demonstrate
from understudy.data.dataset import EpisodeDataset
from understudy.data.write.writer import EpisodeWriter
from understudy.envs.tabletop.tabletop_env import TabletopEnv
from understudy.policies.draws import make_draws
from understudy.policies.policy import load
from understudy.rollout.play import rollout
from understudy.rollout.result import wilson_interval
from understudy.train.track import metrics_file

COLORS = ("red", "green", "blue")
START = 13
"""Last frames of an episode that are left out where a sample is to be from its start; episodes have about 20."""
TRAIN: dict[str, Any] = {
    "batch_size": 32,
    "policy": {"type": "pi05", "size": "tiny", "noise_samples": 4, "prompt_tokens": 48},
    "augment": {"shift": 0},
    "log": {"report": False},
}
"""Settings of all trainings."""


class Stage(NamedTuple):
    """One training; each starts from the policy of the one before.

    Attributes:
        steps: optimizer steps.
        weights: weights of whole episodes and of their early frames in recordings in which three instructions share
            each layout; None: one recording, with one instruction per layout.
        prompt: format of the prompts: the instruction alone, or with the state.
        noise_samples: draws of flow time and noise per sample.
        lr: peak learning rate.
    """

    steps: int
    weights: tuple[int, int] | None
    prompt: str
    noise_samples: int
    lr: float = 1e-3


STAGES = (
    Stage(1750, None, "plain", 8),
    Stage(2400, (1, 2), "plain", 4),
    Stage(4200, (2, 1), "state", 4),
    Stage(1500, (2, 1), "state", 4, 6e-4),
    Stage(2500, (2, 1), "state", 4, 6e-4),
)
"""Stages of the training from fresh weights: the scene first, then words, then the state in the prompt."""
LR = {"full": 5e-4, "lora": 2e-3}
"""Peak learning rates of fine-tuning."""
TARGETS = ("vision.layers.*", "layers.*_proj", "[as]*_proj", "*time_mlp_*")
"""Layers with an adapter: the policy's default, and the vision encoder, since the images have changed."""
ANGLE = 45.0
"""Degrees by which the camera moves around the table."""
SCENES = 15
"""Scenes that are played side by side."""


class MovedCamera(TabletopEnv):
    """The tabletop, seen from a camera that has moved around the table's vertical axis by `ANGLE` degrees."""

    def __init__(self) -> None:
        """Make the environment with images of 64 pixels."""
        super().__init__(64)
        camera, half = self.sim.model.camera("front"), math.radians(ANGLE) / 2
        x, y, z = camera.pos
        sine, cosine = math.sin(2 * half), math.cos(2 * half)
        camera.pos[:] = [cosine * x - sine * y, sine * x + cosine * y, z]
        a, b, c, d = camera.quat
        p, q = math.cos(half), math.sin(half)
        camera.quat[:] = [p * a - q * d, p * b - q * c, p * c + q * b, p * d + q * a]


def flags(settings: dict[str, Any]) -> list[str]:
    """Write settings as flags; None is a flag without a value."""
    found = []
    for name, value in settings.items():
        values = value if isinstance(value, tuple) else () if value is None else (value,)
        found += [f"--{name}", *map(str, values)]
    return found


def command(log: Path, *arguments: str) -> dict[str, float]:
    """Run an `understudy` command in a process of its own; its output goes to `log`.

    Returns:
        `wall_s`, `cpu_s` and `peak_bytes` of the process.
    """
    print(f"understudy {' '.join(arguments)}", file=sys.stderr)
    log.parent.mkdir(parents=True, exist_ok=True)
    began = time.perf_counter()
    with log.open("w") as file:
        process = subprocess.Popen([sys.executable, "-m", "understudy", *arguments], stdout=file, stderr=file)
        _, status, usage = os.wait4(process.pid, 0)
    if os.waitstatus_to_exitcode(status) != 0:
        raise SystemExit(f"understudy {arguments[0]} failed: {log}")
    return {
        "wall_s": time.perf_counter() - began,
        "cpu_s": usage.ru_utime + usage.ru_stime,
        "peak_bytes": usage.ru_maxrss * 1024,
    }


def once(file: Path, make: Callable[[], dict[str, Any]]) -> dict[str, Any]:
    """Return the result in `file`, which `make` computes the first time."""
    if not file.exists():
        found = make()
        file.parent.mkdir(parents=True, exist_ok=True)
        file.write_text(json.dumps(found))
    result: dict[str, Any] = json.loads(file.read_text())
    return result


def trained(args: argparse.Namespace, name: str, steps: int, **settings: Any) -> dict[str, Any]:
    """Train the run `name` and return its times, bytes and last losses."""
    run = args.out / name

    def make() -> dict[str, Any]:
        shutil.rmtree(run, ignore_errors=True)  # an unfinished one
        own = settings.pop("policy", {})
        policy = TRAIN["policy"] | own | {"tokenizer": str(args.out / "tokenizer")}
        val = {"every": steps, "frames": 300, "open_loop_every": 0}
        config = TRAIN | {"policy": policy, "val": val, "steps": steps, "output_dir": str(run)} | settings
        file = args.out / f"{name}.yaml"
        file.write_text(json.dumps(config, indent=2))  # JSON is YAML
        used = command(args.out / f"{name}.log", "train", str(file))
        text = (args.out / f"{name}.log").read_text()
        shares = re.search(r"trains (?:all|([\d,]+) of) ([\d,]+) parameters", text)
        stated = re.search(r"optimizer state ([\d,]+) bytes", text)
        assert shares is not None
        assert stated is not None
        total = number(shares[2])
        metrics = metrics_file.read(run / "metrics.jsonl", "train")
        return {
            **used,
            "steps": steps,
            "parameters": total,
            "trained_parameters": number(shares[1] or shares[2]),
            "weight_bytes": 4 * total,
            "optimizer_bytes": number(stated[1]),
            "train_loss": float(np.mean([record["loss"] for record in metrics[-50:]])),
            "val_loss": metrics_file.read(run / "metrics.jsonl", "val")[-1]["loss"],
        }

    return once(args.out / f"{name}.json", make)


def number(text: str) -> int:
    """Read a number with thousands separators."""
    return int(text.replace(",", ""))


def played(args: argparse.Namespace, run: str, seed: int, env: Callable[[], TabletopEnv]) -> dict[str, Any]:
    """Play a run's policy in scenes of `seed`, with their own instruction and with another one."""

    def make() -> dict[str, Any]:
        policy = load(args.out / run / "policy").eval()
        worlds = [env() for _ in range(min(SCENES, args.rollouts))]
        found = {}
        for name, swap in (("plain", False), ("swapped", True)):
            result = rollout(policy, worlds, args.rollouts, seed, swap_text=swap)
            took = result.took_scene if swap else 0
            found[name] = {"successes": result.successes, "episodes": args.rollouts, "ignored_words": took}
        return found

    return once(args.out / f"{run}-{env.__name__}-{seed}.json", make)


def word_gap(args: argparse.Namespace, run: str) -> dict[str, Any]:
    """Compare the flow loss on unseen layouts with the instruction and with that of another block.

    A policy that ignores words has a gap of 0. `early` are the first five frames of an episode, in which the hand is
    far from the blocks and only the words name one.
    """

    def make() -> dict[str, Any]:
        policy = load(args.out / run / "policy").eval()
        offsets = [step / 10 for step in range(policy.config.chunk)]
        data = EpisodeDataset(args.out / "unseen", delta_timestamps={"action": offsets})
        batch = data.batch(*data.locate(np.arange(len(data))))
        batch[HEAD] = torch.zeros(len(data), dtype=torch.int64)
        tasks, early = sorted(set(batch["task"])), batch["frame_index"] < 5
        draws = make_draws(policy.random_spec("validation"), args.seed, np.arange(len(data)), "words")
        found = {}
        for name, turn in (("own", 0), ("swapped", 1)):
            named = [tasks[(tasks.index(task) + turn) % len(tasks)] for task in batch["task"]]
            with torch.no_grad():
                loss = policy.losses(policy.preprocess({**batch, "task": named}), draws)["flow"]
            each = loss.sum / loss.count
            found |= {name: float(each.mean()), f"{name}_early": float(each[early].mean())}
        return found

    recorded = flags({"output-dir": args.out / "unseen", "episodes": min(24, args.episodes), "seed": args.seed + 2})
    once(args.out / "unseen.json", lambda: command(args.out / "unseen.log", "record", *recorded))
    return once(args.out / f"{run}-gap.json", make)


def pooled(results: Sequence[dict[str, Any]]) -> dict[str, Any]:
    """Sum successes, with the Wilson interval."""
    successes, episodes = (sum(each[key] for each in results) for key in ("successes", "episodes"))
    low, high = wilson_interval(successes, episodes)
    ignored = sum(each["ignored_words"] for each in results)
    return {"successes": successes, "episodes": episodes, "low": low, "high": high, "ignored_words": ignored}


def recorded(root: Path, episodes: int, seed: int) -> None:
    """Record the scripted expert with the moved camera, unless it is done."""
    env = MovedCamera()
    with EpisodeWriter(
        root, fps=env.fps, features=env.features, robot_type=env.name, codec="libsvtav1", resume=True
    ) as writer:
        for episode in range(writer.episodes, episodes):
            frames, task, _ = demonstrate(env, RecordConfig(output_dir=str(root), seed=seed), episode)  # type: ignore[arg-type]
            for frame in frames:
                writer.add_frame(frame, task=task)
            writer.save_episode()


def source(root: Path, **more: Any) -> dict[str, Any]:
    """Settings of one source of a run."""
    return {"root": str(root), "robot_type": "tabletop", "control_mode": "ee_delta", "weight": 1} | more


def mixture(args: argparse.Namespace, whole: int, early: int) -> list[dict[str, Any]]:
    """Settings of the recordings of each color: `whole` episodes and their `early` frames, by weight."""
    found = []
    for color in COLORS:
        root = args.out / color
        found.append(source(root, name=color, weight=whole))
        found.append(source(root, name=f"{color}-early", weight=early, drop_n_last_frames=START))
    return found


def with_prompt(folder: Path, prompt: str) -> Path:
    """Copy a policy's folder and change the format of its prompts."""
    copy = folder.with_name(f"{folder.name}-{prompt}")
    shutil.rmtree(copy, ignore_errors=True)
    shutil.copytree(folder, copy)
    config = json.loads((copy / "config.json").read_text())
    (copy / "config.json").write_text(json.dumps(config | {"prompt": prompt}))
    write_checksums(copy)
    return copy


def words(args: argparse.Namespace) -> dict[str, Any]:
    """Train from fresh weights in stages, and play."""
    for color in ("any", *COLORS):
        tasks = () if color == "any" else ("--tasks", color)
        options = [*flags({"output-dir": args.out / color, "episodes": args.episodes, "seed": args.seed}), *tasks]
        once(args.out / f"{color}.json", partial(command, args.out / f"{color}.log", "record", *options))
    text = args.out / "mixture.yaml"
    text.write_text(json.dumps({"data": {"sources": mixture(args, 1, 1)}, "policy": TRAIN["policy"]}))
    fit = [str(text), "--output-dir", str(args.out / "tokenizer")]
    once(args.out / "tokenizer.json", lambda: command(args.out / "tokenizer.log", "tokenizer", "fit", *fit))
    stages: list[dict[str, Any]] = []
    before: Path | None = None
    for number, stage in enumerate(STAGES, 1):
        name = "words" if number == len(STAGES) else f"stage-{number}"
        steps = max(1, round(stage.steps * args.share))
        sources = mixture(args, *stage.weights) if stage.weights else [source(args.out / "any", name="any")]
        own: dict[str, Any] = {"data": {"sources": sources}, "optim": {"lr": stage.lr}, "seed": args.seed + number - 1}
        if before is not None:
            own["init_from"] = str(before)
        policy = {"prompt": stage.prompt, "noise_samples": stage.noise_samples}
        stages.append({"name": name, "prompt": stage.prompt, **trained(args, name, steps, policy=policy, **own)})
        before = args.out / name / "policy"
        if number < len(STAGES) and STAGES[number].prompt != stage.prompt:
            before = with_prompt(before, STAGES[number].prompt)
    result = played(args, "words", args.seed, TabletopEnv)
    success = {name: pooled([result[name]]) for name in ("plain", "swapped")}
    total = {"steps": sum(stage["steps"] for stage in stages), "cpu_s": sum(stage["cpu_s"] for stage in stages)}
    return stages[-1] | total | success | {"stages": stages, "loss": word_gap(args, "words")}


def adapted(args: argparse.Namespace) -> dict[str, Any]:
    """Fine-tune on the moved camera, with all weights and with adapters, for each seed."""
    data = args.out / "moved"
    recorded(data, args.tune_episodes, args.seed + 1)
    before = played(args, "words", args.seed, MovedCamera)
    found: dict[str, Any] = {"before": {name: pooled([before[name]]) for name in before}}
    arms: dict[str, dict[str, Any]] = {"full": {}, "lora": {"lora": {"rank": args.rank, "targets": TARGETS}}}
    for arm, settings in arms.items():
        runs, results = [], []
        for seed in args.seeds:
            name = f"{arm}-{seed}"
            own = {"data": {"sources": [source(data)]}, "init_from": str(args.out / "words/policy"), "seed": seed}
            own |= {"optim": {"lr": LR[arm]}, "schedule": {"warmup_steps": 20}}
            runs.append(trained(args, name, args.tune_steps, **own, **settings))
            results.append(played(args, name, seed, MovedCamera))
        found[arm] = runs[0] | {
            "val_loss": [run["val_loss"] for run in runs],
            "cpu_s": sum(run["cpu_s"] for run in runs) / len(runs),
            **{name: pooled([result[name] for result in results]) for name in ("plain", "swapped")},
            "all": pooled([result[name] for result in results for name in ("plain", "swapped")]),
        }
    return found


def table(result: dict[str, Any]) -> str:
    """Format the results for a terminal."""
    rows = {"words": result["words"], **(result.get("lora") or {})}
    lines = [
        f"{'':<8}{'own words':>11}{'swapped':>9}   {'95 % of both':<18}{'CPU s':>7}{'peak MiB':>10}"
        f"{'optimizer bytes':>17}"
    ]
    for name, row in rows.items():
        both = [wilson_interval(row[kind]["successes"], row[kind]["episodes"]) for kind in ("plain", "swapped")]
        cells = [f"{row[kind]['successes']}/{row[kind]['episodes']}" for kind in ("plain", "swapped")]
        spans = ", ".join(f"{low:.0%}-{high:.0%}" for low, high in both)
        cost = (
            f"{row['cpu_s']:>7.0f}{row['peak_bytes'] / 2**20:>10.0f}{row['optimizer_bytes']:>17,}"
            if "cpu_s" in row
            else ""
        )
        lines.append(f"{name:<8}{cells[0]:>11}{cells[1]:>9}   {spans:<18}{cost}")
    loss = result["words"]["loss"]
    lines.append(
        f"flow loss on unseen layouts: {loss['own']:.4f}, with swapped words {loss['swapped']:.4f}; in the first five "
        f"frames {loss['own_early']:.4f} and {loss['swapped_early']:.4f}"
    )
    return "\n".join(lines)


def main(arguments: list[str] | None = None) -> None:
    """Parse the command line and print the results."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--json", action="store_true", help="print one JSON object")
    parser.add_argument(
        "--lora", action="store_true", help="also fine-tune for a moved camera, fully and with adapters"
    )
    parser.add_argument("--out", type=Path, default=Path("runs/pi05-tabletop"))
    parser.add_argument("--seed", type=int, default=0, help="of recordings, training and scenes")
    parser.add_argument("--episodes", type=int, default=800, help="to record of each color")
    parser.add_argument("--share", type=float, default=1, help="of the steps of each stage, for a quick trial")
    parser.add_argument("--rollouts", type=int, default=30, help="per policy, seed and kind of instruction")
    parser.add_argument("--seeds", type=int, nargs="+", default=[10, 11], help="of fine-tuning and its scenes")
    parser.add_argument("--tune-episodes", type=int, default=200, help="to record for fine-tuning")
    parser.add_argument("--tune-steps", type=int, default=400, help="of fine-tuning")
    parser.add_argument("--rank", type=int, default=8, help="of the adapters")
    args = parser.parse_args(arguments)
    torch.set_num_threads(1)
    with redirect_stdout(sys.stderr):
        result: dict[str, Any] = {"words": words(args)}
        if args.lora:
            result["lora"] = adapted(args)
    given = {key: str(value) if isinstance(value, Path) else value for key, value in vars(args).items()}
    result["conditions"] = given | {
        "device": platform.machine(),
        "threads": torch.get_num_threads(),
        "torch": torch.__version__,
    }
    print(json.dumps(result) if args.json else table(result))


if __name__ == "__main__":
    main()
