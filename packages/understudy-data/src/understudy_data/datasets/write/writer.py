"""`EpisodeWriter`: record episodes as a LeRobot v3.0 dataset that is valid after every episode.

    with EpisodeWriter("my_data", fps=30, features={
        "observation.images.top": {"dtype": "video", "shape": (480, 640, 3)},
        "observation.state": {"dtype": "float32", "shape": (6,), "names": [...]},
        "action": {"dtype": "float32", "shape": (6,)},
    }) as writer:
        for ...:
            writer.add_frame({"observation.images.top": image, ...}, task="pick up the red block")
        writer.save_episode()

The folder is a valid dataset at every instant, `kill -9` included. It holds exactly the episodes
that `save_episode` committed (see `dataset_files.py`; before the first one `Catalog.open` reports
that there is no episode). `resume=True` removes the remains of a killed recording and continues;
without a new episode a finished recording keeps every byte. `stats.json` may lack the last tenth of
the frames until `finish`.

Only episode tables count as committed. A resume computes totals and statistics from them and from
the files they name. Numbers are read back exactly. Images are decoded from the recorded files,
those that count in a recording of this length (`counted_images`). So the figures equal those of an
uninterrupted recording.
"""

import fcntl
import io
import json
import os
import shutil
import weakref
from collections.abc import Iterator, Mapping, Sequence
from itertools import chain
from pathlib import Path
from types import TracebackType
from typing import Any, Self

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
from PIL import Image

from understudy_base import DatasetError, Record, draft_path, is_boolean
from understudy_data.datasets.format.features import DEFAULTS, NUMBERS, Feature, check_name
from understudy_data.datasets.format.layouts import episode_files
from understudy_data.datasets.stats.running import (
    ImageStatistics,
    RunningStatistics,
    counted_images,
)
from understudy_data.datasets.write.dataset_files import (
    DATA_PATH,
    EPISODES_PATH,
    MARK,
    SMALL_FILES,
    VIDEO_PATH,
    Group,
    commit,
    data_schema,
    empty_group,
    episode_columns,
    episode_schema,
    feature_entries,
    file_numbers,
    file_path,
    is_full,
    number_statistics,
    pack,
    remove_orphans,
    replace_parquet,
    small_files,
    statistic_columns,
    stats_json,
    to_column,
    video_keys,
)
from understudy_data.datasets.write.written_files import DatasetFiles
from understudy_data.storage.dataset_root import Files
from understudy_data.video.encode import VideoEncoder, codec_name
from understudy_data.video.reader import VideoReader, open_video

_BATCH = 16  # images in memory


def check_features(features: Mapping[str, Record], codec: str = "libsvtav1") -> dict[str, Feature]:
    """Return the features to record, followed by the five default columns; `codec` encodes the
    videos.

    Raises:
        ValueError: LeRobot v3.0 cannot hold a feature; names the key and the rule.
    """
    checked: dict[str, Feature] = {}
    for key, entry in features.items():
        extra = set(entry) - {"dtype", "shape", "names"}
        check_name(key)
        if extra or "dtype" not in entry:
            raise ValueError(
                f"feature {key!r}: give dtype, shape and names, not {', '.join(sorted(entry))}"
            )
        dtype = str(entry["dtype"])
        names = entry.get("names")
        sizes = entry.get("shape", (1,))
        if any(map(is_boolean, sizes)):
            raise ValueError(
                f"feature {key!r}: shape {sizes} must have one to five positive sizes; a scalar is "
                "(1,)"
            )
        shape = tuple(map(int, sizes))
        if dtype not in (*NUMBERS, "string", "video", "image"):
            raise ValueError(
                f"feature {key!r}: dtype {dtype!r} is not one of {', '.join(NUMBERS)}, string, "
                "video, image"
            )
        if not shape or min(shape) < 1 or len(shape) > 5:
            raise ValueError(
                f"feature {key!r}: shape {shape} must have one to five positive sizes; a scalar is "
                "(1,)"
            )
        if dtype == "string" and shape != (1,):
            raise ValueError(f"feature {key!r}: strings have shape (1,), not {shape}")
        if dtype in ("video", "image"):
            if len(shape) != 3 or shape[2] != 3:
                raise ValueError(
                    f"feature {key!r}: images have shape (height, width, 3), not {shape}"
                )
            if dtype == "video":
                Feature.video(key, shape[:2], codec)
            names = names or ["height", "width", "channels"]
        if isinstance(names, Sequence) and not isinstance(names, str):
            names = list(names)
        checked[key] = Feature(key, dtype, shape, names)
    if not checked:
        raise ValueError("features is empty: name at least one")
    return checked | DEFAULTS


