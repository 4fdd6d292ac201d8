"""`EpisodeArrays`: samples of a LeRobot dataset as dictionaries of numpy arrays, one by one or in
batches.

It imports no torch. `EpisodeDataset` (dataset.py) has the same samples as tensors.
"""

import os
import warnings
from collections.abc import Callable, Collection, Mapping, Sequence
from dataclasses import replace
from functools import cached_property, partial
from typing import Any, Literal, TypeVar, Unpack

import numpy as np

from understudy_base import LOSS_WEIGHT, RETURN_IS_PAD, DatasetError
from understudy_data.datasets.check_files import FileCheck
from understudy_data.datasets.format.catalog import Catalog
from understudy_data.datasets.format.episode_table import EpisodeTable
from understudy_data.datasets.format.features import INDEX_KEYS
from understudy_data.datasets.format.selection_fields import SelectionOptions
from understudy_data.datasets.format.standard_keys import rename_keys
from understudy_data.datasets.read.image_column import ImageColumns
from understudy_data.datasets.read.recorded_images import RecordedImages
from understudy_data.datasets.read.returns import Returns, ReturnTarget
from understudy_data.datasets.read.row_tables import RowTables
from understudy_data.datasets.read.rows import PART_BYTES, Rows
from understudy_data.datasets.read.sensors import Sensors
from understudy_data.datasets.read.task_runs import task_runs
from understudy_data.datasets.read.texts import EpisodePrompts, Responses, prompt_names
from understudy_data.datasets.read.video_frames import VideoFrames
from understudy_data.datasets.selection.frame_weights import FrameWeights, weigh_frames
from understudy_data.datasets.selection.select import (
    EPISODE_STRIDE,
    SegmentTable,
    Selection,
    as_integers,
)
from understudy_data.datasets.time_windows import TOLERANCE_S, frame_offsets, reach, window
from understudy_data.storage.dataset_root import with_location
from understudy_data.storage.mapped_tables import share
from understudy_data.video.depth import RGB, Pixels

T = TypeVar("T")
# files of a dataset whose folders are listed when it is opened by its address
_MOST_LISTED = 10_000


def choose_keys(
    catalog: Catalog, keys: Sequence[str] | None, missing_cameras: Collection[str]
) -> tuple[str, ...]:
    """Return the keys to deliver: `keys`, or all declared features and sensors without it, and the
    missing cameras.

    A feature that cannot be read is left out with a warning.

    Raises:
        DatasetError: `keys` names such a feature, or one by its stored name.
    """
    features = catalog.features
    skipped_features = {
        key: why for key, why in catalog.skipped_features.items() if key not in missing_cameras
    }
    if keys is None:
        for key, why in skipped_features.items():
            warnings.warn(f"{catalog.root}: {key} {why}: left out", stacklevel=3)
        return (*features, *catalog.sensors, *missing_cameras)
    if isinstance(keys, str):
        raise DatasetError(f"keys is {keys!r}", fix="give a list of keys")
    for key, why in skipped_features.items():
        if key in keys:
            raise DatasetError(f"{key} {why}", where=catalog.root, fix="leave it out of keys")
    for key, stored_name in catalog.stored_names.items():
        if stored_name in keys and stored_name not in features:
            problem = f"keys names {stored_name!r}, which is mapped to {key!r}"
            raise DatasetError(problem, where=catalog.root, fix=f"give {key!r}, its standard key")
    return tuple(dict.fromkeys([*keys, *missing_cameras]))


def in_depth_unit(catalog: Catalog, keys: Sequence[str], unit: str) -> Catalog:
    """Return the catalog with the depth cameras among `keys` in `unit`, "m" or "mm": images and
    recorded statistics.

    Raises:
        DatasetError: another unit, or depth whose recorded unit is unknown.
    """
    if unit not in ("m", "mm"):
        raise DatasetError(
            f"depth_unit is {unit!r}", fix="give 'm' or 'mm', or leave it out for depth as stored"
        )
    cameras = {
        key: replace(catalog.features[key], depth_unit=unit)
        for key in keys
        if key in catalog.features
    }
    cameras = {key: feature for key, feature in cameras.items() if feature.is_depth}
    for key, feature in cameras.items():
        if feature.unreadable:
            fix = (
                "write its depth_unit into meta/info.json, leave depth_unit out, or leave the "
                "camera out of keys"
            )
            raise DatasetError(f"{key} {feature.unreadable}", where=catalog.root, fix=fix)
    return replace(catalog, features={**catalog.features, **cameras})


