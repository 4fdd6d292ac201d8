"""Cloning of mixed demonstrations: all of them, successes alone, frames weighted by advantage, and
conditioned on it.

    python lab/benchmarks/values.py [--json] [--out FILE] [--episodes 96] [--steps 400] [--seeds 3]
        [--scenes 90]

The task is the simulated table without images: the state has the way from the hand to each block,
the named one first. So a policy is trained in a minute of a CPU. The demonstrations are four kinds
in equal parts: `good` ones of the expert, `slow` ones at a third of its speed, `failing` ones that
pick up another block than the named one, and `corrected` ones that begin so and are corrected by
the expert after a second (`intervention` is 1 from there on).

A value function (`policy.type value`, `returns time`) is trained on all of them, and
`understudy score` writes the advantages. All policies are flow policies of equal settings and
steps:

    plain        all frames
    filtered     `where success`
    positive     `frame_weights advantage_is_positive`, in the order: the frames of positive
                 advantage alone
    weighted     `frame_weights` of exp(advantage / its deviation), at most 20, in the loss
                 (advantage-weighted regression, Peng et al. 2019)
    conditioned  `prompt_metadata advantage_is_positive 0.3`, and true in rollouts

Each seed has its own first weights and order, and plays the same scenes, 4 of 8 actions at a time.
`difference` is the mean over scenes of the difference to `plain` in successes, averaged over seeds,
with Student's interval of 95 % over scenes. The interval holds for these demonstrations and this
value function. A row is written when it is measured.
"""

import argparse
import json
import math
import os
import tempfile
from collections.abc import Iterator
from pathlib import Path
from typing import Any

os.environ.setdefault("OMP_NUM_THREADS", "1")

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
import torch

import understudy as us
from parsers import make_parser
from understudy.config.train import TrainConfig
from understudy.policies.policy import load
from understudy.report.intervals import loss_interval
from understudy.train import run
from understudy_data.order import sample_normal
from understudy_kit import validate_new
from understudy_robot.envs.env import Outcome, layout_seed, vector_feature
from understudy_robot.envs.tabletop import COLORS, FPS, MAX_STEPS, NOISE, TASKS, TabletopEnv
from understudy_robot.rollout.adapter import EnvAdapter
from understudy_robot.rollout.play import rollout
from understudy_zoo.cli.score import ScoreConfig, score

KINDS = ("good", "slow", "failing", "corrected")
WAYS = ("plain", "filtered", "positive", "weighted", "conditioned")
SIZES = {"width": 64, "layers": 2, "noise_samples": 2}
SLOW = 1 / 3
CORRECTED_AFTER = 10
WORLDS = 45
STATE = [
    "x",
    "y",
    "z",
    "grip",
    *(f"{block}_{axis}" for block in ("named", "second", "third") for axis in "xyz"),
]


class StateTable(TabletopEnv):
    """The table without a camera: the state also has the way to each block, the named one first."""

    def __init__(self) -> None:
        super().__init__()
        self.features = {
            "observation.state": vector_feature(STATE),
            "action": self.features["action"],
        }

    def _observation(self) -> dict[str, np.ndarray]:
        first = COLORS.index(self.color)
        gaps = np.roll(self.blocks - self.hand, -first, axis=0)
        state = [*self.hand, float(self._closed), *gaps.reshape(-1)]
        return {"observation.state": np.array(state, np.float32)}


