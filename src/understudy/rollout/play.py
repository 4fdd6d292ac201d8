"""Closed-loop evaluation: a policy plays episodes in simulated environments, on layouts that no recording has.

Several environments run side by side so that the policy predicts for all of them at once. Layouts, instructions and
noise follow from (seed, episode, step) alone.
"""

from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass, field
from pathlib import Path
from typing import TYPE_CHECKING, Any, Protocol

from understudy.config.data import DataConfig
from understudy.config.rollout import Play
from understudy.rollout.adapter import IMAGES, EnvAdapter, check_env, make_adapter
from understudy.rollout.result import Episode, RolloutResult

if TYPE_CHECKING:
    import numpy as np
    from torch import Tensor

    from understudy.envs.env import Env
    from understudy.policies.draws import Draws, RandomSpec, Use
    from understudy.policies.observation_history import ObservationHistory


class Actor(Protocol):
    """Policy that can be played: `policies.policy.Policy`, or anything with these members."""

    @property
    def config(self) -> Any:
        """Has `chunk` (T), `action_dim` (A), and the past that the policy sees (`observation_history.seen_times`)."""
        ...

    def random_spec(self, use: "Use") -> "Mapping[str, RandomSpec]":
        """Random numbers that `act` takes."""
        ...

    def preprocess(self, batch: dict[str, Any]) -> dict[str, Any]:
        """Prepare a batch on the CPU before `act`."""
        ...

    def act(self, batch: Mapping[str, Any], draws: "Draws", steps: int = 10) -> "Tensor":
        """Images uint8 [B, C, H, W], vectors float32 [B, …] and B strings `task` -> actions [B, T, A]."""
        ...


@dataclass
class _Lane:
    """One environment and its current episode."""

    world: "Env"
    episode: int
    scene: str
    instruction: str
    seed: int
    observation: "dict[str, np.ndarray]"
    taken: str | None = None
    over: bool = False
    error: str = ""
    step: int = 0
    film: "list[np.ndarray]" = field(default_factory=list)
    history: "ObservationHistory | None" = None
    """Past observations, for a policy that sees them."""

    def seen(self) -> "Mapping[str, np.ndarray]":
        """Return the present observation, with windows of the past."""
        return self.observation if self.history is None else {**self.observation, **self.history.windows()}


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
    """Play `episodes` episodes, through the tasks of the environment in turn.

    Args:
        policy: see `Actor`; it computes on `device`.
        worlds: equal worlds (`open_env`), played side by side; how many decides speed, and results only as far as
            a batch's size changes the rounding of the policy's arithmetic.
        seed: in [0, 2**32): layouts are `layout_seed(seed, episode, evaluation=True)`.
        execute: actions of each chunk to execute before predicting anew, at most the policy's chunk.
        swap_text: give an instruction of another task than the scene's; only where the tasks share one scene.
        films: number of first episodes whose frames are kept.
        wired: keys of the environment for those of the policy; None: the same keys, and the only head.

    Raises:
        ValueError: settings that cannot be played.
    """
    import numpy as np

    from understudy.policies.draws import make_draws
    from understudy.policies.observation_history import seen_times
    from understudy.progress import Progress

    chunk, width = policy.config.chunk, policy.config.action_dim
    spec = policy.random_spec("act")
    world = worlds[0]
    if not 1 <= execute <= chunk:
        raise ValueError(f"execute={execute}: the policy predicts {chunk} actions at once, so 1 to {chunk}")
    if swap_text and not (world.one_scene and len(world.tasks) > 1):
        raise ValueError(f"swapped text needs tasks that share one scene; those of {world.name} do not (or are one)")
    moved = width if wired is None else wired.action_dim
    if (action := world.features["action"]["shape"]) != (moved,):
        raise ValueError(f"the policy's actions have {moved} numbers, those of {world.name} {action[0]}")

    adapter = wired or _own(world)
    image_times, state_times = seen_times(policy.config, world.fps)
    windows = adapter.windows(image_times, state_times)
    waiting = iter(range(episodes))

    def begin(world: "Env") -> _Lane | None:
        return _begin(world, waiting, seed, swap_text, films, windows)

    lanes = [lane for world in worlds if (lane := begin(world)) is not None]
    finished: list[_Lane] = []
    with Progress(episodes, "rollout", "episode") as progress:
        while lanes:
            at = np.array([lane.episode * world.max_steps + lane.step for lane in lanes])
            draws = {name: values.to(device) for name, values in make_draws(spec, seed, at, "rollout").items()}
            batch = policy.preprocess(
                adapter.batch([x.seen() for x in lanes], [x.instruction for x in lanes], device, len(image_times))
            )
            actions = policy.act(batch, draws, steps).cpu().numpy()[..., :moved]
            for lane, plan in zip(lanes, actions):
                if not np.isfinite(plan).all():  # a robot's policy refuses it, so the episode fails
                    lane.over, lane.error = True, f"the chunk holds {plan[~np.isfinite(plan)][0]}"
                    continue
                for move in plan[:execute]:
                    _act(lane, move, films)
                    if lane.over:
                        break
            done = [lane for lane in lanes if lane.over]
            finished += done
            progress.update(len(done))
            fresh = [begin(lane.world) if lane.over else lane for lane in lanes]
            lanes = [lane for lane in fresh if lane is not None]
    finished.sort(key=lambda lane: lane.episode)
    return RolloutResult(
        world=world.name,
        seed=seed,
        execute=execute,
        steps=steps,
        swap_text=swap_text,
        episodes=tuple(Episode(x.episode, x.seed, x.scene, x.instruction, x.taken, x.step, x.error) for x in finished),
        films={lane.episode: np.stack(lane.film) for lane in finished if lane.film},
        fps=world.fps,
    )