def check_columns(catalog: Catalog, keys: Sequence[str], episode: int) -> None:
    """Refuse undeclared keys that the data file of an episode does not hold either.

    Raises:
        DatasetError: names the first such key.
    """
    if not keys:
        return
    row = catalog.episodes.row_of(episode)
    with (
        with_location(catalog.data_place(row)),
        catalog.files.parquet(catalog.data_path(row)) as file,
    ):
        columns = file.schema_arrow.names
    for key in keys:
        if key not in columns:
            valid_keys = ", ".join(
                dict.fromkeys([*catalog.features, *catalog.sensors, *INDEX_KEYS, *columns])
            )
            raise DatasetError(
                f"keys names {key!r}", where=catalog.root, fix=f"the keys are {valid_keys}"
            )


_NONE = np.empty(0, np.int64)
ROWS_IN_MEMORY = 1 << 30
"""Bytes for columns that are not mapped, and as many for encoded images stored in rows."""

_ROW_BYTES = 512 << 20  # of the loaded data file of one episode
_MAX_TRIES = 64  # videos to open in search of a readable one


def _rows_of_videos(table: EpisodeTable, file: np.ndarray, episodes: np.ndarray) -> np.ndarray:
    """Table rows of the first episodes of the first videos of a camera, ascending."""
    rows = table.rows_of(episodes)
    rows = rows[file[rows] >= 0]
    return np.sort(rows[np.unique(file[rows], return_index=True)[1]])[:_MAX_TRIES]


