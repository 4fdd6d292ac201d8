"""What a run can be told about its data: one dataset in flat settings, or a list of `sources` in a file.

No torch here, as in `train.py`. The datasets of a mixture share batches, so what a policy calls its action, state and
cameras (the standard keys) may be called otherwise in each of them.
"""

import os
from collections.abc import Iterator
from dataclasses import dataclass, field, fields
from math import inf
from typing import Annotated, Literal

from understudy.addresses import strip_credentials
from understudy.bytesize import parse_bytes
from understudy.config.declare import Ge, Interval, Suppress

NONE = "none"
"""In place of the cameras: there is to be none."""
STANDARD_ACTION, STANDARD_STATE = "action", "observation.state"


@dataclass(frozen=True)
class DatasetConfig:
    """One dataset, and which frames of it."""

    root: str = ""
    """Folder or URL of a LeRobot dataset (v2.0, v2.1, v3.x). Required."""
    robot_type: str = ""
    """Which robot it was recorded on; none named: what its info.json says."""
    control_mode: str = ""
    """What its actions are (`joint`, `ee_delta`, …). Datasets of the same robot type and control mode are normalised
    together, as one head `robot_type::control_mode`; one of which either is not known has a head of its own."""
    action: str = STANDARD_ACTION
    """Key of the actions in this dataset."""
    state: str = STANDARD_STATE
    """Key of the state in this dataset; empty: the policy gets none. A dataset without `observation.state` has none."""
    episodes: tuple[Annotated[int, Ge(0)], ...] = ()
    """Ids of the episodes to use; none named: all."""
    exclude_episodes: tuple[int, ...] = ()
    """Ids of episodes that are neither trained on nor held out: those that `inspect` finds fault with, say."""
    val_episodes: tuple[Annotated[int, Ge(0)], ...] = ()
    """Ids of the episodes to hold out, exactly these, instead of the share `val_fraction`."""
    drop_first: Annotated[int, Ge(0)] = 0
    """Frames at the beginning of each episode that are no samples (windows still see them)."""
    drop_last: Annotated[int, Ge(0)] = 0
    """Frames at the end of each episode that are no samples."""
    keep: str = ""
    """JSON file of keep-ranges: key of an episode -> [[start, end), …]; episodes it does not name are left out."""
    keep_rule: Literal["window", "start"] = "window"
    """A frame is kept when its whole window of actions lies in a range, or when the frame itself does: then the tail of
    the window is padding."""
    delta: tuple[Annotated[int, Ge(0)], ...] = ()
    """Dimensions of the action that are learnt as differences to the same dimension of the state now (those of the
    joints, say, and not of the gripper)."""
    stats: str = ""
    """Statistics to normalise by instead of computing them from the training episodes: path of openpi's norm_stats.json
    or of LeRobot's stats.json, or `recorded`, those that lie with the dataset."""
    video_path: str = ""
    """Path template of the videos, instead of the one in info.json, as in
    `video/{video_key}/chunk-{chunk_index:03d}/file-{file_index:03d}.mp4`."""
    data_path: str = ""
    """Path template of the data files, instead of the one in info.json."""
    version: Literal["", "v2.0", "v2.1", "v3.0", "v3.1"] = ""
    """The format to read the dataset as, instead of the one that its info.json says."""

    def problems(self) -> Iterator[str]:
        """What is wrong between fields, one line each."""
        for name in ("episodes", "val_episodes"):
            if both := sorted(set(getattr(self, name)) & set(self.exclude_episodes)):
                yield f"exclude_episodes: {both[0]}: {name} names it, too"
        if self.episodes and (strange := sorted(set(self.val_episodes) - set(self.episodes))):
            yield f"val_episodes: {strange[0]}: it is not among `episodes`"
        if not self.action:
            yield "action: required: the key of the actions"
        if self.delta and not self.state:
            yield f"delta: {self.delta}: these are differences to the state, and the policy is to get none (state)"


@dataclass(frozen=True)
class SourceConfig(DatasetConfig):
    """One dataset of a mixture."""

    name: str = ""
    """What it is called in tables and in the order; none: the name of its folder (a second one of it: name#2)."""
    weight: Annotated[float, Interval(gt=0, lt=inf)] | None = None
    """Share of the samples, on any scale common to the sources. Said for all of them, or for none: then it is in
    proportion to their frames."""
    cameras: dict[str, str] = field(default_factory=dict)
    """Standard key -> key of the camera in this dataset. None named: all of its cameras, by their own keys."""
    val_fraction: Annotated[float, Interval(ge=0, lt=1)] | None = None
    """Share of its episodes that is held out; none: `data.val_fraction`."""
    on_incomplete_episode: Literal["error", "skip"] | None = None
    """As `data.on_incomplete_episode`, for this dataset; none: as there."""


