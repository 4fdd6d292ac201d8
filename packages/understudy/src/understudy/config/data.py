"""Settings of a run's data: one dataset in flat settings, or a list of `sources` in a file. No
torch.
"""

from collections.abc import Iterator
from dataclasses import dataclass, field, fields
from typing import Annotated, Literal

from understudy.config.intervals import Share
from understudy_base import absolute_path, is_several, parse_bytes, split_view, strip_credentials
from understudy_kit import DatasetConfig, Fixed, Fraction, Interval, OnResume, SourceConfig

NONE = "none"
"""Value of `cameras` for a policy without cameras."""
REST = "*"
"""Name in `data.normalize` for all dimensions that it does not name."""


@dataclass(frozen=True)
class DataConfig(DatasetConfig):
    """The data of a run."""

    sources: tuple[SourceConfig, ...] = ()
    """Mixture of several datasets, instead of the single one above: entries in a file of settings,
    or globs and list files in CSV, as in `--data.sources 'data/*/'` (docs/mixtures.md).
    """
    cameras: tuple[str, ...] = ()
    """Keys of the policy's cameras (`observation.images.wrist`); the default is every camera of any
    source. `none`: no camera.
    """
    chunk_size: Annotated[int, Interval(ge=1, le=2**16)] | None = None
    """Actions per chunk: the policy predicts this many frames ahead, starting with the current one.
    The default is that of the released weights a run starts from (policy.weights), else 8; of a
    value function, which uses none, 1.
    """
    val_fraction: Fraction | None = None
    """Share of the episodes for validation, whole episodes only; 0 trains on all. The default is
    that of a view, or else 0.1.
    """
    normalize: Annotated[
        Literal["mean_std", "min_max", "quantile"]
        | dict[str, Literal["mean_std", "min_max", "quantile", "identity"]]
        | None,
        Fixed.NORMALIZATION,
    ] = None
    """Normalization of the policy's inputs and outputs, per dimension, over the training episodes.
    The default is the policy's: `quantile` for pi05, `min_max` for lerobot-diffusion, `mean_std`
    for the others. Single dimensions by their names, or as KEY[i]:
    `gripper identity action[3] min_max`; `*` is all others (docs/normalization.md).
    """
    shuffle: Literal["clips", "uniform", "episodes", "sequential"] = "clips"
    """Order of the samples. `clips`: many short clips in turn, well shuffled, each image decoded
    about once. `uniform`: any frame at any time, which decodes more. `episodes`: as clips, each as
    long as the longest episode. `sequential`: as stored, not shuffled.
    """
    prompt_metadata: Annotated[dict[str, Share], Fixed("prompts would have other metadata")] = (
        field(default_factory=dict)
    )
    """Metadata of the episode in the prompt: name -> share of the training samples without it, as
    in `quality 0.05 success 0.05`. Prompts are `{task}, quality: 3, success: true`, in this
    sequence, without missing values (docs/mixtures.md). Validation prompts have all of it.
    """
    prompt_metadata_dropout: Annotated[
        Share, OnResume("the same samples; other ones lose their metadata from here on")
    ] = 0.0
    """Share of the training samples whose prompt has no metadata at all, besides those of
    `prompt_metadata`.
    """
    frames_in_flight: Annotated[int, Interval(ge=1, le=10**12)] | None = None
    """Number of frames the shuffle may spread over, on all ranks together: more is better shuffled,
    fewer needs less memory. The default is 100,000, or 192 x `batch_size` if that is more.
    """
    cache: Annotated[str, OnResume.NO_EFFECT] = ""
    """Folder on a local disk for data read from URLs, decoded columns of large datasets, and
    decoded images (`loader.decoded_cache`), shared by the processes of the host; the default is the
    user's cache folder.
    """
    cache_size: Annotated[str, OnResume.NO_EFFECT] = "64GB"
    """Largest size in that folder of each of these three: the data read from URLs, the decoded
    columns, the decoded images.
    """
    on_bad_episode: Annotated[Literal["error", "skip"], OnResume.SKIPPED] = "error"
    """Action for episodes with a data or video file that is missing or a git LFS pointer: `error`
    lists all of them before the first step. `skip` first opens every file (slow). It leaves out
    these episodes, and those that cannot be read or disagree with the metadata. The skipped
    episodes are printed, and recorded with the run.
    """
    on_bad_frame: Annotated[
        Literal["raise", "substitute"],
        OnResume("matters only for frames that cannot be read; all other samples are the same"),
    ] = "raise"
    """Action for a frame (image or row) that cannot be read: `raise` names it, `substitute` takes a
    neighbour from the same clip and logs it. Validation frames have no substitute: they are skipped
    and counted.
    """

    update: Annotated[
        bool, OnResume("episodes appended since, if any, are trained on, too, from here on")
    ] = False
    """Of `understudy resume`: also train on the episodes that were appended to the datasets, from
    this step on (docs/checkpoints.md). Without it a run keeps to the episodes that it has.
    """
    changed_files: Annotated[
        Literal["refuse", "accept"],
        OnResume("later steps are trained on the changed files, if any"),
    ] = "refuse"
    """Action for data or video files that changed since the run started (docs/checkpoints.md).
    `refuse`: stop with an error. `accept`: log them and train on them, as after repairs.
    """

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
        """Return a unique name for each source: its own, or its folder's with #2, #3 for the next
        ones.
        """
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
        return next(
            share for share in (source.val_fraction, self.val_fraction, 0.1) if share is not None
        )

    def has_validation(self) -> bool:
        """Return whether any source has validation episodes, or a view that may have some."""
        return any(
            source.val_episodes or split_view(source.root)[1] or self.share_of(source)
            for source in self.mixed()
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
                yield (
                    "root: required, the folder or address of the dataset to train on: "
                    "--data.root FOLDER"
                )
            elif is_several(self.root):
                yield (
                    f"root: {self.root}: no folder; data.sources takes globs and lists: "
                    f"--data.sources '{self.root}'"
                )
            yield from self.mixed()[0].problems()
            return
        plain = DataConfig()
        for setting in fields(DatasetConfig):
            if (value := getattr(self, setting.name)) != getattr(plain, setting.name):
                yield (
                    f"{setting.name}: {value}: describes a single dataset; with `sources`, set "
                    "it in each of them"
                )
        names: set[str] = set()
        for number, source in enumerate(self.sources):
            yield from (f"sources.{number}.{line}" for line in source.problems())
            if not source.root:
                yield f"sources.{number}.root: required: the folder of the dataset"
            if source.name and source.name in names:
                yield (
                    f"sources.{number}.name: {source.name}: another source has this name; names "
                    "must be unique"
                )
            names.add(source.name)
        without = [number for number, source in enumerate(self.sources) if source.weight is None]
        if without and len(without) < len(self.sources):
            yield (
                f"sources.{without[0]}.weight: only some sources have a weight: set it for all "
                "of them, or for none"
            )
