"""Closed-loop evaluation: a policy plays episodes in a simulated world that nothing was recorded in.

Several worlds are played side by side so that the policy predicts for all of them at once. Layouts, instructions and
noise follow from (seed, episode, step) alone. Not here: the worlds, and what the numbers mean (`rollout_result.py`).
"""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any, Literal, Protocol

from annotated_types import Ge, Interval
from tyro.conf import Positional

from understudy.train.rollout_result import Episode, RolloutResult

if TYPE_CHECKING:
    import numpy as np
    from torch import Tensor

    from understudy.worlds.world import World

PICTURES = "observation.images."


@dataclass(frozen=True)
class RolloutConfig:
    """A closed-loop evaluation of a run's policy."""

    run: Positional[str] = ""
    """Run directory; its policy/ is played."""
    world: Literal["tabletop", "metaworld"] = "tabletop"
    """Where: the embedded tabletop, or Meta-World (needs the extra `sim`)."""
    tasks: tuple[str, ...] = ()
    """Tasks, by short name or sentence; none is all of the world's. Episodes go through them in turn."""
    episodes: Annotated[int, Interval(ge=1, le=1 << 24)] = 30
    seed: Annotated[int, Interval(ge=0, lt=1 << 32)] = 0
    """Decides layouts and noise. No seed ever gives a layout that a recording has."""
    swap_text: bool = False
    """Name another task than the one the scene was set up with: does the policy listen?"""
    execute: Annotated[int, Ge(1)] = 4
    """Actions executed of each predicted chunk before looking again."""
    steps: Annotated[int, Ge(1)] = 10
    """Euler steps per prediction."""
    size: Annotated[int, Ge(8)] = 64
    """Height and width of the pictures, as recorded."""
    parallel: Annotated[int, Ge(1)] = 15
    """Worlds played side by side."""
    films: Annotated[int, Ge(0)] = 6
    """Episodes of which a strip of pictures is kept."""
    device: str = "cpu"
    """Where the policy computes."""

    def problems(self) -> list[str]:
        return [] if self.run else ["run: required, the directory of a run"]


class Actor(Protocol):
    """What is played: `FlowPolicy`, or anything of its shape."""

    @property
    def config(self) -> Any:
        """With `chunk` (T) and `action_dim` (A)."""
        ...

    def sample_actions(self, batch: Mapping[str, Any], noise: "Tensor", steps: int = 10) -> "Tensor":
        """Pictures uint8 [B, C, H, W], vectors float32 [B, …], `task` B strings; noise as the result [B, T, A]."""
        ...


@dataclass
class _Lane:
    """One world and the episode it is in."""

    world: "World"
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
    worlds: "Sequence[World]",
    episodes: int,
    seed: int = 0,
    *,
    execute: int = 4,
    steps: int = 10,
    swap_text: bool = False,
    films: int = 0,
    device: str = "cpu",
) -> RolloutResult:
    """Play `episodes` episodes, going through the world's tasks in turn.

    Args:
        policy: see `Actor`; it computes on `device`.
        worlds: equal worlds (`open_world`), played side by side; how many decides speed, and results only as far as
            a batch's size changes the rounding of the policy's arithmetic.
        seed: in [0, 2**32): layouts are `layout_seed(seed, episode, evaluation=True)`.
        execute: actions of each chunk to execute before predicting anew, at most the policy's chunk.
        swap_text: tell another task than the scene's; only in a world whose tasks share one scene.
        films: keep the pictures of this many first episodes.
    Raises:
        ValueError: settings that cannot be played.
    """
    import numpy as np
    import torch
    from tqdm import tqdm

    from understudy.order import sample_normal

    chunk, width = policy.config.chunk, policy.config.action_dim
    world = worlds[0]
    if not 1 <= execute <= chunk:
        raise ValueError(f"execute={execute}: the policy predicts {chunk} actions at once, so 1 to {chunk}")
    if swap_text and not (world.one_scene and len(world.tasks) > 1):
        raise ValueError(f"swapped text needs tasks that share one scene; those of {world.name} do not (or are one)")
    if (action := world.features["action"]["shape"]) != (width,):
        raise ValueError(f"the policy's actions have {width} numbers, those of {world.name} {action[0]}")

    waiting = iter(range(episodes))
    lanes = [lane for world in worlds if (lane := _begin(world, waiting, seed, swap_text, films)) is not None]
    finished: list[_Lane] = []
    with tqdm(total=episodes, desc="rollout", unit="ep", disable=None) as progress:
        while lanes:
            at = np.array([lane.episode * world.max_steps + lane.step for lane in lanes])
            noise = torch.from_numpy(sample_normal(seed, "rollout", at, (chunk, width))).to(device)  # (B, T, A)
            actions = policy.sample_actions(_batch(lanes, device), noise, steps).cpu().numpy()
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
    )