@dataclass(frozen=True)
class DataConfig(DatasetConfig):
    """What is learnt from."""

    sources: Annotated[tuple[SourceConfig, ...], Suppress] = ()
    """Several datasets that are mixed, instead of the one described beside this; in a file only (docs/training.md)."""
    cameras: tuple[str, ...] = ()
    """Keys of the cameras that the policy sees; none named: all that any source declares. `none`: no camera."""
    chunk: Annotated[int, Interval(ge=1, le=2**16)] = 8
    """Actions per chunk: the policy predicts this many frames ahead, starting with the present one."""
    val_fraction: Annotated[float, Interval(ge=0, lt=1)] = 0.1
    """Share of the episodes that is held out for validation, whole episodes only; 0 trains on all."""
    normalise: Literal["mean_std", "min_max", "quantile"] = "mean_std"
    """What a policy's inputs and outputs are scaled by, per dimension, over the training episodes."""
    order: Literal["clips", "uniform", "episodes", "sequential"] = "clips"
    """How positions walk through the frames; `clips` is well shuffled and decodes each picture about once."""
    frames_in_flight: Annotated[int, Interval(ge=1, le=10**12)] | None = None
    """How many frames the shuffle may spread over, on all ranks together: more is better shuffled, fewer needs less
    memory. Without a number: 100,000, or 192 per sample of a batch of more than 520."""
    cache: str = ""
    """Folder on a local disk for what is read from a URL, shared by the processes of the host; none: the user's own."""
    cache_size: str = "64GB"
    """What that folder may hold at most."""
    on_incomplete_episode: Literal["error", "skip"] = "error"
    """An episode of which a data or video file is missing, empty or a git LFS pointer: stop before the first step and
    list all of them, or leave them out. Which ones were left out is frozen with the run."""
    on_bad_frame: Literal["raise", "substitute"] = "raise"
    """A picture or row that cannot be read: stop and name it, or take a neighbour from the same clip and write it
    down. A held-out frame has no stand-in: with `substitute` it is left out of validations, and counted."""

    changed_files: Literal["refuse", "accept"] = "refuse"
    """When a run goes on and data or video files are not what they were (docs/training.md): an error, or a line that
    names them, for files that were repaired."""

    def mixed(self) -> tuple[SourceConfig, ...]:
        """The sources; of flat settings, the one that they are."""
        if self.sources:
            return self.sources
        return (SourceConfig(**{own.name: getattr(self, own.name) for own in fields(DatasetConfig)}),)

    def names(self) -> tuple[str, ...]:
        """A name of its own for each source: the one it was given, or its folder's with #2, #3 for the next ones."""
        taken = {source.name for source in self.mixed()}
        names: list[str] = []
        for source in self.mixed():
            root = strip_credentials(source.root) if "://" in source.root else os.path.abspath(source.root)
            name = folder = source.name or root.rstrip("/").rpartition("/")[2] or root
            number = 1
            while not source.name and name in taken:
                number += 1
                name = f"{folder}#{number}"
            taken.add(name)
            names.append(name)
        return tuple(names)

    def holds_out(self) -> bool:
        """Whether any source has held-out episodes."""
        return any(
            source.val_episodes or (self.val_fraction if source.val_fraction is None else source.val_fraction)
            for source in self.mixed()
        )

    def problems(self) -> Iterator[str]:
        """What is wrong between fields, one line each, without the path of this one."""
        try:
            parse_bytes(self.cache_size)
        except ValueError as error:
            yield str(error).replace("memory", "cache_size", 1)
        if NONE in self.cameras and len(self.cameras) > 1:
            yield f"cameras: {', '.join(self.cameras)}: either cameras or {NONE}"
        if not self.sources:
            if not self.root:
                yield "root: required: the folder of the dataset to learn from"
            yield from self.mixed()[0].problems()
            return
        plain = DataConfig()
        for own in fields(DatasetConfig):
            if (value := getattr(self, own.name)) != getattr(plain, own.name):
                yield f"{own.name}: {value}: this is about a single dataset, and there are sources: say it in each"
        for number, source in enumerate(self.sources):
            yield from (f"sources.{number}.{line}" for line in source.problems())
            if not source.root:
                yield f"sources.{number}.root: required: the folder of the dataset"
            if source.name and source.name in (other.name for other in self.sources[:number]):
                yield f"sources.{number}.name: {source.name}: another source has this name; each needs its own"
        without = [number for number, source in enumerate(self.sources) if source.weight is None]
        if without and len(without) < len(self.sources):
            yield f"sources.{without[0]}.weight: some sources have a weight: give all of them one, or none"
