"""Closed-loop evaluation: a policy plays episodes in simulated environments, on layouts that no
recording has.

Several environments run side by side so that the policy predicts for all of them at once. Layouts,
instructions and noise follow from (seed, episode, step) alone.
"""

from collections import deque
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import asdict, dataclass, field, replace
from pathlib import Path
from typing import Any

import numpy as np

from understudy import DataConfig, ObservationHistory, Play, Policy, react, torch_device
from understudy_base import ConfigError, Progress, Record
from understudy_client import Contract, Mismatch, RobotFacts, compare_contracts
from understudy_robot.contracts.trace import TraceWriter
from understudy_robot.envs import registry
from understudy_robot.envs.env import IMAGE, ActionError, Env, layout_seed
from understudy_robot.rollout.adapter import STATE, TASK, EnvAdapter, check_env, make_adapter
from understudy_robot.rollout.env_contract import env_contract
from understudy_robot.rollout.result import PROMPT, Episode, RolloutResult


@dataclass
class _Lane:
    """One environment and its current episode."""

    world: Env
    episode: int
    scene: str
    instruction: str
    seed: int
    films: bool
    """Whether the frames of the episode are kept."""
    history: ObservationHistory | None
    """Past observations, for a policy that sees them."""
    observation: dict[str, np.ndarray] = field(default_factory=dict)
    taken: str | None = None
    over: bool = False
    error: str = ""
    step: int = 0
    film: list[np.ndarray] = field(default_factory=list)

    def see(self, observation: dict[str, np.ndarray]) -> None:
        """Keep an observation as the present one."""
        self.observation = observation
        if self.history is not None:
            self.history.add(observation)
        camera = next((key for key in self.world.features if key.startswith(IMAGE)), None)
        if self.films and camera is not None:
            self.film.append(observation[camera])

    def inputs(self) -> Mapping[str, np.ndarray]:
        """Return the present observation, with windows of the past."""
        return (
            self.observation
            if self.history is None
            else {**self.observation, **self.history.windows()}
        )

    def record(
        self, trace: TraceWriter | None, robot: str, names: Mapping[str, str], chunk: np.ndarray
    ) -> None:
        """Add a prediction for the present observation to a trace; `names` has keys of the
        environment.
        """
        if trace is not None:
            inputs = {key: self.observation[name] for key, name in names.items()}
            trace.add(
                robot, self.step, inputs | {TASK: self.instruction}, chunk, episode=self.episode
            )

    def execute(self, chunk: np.ndarray, count: int) -> None:
        """Execute `count` actions of a chunk [T, A] until the episode is over."""
        if not np.isfinite(chunk).all():  # a robot's policy refuses it, so the episode fails
            self.over = True
            self.error = f"the chunk holds {chunk[~np.isfinite(chunk)][0]}"
            return
        for action in chunk[:count]:
            try:
                observation, outcome = self.world.step(action)
            except ActionError as error:
                self.over = True
                self.error = str(error)
                return
            self.taken = outcome.completed_task
            self.over = outcome.done
            self.step += 1
            self.see(observation)
            if self.over:
                break

    def result(self) -> Episode:
        """Return the facts of the finished episode."""
        return Episode(
            self.episode, self.seed, self.scene, self.instruction, self.taken, self.step, self.error
        )