def check_frame(values: Record, features: Mapping[str, Feature], allow_nan: bool) -> dict[str, Any]:
    """Convert the values of one frame to their features' dtypes; images stay uint8 (H, W, 3)
    arrays.

    Lists and plain numbers are taken as arrays. Floats are rounded to the feature's precision.
    Integers are taken where the feature's dtype holds them exactly. Floats are not integers, and
    nothing but bool is a bool.

    Raises:
        ValueError: a value breaks a rule; names the key and the rule.
    """
    expected = features.keys() - DEFAULTS.keys()
    if values.keys() != expected:
        missing = sorted(expected - values.keys())
        extra = sorted(values.keys() - expected)
        parts = [f"without {', '.join(missing)}"] * bool(missing) + [
            f"with unknown {', '.join(extra)}"
        ] * bool(extra)
        raise ValueError(f"frame {' and '.join(parts)}: give exactly {', '.join(sorted(expected))}")
    return {
        key: _check_value(key, values[key], features[key], allow_nan)
        for key in features
        if key in expected
    }


def _check_value(key: str, value: Any, feature: Feature, allow_nan: bool) -> Any:
    if feature.dtype == "string":
        if not isinstance(value, str):
            raise ValueError(f"{key!r}: {type(value).__name__}, expected a string")
        return value
    array = np.asarray(value)
    if feature.shape == (1,) and array.shape == ():
        array = array.reshape(1)
    if array.shape != feature.shape:
        raise ValueError(f"{key!r}: shape {array.shape}, expected {feature.shape}")
    want: np.dtype[Any] = np.dtype("uint8") if feature.is_encoded else np.dtype(feature.dtype)
    if feature.is_encoded or want.kind == "b":
        if array.dtype != want:
            raise ValueError(f"{key!r}: dtype {array.dtype}, expected {want}")
        # images are encoded at once; other values are kept
        return array if feature.is_encoded else array.copy()
    kinds = "iuf" if want.kind == "f" else "iu"
    if array.dtype.kind not in kinds:
        raise ValueError(f"{key!r}: dtype {array.dtype} cannot become {want}")
    with np.errstate(over="ignore", invalid="ignore"):
        cast = array.astype(want)  # always a copy: the caller may reuse its buffer
        # NumPy compares int64 with float64 as floats
        exact = (cast == array) & (cast.astype(array.dtype) == array)
    if array.dtype.kind in "iu" and not exact.all():
        raise ValueError(f"{key!r}: {array.flat[int(np.argmin(exact))]} does not fit into {want}")
    if want.kind != "f":
        return cast
    is_wrong = ~np.isfinite(cast)
    if allow_nan:
        is_wrong &= np.isfinite(array)
    if is_wrong.any():
        where = tuple(int(i) for i in np.argwhere(is_wrong)[0])
        fix = "allow_nan=True records it"
        if np.isfinite(array[where]):
            fix = "its dtype has no such number"
        raise ValueError(f"{key!r}: {array[where]} at {where} is not a finite {want} ({fix})")
    return cast


