"""`understudy record`: demonstrations of a scripted expert, written as a LeRobot dataset.

Task, layout and noise of episode e are a function of (seed, e) alone. So a recording that was
killed continues, and ends equal to one that was never stopped.
"""

import json
import sys
from collections.abc import Callable
from dataclasses import dataclass, field, replace
from functools import cache
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Literal

from understudy import GymnasiumOptions, name_by_hand
from understudy_base import ConfigError, Progress, plural, write_text
from understudy_kit import ByHand, Ge, Interval, plain

if TYPE_CHECKING:
    import numpy as np

    from understudy_robot.envs.env import Env

ATTEMPTS = 64  # most layouts to try for one episode
NOTE = "record.json"  # the settings, in the dataset's folder
FIXED = (
    "env",
    "gymnasium",
    "expert",
    "tasks",
    "seed",
    "noise",
    "image_size",
    "cameras",
    "codec",
)  # settings that decide an episode's content


@dataclass(frozen=True)
class RecordConfig:
    """Record a scripted expert as a LeRobot dataset. The same settings give the same dataset."""

    output_dir: str = ""
    """Folder of the dataset. A recording begun there with the same settings is continued. Required.
    """
    env: str = "tabletop"
    """Environment: the embedded `tabletop`, the embedded `recall`, solvable only by a policy that
    sees past frames (`policy.history`), `metaworld` (extra `sim`), `libero_spatial`, `_object`,
    `_goal`, `_10` or `_90` (extra `libero`), `gymnasium:ID` (extra `gymnasium`), or that of another
    package.
    """
    gymnasium: GymnasiumOptions = field(default_factory=GymnasiumOptions)
    expert: Annotated[str, ByHand(name_by_hand)] = ""
    """Your scripted expert, `FILE.py:FUNCTION`, for an environment without one: (`Env`,
    observation) -> action. `gymnasium:ID` and `libero_*` have the simulator as `env.unwrapped`.
    """
    tasks: tuple[str, ...] = ()
    """Tasks, by short name or sentence; the default is all of the environment's. Episodes cycle
    through them.
    """
    episodes: Annotated[int, Interval(ge=1, le=1 << 24)] = 200
    """Successful episodes in the dataset; a larger number later records more."""
    seed: Annotated[int, Interval(ge=0, lt=1 << 32)] = 0
    """Seed of layouts and noise. Rollouts never have these layouts, with any seed."""
    noise: Annotated[float, Ge(0)] | None = None
    """Standard deviation of the Gaussian noise added to the executed action, in its unit. The
    noise-free action is recorded, so that the data shows how to recover. The default suits the
    environment's expert.
    """
    image_size: Annotated[int, Interval(ge=16, le=2**12)] | None = None
    """Height and width of the images; the default is the environment's (64; LIBERO: 256;
    `gymnasium:ID`: its own)."""
    cameras: tuple[str, ...] | None = None
    """Cameras to record; the default is the environment's (tabletop: front; recall: top; metaworld:
    corner2).
    """
    codec: Literal["libsvtav1", "libx264", "libx265"] = "libsvtav1"
    """Encoder of the video files."""

    def problems(self) -> list[str]:
        """List errors in the settings, one line each."""
        from understudy_data import check_size

        errors = (
            []
            if self.output_dir
            else ["output_dir: required, the folder of the dataset to write: --output-dir FOLDER"]
        )
        if self.env.startswith(("gymnasium:", "libero_")) and not self.expert:
            errors.append(f"expert: required, {self.env} has none: --expert FILE.py:FUNCTION")
        try:
            check_size(self.codec, *2 * [self.image_size or 64])
        except ValueError as error:
            errors.append(f"image_size: {error}")
        return errors


def record(config: RecordConfig) -> int:
    """Record until the dataset has `config.episodes` successful episodes; returns the exit code.

    Raises:
        ConfigError: Unusable settings, or others than those of a recording that is there.
    """
    from understudy_client import Contract
    from understudy_data import EpisodeWriter, check_features
    from understudy_robot.envs.registry import open_env
    from understudy_robot.rollout.env_contract import env_contract

    _compare_settings(config)
    _expert(config.expert)
    try:
        env = open_env(
            config.env, config.image_size, config.cameras, config.tasks, config.gymnasium
        )
        check_features(env.features, config.codec)
    except (ValueError, ImportError) as error:  # an unknown task or camera, a missing package
        raise ConfigError(str(error)) from error
    whole = env_contract(env)
    # a dataset lists its own tasks
    robots = {"": replace(whole.robots[""], robot_type=env.name, tasks=())}
    stated = replace(whole, robots=robots, kind="dataset")
    statements = Path(config.output_dir) / "meta" / Contract.FILE
    with EpisodeWriter(
        config.output_dir,
        fps=env.fps,
        features=env.features,
        robot_type=env.name,
        codec=config.codec,
        resume=True,
    ) as writer:
        _check_note(config, fresh=writer.episodes == 0)
        begun = writer.episodes
        failures = 0
        if begun:
            print(
                f"{config.output_dir}: continuing after {plural(begun, 'episode')}", file=sys.stderr
            )
        remaining = range(begun, config.episodes)
        with Progress(config.episodes, "record", "episode", done=begun) as bar:
            for episode in remaining:
                frames, task, failed = demonstrate(env, config, episode)
                failures += failed
                for frame in frames:
                    writer.add_frame(frame, task=task)
                if not writer.episodes:
                    # not before the first success: until then the settings may still change
                    _write_note(config)
                writer.save_episode()
                if not statements.exists():
                    stated.write(statements)
                bar.update()
        print(
            f"{config.output_dir}: {plural(writer.episodes, 'episode')}, "
            f"{plural(writer.frames, 'frame')}, " + plural(len(writer.tasks), "task")
        )
    if remaining:
        attempts = len(remaining) + failures
        print(
            f"the expert succeeded in {len(remaining)} of {attempts} attempts; failed ones are not "
            "recorded"
        )
    return 0