def _begin(world: "World", waiting: Any, seed: int, swap_text: bool, films: int) -> _Lane | None:
    """The next waiting episode, set up in `world`; None when there is none."""
    from understudy.worlds.world import layout_seed

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
    lane.taken, lane.over = outcome.taken, outcome.over
    lane.step += 1
    _film(lane, films)


def _film(lane: _Lane, films: int) -> None:
    camera = next((key for key in lane.world.features if key.startswith(PICTURES)), None)
    if lane.episode < films and camera is not None:
        lane.film.append(lane.observation[camera])


def _batch(lanes: list[_Lane], device: str) -> dict[str, Any]:
    """What the lanes see and are told, as the policy takes it."""
    import numpy as np
    import torch

    batch: dict[str, Any] = {"task": [lane.told for lane in lanes]}
    for key in lanes[0].observation:
        values = torch.from_numpy(np.stack([lane.observation[key] for lane in lanes])).to(device)
        batch[key] = values.permute(0, 3, 1, 2).contiguous() if key.startswith(PICTURES) else values  # to [B, C, H, W]
    return batch


def rollout_run(config: RolloutConfig) -> int:
    """The verb: play a run's policy, print success per task, write results and pictures to the run's rollouts/."""
    import torch

    from understudy.policies.flow_policy import FlowPolicy
    from understudy.train.rundir import RunDir
    from understudy.train.settings import ConfigError
    from understudy.worlds.world import open_world

    torch.set_num_threads(1)  # small matrices: a second thread gains little, and loses much beside a busy neighbour
    run = RunDir(Path(config.run))
    if not run.policy.is_dir():
        raise ConfigError(f"{run.policy}: no policy here; a finished `understudy train` writes it")
    try:
        torch.empty(0, device=config.device)
    except (RuntimeError, AssertionError) as error:  # unknown, not built in, not there: each has its own
        raise ConfigError(f"device: {config.device!r} cannot be used here: {str(error).splitlines()[0]}") from error
    try:
        policy = FlowPolicy.load(run.policy).to(config.device).eval()
        cameras = [key.removeprefix(PICTURES) for key in policy.config.cameras]
        count = min(config.parallel, config.episodes)
        worlds = [open_world(config.world, config.size, cameras, config.tasks) for _ in range(count)]
        result = rollout(
            policy,
            worlds,
            config.episodes,
            config.seed,
            execute=config.execute,
            steps=config.steps,
            swap_text=config.swap_text,
            films=config.films,
            device=config.device,
        )
    except (ValueError, ImportError) as error:  # settings, policy and world do not go together; the message says how
        raise ConfigError(str(error)) from error
    where = write_result(result, run.root / "rollouts")
    print(f"results and pictures: {where}")
    print(result.table())
    return 0


def write_result(result: RolloutResult, folder: Path) -> Path:
    """Write `<world>-seed<seed>[-swapped].json` with a strip of pictures beside it for every film; returns the JSON's
    path. The JSON is `to_json` and `pictures`: episode -> file name. The same evaluation again replaces its files."""
    import json

    from understudy.train.rundir import write_whole

    folder.mkdir(parents=True, exist_ok=True)
    name = f"{result.world}-seed{result.seed}{'-swapped' if result.swap_text else ''}"
    pictures = {}
    for episode, film in result.films.items():
        pictures[str(episode)] = f"{name}-episode{episode}.png"
        _write_strip(film, folder / pictures[str(episode)])
    path = folder / f"{name}.json"
    write_whole(path, json.dumps(result.to_json() | {"pictures": pictures}, indent=1) + "\n")
    return path


def _write_strip(film: "np.ndarray", path: Path, count: int = 8) -> None:
    """`count` pictures of a film (T, H, W, 3) side by side, from first to last, as PNG."""
    import numpy as np
    from PIL import Image

    chosen = film[np.linspace(0, len(film) - 1, count).round().astype(int)]
    Image.fromarray(np.concatenate(list(chosen), axis=1)).save(path)