def encode_png(image: np.ndarray) -> bytes:
    """Encode uint8 (H, W, 3) as PNG at the fastest compression, since recording is
    time-critical.
    """
    buffer = io.BytesIO()
    Image.fromarray(image).save(buffer, "PNG", compress_level=1)
    return buffer.getvalue()


Statistics = dict[str, RunningStatistics | ImageStatistics]


class EpisodeWriter:
    """Records episodes into a folder. Use as a context manager, from one thread.

    Args:
        root: the folder.
        fps: frames per second, an integer.
        features: key -> {"dtype", "shape", "names"}; dtype is "video" (encoded), "image" (PNG in
            the rows), a numpy number type, "bool" or "string".
        robot_type: stored in info.json.
        codec: video encoder (see `VideoEncoder`).
        gop: frames from key frame to key frame.
        crf: quality of the encoder.
        data_file_mb: size at which a packed data file is closed.
        video_file_mb: size at which a packed video file is closed.
        allow_nan: record values that are not finite instead of refusing them.
        resume: continue an existing recording, or begin one in an empty folder.

    Raises:
        ValueError: the format cannot hold these settings.
        DatasetError: the folder is not empty (without `resume`), was not recorded by EpisodeWriter,
            was recorded with other settings, or is in use by another writer.
    """

    def __init__(
        self,
        root: str | os.PathLike[str],
        *,
        fps: int,
        features: Mapping[str, Record],
        robot_type: str | None = None,
        codec: str = "libsvtav1",
        gop: int = 2,
        crf: int | None = None,
        data_file_mb: float = 100,
        video_file_mb: float = 200,
        allow_nan: bool = False,
        resume: bool = False,
    ) -> None:
        codec_name(codec)
        if (
            is_boolean(fps)
            or fps != int(fps)
            or fps < 1
            or gop < 1
            or min(data_file_mb, video_file_mb) <= 0
        ):
            raise ValueError(
                f"fps={fps}, gop={gop}: give integers from 1 on; file sizes must be positive"
            )
        self.root = Path(root)
        self.fps = int(fps)
        self.features = check_features(features, codec)
        self._codec = codec
        self._gop = gop
        self._crf = crf
        self._allow_nan = allow_nan
        self._robot_type = robot_type
        self._data_mb = data_file_mb
        self._video_mb = video_file_mb
        self._entries = feature_entries(self.features, self.fps, codec, gop, crf)
        self.tasks: list[str] = []
        self.episodes = self.frames = 0
        self._group = empty_group(0, self.features)
        self._statistics = _accumulators(self.features)
        self._measured = 0  # frames that stats.json covers
        self._changed = False  # episodes were added since the last packing
        if self.root.is_dir() and any(self.root.iterdir()):
            if not resume:
                raise DatasetError(
                    "is not empty", where=self.root, fix="name a new folder, or pass resume=True"
                )
            self._lock = _lock_folder(self)
            try:
                self._resume()
            except BaseException:
                self._lock()
                raise
        elif self.root.exists() and not self.root.is_dir():
            raise DatasetError("is a file", where=self.root, fix="name a new folder")
        else:
            self._create()
            self._lock = _lock_folder(self)
        self._clear()

    # -- one frame, one episode --------------------------------------------------------------------

    def add_frame(self, values: Record, task: str) -> None:
        """Add a frame to the current episode. Index, timestamp and task columns are filled in.

        Args:
            values: one value per feature: numbers of the feature's shape (a plain number for shape
                (1,)), uint8 (height, width, 3) RGB for images, str for strings.
            task: description of the task.

        Raises:
            ValueError: a value breaks a rule; names the key and the rule. The frame is not added.
        """
        self._check_open()
        if not isinstance(task, str) or not task.strip():
            raise ValueError(f"task={task!r}: give a text")
        frame = check_frame(values, self.features, self._allow_nan)
        for key in video_keys(self.features):
            if key not in self._encoders:
                path = small_files(self.root, self.features, self._group.next_file)[key]
                path.parent.mkdir(parents=True, exist_ok=True)
                height, width, _ = self.features[key].shape
                self._encoders[key] = VideoEncoder(
                    path, self.fps, height, width, self._codec, self._gop, self._crf
                )
        for key, value in frame.items():
            feature = self.features[key]
            if feature.is_video:
                self._encoders[key].add(value)
                continue
            stored = value
            if feature.is_encoded:
                stored = encode_png(value)
                if len(self._frame_tasks) % ImageStatistics.step(feature.shape[:2]) == 0:
                    self._images[key].add(value)  # PNG is lossless
            self._columns[key].append(stored)
        self._frame_tasks.append(task)

    def save_episode(self) -> int:
        """Commit the frames added since the last call as an episode; return its number.

        After the return the episode survives the end of the process. On an error the episode is
        dropped and the dataset is unchanged.
        """
        self._check_open()
        if not self._frame_tasks:
            raise ValueError("the episode has no frames: add_frame comes before save_episode")
        try:
            row, values = self._write_files()
            commit(self.root, self.features, self._group, row)
        except BaseException:
            self.discard_episode()
            raise
        episode = self.episodes
        self.episodes = self.episodes + 1
        self.frames += row["length"]
        for key, part in self._statistics.items():  # per episode, as a resume does
            if isinstance(part, ImageStatistics):
                part.merge(self._images[key])
            else:
                part.add(values[key])
        self._changed = True
        self._clear()
        full = is_full(self._group, self._data_mb, self._video_mb)
        self._write_totals(statistics=full or self.frames >= 1.1 * self._measured)
        if full:
            self._group = pack(self.root, self.features, self._group, self.fps)
        return episode

    def discard_episode(self) -> None:
        """Drop the frames added since the last `save_episode`."""
        for encoder in self._encoders.values():
            encoder.abandon()
        self._clear()

    def finish(self) -> None:
        """Pack the small files and end the recording. Unsaved frames are an error."""
        if not self._lock.alive:
            return
        if self._frame_tasks:
            problem = f"{len(self._frame_tasks)} frames were added and not saved"
            raise ValueError(f"{problem}: call save_episode or discard_episode before finish")
        if self._changed:
            self._write_totals(statistics=True)
            self._group = pack(self.root, self.features, self._group, self.fps)
        self._lock()

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        traceback: TracebackType | None,
    ) -> None:
        if kind is None:
            self.finish()
        else:  # saved episodes stay in small files; the next writer packs them
            self.discard_episode()
            self._lock()

    # -- files -------------------------------------------------------------------------------------

    def _write_files(self) -> tuple[dict[str, Any], dict[str, np.ndarray]]:
        """Write the episode's own files; return its row of meta/episodes, without file places, and
        its numbers.
        """
        length = len(self._frame_tasks)
        tasks = list(dict.fromkeys(self._frame_tasks))
        all_tasks = self.tasks + [task for task in tasks if task not in self.tasks]
        index_of = {task: number for number, task in enumerate(all_tasks)}
        defaults: dict[str, np.ndarray] = {
            "timestamp": (np.arange(length) / self.fps).astype(np.float32),
            "frame_index": np.arange(length),
            "episode_index": np.full(length, self.episodes),
            "index": np.arange(self.frames, self.frames + length),
            "task_index": np.array([index_of[task] for task in self._frame_tasks]),
        }
        for key, encoder in self._encoders.items():
            encoder.close()
            step = ImageStatistics.step(self.features[key].shape[:2])
            for image in _read_every(encoder.path, step):
                self._images[key].add(image)
        schema = data_schema(self.features)
        statistics = _accumulators(self.features)
        arrays = []
        numbers = dict[str, np.ndarray]()
        for key in schema.names:
            values: Any = defaults[key].reshape(-1, 1) if key in defaults else self._columns[key]
            arrays.append(to_column(values, self.features[key]))
            column = statistics.get(key)
            if isinstance(column, RunningStatistics):
                numbers[key] = np.stack(values)
                column.add(numbers[key])
        path = small_files(self.root, self.features, self._group.next_file)[""]
        replace_parquet(path, [pa.Table.from_arrays(arrays, schema=schema)], schema)
        if len(all_tasks) > len(self.tasks):
            self._write_tasks(all_tasks)
        row = episode_columns(self.episodes, tasks, length, self.frames)
        for key in video_keys(self.features):
            row |= {
                f"videos/{key}/from_timestamp": 0.0,
                f"videos/{key}/to_timestamp": length / self.fps,
            }
        for key, part in (statistics | self._images).items():
            row |= statistic_columns(self.features[key], part.result())
        return row, numbers

    def _write_tasks(self, tasks: list[str]) -> None:
        self._files().write_tasks(tasks)
        self.tasks = tasks

    def _files(self, root: Path | None = None) -> DatasetFiles:
        return DatasetFiles(root or self.root, self.features)

    def _write_totals(self, statistics: bool) -> None:
        """Update info.json, and stats.json on request, to the committed episodes."""
        if statistics and self.frames:
            content = stats_json(self.features, self._statistics)
            self._files().write_json("meta/stats.json", content)
            self._measured = self.frames
        self._write_info(self._files())

    def _write_info(self, files: DatasetFiles) -> None:
        files.write_info(
            self._entries,
            fps=self.fps,
            robot_type=self._robot_type,
            episodes=self.episodes,
            frames=self.frames,
            tasks=len(self.tasks),
            data_file_mb=self._data_mb,
            video_file_mb=self._video_mb,
        )

    def _create(self) -> None:
        """Create an empty dataset atomically."""
        self.root.parent.mkdir(parents=True, exist_ok=True)
        draft = draft_path(self.root)
        try:
            (draft / "meta").mkdir(parents=True)
            schema = episode_schema(self.features)
            files = self._files(draft)
            replace_parquet(files.episodes(0), [schema.empty_table()], schema)
            files.write_tasks([])
            self._write_info(files)
            os.replace(draft, self.root)
        except BaseException:  # a signal, too
            shutil.rmtree(draft, ignore_errors=True)
            raise

    def _resume(self) -> None:
        """Continue from the committed state.

        Raises:
            DatasetError: the folder holds no recording that can be continued.
        """
        fix = "record into a new folder"
        try:
            info = json.loads((self.root / "meta/info.json").read_bytes())
            tables = [
                pq.read_table(self.root / name, use_threads=False)
                for name in episode_files(Files(self.root))
            ]
            listed = pq.read_table(self.root / "meta/tasks.parquet", use_threads=False)
        except (OSError, ValueError, pa.ArrowException) as error:
            problem = f"is not a recording that can be continued: {str(error).splitlines()[0]}"
            raise DatasetError(problem, where=self.root, fix=fix) from None
        if not tables or not all(
            MARK.items() <= (table.schema.metadata or {}).items() for table in tables
        ):
            raise DatasetError(
                "was not recorded by EpisodeWriter and cannot be continued",
                where=self.root,
                fix=fix,
            )
        self._check_settings(info)
        schema = episode_schema(self.features)
        tables = [table.select(schema.names).cast(schema) for table in tables]
        rows = pa.concat_tables(tables)
        self.episodes = rows.num_rows
        self.frames = int(np.sum(rows["length"].to_numpy()))
        if rows["episode_index"].to_pylist() != list(range(self.episodes)):
            raise DatasetError(
                "its episodes are not numbered 0, 1, 2, ...",
                where=self.root / EPISODES_PATH,
                fix=fix,
            )
        number = len(tables) - 1
        is_packed = number in file_numbers(tables[-1], "data")
        if is_packed:
            self._group = empty_group(number + 1, self.features, self.episodes)
        else:
            self._group = Group(number, tables[-1], SMALL_FILES + self.episodes)
        tasks: list[str] = listed.column("task").to_pylist()
        used = set(chain.from_iterable(rows["tasks"].to_pylist()))
        while tasks and tasks[-1] not in used:  # belongs to an uncommitted episode
            tasks.pop()
        self.tasks = tasks
        remove_orphans(self.root, self.features, rows)
        if self._robot_type is None:
            self._robot_type = info.get("robot_type")
        # before the small files are packed
        _rebuild_statistics(self.root, self.features, rows, self._statistics)
        totals = [info.get(f"total_{name}") for name in ("episodes", "frames", "tasks")]
        is_finished = (
            totals == [self.episodes, self.frames, len(tasks)] and len(tasks) == listed.num_rows
        )
        is_finished &= self._group.rows.num_rows == 0 and (
            self.frames == 0 or _counted_frames(self.root) == self.frames
        )
        if not is_finished:
            self._write_tasks(tasks)
            self._write_totals(statistics=True)
            # Pack the open group now: joined videos need the same encoder settings, and ours may
            # differ.
            self._group = pack(self.root, self.features, self._group, self.fps)

    def _check_settings(self, info: Record) -> None:
        """Refuse a recording with other settings."""
        shapes = _fixed_settings(info.get("features", {}))
        expected = _fixed_settings(self._entries)
        if shapes != expected or info.get("fps") != self.fps:
            differ = sorted(
                key
                for key in shapes.keys() | expected.keys()
                if shapes.get(key) != expected.get(key)
            )
            of = f" with other settings of {', '.join(differ)}" if differ else ""
            fix = "continue with the same fps, features and codec, or record into a new folder"
            raise DatasetError(
                f"was recorded at {info.get('fps')} fps{of}", where=self.root, fix=fix
            )

    # -- state -------------------------------------------------------------------------------------

    def _clear(self) -> None:
        self._encoders: dict[str, VideoEncoder] = {}
        self._columns: dict[str, list[Any]] = {key: [] for key in self.features}
        self._images = {
            key: ImageStatistics(first=part.images)
            for key, part in self._statistics.items()
            if isinstance(part, ImageStatistics)
        }
        self._frame_tasks: list[str] = []

    def _check_open(self) -> None:
        if not self._lock.alive:
            raise ValueError(f"{self.root}: the recording is finished")