def _compare_settings(config: RecordConfig) -> None:
    """Raise ConfigError if the recording in the folder was begun with other settings."""
    try:
        begun = json.loads((Path(config.output_dir) / NOTE).read_text())
    except (FileNotFoundError, NotADirectoryError):
        return
    except ValueError as error:
        raise ConfigError(
            f"{Path(config.output_dir) / NOTE} cannot be read ({error}); record into another folder"
        ) from error
    now = plain(config)
    differ = [
        f"{key} ({begun.get(key)} then, {now[key]} now)"
        for key in FIXED
        if begun.get(key) != now[key]
    ]
    if differ:
        raise ConfigError(
            f"{config.output_dir} was begun with other settings: {', '.join(differ)}; record into "
            "another folder, or with those settings"
        )


def _check_note(config: RecordConfig, fresh: bool) -> None:
    """Raise ConfigError if there are episodes, but no settings of a recording."""
    if not fresh and not (Path(config.output_dir) / NOTE).exists():
        raise ConfigError(
            f"{config.output_dir} was not recorded by `understudy record` (no {NOTE}); name "
            "another folder"
        )


def _write_note(config: RecordConfig) -> None:
    """Write the settings next to the dataset."""
    note = Path(config.output_dir) / NOTE
    write_text(note, json.dumps({key: plain(config)[key] for key in FIXED}, indent=1) + "\n")


def demonstrate(
    env: "Env", config: RecordConfig, episode: int
) -> "tuple[list[dict[str, np.ndarray]], str, int]":
    """Run the expert on the layouts of episode number `episode` until it succeeds.

    Returns:
        Its frames (observations before each action, and the noise-free action), its task, and the
        number of failures.

    Raises:
        ConfigError: The expert failed `ATTEMPTS` times, the noise is too large; or its file lacks
            it.
    """
    from understudy_robot.envs.env import layout_seed

    task = env.tasks[episode % len(env.tasks)]
    expert = _expert(config.expert)
    for attempt in range(ATTEMPTS):
        frames = _attempt(
            env, config, expert, layout_seed(config.seed, episode, attempt=attempt), task
        )
        if frames is not None:
            return frames, task, attempt
    noise = env.noise if config.noise is None else config.noise
    raise ConfigError(
        f"the expert of {env.name} failed {ATTEMPTS} times in a row at {task!r} with noise "
        f"{noise}; less noise may help"
    )


@cache
def _expert(target: str) -> "Callable[[Env, dict[str, np.ndarray]], np.ndarray]":
    """Return the function (environment, observation) -> action of `FILE.py:FUNCTION`; "": the
    environment's own.
    """
    if not target:
        return lambda env, _: env.expert()
    from understudy import import_object

    try:
        function: Callable[..., np.ndarray] = import_object(target, "--expert")
    except ValueError as error:
        raise ConfigError(f"expert: {error}") from error
    return function


def _attempt(
    env: "Env",
    config: RecordConfig,
    expert: "Callable[[Env, dict[str, np.ndarray]], np.ndarray]",
    layout: int,
    task: str,
) -> "list[dict[str, np.ndarray]] | None":
    """Run the expert once; returns the frames, or None if it did not complete the task."""
    import numpy as np

    from understudy_data import sample_normal

    width = env.features["action"]["shape"][0]
    noise = env.noise if config.noise is None else config.noise
    # One draw per step of the longest episode, so that the noise does not depend on when the
    # episode ends. (steps, A)
    pushes = noise * sample_normal(layout, "expert noise", np.arange(env.max_steps), (width,))
    frames = []
    observation = env.reset(layout, task)
    for push in pushes:
        action = np.asarray(expert(env, observation), dtype=np.float32)
        frames.append({**observation, "action": action})
        observation, outcome = env.step(action + push)
        if outcome.done:
            return frames if outcome.completed_task == task else None
    return None
