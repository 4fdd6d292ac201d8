"""Closed-loop success on the table against the delay of chunks, for each compensation of `AsyncChunks`.

Two policies are trained on 200 recorded episodes with one seed: `plain`, and `max_delay` with `policy.max_delay 8`. All
else is equal. Recording, runs and outcomes of scenes are kept in a folder; only missing ones are made.
"""

import hashlib
import json
import os
import shutil
import subprocess
import sys
from pathlib import Path
from typing import Any

import numpy as np

import understudy as us
from understudy.config.serve import ServeConfig
from understudy.envs.env import Env, layout_seed
from understudy.envs.registry import open_env
from understudy.policies.policy import load
from understudy.rollout.play import rollout
from understudy.rollout.result import wilson_interval
from understudy.serve.server import running_server

EXECUTE, DELAYS, STEPS, CHUNK = 4, range(9), 2500, 16
POLICIES: dict[str, list[str]] = {"plain": [], "max_delay": ["--policy.max-delay", str(max(DELAYS))]}
ROWS = {
    "none": ("plain", "none"),
    "skip": ("plain", "skip"),
    "ensemble": ("plain", "ensemble"),
    "guided": ("plain", "guided"),
    "trained": ("max_delay", "trained"),
    "trained_skip": ("max_delay", "skip"),
}
"""Row -> policy and compensation. `trained_skip` shows which part of `trained` is another policy alone."""


class Watched:
    """An environment that keeps the actions that it executes."""

    def __init__(self, env: Env) -> None:
        self._env, self.actions = env, []

    def __getattr__(self, name: str) -> Any:
        return getattr(self._env, name)

    def step(self, action: np.ndarray) -> Any:
        self.actions.append(np.array(action))
        return self._env.step(action)


def record(cache: Path) -> Path:
    """Record the dataset, unless it is there; returns its folder."""
    data, part = cache / "dataset", cache / "dataset.part"
    if not data.exists():
        shutil.rmtree(part, ignore_errors=True)
        _understudy("record", "--output-dir", part, "--episodes", 200, "--seed", 0)
        part.rename(data)
    return data


def train(cache: Path, name: str) -> Path:
    """Train a policy, unless it is there; returns the run. A run that was interrupted resumes."""
    run, data = cache / name, record(cache)
    if (run / "policy").exists():
        return run
    if (run / "config.yaml").exists():
        _understudy("resume", run)
        return run
    settings = ["--data.root", data, "--data.chunk-size", CHUNK, "--steps", STEPS, "--seed", 0, "--val.every", 0]
    _understudy("train", "--output-dir", run, *settings, "--log.no-report", *POLICIES[name])
    return run


def _understudy(*words: object) -> None:
    """Run a command; its output goes to stderr."""
    environment = os.environ | {"MALLOC_MMAP_THRESHOLD_": str(1 << 25), "MALLOC_TRIM_THRESHOLD_": str(1 << 30)}
    command = [sys.executable, "-m", "understudy", *map(str, words)]
    subprocess.run(command, stdout=sys.stderr, env=environment, check=True)


def play(chunks: us.AsyncChunks, env: Any, first: int, last: int) -> list[bool]:
    """Play the scenes `first` to `last` of `understudy rollout` with seed 0; returns whether each succeeded."""
    found = []
    for episode in range(first, last):
        task = env.tasks[episode % len(env.tasks)]
        observation = env.reset(layout_seed(0, episode, evaluation=True), task)
        chunks.reset(seed=0, position=episode * env.max_steps)
        done = False
        while not done:
            observation, outcome = env.step(chunks.select_action({**observation, "task": task}))
            done = outcome.done
        found.append(bool(outcome.completed_task == task))
    return found


def bit_equal_at_delay_0(run: Path, episodes: int = 3) -> bool:
    """Compare the actions of asynchronous chunks over the websocket with those of a rollout in one process."""
    here, there = Watched(open_env("tabletop")), Watched(open_env("tabletop"))
    rollout(load(run / "policy").eval(), [here], episodes, 0, execute=EXECUTE)
    robot = us.load_policy(run, contract="strict")
    with (
        running_server(robot, ServeConfig(policy=str(run), port=0)) as server,
        us.RemotePolicy(server.address) as policy,
        us.AsyncChunks(policy, execute=EXECUTE, delay=0) as chunks,
    ):
        play(chunks, there, 0, episodes)
    return np.array_equal(here.actions, there.actions)