def demonstrate(
    env: StateTable, kind: str, episode: int
) -> Iterator[tuple[dict[str, Any], Outcome]]:
    """Yield the frames of a demonstration with the outcome of each."""
    task = env.tasks[episode % len(env.tasks)]
    layout = layout_seed(7, episode)
    observation = env.reset(layout, task)
    named = env.color
    other = COLORS[(COLORS.index(named) + 1 + episode // len(COLORS) % 2) % len(COLORS)]
    pushes = NOISE * sample_normal(layout, "expert noise", np.arange(MAX_STEPS), (4,))
    for step, push in enumerate(pushes):
        helped = kind == "corrected" and step >= CORRECTED_AFTER
        env.color = other if kind == "failing" or (kind == "corrected" and not helped) else named
        action = env.expert()
        env.color = named
        if kind == "slow":
            action[:3] *= SLOW
            push = push * SLOW
        frame = {**observation, "action": action, "intervention": np.array([int(helped)])}
        observation, outcome = env.step(np.clip(action + push, -1, 1))
        yield frame, outcome
        if outcome.done:
            return


def record(root: Path, episodes: int) -> dict[str, Any]:
    """Record the demonstrations; returns successes and frames by kind."""
    env = StateTable()
    counts: dict[str, dict[str, int]] = {
        kind: {"episodes": 0, "successes": 0, "frames": 0} for kind in KINDS
    }
    features = {
        **env.features,
        "intervention": {"dtype": "int64", "shape": (1,), "names": ["intervention"]},
    }
    ratings: dict[str, dict[str, Any]] = {}
    with us.EpisodeWriter(
        root / "plain", fps=FPS, features=features, robot_type="tabletop"
    ) as writer:
        for episode in range(episodes):
            kind = KINDS[episode // len(COLORS) % len(KINDS)]
            frames = list(demonstrate(env, kind, episode))
            for frame, _ in frames:
                writer.add_frame(frame, task=TASKS[env.color])
            counts[kind]["frames"] += len(frames)
            ratings[str(episode)] = {
                "success": frames[-1][1].completed_task == TASKS[env.color],
                "kind": kind,
            }
            counts[kind]["episodes"] += 1
            counts[kind]["successes"] += ratings[str(episode)]["success"]
            writer.save_episode()
    (root / "ratings.json").write_text(json.dumps(ratings))
    from understudy_kit import main

    code = main(
        ["edit", str(root / "plain"), str(root / "rated"), "--metadata", str(root / "ratings.json")]
    )
    assert code == 0
    return counts


def train(out: Path, data: dict[str, Any], steps: int, seed: int, **policy: Any) -> Path:
    """Train one policy; returns the run directory."""
    settings: dict[str, Any] = {
        "output_dir": str(out),
        "steps": steps,
        "seed": seed,
        "batch_size": 64,
    }
    settings |= {
        "policy": policy,
        "data": {"val_fraction": 0.0, **data},
        "augment": {"shift": 0, "text_dropout": 0.0},
    }
    settings |= {
        "checkpoint": {"every": steps},
        "log": {"report": False},
        "loader": {"num_threads": 1},
    }
    settings["val"] = {"every": steps if settings["data"]["val_fraction"] else 0}
    settings["optim"] = {"lr": 3e-3, "ema": {"decay": 0.98}}
    assert run.train(validate_new(TrainConfig, settings)) == 0
    return out


def value_function(root: Path, steps: int) -> dict[str, Any]:
    """Train the value function and score the demonstrations; returns its validation and the facts
    of the scores.
    """
    data = {"root": str(root / "rated"), "val_fraction": 0.2}
    train(
        root / "value",
        data,
        steps,
        0,
        type="value",
        returns="time",
        horizon=MAX_STEPS / FPS,
        width=64,
    )
    score(
        ScoreConfig(
            paths=(str(root / "value"), str(root / "rated"), str(root / "scored")),
            num_steps=10,
            positive=0.5,
            interventions="intervention",
            num_threads=1,
        )
    )
    lines = [json.loads(line) for line in (root / "value/metrics.jsonl").read_text().splitlines()]
    terms = [line for line in lines if line["kind"] == "val"][-1]["terms"]
    data_set = us.EpisodeDataset(root / "scored")
    batch = data_set.batch(*data_set.locate(np.arange(len(data_set))))
    kind = np.array(
        [
            data_set.catalog.episode_metadata()["kind"][episode]
            for episode in batch["episode_index"].tolist()
        ]
    )
    positive = batch["advantage_is_positive"].numpy()
    advantage = batch["advantage"].double().numpy()
    weight = np.clip(np.exp(advantage / advantage.std()), 1e-3, 20.0)
    table = {
        "episode": batch["episode_index"].numpy(),
        "frame": batch["frame_index"].numpy(),
        "weight": weight,
    }
    pq.write_table(pa.table(table), root / "weights.parquet")
    return {
        "validation": {term: figures["loss"] for term, figures in terms.items()},
        "positive": {name: float(positive[kind == name].mean()) for name in KINDS},
        "value": {name: float(batch["value"].numpy()[kind == name].mean()) for name in KINDS},
    }


def data_of(way: str, root: Path) -> dict[str, Any]:
    """Settings of the data of one way."""
    data: dict[str, Any] = {"root": str(root / "scored")}
    if way == "filtered":
        data["where"] = "success"
    if way == "positive":
        data |= {"frame_weights": "advantage_is_positive", "frame_weights_in": "order"}
    if way == "weighted":
        data |= {"frame_weights": str(root / "weights.parquet"), "frame_weights_in": "loss"}
    if way == "conditioned":
        data["prompt_metadata"] = {"advantage_is_positive": 0.3}
    return data


def play(policy_dir: Path, way: str, scenes: int) -> tuple[list[bool], float]:
    """Play the scenes; returns the success of each, and the mean steps of successes."""
    policy = load(policy_dir).eval()
    metadata = "advantage is positive: true" if way == "conditioned" else ""
    names = {"observation.state": "observation.state"}
    adapter = EnvAdapter(names=names, state_dim=len(STATE), action_dim=4, metadata=metadata)
    with torch.no_grad():
        result = rollout(
            policy, [StateTable() for _ in range(min(WORLDS, scenes))], scenes, adapter=adapter
        )
    steps = [episode.steps for episode in result.episodes if episode.success]
    return [episode.success for episode in result.episodes], float(
        np.mean(steps)
    ) if steps else math.nan


def differences(successes: dict[str, list[list[bool]]]) -> dict[str, Any]:
    """Success of each way, and its difference to `plain`, paired by scene."""
    plain = np.array(successes["plain"], float)
    rows = {}
    for way, of_seeds in successes.items():
        played = np.array(of_seeds, float)  # [seeds, scenes]
        of_scene = (played - plain[: len(played)]).mean(axis=0)
        mean = float(of_scene.mean())
        se = float(of_scene.std(ddof=1) / math.sqrt(len(of_scene)))
        rows[way] = {
            "success": float(played.mean()),
            "of_seed": played.mean(axis=1).tolist(),
            "difference": mean,
        }
        rows[way]["interval"] = loss_interval(mean, se, len(of_scene))
    return rows


def measure(arguments: argparse.Namespace, root: Path) -> dict[str, Any]:
    """Run all of it, and write the result after each policy."""
    result: dict[str, Any] = {
        name: getattr(arguments, name) for name in ("episodes", "steps", "seeds", "scenes")
    }
    result["demonstrations"] = record(root, arguments.episodes)
    result["value_function"] = value_function(root, arguments.steps)
    successes: dict[str, list[list[bool]]] = {}
    result["steps_of_successes"] = {way: [] for way in WAYS}
    for seed in range(arguments.seeds):
        for way in WAYS:
            made = train(
                root / f"{way}-{seed}",
                data_of(way, root),
                arguments.steps,
                seed,
                type="flow",
                **SIZES,
            )
            played, steps = play(made / "policy", way, arguments.scenes)
            successes.setdefault(way, []).append(played)
            result["steps_of_successes"][way].append(steps)
            result["ways"] = differences(successes)
            if arguments.out:
                arguments.out.write_text(json.dumps(result, indent=1) + "\n")
    return result


def main() -> None:
    """Measure, and print a table or JSON."""
    parser = make_parser(__doc__)
    for name, value in (("episodes", 96), ("steps", 400), ("seeds", 3), ("scenes", 90)):
        parser.add_argument(f"--{name}", type=int, default=value)
    parser.add_argument("--out", type=Path)
    arguments = parser.parse_args()
    torch.set_num_threads(1)
    with tempfile.TemporaryDirectory() as folder:
        result = measure(arguments, Path(folder))
    if arguments.json:
        print(json.dumps(result))
        return
    print(
        json.dumps({name: result[name] for name in ("demonstrations", "value_function")}, indent=1)
    )
    for way, row in result["ways"].items():
        low, high = row["interval"]
        seeds = " ".join(f"{share:.0%}" for share in row["of_seed"])
        print(
            f"{way:12} {row['success']:6.1%}  ({seeds})  {row['difference']:+.1%} [{low:+.1%}, "
            f"{high:+.1%}]"
        )


if __name__ == "__main__":
    main()
