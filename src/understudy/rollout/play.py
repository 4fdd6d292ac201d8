"""Closed-loop evaluation: a policy plays episodes in a simulated world that nothing was recorded in.

Several worlds are played side by side so that the policy predicts for all of them at once. Layouts, instructions and
noise follow from (seed, episode, step) alone.
"""

import json
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import TYPE_CHECKING, Any, Protocol

from understudy.config.data import DataConfig
from understudy.config.rollout import Play
from understudy.rollout.adapter import PICTURES, EnvAdapter, check_env, make_adapter
from understudy.rollout.result import Episode, RolloutResult

if TYPE_CHECKING:
    import numpy as np
    from torch import Tensor

    from understudy.envs.env import Env


class Actor(Protocol):
    """What is played: `FlowPolicy`, or anything of its shape."""

    @property
    def config(self) -> Any:
        """With `chunk` (T), `action_dim` (A) and `noise_dim`, the width of its noise: A, or more with a future."""
        ...

    def sample_actions(self, batch: Mapping[str, Any], noise: "Tensor", steps: int = 10) -> "Tensor":
        """Pictures uint8 [B, C, H, W], vectors float32 [B, …], B strings `task`, noise [B, T, noise_dim]: [B, T, A]."""
        ...


@dataclass
class _Lane:
    """One world and the episode it is in."""

    world: "Env"
    episode: int
    scene: str
    told: str
    seed: int
    observation: "dict[str, np.ndarray]"
    taken: str | None = None
    over: bool = False
    step: int = 0
    film: "list[np.ndarray]" = field(default_factory=list)


def rollout(
    policy: Actor,
    worlds: "Sequence[Env]",
    episodes: int,
    seed: int = 0,
    *,
    execute: int = 4,
    steps: int = 10,
    swap_text: bool = False,
    films: int = 0,
    device: str = "cpu",
    wired: EnvAdapter | None = None,
) -> RolloutResult:
    """Play `episodes` episodes, going through the world's tasks in turn.

    Args:
        policy: see `Actor`; it computes on `device`.
        worlds: equal worlds (`open_env`), played side by side; how many decides speed, and results only as far as
            a batch's size changes the rounding of the policy's arithmetic.
        seed: in [0, 2**32): layouts are `layout_seed(seed, episode, evaluation=True)`.
        execute: actions of each chunk to execute before predicting anew, at most the policy's chunk.
        swap_text: tell another task than the scene's; only in a world whose tasks share one scene.
        films: keep the pictures of this many first episodes.
        wired: what the policy calls what the world shows; None: the same names, and its only head.
    Raises:
        ValueError: settings that cannot be played.
    """
    import numpy as np
    import torch

    from understudy.order import sample_normal
    from understudy.progress import Progress

    chunk, width = policy.config.chunk, policy.config.action_dim
    drawn = (chunk, policy.config.noise_dim)
    world = worlds[0]
    if not 1 <= execute <= chunk:
        raise ValueError(f"execute={execute}: the policy predicts {chunk} actions at once, so 1 to {chunk}")
    if swap_text and not (world.one_scene and len(world.tasks) > 1):
        raise ValueError(f"swapped text needs tasks that share one scene; those of {world.name} do not (or are one)")
    moved = width if wired is None else wired.action_dim
    if (action := world.features["action"]["shape"]) != (moved,):
        raise ValueError(f"the policy's actions have {moved} numbers, those of {world.name} {action[0]}")

    waiting = iter(range(episodes))
    lanes = [lane for world in worlds if (lane := _begin(world, waiting, seed, swap_text, films)) is not None]
    finished: list[_Lane] = []
    with Progress(episodes, "rollout", "episode") as progress:
        while lanes:
            at = np.array([lane.episode * world.max_steps + lane.step for lane in lanes])
            noise = torch.from_numpy(sample_normal(seed, "rollout", at, drawn)).to(device)
            batch = (wired or _own(world)).batch([x.observation for x in lanes], [x.told for x in lanes], device)
            actions = policy.sample_actions(batch, noise, steps).cpu().numpy()[..., :moved]
            for lane, plan in zip(lanes, actions):
                for move in plan[:execute]:
                    _act(lane, move, films)
                    if lane.over:
                        break
            done = [lane for lane in lanes if lane.over]
            finished += done
            progress.update(len(done))
            fresh = [_begin(lane.world, waiting, seed, swap_text, films) if lane.over else lane for lane in lanes]
            lanes = [lane for lane in fresh if lane is not None]
    finished.sort(key=lambda lane: lane.episode)
    return RolloutResult(
        world=world.name,
        seed=seed,
        execute=execute,
        steps=steps,
        swap_text=swap_text,
        episodes=tuple(Episode(x.episode, x.seed, x.scene, x.told, x.taken, x.step) for x in finished),
        films={lane.episode: np.stack(lane.film) for lane in finished if lane.film},
        fps=world.fps,
    )