def _begin(
    world: "Env", waiting: Any, seed: int, swap_text: bool, films: int, windows: "Mapping[str, Sequence[float]]"
) -> _Lane | None:
    """Start the next waiting episode in `world`; None when there is none."""
    from understudy.envs.env import layout_seed
    from understudy.policies.observation_history import ObservationHistory

    episode = next(waiting, None)
    if episode is None:
        return None
    tasks = world.tasks
    scene = episode % len(tasks)
    # Other tasks in turn, so that every pair (scene, instruction) is equally frequent.
    asked = (scene + 1 + episode // len(tasks) % (len(tasks) - 1)) % len(tasks) if swap_text else scene
    layout = layout_seed(seed, episode, evaluation=True)
    lane = _Lane(world, episode, tasks[scene], tasks[asked], layout, world.reset(layout, tasks[scene]))
    if windows:
        lane.history = ObservationHistory(windows, world.fps)
        lane.history.add(lane.observation)
    _film(lane, films)
    return lane


def _act(lane: _Lane, action: "np.ndarray", films: int) -> None:
    lane.observation, outcome = lane.world.step(action)
    lane.taken, lane.over = outcome.completed_task, outcome.done
    lane.step += 1
    if lane.history is not None:
        lane.history.add(lane.observation)
    _film(lane, films)


def _film(lane: _Lane, films: int) -> None:
    camera = next((key for key in lane.world.features if key.startswith(IMAGES)), None)
    if lane.episode < films and camera is not None:
        lane.film.append(lane.observation[camera])


def _own(world: "Env") -> EnvAdapter:
    """Make the adapter with the environment's own keys."""
    return EnvAdapter(names={key: key for key in world.features if key != "action"})


def prepare_env(data: DataConfig, frozen: Mapping[str, Any], play: Play) -> "tuple[EnvAdapter, Env]":
    """Make the adapter and the environment of a rollout, and check that keys and widths fit.

    Args:
        data: of the run's settings.
        frozen: `policy` and `normalisation`, and `sources` where it is a run's order.json.
        play: settings of the rollout.

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
        world = open_env(play.env, play.image_size, wired.cameras, play.tasks)
    except (ValueError, ImportError) as error:
        raise ConfigError(str(error)) from error
    check_env(wired, world, frozen)
    return wired, world


def rollout_saved_policy(
    folder: Path, data: DataConfig, sources: Any, play: Play, swap_text: bool = False, films: int = 0
) -> RolloutResult:
    """`rollout` of the policy in `folder`, as settings ask for it.

    Args:
        folder: the saved policy.
        data: of the settings of its run.
        sources: of that run's order.json; None: it has none.
        play: settings of the rollout.
        swap_text: as in `rollout`.
        films: as in `rollout`.

    Raises:
        ConfigError: as `prepare_env` does, or the policy cannot be read or played so.
    """
    from understudy.envs.registry import open_env
    from understudy.errors import ConfigError
    from understudy.policies.policy import load

    try:
        policy = load(folder)
        wired, world = prepare_env(
            data,
            {"policy": asdict(policy.config), "normalisation": policy.normalizer.arrays(), "sources": sources},
            play,
        )
        more = min(play.num_envs, play.episodes) - 1
        worlds = [world, *(open_env(play.env, play.image_size, wired.cameras, play.tasks) for _ in range(more))]
        return rollout(
            policy.to(play.device).eval(),
            worlds,
            play.episodes,
            play.seed,
            execute=play.action_steps,
            steps=play.sampling_steps,
            swap_text=swap_text,
            films=films,
            device=play.device,
            wired=wired,
        )
    except (ValueError, ImportError) as error:  # settings, policy and world do not go together; the message says how
        raise ConfigError(str(error)) from error