def _lock_folder(owner: EpisodeWriter) -> "weakref.finalize[..., EpisodeWriter]":
    """Lock the folder until its owner or the process ends, so that one writer records at a time."""
    handle = os.open(owner.root, os.O_RDONLY)
    try:
        fcntl.flock(handle, fcntl.LOCK_EX | fcntl.LOCK_NB)
    except OSError:
        os.close(handle)
        raise DatasetError(
            "is in use by another writer", where=owner.root, fix="wait for it"
        ) from None
    return weakref.finalize(owner, os.close, handle)


def _fixed_settings(entries: Record) -> dict[str, tuple[Any, ...]]:
    """Dtype, shape and codec of each feature, which a recording keeps."""
    settings = {}
    for key, entry in entries.items():
        codec = entry.get("info", {}).get("video.codec")
        settings[key] = (entry.get("dtype"), list(entry.get("shape", [])), codec)
    return settings


def _accumulators(features: Mapping[str, Feature]) -> Statistics:
    """Create the statistics of each feature that has any."""
    statistics: Statistics = {}
    for key, feature in features.items():
        if feature.is_encoded:
            statistics[key] = ImageStatistics()
        elif feature.dtype != "string":
            statistics[key] = number_statistics(feature)
    return statistics


def _counted_frames(root: Path) -> int | None:
    """Frames that stats.json covers."""
    try:
        return int(json.loads((root / "meta/stats.json").read_bytes())["index"]["count"][0])
    except (OSError, ValueError, LookupError, TypeError):
        return None