class EpisodeArrays:
    """The samples of `EpisodeDataset` as dictionaries of numpy arrays.

    `EpisodeDataset` (dataset.py) documents the arguments, the samples and the errors. Here each
    tensor is an array, and `image_transforms` gets arrays.
    """

    _as_value: Callable[[np.ndarray], Any] = staticmethod(np.asarray)
    _stack: Callable[[list[Any]], Any] = staticmethod(np.stack)

    def __init__(
        self,
        root: str | os.PathLike[str] | Catalog,
        delta_timestamps: Mapping[str, Sequence[float]] | None = None,
        *,
        select: Selection | None = None,
        tolerance_s: float = TOLERANCE_S,
        keys: Sequence[str] | None = None,
        names: Mapping[str, str] | None = None,
        missing_cameras: Mapping[str, tuple[int, int]] | None = None,
        image_transforms: Callable[[Any], Any] | None = None,
        depth_unit: Literal["m", "mm"] | None = None,
        response: str | None = None,
        prompt_metadata: Sequence[str] | None = None,
        returns: ReturnTarget | Mapping[str, Any] | None = None,
        name: str | None = None,
        video_backend: str = "pyav",
        frame_cache_bytes: int = 128 << 20,
        **selection: Unpack[SelectionOptions],
    ) -> None:
        if video_backend not in ("pyav", "torchcodec"):
            raise DatasetError(
                f"video_backend is {video_backend!r}", fix="give 'pyav' or 'torchcodec'"
            )
        if image_transforms is not None and not callable(image_transforms):
            raise DatasetError(
                f"image_transforms is {image_transforms!r}",
                fix="give a function of an image tensor",
            )
        opened = Catalog.open(root)
        if opened is not root and (doubt := FileCheck(opened).doubt(_MOST_LISTED)):
            warnings.warn(f"{opened.root}: {doubt}", stacklevel=2)
        catalog = rename_keys(opened, names or {}, missing_cameras)
        self._name = name
        self.image_transforms = image_transforms
        self.missing_cameras = {
            camera: (int(high), int(wide))
            for camera, (high, wide) in (missing_cameras or {}).items()
        }
        self.keys = choose_keys(catalog, keys, self.missing_cameras)
        self.catalog = (
            catalog if depth_unit is None else in_depth_unit(catalog, self.keys, depth_unit)
        )
        self._split_keys()
        self._set_windows(delta_timestamps, tolerance_s)
        self._select(replace(select or Selection(), **selection))
        undeclared = [
            k for k in self._columns if k not in self.catalog.features and k not in INDEX_KEYS
        ]
        check_columns(self.catalog, undeclared, int(self.segments[0, 0]))
        self._responses = Responses(self.catalog, response)
        prompted_episodes = self.episodes if prompt_metadata else _NONE
        self.prompts = EpisodePrompts(self.catalog, prompt_metadata, prompted_episodes)
        """Metadata of the episodes and frames for prompts."""
        target = ReturnTarget(**returns) if isinstance(returns, Mapping) else returns
        self.returns = None if target is None else Returns(self.catalog, target, self.table_rows)
        """Returns of the frames of the selected episodes; None: they are not delivered."""
        columns = [k for k in (*self._columns, *self._responses.columns) if k not in INDEX_KEYS]
        self._sensors = Sensors(self.catalog, self._sensor_keys, self.sensor_offsets)
        self.row_tables = RowTables(self.catalog, columns)
        """Mapped columns of this host."""
        self._rows = Rows(self.catalog, columns, ROWS_IN_MEMORY, self.row_tables)
        self._stored = ImageColumns(self.catalog, self.image_keys, ROWS_IN_MEMORY)
        self.video_frames = VideoFrames(self.catalog, frame_cache_bytes, video_backend)

    def _split_keys(self) -> None:
        """Divide the keys by the place of their values."""
        features = self.catalog.features
        cameras = [key for key in self.keys if key in features and features[key].is_camera]
        self.video_keys = tuple(key for key in cameras if features[key].is_video)
        """Keys of the cameras stored as video."""
        self.image_keys = tuple(key for key in cameras if key not in self.video_keys)
        """Keys of the cameras stored in the rows of data files."""
        self._sensor_keys = tuple(key for key in self.keys if key in self.catalog.sensors)
        elsewhere = (*cameras, *self.missing_cameras, *self._sensor_keys)
        self._columns = tuple(
            k for k in dict.fromkeys([*self.keys, *INDEX_KEYS]) if k not in elsewhere
        )

    def _set_windows(
        self, delta_timestamps: Mapping[str, Sequence[float]] | None, tolerance_s: float
    ) -> None:
        keys = tuple(dict.fromkeys([*self.keys, *INDEX_KEYS]))
        offsets = frame_offsets(
            delta_timestamps, float(self.fps), keys, self._sensor_keys, tolerance_s
        )
        self.offsets = {
            key: frames for key, frames in offsets.items() if key not in self._sensor_keys
        }
        """Key -> frames of its window relative to the sample, int64 (T,). Those of sensors are
        `sensor_offsets`.
        """
        self.sensor_offsets = {
            key: times for key, times in offsets.items() if key in self._sensor_keys
        }
        """Sensor -> times of its window relative to the frame, in seconds, float64 (T,)."""

    def _select(self, selection: Selection) -> None:
        times = [window * float(self.fps) for window in self.sensor_offsets.values()]
        windows = [
            *self.offsets.values(),
            *(np.array([np.floor(t.min()), np.ceil(t.max())]) for t in times),
        ]
        selected = selection.apply(self.catalog, reach(windows))
        self.view = self.catalog.view
        """View of the address, None for none. Its selection is part of this one, and `catalog` has
        all episodes.
        """
        selection, self.catalog = selection.spell_out(self.catalog)
        self.frame_weights: FrameWeights | None = None
        """Weights of the selected frames, if they have any."""
        if selection.frame_weights is not None:
            selected, self.frame_weights = weigh_frames(self.catalog, selected, selection)
            if LOSS_WEIGHT in self._columns:
                fix = (
                    "leave it out of keys, or give it another name with names={...: "
                    f"{LOSS_WEIGHT!r}}}"
                )
                raise DatasetError(
                    f"{LOSS_WEIGHT!r} is a feature, and a key of samples with frame_weights",
                    fix=fix,
                )
        self._table = SegmentTable(selected.segments, selected.stop, self.catalog.files)
        self._notes = selected.notes
        self.keep_report = selected.keep_report
        """Frames that `keep_ranges` keeps and leaves out; None without ranges."""

    @property
    def name(self) -> str:
        """Name in an order and in messages."""
        return self._name or self.catalog.name

    @property
    def fps(self) -> float:
        """Frames per second."""
        return self.catalog.fps

    @property
    def meta(self) -> Catalog:
        """The catalog, under LeRobot's name."""
        return self.catalog

    @property
    def segments(self) -> np.ndarray:
        """int64 (K, 3): selected segments, rows [episode id, start, stop)."""
        return self._table.segments

    @property
    def epoch_segments(self) -> np.ndarray:
        """int64 (K', 3): segments of an epoch of the order; those of frames with copies are
        repeated.
        """
        return self.segments if self.frame_weights is None else self.frame_weights.epoch_segments

    @property
    def view_record(self) -> str:
        """The view of the address with its version, for records; "" for none."""
        return "" if self.view is None else self.view.record

    def task_runs(self, ids: np.ndarray) -> tuple[np.ndarray, list[str]]:
        """Return runs of frames with one task in episodes that have several, selected or not.

        Args:
            ids: int64, episodes of the dataset.

        Returns:
            Rows [episode, start, stop), int64 (n, 3), and their texts.

        Raises:
            DatasetError: a data file cannot be read.
        """
        return task_runs(self.catalog, ids)

    def recorded_images(self) -> RecordedImages:
        """Return a reader of the images of whole episodes, selected or not."""
        return RecordedImages(self.catalog)

    def recorded_values(self, key: str, episode: int) -> np.ndarray:
        """Return the values of a feature in all frames of an episode, selected or not.

        Returns:
            As declared, (frames, *shape).

        Raises:
            DatasetError: there is no such episode, or its rows cannot be read.
        """
        row = self.catalog.episodes.row_of(episode)
        frames = np.arange(int(self.catalog.episodes.lengths[row]))
        rows = Rows(self.catalog, [key], _ROW_BYTES)
        values: np.ndarray = rows.take(np.full(1, row), {key: frames[None]})[key][0]
        return values

    def loss_runs(self) -> tuple[np.ndarray, np.ndarray]:
        """Return the frames from which on the factor of the loss is another one.

        Returns:
            Rows [episode, frame], int64 (n, 2), ascending, and the factor from each frame on,
            float64 (n,), 0 where no return is known; both empty where all factors are 1.
        """
        segments = self.segments if self.returns is not None else np.empty((0, 3), np.int64)
        starts = np.sort(segments[:, 0] * EPISODE_STRIDE + segments[:, 1])
        factors = np.ones(len(segments))
        if self.frame_weights is not None:
            starts, factors = self.frame_weights.loss_runs
        runs = np.stack([starts // EPISODE_STRIDE, starts % EPISODE_STRIDE], axis=1)
        if self.returns is not None:
            returns = self.returns.read(self.catalog.episodes.rows_of(runs[:, 0]), runs[:, 1])
            factors = np.where(returns[RETURN_IS_PAD], 0, factors)
        return runs, factors

    @property
    def num_frames(self) -> int:
        """Samples in the selection, as `len`."""
        return len(self)

    @property
    def num_episodes(self) -> int:
        """Episodes with a sample in the selection."""
        return len(self.episodes)

    @property
    def episodes(self) -> np.ndarray:
        """int64 (E,): ids of the episodes with a sample in the selection, ascending."""
        return self._table.episodes

    @property
    def table_rows(self) -> np.ndarray:
        """int64 (E,): rows of `episodes` in the catalog's table."""
        return self.catalog.episodes.rows_of(self.episodes)

    @property
    def first_row(self) -> int:
        """Row of the first selected episode in the catalog's table."""
        return self.catalog.episodes.row_of(int(self.segments[0, 0]))

    def share(self, make: Callable[[], T], *inputs: Any) -> T:
        """Return `make()`, once per host for large inputs (see `mapped_tables.share`)."""
        return share(make, *inputs, cache=self.catalog.files.cache)

    @staticmethod
    def prompt_names(catalog: Catalog) -> list[str]:
        """Return the names that `prompt_metadata` may have of a dataset: metadata of episodes, and
        features with one number or text per frame.
        """
        return prompt_names(catalog)

    @property
    def reach(self) -> tuple[int, int]:
        """Frames that image windows reach (back, ahead); (0, 0) when images have no windows."""
        return reach(
            [self.offsets[k] for k in (*self.video_keys, *self.image_keys) if k in self.offsets]
        )

    def reach_of(self, key: str) -> tuple[int, int]:
        """Return the frames that the window of `key` reaches (back, ahead); (0, 0) without a
        window.
        """
        windows = [self.offsets[key]] if key in self.offsets else []
        return reach(windows)

    @property
    def window_stops(self) -> np.ndarray:
        """int64 (K,): end (exclusive) of the windows of each segment, in frames of its episode (see
        `Selection`).
        """
        return self._table.stops

    @property
    def windows(self) -> dict[str, int]:
        """Key -> window length T, for keys with a window."""
        return {key: len(offsets) for key, offsets in (self.offsets | self.sensor_offsets).items()}

    @cached_property
    def gop(self) -> int:
        """Longest GOP (frames between key frames) of any camera; 1 where no video is read.

        Measured on each camera's first readable video of the selection.

        Raises:
            DatasetError: no video of a camera can be opened.
        """
        return max([1, *(self._measure_gop(camera) for camera in self.video_keys)])

    def _measure_gop(self, camera: str) -> int:
        file = self.catalog.videos(camera).file
        table = self.catalog.episodes
        find = partial(_rows_of_videos, table, file, self.episodes)
        error: DatasetError | None = None
        for row in self.share(find, table.ids, file, self.episodes).tolist():
            try:
                return self.video_frames.facts(camera, row).gop
            except DatasetError as wrong:
                error = error or wrong
        if error is not None:
            raise error
        return 1

    @property
    def notes(self) -> tuple[str, ...]:
        """Irregularities of the selection and of the files read so far; see `Catalog.report` for
        the metadata.
        """
        return (*self._notes, *self._sensors.notes, *self._rows.notes, *self.video_frames.notes)

    def __repr__(self) -> str:
        size = f"{len(self)} samples of {self.num_episodes} episodes"
        return f"{type(self).__name__}({self.catalog.root!r}: {size}, {', '.join(self.keys)})"

    def __len__(self) -> int:
        return len(self._table)

    def __getitem__(self, index: int) -> dict[str, Any]:
        """Sample number `index` of the selection, in storage order; negative numbers count from the
        end.
        """
        return self.__getitems__([index])[0]

    def __getitems__(self, indices: Sequence[int]) -> list[dict[str, Any]]:
        """Return several samples; torch's DataLoader calls this, so each file is opened once per
        batch.
        """
        batch = self.batch(*self.locate(indices))
        samples = []
        for i in range(len(indices)):
            samples.append({key: value[i] for key, value in batch.items()})
        return samples

    def locate(self, indices: Sequence[int] | np.ndarray) -> tuple[np.ndarray, np.ndarray]:
        """Return (episode ids, frames), int64 (B,) each, of sample numbers; negative numbers count
        from the end.
        """
        return self._table.locate(indices)

    def sample(self, episode: int, frame: int) -> dict[str, Any]:
        """Return the sample at one frame of an episode (see `batch`)."""
        batch = self.batch(np.asarray([episode]), np.asarray([frame]))
        return {key: value[0] for key, value in batch.items()}

    def batch(self, episodes: np.ndarray, frames: np.ndarray) -> dict[str, Any]:
        """Return samples stacked along a leading dimension B; strings as lists.

        Args:
            episodes: int (B,), episode ids.
            frames: int (B,), frame numbers inside the episodes.

        Raises:
            DatasetError: a frame is not selected, or cannot be read.
        """
        out = self.row_batch(episodes, frames)
        rows, numbers = self.frames_to_decode(episodes, frames)
        for key, frame_numbers in numbers.items():
            out[key] = self._as_value(self.video_frames.take(key, rows, frame_numbers))
        for camera in self.missing_cameras:
            out[camera] = self.black_images(camera, len(rows))
        if self.image_transforms is not None:
            for key in (*self.video_keys, *self.image_keys, *self.missing_cameras):
                if not self.pixels(key).is_depth:
                    out[key] = self._stack([self.image_transforms(images) for images in out[key]])
        return out

    def prefetch_rows(self, rows: np.ndarray) -> None:
        """Start to fetch the columns of episodes (table rows) of a remote dataset. Returns at
        once.
        """
        self._rows.prefetch(rows)

    def keep_rows(
        self, columns: int, images: int, readers: int = 1, parts: int = PART_BYTES
    ) -> None:
        """Set the memory for rows.

        Args:
            columns: bytes for columns that are not mapped.
            images: bytes for encoded images that are stored in rows.
            readers: data files that are decoded at the same time, to be mapped.
            parts: bytes for columns of single episodes of data files on a server.
        """
        self._rows.keep(columns, parts)
        self._stored.keep(images)
        self.row_tables.limit(readers)

    def pixels(self, camera: str) -> Pixels:
        """Channels and dtype of the images of a camera, which may be a missing one."""
        return RGB if camera in self.missing_cameras else self.catalog.features[camera].pixels

    def black_images(self, camera: str, count: int) -> Any:
        """Return black images of a missing camera: uint8 (count, 3, H, W), or (count, T, 3, H, W)
        for a window.
        """
        window = [len(self.offsets[camera])] if camera in self.offsets else []
        return self._as_value(
            np.zeros((count, *window, 3, *self.missing_cameras[camera]), np.uint8)
        )

    def row_batch(self, episodes: np.ndarray, frames: np.ndarray) -> dict[str, Any]:
        """Return `batch` without the frames decoded from video (but with their `<key>_is_pad`),
        untransformed.
        """
        rows, frames, stop = self._locate_rows(episodes, frames)
        frames_of: dict[str, np.ndarray] = {}
        out: dict[str, Any] = {}
        for camera in self.missing_cameras:
            out[f"{camera}_is_missing"] = self._as_value(np.ones(len(rows), bool))
            if camera in self.offsets:
                out[f"{camera}_is_pad"] = self._as_value(
                    np.ones((len(rows), len(self.offsets[camera])), bool)
                )
        for key in (*self._columns, *self.video_keys, *self.image_keys):
            frames_of[key] = frames
            if key in self.offsets:
                frames_of[key], pad = window(frames, self.offsets[key], np.zeros_like(frames), stop)
                out[f"{key}_is_pad"] = self._as_value(pad)
        taken = self._rows.take(rows, {key: frames_of[key] for key in self._columns})
        for key, value in taken.items():
            out[key] = self._as_value(value) if isinstance(value, np.ndarray) else value
        out |= {
            key: self._as_value(value)
            for key, value in self._sensors.take(rows, frames, stop).items()
        }
        for key in self.image_keys:
            out[key] = self._as_value(
                self._stored.take(key, rows, self._rows.file_rows(rows, frames_of[key]))
            )
        has_window = "task_index" in self.offsets
        of_frames = self._rows.take(rows, {"task_index": frames}) if has_window else taken
        task_numbers = np.asarray(of_frames["task_index"]).tolist()
        out["task"] = [self.catalog.tasks[int(task)] for task in task_numbers]
        if self.frame_weights is not None and self.frame_weights.weighs_loss:
            out[LOSS_WEIGHT] = self._as_value(
                self.frame_weights.loss_factors(np.asarray(episodes), frames)
            )
        if self.returns is not None:
            out |= {
                key: self._as_value(value) for key, value in self.returns.read(rows, frames).items()
            }
        return (
            out
            | self.prompts.read(rows, frames)
            | self._responses.read(self._rows, rows, frames, out["task"])
        )

    def frames_to_decode(
        self, episodes: np.ndarray, frames: np.ndarray
    ) -> tuple[np.ndarray, dict[str, np.ndarray]]:
        """Return the frames that `batch` decodes from video.

        Returns:
            Table rows int64 (B,), and key -> frame numbers int64 (B,) or (B, T). Frame numbers
            count inside the row's episode and are clamped to the window's bounds.
        """
        rows, frames, stop = self._locate_rows(episodes, frames)
        frames_of = {}
        for key in self.video_keys:
            frames_of[key] = frames
            if key in self.offsets:
                frames_of[key] = window(frames, self.offsets[key], np.zeros_like(frames), stop)[0]
        return rows, frames_of

    def _locate_rows(
        self, episodes: np.ndarray, frames: np.ndarray
    ) -> tuple[np.ndarray, np.ndarray, np.ndarray]:
        """Table rows, frames, and the end of each sample's windows, int64 (B,) each."""
        episodes = as_integers(episodes, "episodes")
        frames = as_integers(frames, "frames")
        stop = self._table.stops[self._table.find(episodes, frames)]
        return self.catalog.episodes.rows_of(episodes), frames, stop
