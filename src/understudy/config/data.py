"""Settings of a run's data: one dataset in flat settings, or a list of `sources` in a file.

No torch. The datasets of a mixture share batches, so each may map its own keys of action, state and cameras to the
policy's standard keys.
"""

from collections.abc import Iterable, Iterator
from dataclasses import dataclass, field, fields
from typing import Annotated, Literal

from understudy.bytesize import parse_bytes
from understudy.config.declare import Fraction, Ids, Interval, Natural, Scale, Share
from understudy.config.on_resume import (
    COMPUTED,
    NO_EFFECT,
    NORM_HEAD,
    NORMALIZATION,
    SAME_DATA,
    SAME_FRAMES,
    SAME_WEIGHTS,
    SKIPPED,
    Fixed,
    OnResume,
)
from understudy.credentials import strip_credentials
from understudy.dataset_address import absolute_path, is_several, split_view

NONE = "none"
"""Value of `cameras` for a policy without cameras."""
REST = "*"
"""Name in `data.normalize` for all dimensions that it does not name."""
STANDARD_ACTION, STANDARD_STATE = "action", "observation.state"


@dataclass(frozen=True)
class NamedData:
    """Place and keys of a dataset."""

    root: Annotated[str, SAME_DATA] = ""
    """Folder or URL of a LeRobot dataset (v2.0, v2.1, v3.x), or a view of it: PATH#NAME (docs/datasets.md). Required,
    unless a settings file has `data.sources` (a mixture)."""
    robot_type: Annotated[str, NORM_HEAD] = ""
    """Robot of the recordings; the default is the one in info.json."""
    control_mode: Annotated[str, NORM_HEAD] = ""
    """Meaning of the actions (`joint`, `ee_delta`, …). Datasets with the same robot type and control mode are
    normalized together, as one head `robot_type::control_mode`; without either, a dataset has a head of its own."""
    action: str = STANDARD_ACTION
    """Key of the actions in this dataset. Several columns are one vector: `action.joint_velocity +
    action.gripper_position`."""
    state: str = STANDARD_STATE
    """Key of the state in this dataset, or several columns as in `action`. With an empty one, or in a dataset without
    `observation.state`, the policy gets no state."""


@dataclass(frozen=True)
class SelectionConfig:
    """Selection of a dataset's frames, and their weights; `understudy select` saves one as a view."""

    episodes: Ids = ()
    """Ids of the episodes to use, and ranges of them, as in `0-7 12`; the default is all."""
    exclude_episodes: Ids = ()
    """Ids of episodes to use neither for training nor for validation: faulty ones, for example (see `check`)."""
    where: Annotated[str, SAME_FRAMES] = ""
    """Condition on episodes, as in `success`, `success and quality >= 3` or `"cup" in task`: use only those for which
    it holds, in training and validation. Names are those of the metadata, and `episode`, `length` (frames), `seconds`,
    `task`, `tasks`. Operators are `and`, `or`, `not`, `in` and comparisons (docs/datasets.md)."""
    val_episodes: Ids = ()
    """Ids of the validation episodes, instead of the share `val_fraction`."""
    drop_n_first_frames: Natural = 0
    """Frames at the beginning of each episode that are not samples (windows still contain them)."""
    drop_n_last_frames: Natural = 0
    """Frames at the end of each episode that are not samples (windows still contain them)."""
    keep_ranges: Annotated[str, SAME_FRAMES] = ""
    """JSON file of frames to use per episode, as in {"0": [[12, 80], [95, 140]]} with the end excluded. `understudy
    ranges` writes it. Keys are episode ids, or DROID's. Episodes without a key are left out."""
    keep_rule: Literal["window", "start"] = "window"
    """`window` keeps a frame if its whole window of actions, and of `policy.history`, lies in a range. `start` keeps it
    if the frame itself does: the tail of the actions is padding then, and the history may begin before the range."""
    frame_weights: Annotated[str, SAME_WEIGHTS] = ""
    """Weight of each frame: a parquet file with the columns `episode`, `frame` and `weight`, or the key of a feature
    with one number per frame. Frames of weight 0 are left out. Validation means are weighted, too
    (docs/frame_weights.md)."""
    frame_weights_in: Annotated[
        Literal["order", "loss", "both"], Fixed("it decides the samples of an epoch, or their part in the loss")
    ] = "both"
    """Use of the frame weights. `order`: a frame of weight 2 comes twice in an epoch. `loss`: its loss counts twice.
    `both`: it comes as often as its weight rounded, and its loss has the rest as a factor, for any weights."""

    def problems(self) -> Iterable[str]:
        """Yield broken rules between fields, one line each."""
        for name in ("episodes", "val_episodes"):
            if both := sorted(set(getattr(self, name)) & set(self.exclude_episodes)):
                yield f"exclude_episodes: {both[0]}: is also in `{name}`"
        if self.episodes and (unknown := sorted(set(self.val_episodes) - set(self.episodes))):
            yield f"val_episodes: {unknown[0]}: is not in `episodes`"