def _rebuild_statistics(
    root: Path, features: Mapping[str, Feature], rows: pa.Table, statistics: Statistics
) -> None:
    """Fill empty statistics from the recorded files."""
    for key, part in statistics.items():
        if isinstance(part, ImageStatistics):
            _add_images(root, features[key], rows, part)
    numbers = [key for key, part in statistics.items() if isinstance(part, RunningStatistics)]
    for path in _data_files(root, rows):
        with pq.ParquetFile(path) as file:
            for group in range(file.num_row_groups):
                table = file.read_row_group(group, columns=numbers, use_threads=False)
                for key in numbers:
                    column = table.column(key)
                    part = statistics[key]
                    assert isinstance(part, RunningStatistics)
                    while pa.types.is_list(column.type) or pa.types.is_fixed_size_list(column.type):
                        column = pa.chunked_array(
                            [chunk.flatten() for chunk in column.chunks], column.type.value_type
                        )
                    part.add(column.to_numpy().reshape(-1, *features[key].shape))


def _data_files(root: Path, rows: pa.Table) -> Iterator[Path]:
    return (
        root / file_path(DATA_PATH, number) for number in dict.fromkeys(file_numbers(rows, "data"))
    )


def _add_images(root: Path, feature: Feature, rows: pa.Table, part: ImageStatistics) -> None:
    """Add the recorded images of one camera."""
    lengths = rows["length"].to_numpy()
    step = ImageStatistics.step(feature.shape[:2])
    counts = -(-lengths // step)  # measured images of each episode
    total = int(counts.sum())
    numbers = np.array(counted_images(0, total, part.keep), np.int64)
    episodes = np.searchsorted(np.cumsum(counts), numbers, side="right")
    frames = (np.cumsum(lengths) - lengths)[episodes] + step * (
        numbers - (np.cumsum(counts) - counts)[episodes]
    )
    read = _read_videos if feature.is_video else _read_image_column
    for number, image in zip(numbers.tolist(), read(root, feature.key, rows, frames), strict=True):
        part.skip(number - part.images)
        part.add(image)
    part.skip(total - part.images)


def _read_every(path: Path, step: int) -> Iterator[np.ndarray]:
    """Yield frames 0, step, 2 * step, ... of a video, uint8 (H, W, 3)."""
    video = open_video(path)
    try:
        yield from _read_batches(video, np.arange(0, video.count, step))
    finally:
        video.close()


def _read_batches(video: VideoReader, positions: np.ndarray) -> Iterator[np.ndarray]:
    for first in range(0, len(positions), _BATCH):
        yield from video.read(positions[first : first + _BATCH])


def _read_videos(root: Path, key: str, rows: pa.Table, frames: np.ndarray) -> Iterator[np.ndarray]:
    """Yield frames of a camera, numbered from the first frame of the recording, uint8 (H, W, 3)."""
    begin = 0
    for number in dict.fromkeys(file_numbers(rows, f"videos/{key}")):
        video = open_video(root / file_path(VIDEO_PATH, number, key))
        try:
            first, last = np.searchsorted(frames, [begin, begin + video.count])
            yield from _read_batches(video, frames[first:last] - begin)
            begin += video.count
        finally:
            video.close()


def _read_image_column(
    root: Path, key: str, rows: pa.Table, frames: np.ndarray
) -> Iterator[np.ndarray]:
    """Yield images of an image column, uint8 (H, W, 3)."""
    begin = 0
    for path in _data_files(root, rows):
        with pq.ParquetFile(path) as file:
            for group in range(file.num_row_groups):
                count = file.metadata.row_group(group).num_rows
                first, last = np.searchsorted(frames, [begin, begin + count])
                if first < last:
                    column = file.read_row_group(group, columns=[key], use_threads=False).column(
                        key
                    )
                    for row in (frames[first:last] - begin).tolist():
                        image = Image.open(io.BytesIO(column[row]["bytes"].as_py())).convert("RGB")
                        yield np.asarray(image)
                begin += count