def rollout(
    policy: Policy,
    worlds: Sequence[Env],
    episodes: int,
    seed: int = 0,
    *,
    execute: int = 4,
    steps: int = 10,
    swap_text: bool = False,
    films: int = 0,
    device: str = "cpu",
    adapter: EnvAdapter | None = None,
    trace: TraceWriter | None = None,
) -> RolloutResult:
    """Play `episodes` episodes, through the tasks of the environment in turn.

    Args:
        policy: it computes on `device`.
        worlds: equal worlds (`open_env`), side by side. Their number changes results only by the
            rounding of batches.
        episodes: number of episodes.
        seed: seed in [0, 2**32): layouts are `layout_seed(seed, episode, evaluation=True)`.
        execute: actions of each chunk to execute before predicting anew, at most the policy's
            chunk.
        steps: integration steps of each prediction.
        swap_text: give an instruction of another task than the scene's; only where the tasks share
            one scene.
        films: number of first episodes whose frames are kept.
        device: device of the policy.
        adapter: keys of the environment for those of the policy; None: the same keys, and the only
            head.
        trace: it gets each prediction.

    Raises:
        ValueError: settings that cannot be played.
    """
    world = worlds[0]
    width = (adapter or policy.config).action_dim
    _check_settings(policy, world, width, execute, swap_text)
    adapter = adapter or EnvAdapter(names={key: key for key in world.features if key != "action"})
    image_times, state_times = policy.past.times(world.fps)
    windows = adapter.windows(image_times, state_times)
    waiting = deque(range(episodes))
    finished = list[_Lane]()

    def begin(free: Sequence[Env]) -> list[_Lane]:
        begun = [(world, waiting.popleft()) for world in free if waiting]
        return [
            _begin(world, episode, seed, swap_text, episode < films, windows)
            for world, episode in begun
        ]

    lanes = begin(worlds)
    with Progress(episodes, "rollout", "episode") as progress:
        while lanes:
            positions = np.array([lane.episode * world.max_steps + lane.step for lane in lanes])
            draws = {
                name: values.to(device)
                for name, values in policy.make_draws("act", seed, positions, "rollout").items()
            }
            inputs = [lane.inputs() for lane in lanes]
            instructions = [lane.instruction for lane in lanes]
            batch = policy.preprocess(adapter.batch(inputs, instructions, device, len(image_times)))
            chunks = policy.act(batch, draws, steps).cpu().numpy()[..., :width]
            for lane, chunk in zip(lanes, chunks):
                lane.record(trace, f"environment {worlds.index(lane.world)}", adapter.names, chunk)
                lane.execute(chunk, execute)
            finished += [lane for lane in lanes if lane.over]
            progress.update(sum(lane.over for lane in lanes))
            next_lanes: list[_Lane] = []
            for lane in lanes:
                next_lanes += begin([lane.world]) if lane.over else [lane]
            lanes = next_lanes
    results = tuple(lane.result() for lane in sorted(finished, key=lambda lane: lane.episode))
    frames = {lane.episode: np.stack(lane.film) for lane in finished if lane.film}
    protocol = evaluation_protocol(world, execute, steps, adapter.metadata)
    return RolloutResult(world.name, seed, protocol, swap_text, results, frames, world.fps)


def evaluation_protocol(world: Env, execute: int, steps: int, metadata: str) -> dict[str, str]:
    """Return the conditions under which success rates are comparable: name -> value."""
    images = [feature["shape"] for key, feature in world.features.items() if key.startswith(IMAGE)]
    protocol = {
        "action steps": str(execute),
        "sampling steps": str(steps),
        "steps per second": str(world.fps),
        "most steps": str(world.max_steps),
        "image size": ", ".join(sorted({f"{height}x{width}" for height, width, _ in images})),
    }
    if metadata:
        protocol[PROMPT] = ", ".join(metadata.splitlines())
    return {**protocol, **world.conditions}


def _check_settings(policy: Policy, world: Env, width: int, execute: int, swap_text: bool) -> None:
    chunk = policy.config.chunk
    if not 1 <= execute <= chunk:
        raise ValueError(
            f"execute={execute}: the policy predicts {chunk} actions at once, so 1 to {chunk}"
        )
    if swap_text and not (world.one_scene and len(world.tasks) > 1):
        raise ValueError(
            f"swapped text needs tasks that share one scene; those of {world.name} do not (or are "
            "one)"
        )
    if (action := world.features["action"]["shape"]) != (width,):
        raise ValueError(
            f"the policy's actions have {width} numbers, those of {world.name} {action[0]}"
        )