@dataclass(frozen=True)
class DatasetConfig(SelectionConfig, NamedData):
    """One dataset, and a selection of its frames."""

    response: str = ""
    """Text that the policy learns to answer with before it acts: a text column (a subtask), `COLUMN:STYLE` of a
    language column, or `task`. In a mixture, the other sources have none. Only with `policy.response_tokens`."""
    delta_action_dims: Annotated[Ids, NORMALIZATION] = ()
    """Indices (from 0) of action dimensions that are learned as differences from the same dimension of the current
    state (joints, for example, but not the gripper)."""
    stats: Annotated[str, NORMALIZATION] = ""
    """Statistics for the normalization, instead of those of the training episodes: path of openpi's norm_stats.json or
    LeRobot's stats.json, or `recorded` for those of the dataset itself."""
    video_path: Annotated[str, SAME_DATA] = ""
    """Path template of the videos, instead of the one in info.json, as in
    `video/{video_key}/chunk-{chunk_index:03d}/file-{file_index:03d}.mp4`."""
    data_path: Annotated[str, SAME_DATA] = ""
    """Path template of the data files, instead of the one in info.json."""
    version: Annotated[Literal["", "v2.0", "v2.1", "v3.0", "v3.1"], SAME_DATA] = ""
    """Format of the dataset, instead of the one in info.json."""
    pairing: Annotated[Literal["", "files", "columns"], SAME_DATA] = ""
    """Side that decides where names (places) of data files and their columns (`episode_index`) name different episodes:
    `files` if data files and videos were renamed or joined together, `columns` if data files alone were. By default
    such episodes are refused in a dataset with videos."""

    def problems(self) -> Iterator[str]:
        """Yield broken rules between fields, one line each."""
        yield from super().problems()
        if not self.action:
            yield "action: required: the key of the actions"
        if self.delta_action_dims and not self.state:
            yield f"delta_action_dims: {self.delta_action_dims}: differences from the state need a `state` key"


@dataclass(frozen=True)
class SourceConfig(DatasetConfig):
    """One dataset of a mixture."""

    name: Annotated[str, Fixed("the source is identified by its name")] = ""
    """Name in tables and in the order; the default is the name of its folder (name#2 for the second one)."""
    weight: Annotated[Scale | None, COMPUTED] = None
    """Share of the samples, on any scale common to the sources. Either all sources have a weight or none; then shares
    are proportional to their frames."""
    cameras: dict[str, str] = field(default_factory=dict)
    """Standard key -> key of the camera in this dataset. The default is all of its cameras, by their own keys."""
    val_fraction: Fraction | None = None
    """Share of its episodes for validation; the default is `data.val_fraction`."""
    on_bad_episode: Annotated[Literal["error", "skip"] | None, SKIPPED] = None
    """As `data.on_bad_episode`, for this dataset; the default is the value there."""