class Outcomes:
    """Outcomes of scenes by policy, compensation and delay, in a file of JSON lines."""

    def __init__(self, path: Path) -> None:
        self._path = path
        self._known: dict[tuple[str, str, int], list[bool]] = {}
        for line in path.read_text().splitlines() if path.exists() else ():
            stored = json.loads(line)
            self._known[stored["weights"], stored["compensation"], stored["delay"]] = stored["outcomes"]

    def get(self, weights: str, compensation: str, delay: int) -> list[bool]:
        return self._known.get((weights, compensation, delay), [])

    def put(self, weights: str, compensation: str, delay: int, outcomes: list[bool]) -> None:
        self._known[weights, compensation, delay] = outcomes
        stored = {"weights": weights, "compensation": compensation, "delay": delay, "outcomes": outcomes}
        with self._path.open("a") as file:
            file.write(json.dumps(stored) + "\n")


def success_by_delay(cache: Path, episodes: int) -> dict[str, dict[str, int]]:
    """Successes by row and delay."""
    known = Outcomes(cache / "outcomes.jsonl")
    found: dict[str, dict[str, int]] = {}
    for name in POLICIES:
        found |= play_rows(name, train(cache, name), known, episodes)
    return found


def play_rows(name: str, run: Path, known: Outcomes, episodes: int) -> dict[str, dict[str, int]]:
    """Successes by row and delay with one policy, through a server; scenes with known outcomes are not played."""
    weights = hashlib.sha256((run / "policy" / "model.safetensors").read_bytes()).hexdigest()
    robot, env = us.load_policy(run, contract="off"), open_env("tabletop")
    options = ServeConfig(policy=str(run), port=0, contract="off")
    found: dict[str, dict[str, int]] = {}
    with running_server(robot, options) as server, us.RemotePolicy(server.address) as policy:
        for row, compensation in ((row, own[1]) for row, own in ROWS.items() if own[0] == name):
            found[row] = {}
            for delay in DELAYS:
                outcomes = known.get(weights, compensation, delay)
                if (stored := len(outcomes)) < episodes:
                    with us.AsyncChunks(policy, execute=EXECUTE, compensation=compensation, delay=delay) as chunks:
                        outcomes = [*outcomes, *play(chunks, env, stored, episodes)]
                    known.put(weights, compensation, delay, outcomes)
                found[row][str(delay)] = successes = sum(outcomes[:episodes])
                text = f"{row}, delay {delay}: {successes}/{episodes}, {min(stored, episodes)} of them stored"
                print(text, file=sys.stderr, flush=True)
    return found


def intervals(found: dict[str, dict[str, int]], episodes: int) -> dict[str, dict[str, tuple[float, float]]]:
    """Wilson's 95 % interval of each success rate, in percent."""
    return {
        row: {
            delay: (round(100 * low), round(100 * high))
            for delay, (low, high) in ((each, wilson_interval(count, episodes)) for each, count in own.items())
        }
        for row, own in found.items()
    }


def draw(found: dict[str, dict[str, int]], episodes: int, path: Path) -> None:
    """Draw success against delay, with intervals."""
    import matplotlib

    matplotlib.use("Agg")
    import matplotlib.pyplot as plt

    figure, axes = plt.subplots(figsize=(7, 3.8), constrained_layout=True)
    bounds = intervals(found, episodes)
    for number, ((name, own), mark) in enumerate(zip(found.items(), "os^dPX", strict=True)):
        delays = np.array([int(delay) for delay in own])
        rates = np.array([100 * count / episodes for count in own.values()])
        low, high = np.array(list(bounds[name].values())).T
        # Rounded bounds may cross a rate of 0 or 100.
        error = np.maximum([rates - low, high - rates], 0)
        axes.errorbar(
            delays + 0.05 * (number - 2.5), rates, error, fmt=f"{mark}-", label=name, markersize=5, elinewidth=0.7
        )
    axes.set(xlabel="delay of a chunk, control steps of 0.1 s", ylabel="success, %", ylim=(-3, 103))
    axes.grid(alpha=0.3)
    axes.legend(title="compensation", frameon=False, ncols=2)
    figure.savefig(path, dpi=130)
    plt.close(figure)