def _begin(
    world: Env,
    episode: int,
    seed: int,
    swap_text: bool,
    films: bool,
    windows: Mapping[str, Sequence[float]],
) -> _Lane:
    """Start an episode in `world`."""
    tasks = world.tasks
    scene = instruction = episode % len(tasks)
    # other tasks in turn, so that every pair (scene, instruction) is equally frequent
    if swap_text:
        instruction = (scene + 1 + episode // len(tasks) % (len(tasks) - 1)) % len(tasks)
    layout = layout_seed(seed, episode, evaluation=True)
    history = ObservationHistory(windows, world.fps) if windows else None
    lane = _Lane(world, episode, tasks[scene], tasks[instruction], layout, films, history)
    lane.see(world.reset(layout, tasks[scene]))
    return lane


def prepare_env(
    data: DataConfig, frozen: Record, play: Play, contract: Contract | None
) -> tuple[EnvAdapter, Env]:
    """Make the adapter and the environment of a rollout, and check that keys and widths fit.

    Args:
        data: data settings of the run.
        frozen: `policy` and `normalisation`, and `sources` where it is a run's order.json.
        play: settings of the rollout.
        contract: the policy's; None: unknown.

    Raises:
        ConfigError: settings, policy, world and machine do not go together; the message says how.
    """
    torch_device(play.device)
    adapter = make_adapter(data, frozen, play)
    head = frozen["normalisation"].get("heads", [""])[adapter.head or 0]
    adapter = replace(
        adapter, env_size=play.image_size or _recorded_size(contract, head, adapter, play)
    )
    try:
        world = _open(play, adapter)
    except (ValueError, ImportError) as error:
        raise ConfigError(str(error)) from error
    check_env(adapter, world, frozen)
    return adapter, world


def compare_env(
    contract: Contract | None,
    head: str,
    adapter: EnvAdapter,
    world: Env,
    play: Play,
    trace: Path | None,
) -> TraceWriter | None:
    """Warn of contradictions between a policy's contract and its environment, or refuse them.

    Returns:
        Writer of the new file `trace`; None without a file or a contract.

    Raises:
        ContractError: there are contradictions, with `play.contract` "strict".
    """
    if contract is None or head not in contract.robots:
        return None
    env = env_contract(world, adapter.names.get(STATE, STATE), play.action_steps)
    faults = [
        *compare_contracts(contract, env, head),
        *_resized(contract.robots[head], adapter, world),
    ]
    react(play.contract, faults)
    return (
        TraceWriter(trace, replace(contract, faults=tuple(faults)), head)
        if trace is not None
        else None
    )


def _resized(trained: RobotFacts, adapter: EnvAdapter, world: Env) -> Iterator[Mismatch]:
    """Cameras whose images have the shape of training, and another size: the policy resizes them,
    and sees others.
    """
    for key, camera in trained.cameras.items():
        height, width, _ = world.features.get(
            adapter.names.get(key, ""), {"shape": (*camera.size, 3)}
        )["shape"]
        if (
            camera.size not in ((height, width), (0, 0))
            and camera.compare_size((height, width)) is None
        ):
            recorded = "images of {1}x{0}".format(*camera.size)
            yield Mismatch(
                "shape",
                camera.key,
                recorded,
                f"{width}x{height}",
                "render the size of the recordings",
            )


def _recorded_size(
    contract: Contract | None, head: str, adapter: EnvAdapter, play: Play
) -> int | None:
    """Return the side of the square images of training; None: unknown, or no environment of this
    kind renders it.
    """
    robot = contract.robots.get(head) if contract is not None else None
    if robot is None or play.env.startswith(registry.GYMNASIUM):
        return None
    sides: set[int] = set()
    for key, camera in robot.cameras.items():
        if key in adapter.names:
            sides.update(camera.size)
    if len(sides) != 1:
        return None
    return sides.pop() or None


def _open(play: Play, adapter: EnvAdapter) -> Env:
    return registry.open_env(
        play.env, adapter.env_size, adapter.cameras, play.tasks, play.gymnasium
    )


def rollout_saved_policy(
    folder: Path,
    data: DataConfig,
    sources: Any,
    play: Play,
    swap_text: bool = False,
    films: int = 0,
    trace: Path | None = None,
) -> RolloutResult:
    """`rollout` of the policy in `folder`, as settings ask for it.

    Args:
        folder: the saved policy.
        data: data settings of its run.
        sources: `sources` of that run's order.json; None: it has none.
        play: settings of the rollout.
        swap_text: see `rollout`.
        films: see `rollout`.
        trace: new file for the predictions (`contracts/trace.py`), of a policy with a contract.

    Raises:
        ConfigError: as `prepare_env` does, or the policy cannot be read or played so.
    """
    try:
        policy = Policy.load(folder)
        policy.check_acts(folder)
        frozen = {
            "policy": asdict(policy.config),
            "normalisation": policy.normalizer.arrays(),
            "sources": sources,
        }
        contract = Contract.read_folder(folder)
        adapter, world = prepare_env(data, frozen, play, contract)
        writer = compare_env(
            contract, policy.norm_heads[adapter.head or 0], adapter, world, play, trace
        )
        episodes = play.episodes or world.episodes
        worlds = [_open(play, adapter) for _ in range(min(play.num_envs, episodes) - 1)]
        result = rollout(
            policy.to(play.device).eval(),
            [world, *worlds],
            episodes,
            play.seed,
            execute=play.action_steps,
            steps=play.sampling_steps,
            swap_text=swap_text,
            films=films,
            device=play.device,
            adapter=adapter,
            trace=writer,
        )
        if writer is not None:
            writer.close()
        return result
    except (ValueError, ImportError) as error:  # settings, policy and world do not go together
        raise ConfigError(str(error)) from error
