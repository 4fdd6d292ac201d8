"""`understudy record`: demonstrations of a scripted expert, written as a LeRobot dataset.

Episode e is a function of (seed, e) alone: its task, its layout, its noise. So a recording that was killed carries on
where it stopped and ends as the one that was never stopped.
"""

import sys
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Literal

from understudy.config.declare import Ge, Interval

if TYPE_CHECKING:
    import numpy as np

    from understudy.envs.env import Env

ATTEMPTS = 64  # layouts tried for one episode before the expert is given up
NOTE = "record.json"  # the settings, in the dataset's folder
FIXED = ("world", "tasks", "seed", "noise", "size", "cameras", "codec")  # what decides an episode's content


@dataclass(frozen=True)
class RecordConfig:
    """A recording. The same settings give the same dataset."""

    out: str = ""
    """Folder of the dataset. One that was begun with the same settings is carried on. Required."""
    world: Literal["tabletop", "metaworld"] = "tabletop"
    """Where: the embedded tabletop, or Meta-World (needs the extra `sim`)."""
    tasks: tuple[str, ...] = ()
    """Tasks, by short name or sentence; none is all of the world's. Episodes go through them in turn."""
    episodes: Annotated[int, Interval(ge=1, le=1 << 24)] = 200
    """Successful episodes to end with; may be raised later to record more."""
    seed: Annotated[int, Interval(ge=0, lt=1 << 32)] = 0
    """Decides layouts and noise. Rollouts never meet these layouts, whatever their seed."""
    noise: Annotated[float, Ge(0)] | None = None
    """Standard deviation of the Gaussian noise added to what is executed (actions are in [-1, 1]); the clean action is
    recorded. That way the data shows how to recover. None: what suits the world's expert."""
    size: Annotated[int, Interval(ge=16, le=2**12)] = 64
    """Height and width of the pictures."""
    cameras: tuple[str, ...] | None = None
    """Cameras to record; none given: the world's own choice (tabletop: front; metaworld: corner2)."""
    codec: Literal["libsvtav1", "libx264", "libx265"] = "libsvtav1"
    """Encoder of the video files."""

    def problems(self) -> list[str]:
        found = [] if self.out else ["out: required, the folder of the dataset to write"]
        if self.size % 2:
            found.append(f"size: {self.size} is odd; video needs even sides")
        return found


def record(config: RecordConfig) -> int:
    """The verb: record until there are `config.episodes` successful episodes, carrying on what is there.

    Raises ConfigError for settings that cannot be recorded or that differ from those the folder was begun with.
    """
    from understudy.data.write.writer import EpisodeWriter
    from understudy.envs.registry import open_env
    from understudy.errors import ConfigError
    from understudy.progress import Progress

    _compare(config)
    try:
        world = open_env(config.world, config.size, config.cameras, config.tasks)
    except (ValueError, ImportError) as error:  # a task or camera that is not there, a package that is missing
        raise ConfigError(str(error)) from error
    with EpisodeWriter(
        config.out, fps=world.fps, features=world.features, robot_type=world.name, codec=config.codec, resume=True
    ) as writer:
        _own(config, fresh=writer.episodes == 0)
        begun, failures = writer.episodes, 0
        if begun:
            print(f"{config.out}: carrying on after {begun} episodes", file=sys.stderr)
        ahead = range(begun, config.episodes)
        with Progress(config.episodes, "record", "episode", done=begun) as bar:
            for episode in ahead:
                frames, task, failed = demonstrate(world, config, episode)
                failures += failed
                for frame in frames:
                    writer.add_frame(frame, task=task)
                if not writer.episodes:
                    _note(config)  # not earlier: settings with which the expert never succeeds bind nobody
                writer.save_episode()
                bar.update()
        print(f"{config.out}: {writer.episodes} episodes, {writer.frames} frames, {len(writer.tasks)} tasks")
    if ahead:
        print(f"the expert succeeded in {len(ahead)} of {len(ahead) + failures} attempts; failed ones are not kept")
    return 0


def _compare(config: RecordConfig) -> None:
    """Refuse a folder that was begun with other settings: its first episodes would not be what `config` says."""
    import json

    from understudy.config.schema import plain
    from understudy.errors import ConfigError

    try:
        begun = json.loads((Path(config.out) / NOTE).read_text())
    except (FileNotFoundError, NotADirectoryError):
        return
    except ValueError as error:
        raise ConfigError(f"{Path(config.out) / NOTE} cannot be read ({error}); record into another folder") from error
    now = plain(config)
    differ = [f"{key} ({begun.get(key)} then, {now[key]} now)" for key in FIXED if begun.get(key) != now[key]]
    if differ:
        raise ConfigError(
            f"{config.out} was begun with other settings: {', '.join(differ)}; record into another folder, "
            "or with the settings it was begun with"
        )


def _own(config: RecordConfig, fresh: bool) -> None:
    """Raises ConfigError where there are episodes and no settings."""
    from understudy.errors import ConfigError

    if not fresh and not (Path(config.out) / NOTE).exists():
        raise ConfigError(f"{config.out} was not recorded by `understudy record` (no {NOTE}); name another folder")


def _note(config: RecordConfig) -> None:
    """Keep the settings beside the dataset."""
    import json

    from understudy.atomic import write_text
    from understudy.config.schema import plain

    note = Path(config.out) / NOTE
    write_text(note, json.dumps({key: plain(config)[key] for key in FIXED}, indent=1) + "\n")


def demonstrate(world: "Env", config: RecordConfig, episode: int) -> "tuple[list[dict[str, np.ndarray]], str, int]":
    """The expert's first success at episode number `episode`.

    Returns its frames (observations before each action, and the clean action), its task, and how many layouts the
    expert failed at before. Raises ConfigError when it failed at all `ATTEMPTS`: there is too much noise.
    """
    from understudy.envs.env import layout_seed
    from understudy.errors import ConfigError

    task = world.tasks[episode % len(world.tasks)]
    for attempt in range(ATTEMPTS):
        frames = _play(world, config, layout_seed(config.seed, episode, attempt=attempt), task)
        if frames is not None:
            return frames, task, attempt
    raise ConfigError(
        f"the expert of {world.name} failed {ATTEMPTS} times in a row at {task!r} with noise "
        f"{world.noise if config.noise is None else config.noise}; less noise may help"
    )


def _play(world: "Env", config: RecordConfig, layout: int, task: str) -> "list[dict[str, np.ndarray]] | None":
    """The frames of one attempt, None when the task was not done."""
    import numpy as np

    from understudy.order import sample_normal

    width = world.features["action"]["shape"][0]
    noise = world.noise if config.noise is None else config.noise
    # Drawn in single steps of the episode, so that an episode that ends early has used what it would have anyway.
    pushes = noise * sample_normal(layout, "expert noise", np.arange(world.max_steps), (width,))  # (steps, A)
    frames = []
    observation = world.reset(layout, task)
    for push in pushes:
        action = world.expert()
        frames.append({**observation, "action": action})
        observation, outcome = world.step(np.clip(action + push, -1, 1))
        if outcome.done:
            return frames if outcome.completed_task == task else None
    return None
