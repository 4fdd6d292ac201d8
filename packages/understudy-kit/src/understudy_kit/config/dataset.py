"""Settings of one dataset, and the selection of its frames: those of a run, of its sources, of a
view.

No torch. The datasets of a mixture share batches, so each may map its own keys of action, state and
cameras to the policy's standard keys.
"""

from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass, field
from typing import Annotated, Literal

from understudy_kit.config.declare import Fraction, Ids, Natural, Scale
from understudy_kit.config.on_resume import Fixed, OnResume

STANDARD_ACTION = "action"
STANDARD_STATE = "observation.state"


@dataclass(frozen=True)
class NamedData:
    """Place and keys of a dataset."""

    root: Annotated[str, OnResume.SAME_DATA] = ""
    """Folder or URL of a LeRobot dataset (v2.0, v2.1, v3.x), or a view of it: PATH#NAME
    (docs/datasets.md). Required, unless a settings file has `data.sources` (a mixture).
    """
    robot_type: Annotated[str, Fixed.NORM_HEAD] = ""
    """Robot of the recordings; the default is the one in info.json."""
    control_mode: Annotated[str, Fixed.NORM_HEAD] = ""
    """Meaning of the actions (`joint`, `ee_delta`, …). Datasets with the same robot type and
    control mode are normalized together, as one head `robot_type::control_mode`; without either, a
    dataset has a head of its own.
    """
    action: str = STANDARD_ACTION
    """Key of the actions in this dataset. Several columns are one vector: `action.joint_velocity +
    action.gripper_position`."""
    state: str = STANDARD_STATE
    """Key of the state in this dataset, or several columns as in `action`. With an empty one, or in
    a dataset without `observation.state`, the policy gets no state.
    """


@dataclass(frozen=True)
class SelectionConfig:
    """Selection of a dataset's frames, and their weights; `understudy select` saves one as a
    view.
    """

    episodes: Ids = ()
    """Ids of the episodes to use, and ranges of them, as in `0-7 12`; the default is all."""
    exclude_episodes: Ids = ()
    """Ids of episodes to use neither for training nor for validation: faulty ones, for example (see
    `check`).
    """
    where: Annotated[str, OnResume.SAME_FRAMES] = ""
    """Condition on episodes, as in `success`, `success and quality >= 3` or `"cup" in task`: use
    only those for which it holds, in training and validation. Names are those of the metadata, and
    `episode`, `length` (frames), `seconds`, `task`, `tasks`. Operators are `and`, `or`, `not`, `in`
    and comparisons (docs/datasets.md).
    """
    val_episodes: Ids = ()
    """Ids of the validation episodes, instead of the share `val_fraction`."""
    drop_n_first_frames: Natural = 0
    """Frames at the beginning of each episode that are not samples (windows still contain them)."""
    drop_n_last_frames: Natural = 0
    """Frames at the end of each episode that are not samples (windows still contain them)."""
    keep_ranges: Annotated[str, OnResume.SAME_FRAMES] = ""
    """JSON file of frames to use per episode, as in {"0": [[12, 80], [95, 140]]} with the end
    excluded. `understudy ranges` writes it. Keys are episode ids, or DROID's. Episodes without a
    key are left out.
    """
    keep_rule: Literal["window", "start"] = "window"
    """`window` keeps a frame if its whole window of actions, and of `policy.history`, lies in a
    range. `start` keeps it if the frame itself does: the tail of the actions is padding then, and
    the history may begin before the range.
    """
    frame_weights: Annotated[str, OnResume.SAME_WEIGHTS] = ""
    """Weight of each frame: a parquet file with the columns `episode`, `frame` and `weight`, or the
    key of a feature with one number per frame. Frames of weight 0 are left out. Validation means
    are weighted, too (docs/frame_weights.md).
    """
    frame_weights_in: Annotated[
        Literal["order", "loss", "both"],
        Fixed("it decides the samples of an epoch, or their part in the loss"),
    ] = "both"
    """Use of the frame weights. `order`: a frame of weight 2 comes twice in an epoch. `loss`: its
    loss counts twice. `both`: it comes as often as its weight rounded, and its loss has the rest as
    a factor, for any weights.
    """

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
    """Text that the policy learns to answer with before it acts: a text column (a subtask),
    `COLUMN:STYLE` of a language column, or `task`. In a mixture, the other sources have none. Only
    with `policy.response_tokens`.
    """
    delta_action_dims: Annotated[Ids, Fixed.NORMALIZATION] = ()
    """Indices (from 0) of action dimensions that are learned as differences from the same dimension
    of the current state (joints, for example, but not the gripper).
    """
    stats: Annotated[str, Fixed.NORMALIZATION] = ""
    """Statistics for the normalization, instead of those of the training episodes: path of openpi's
    norm_stats.json or LeRobot's stats.json, or `recorded` for those of the dataset itself.
    """
    video_path: Annotated[str, OnResume.SAME_DATA] = ""
    """Path template of the videos, instead of the one in info.json, as in
    `video/{video_key}/chunk-{chunk_index:03d}/file-{file_index:03d}.mp4`."""
    data_path: Annotated[str, OnResume.SAME_DATA] = ""
    """Path template of the data files, instead of the one in info.json."""
    version: Annotated[Literal["", "v2.0", "v2.1", "v3.0", "v3.1"], OnResume.SAME_DATA] = ""
    """Format of the dataset, instead of the one in info.json."""
    pairing: Annotated[Literal["", "files", "columns"], OnResume.SAME_DATA] = ""
    """Side that decides where names (places) of data files and their columns (`episode_index`) name
    different episodes: `files` if data files and videos were renamed or joined together, `columns`
    if data files alone were. By default such episodes are refused in a dataset with videos.
    """

    def problems(self) -> Iterator[str]:
        """Yield broken rules between fields, one line each."""
        yield from super().problems()
        if not self.action:
            yield "action: required: the key of the actions"
        if self.delta_action_dims and not self.state:
            yield (
                f"delta_action_dims: {self.delta_action_dims}: differences from the state need a "
                "`state` key"
            )


@dataclass(frozen=True)
class SourceConfig(DatasetConfig):
    """One dataset of a mixture."""

    name: Annotated[str, Fixed("the source is identified by its name")] = ""
    """Name in tables and in the order; the default is the name of its folder (name#2 for the second
    one).
    """
    weight: Annotated[Scale | None, OnResume.COMPUTED] = None
    """Share of the samples, on any scale common to the sources. Either all sources have a weight or
    none; then shares are proportional to their frames.
    """
    cameras: dict[str, str] = field(default_factory=dict)
    """Standard key -> key of the camera in this dataset. The default is all of its cameras, by
    their own keys.
    """
    val_fraction: Fraction | None = None
    """Share of its episodes for validation; the default is `data.val_fraction`."""
    on_bad_episode: Annotated[Literal["error", "skip"] | None, OnResume.SKIPPED] = None
    """As `data.on_bad_episode`, for this dataset; the default is the value there."""

    @staticmethod
    def from_words(words: Sequence[str], *, new: bool) -> list[str]:
        """Return the globs and list files of a flag, which `source_lists.py` expands.

        Raises:
            ValueError: there is none, or the run exists.
        """
        if not new:
            raise ValueError(
                "a run keeps the sources it was started with; start a new run for others"
            )
        if not words:
            raise ValueError("no value follows it; give globs in quotes, or a list file in CSV")
        return list(words)