def _begin(world: "Env", waiting: Any, seed: int, swap_text: bool, films: int) -> _Lane | None:
    """The next waiting episode, set up in `world`; None when there is none."""
    from understudy.envs.env import layout_seed

    episode = next(waiting, None)
    if episode is None:
        return None
    tasks = world.tasks
    scene = episode % len(tasks)
    # Other tasks in turn, so that every pair (scene, told) comes equally often.
    told = (scene + 1 + episode // len(tasks) % (len(tasks) - 1)) % len(tasks) if swap_text else scene
    layout = layout_seed(seed, episode, evaluation=True)
    lane = _Lane(world, episode, tasks[scene], tasks[told], layout, world.reset(layout, tasks[scene]))
    _film(lane, films)
    return lane


def _act(lane: _Lane, action: "np.ndarray", films: int) -> None:
    lane.observation, outcome = lane.world.step(action)
    lane.taken, lane.over = outcome.completed_task, outcome.done
    lane.step += 1
    _film(lane, films)


def _film(lane: _Lane, films: int) -> None:
    camera = next((key for key in lane.world.features if key.startswith(PICTURES)), None)
    if lane.episode < films and camera is not None:
        lane.film.append(lane.observation[camera])


def _own(world: "Env") -> EnvAdapter:
    """Everything that the world shows, under its own names."""
    return EnvAdapter(names={key: key for key in world.features if key != "action"})


def prepare_env(data: DataConfig, frozen: Mapping[str, Any], play: Play) -> "tuple[EnvAdapter, Env]":
    """What connects the policy to the world, and such a world: nothing is missing, all widths fit.

    Args:
        data: of the run's settings. frozen: `policy` and `normalisation`, and `sources` where it is a run's order.json.
    Raises:
        ConfigError: settings, policy, world and machine do not go together; the message says how.
    """
    import torch

    from understudy.envs.registry import open_env
    from understudy.errors import ConfigError

    try:
        torch.empty(0, device=play.device)
    except (RuntimeError, AssertionError) as error:  # unknown, not built in, not there: each has its own
        raise ConfigError(f"device: {play.device!r} cannot be used here: {str(error).splitlines()[0]}") from error
    wired = make_adapter(data, frozen, play)
    try:
        world = open_env(play.world, play.size, wired.cameras, play.tasks)
    except (ValueError, ImportError) as error:
        raise ConfigError(str(error)) from error
    check_env(wired, world, frozen)
    return wired, world


def rollout_saved_policy(
    folder: Path, data: DataConfig, sources: Any, play: Play, swap_text: bool = False, films: int = 0
) -> RolloutResult:
    """`rollout` of the policy in `folder`, as settings ask for it.

    Args:
        data: of the settings of the run that it comes from. sources: of that run's order.json; None: it has none.
    Raises:
        ConfigError: as `prepare_env` does, or the policy cannot be read or played so.
    """
    from understudy.envs.registry import open_env
    from understudy.errors import ConfigError
    from understudy.policies.flow.model import FlowPolicy
    from understudy.policies.pretrained import CONFIG, NORMALISATION

    try:
        policy = FlowPolicy.load(folder)
        told = [json.loads((folder / name).read_text()) for name in (CONFIG, NORMALISATION)]
        wired, world = prepare_env(data, {"policy": told[0], "normalisation": told[1], "sources": sources}, play)
        more = min(play.parallel, play.episodes) - 1
        worlds = [world, *(open_env(play.world, play.size, wired.cameras, play.tasks) for _ in range(more))]
        return rollout(
            policy.to(play.device).eval(),
            worlds,
            play.episodes,
            play.seed,
            execute=play.execute,
            steps=play.steps,
            swap_text=swap_text,
            films=films,
            device=play.device,
            wired=wired,
        )
    except (ValueError, ImportError) as error:  # settings, policy and world do not go together; the message says how
        raise ConfigError(str(error)) from error
