"""Closed-loop success on the table against the delay of chunks, for each compensation of `AsyncChunks`."""

from pathlib import Path
from typing import Any

import numpy as np

import understudy as us
from understudy.config.serve import ServeConfig
from understudy.envs.env import Env, layout_seed
from understudy.envs.registry import open_env
from understudy.policies.policy import load
from understudy.rollout.play import rollout
from understudy.serve.server import running_server

EXECUTE, DELAYS = 4, range(9)
COMPENSATIONS = ("none", "skip", "ensemble", "guided")


class Watched:
    """An environment that keeps the actions that it executes."""

    def __init__(self, env: Env) -> None:
        self._env, self.actions = env, []

    def __getattr__(self, name: str) -> Any:
        return getattr(self._env, name)

    def step(self, action: np.ndarray) -> Any:
        self.actions.append(np.array(action))
        return self._env.step(action)


def play(chunks: us.AsyncChunks, env: Any, episodes: int) -> int:
    """Play the scenes of `understudy rollout` with seed 0; returns the number of successes."""
    successes = 0
    for episode in range(episodes):
        task = env.tasks[episode % len(env.tasks)]
        observation = env.reset(layout_seed(0, episode, evaluation=True), task)
        chunks.reset(seed=0, position=episode * env.max_steps)
        done = False
        while not done:
            observation, outcome = env.step(chunks.select_action({**observation, "task": task}))
            done = outcome.done
        successes += outcome.completed_task == task
    return successes


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
        play(chunks, there, episodes)
    return np.array_equal(here.actions, there.actions)


def success_by_delay(run: Path, episodes: int) -> dict[str, dict[str, int]]:
    """Successes by compensation and delay, through a server."""
    robot = us.load_policy(run, contract="off")
    found: dict[str, dict[str, int]] = {}
    env = open_env("tabletop")
    options = ServeConfig(policy=str(run), port=0, contract="off")
    with running_server(robot, options) as server, us.RemotePolicy(server.address) as policy:
        for compensation in COMPENSATIONS:
            own = found.setdefault(compensation, {})
            for delay in DELAYS:
                with us.AsyncChunks(policy, execute=EXECUTE, compensation=compensation, delay=delay) as chunks:
                    try:
                        own[str(delay)] = play(chunks, env, episodes)
                    except ValueError as error:  # the policy cannot be guided
                        print(f"{compensation}: {error}")
                        del found[compensation]
                        break
                print(f"{compensation}, delay {delay}: {own[str(delay)]}/{episodes}", flush=True)
    return found


def draw(found: dict[str, dict[str, int]], episodes: int, path: Path) -> None:
    """Draw success against delay."""
    import matplotlib

    matplotlib.use("Agg")
    import matplotlib.pyplot as plt

    figure, axes = plt.subplots(figsize=(7, 3.6), constrained_layout=True)
    for (name, own), mark in zip(found.items(), "os^d"):
        axes.plot([int(delay) for delay in own], [100 * n / episodes for n in own.values()], f"{mark}-", label=name)
    axes.set(xlabel="delay of a chunk, control steps of 0.1 s", ylabel="success, %", ylim=(-3, 103))
    axes.grid(alpha=0.3)
    axes.legend(title="compensation", frameon=False)
    figure.savefig(path, dpi=130)
    plt.close(figure)