@dataclass(frozen=True)
class DataConfig(DatasetConfig):
    """The data of a run."""

    sources: tuple[SourceConfig, ...] = ()
    """Mixture of several datasets, instead of the single one above: entries in a file of settings, or globs and list
    files in CSV, as in `--data.sources 'data/*/'` (docs/mixtures.md)."""
    cameras: tuple[str, ...] = ()
    """Keys of the policy's cameras (`observation.images.wrist`); the default is every camera of any source. `none`: no
    camera."""
    chunk_size: Annotated[int, Interval(ge=1, le=2**16)] | None = None
    """Actions per chunk: the policy predicts this many frames ahead, starting with the current one. The default is that
    of the released weights a run starts from (policy.weights), else 8; of a value function, which uses none, 1."""
    val_fraction: Fraction | None = None
    """Share of the episodes for validation, whole episodes only; 0 trains on all. The default is that of a view, or
    else 0.1."""
    normalize: Annotated[
        Literal["mean_std", "min_max", "quantile"]
        | dict[str, Literal["mean_std", "min_max", "quantile", "identity"]]
        | None,
        NORMALIZATION,
    ] = None
    """Normalization of the policy's inputs and outputs, per dimension, over the training episodes. The default is the
    policy's: `quantile` for pi05, `min_max` for lerobot-diffusion, `mean_std` for the others. Single dimensions by
    their names, or as KEY[i]: `gripper identity action[3] min_max`; `*` is all others (docs/normalization.md)."""
    shuffle: Literal["clips", "uniform", "episodes", "sequential"] = "clips"
    """Order of the samples. `clips`: many short clips in turn, well shuffled, each image decoded about once. `uniform`:
    any frame at any time, which decodes more. `episodes`: as clips, each as long as the longest episode. `sequential`:
    as stored, not shuffled."""
    prompt_metadata: Annotated[dict[str, Share], Fixed("prompts would have other metadata")] = field(
        default_factory=dict
    )
    """Metadata of the episode in the prompt: name -> share of the training samples without it, as in `quality 0.05
    success 0.05`. Prompts are `{task}, quality: 3, success: true`, in this sequence, without missing values
    (docs/mixtures.md). Validation prompts have all of it."""
    prompt_metadata_dropout: Annotated[
        Share, OnResume("the same samples; other ones lose their metadata from here on")
    ] = 0.0
    """Share of the training samples whose prompt has no metadata at all, besides those of `prompt_metadata`."""
    frames_in_flight: Annotated[int, Interval(ge=1, le=10**12)] | None = None
    """Number of frames the shuffle may spread over, on all ranks together: more is better shuffled, fewer needs less
    memory. The default is 100,000, or 192 x `batch_size` if that is more."""
    cache: Annotated[str, NO_EFFECT] = ""
    """Folder on a local disk for data read from URLs, decoded columns of large datasets, and decoded images
    (`loader.decoded_cache`), shared by the processes of the host; the default is the user's cache folder."""
    cache_size: Annotated[str, NO_EFFECT] = "64GB"
    """Largest size in that folder of each of these three: the data read from URLs, the decoded columns, the decoded
    images."""
    on_bad_episode: Annotated[Literal["error", "skip"], SKIPPED] = "error"
    """Action for episodes with a data or video file that is missing or a git LFS pointer: `error` lists all of them
    before the first step. `skip` first opens every file (slow). It leaves out these episodes, and those that cannot be
    read or disagree with the metadata. The skipped episodes are printed, and recorded with the run."""
    on_bad_frame: Annotated[
        Literal["raise", "substitute"],
        OnResume("matters only for frames that cannot be read; all other samples are the same"),
    ] = "raise"
    """Action for a frame (image or row) that cannot be read: `raise` names it, `substitute` takes a neighbour from the
    same clip and logs it. Validation frames have no substitute: they are skipped and counted."""

    update: Annotated[bool, OnResume("episodes appended since, if any, are trained on, too, from here on")] = False
    """Of `understudy resume`: also train on the episodes that were appended to the datasets, from this step on
    (docs/checkpoints.md). Without it a run keeps to the episodes that it has."""
    changed_files: Annotated[
        Literal["refuse", "accept"], OnResume("later steps are trained on the changed files, if any")
    ] = "refuse"
    """Action for data or video files that changed since the run started (docs/checkpoints.md). `refuse`: stop with an
    error. `accept`: log them and train on them, as after repairs."""

    @property
    def actions_per_chunk(self) -> int:
        """Value of `chunk_size`, 8 where neither the settings nor released weights have one."""
        return self.chunk_size or 8

    def mixed(self) -> tuple[SourceConfig, ...]:
        """Return the sources; a single dataset as one source."""
        if self.sources:
            return self.sources
        settings = {setting.name: getattr(self, setting.name) for setting in fields(DatasetConfig)}
        return (SourceConfig(**settings, val_fraction=self.val_fraction),)

    def names(self) -> tuple[str, ...]:
        """Return a unique name for each source: its own, or its folder's with #2, #3 for the next ones."""
        taken = {source.name for source in self.mixed()}
        names: list[str] = []
        numbers: dict[str, int] = {}
        for source in self.mixed():
            address = split_view(source.root)[0]
            root = strip_credentials(address) if "://" in address else absolute_path(address)
            name = folder = source.name or root.rstrip("/").rpartition("/")[2] or root
            number = numbers.get(folder, 1)
            while not source.name and name in taken:
                number += 1
                name = f"{folder}#{number}"
            numbers[folder] = number
            taken.add(name)
            names.append(name)
        return tuple(names)

    def share_of(self, source: SourceConfig) -> float:
        """Return the share of the episodes of a source for validation."""
        return next(share for share in (source.val_fraction, self.val_fraction, 0.1) if share is not None)

    def has_validation(self) -> bool:
        """Return whether any source has validation episodes, or a view that may have some."""
        return any(
            source.val_episodes or split_view(source.root)[1] or self.share_of(source) for source in self.mixed()
        )

    def problems(self) -> Iterator[str]:
        """Yield broken rules between fields, one line each, with paths relative to `data`."""
        try:
            parse_bytes(self.cache_size)
        except ValueError as error:
            yield str(error).replace("memory", "cache_size", 1)
        if NONE in self.cameras and len(self.cameras) > 1:
            yield f"cameras: {', '.join(self.cameras)}: either cameras or {NONE}"
        if not self.sources:
            if not self.root:
                yield "root: required, the folder or address of the dataset to train on: --data.root FOLDER"
            elif is_several(self.root):
                yield f"root: {self.root}: no folder; data.sources takes globs and lists: --data.sources '{self.root}'"
            yield from self.mixed()[0].problems()
            return
        plain = DataConfig()
        for setting in fields(DatasetConfig):
            if (value := getattr(self, setting.name)) != getattr(plain, setting.name):
                yield f"{setting.name}: {value}: describes a single dataset; with `sources`, set it in each of them"
        names: set[str] = set()
        for number, source in enumerate(self.sources):
            yield from (f"sources.{number}.{line}" for line in source.problems())
            if not source.root:
                yield f"sources.{number}.root: required: the folder of the dataset"
            if source.name and source.name in names:
                yield f"sources.{number}.name: {source.name}: another source has this name; names must be unique"
            names.add(source.name)
        without = [number for number, source in enumerate(self.sources) if source.weight is None]
        if without and len(without) < len(self.sources):
            yield f"sources.{without[0]}.weight: only some sources have a weight: set it for all of them, or for none"
