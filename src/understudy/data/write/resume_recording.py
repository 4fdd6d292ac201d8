"""Resume of a recording that ended in any way: its committed episodes and their statistics.

Only episode tables count as committed. Totals and statistics are recomputed from them and from the files they name.
Numbers are read back exactly. Images are decoded from the recorded files, those that count in a recording of this
length (`image_statistics.counted_images`). So the figures equal those of an uninterrupted recording.
"""

import io
import json
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
from PIL import Image

from understudy.data.format.features import Feature
from understudy.data.format.lerobot_v3 import episode_files
from understudy.data.stats.running import ImageStatistics, RunningStatistics, counted_images, image_step
from understudy.data.write.dataset_files import (
    DATA_PATH,
    EPISODES_PATH,
    MARK,
    VIDEO_PATH,
    Group,
    empty_group,
    episode_schema,
    file_numbers,
    file_path,
)
from understudy.errors import DatasetError
from understudy.storage.dataset_root import Files
from understudy.video.reader import VideoReader, open_video

_BATCH = 16  # images in memory


@dataclass
class Recording:
    """Committed state of a recording.

    Attributes:
        tables: the tables of meta/episodes, in order.
        tasks: task texts by index.
        group: the open group.
        episodes: number of episodes.
        frames: number of frames.
        robot_type: as recorded.
        finished: nothing is left to pack or rewrite.
    """

    tables: list[pa.Table]
    tasks: list[str]
    group: Group
    episodes: int
    frames: int
    robot_type: str | None
    finished: bool


def load_recording(root: Path, features: Mapping[str, Feature], entries: Mapping[str, Any], fps: int) -> Recording:
    """Read the committed state.

    Raises:
        DatasetError: `EpisodeWriter` cannot continue this recording.
    """
    fix = "record into a new folder"
    try:
        info = json.loads((root / "meta/info.json").read_bytes())
        tables = [pq.read_table(root / name, use_threads=False) for name in episode_files(Files(root))]
        listed = pq.read_table(root / "meta/tasks.parquet", use_threads=False)
    except (OSError, ValueError, pa.ArrowException) as error:
        problem = f"is not a recording that can be continued: {str(error).splitlines()[0]}"
        raise DatasetError(problem, where=root, fix=fix) from None
    if not tables or not all(MARK.items() <= (table.schema.metadata or {}).items() for table in tables):
        raise DatasetError("was not recorded by EpisodeWriter and cannot be continued", where=root, fix=fix)
    shapes, expected = _settings(info.get("features", {})), _settings(entries)
    if shapes != expected or info.get("fps") != fps:
        differ = sorted(key for key in shapes.keys() | expected.keys() if shapes.get(key) != expected.get(key))
        of = f" with other settings of {', '.join(differ)}" if differ else ""
        fix = "continue with the same fps, features and codec, or record into a new folder"
        raise DatasetError(f"was recorded at {info.get('fps')} fps{of}", where=root, fix=fix)
    schema = episode_schema(features)
    tables = [table.select(schema.names).cast(schema) for table in tables]
    number = len(tables) - 1
    packed = number in file_numbers(tables[-1], "data")
    group = empty_group(number + 1, features) if packed else Group(number, tables[-1], number + 1)
    episodes = sum(table.num_rows for table in tables)
    ids = [int(i) for table in tables for i in table.column("episode_index").to_pylist()]
    if ids != list(range(episodes)):
        raise DatasetError("its episodes are not numbered 0, 1, 2, ...", where=root / EPISODES_PATH, fix=fix)
    tasks: list[str] = listed.column("task").to_pylist()
    used = {task for table in tables for row in table.column("tasks").to_pylist() for task in row}
    while tasks and tasks[-1] not in used:  # belongs to an uncommitted episode
        tasks.pop()
    frames = sum(int(np.sum(table.column("length").to_numpy())) for table in tables)
    totals = [info.get(f"total_{name}") for name in ("episodes", "frames", "tasks")]
    finished = group.rows.num_rows == 0 and len(tasks) == listed.num_rows and totals == [episodes, frames, len(tasks)]
    finished = finished and (frames == 0 or _counted_frames(root) == frames)
    return Recording(tables, tasks, group, episodes, frames, info.get("robot_type"), finished)


def _counted_frames(root: Path) -> int | None:
    """Frames that stats.json covers."""
    try:
        return int(json.loads((root / "meta/stats.json").read_bytes())["index"]["count"][0])
    except (OSError, ValueError, LookupError, TypeError):
        return None


def _settings(entries: Mapping[str, Any]) -> dict[str, tuple[Any, ...]]:
    """Settings of each feature of info.json that must not change."""
    return {
        key: (entry.get("dtype"), list(entry.get("shape", [])), entry.get("info", {}).get("video.codec"))
        for key, entry in entries.items()
    }


def rebuild_statistics(
    root: Path,
    features: Mapping[str, Feature],
    tables: list[pa.Table],
    statistics: Mapping[str, RunningStatistics | ImageStatistics],
) -> None:
    """Fill empty statistics from the recorded files."""
    for key, part in statistics.items():
        if isinstance(part, ImageStatistics):
            _add_images(root, features[key], tables, part)
    numbers = [key for key, part in statistics.items() if isinstance(part, RunningStatistics)]
    for path in _data_files(root, tables):
        with pq.ParquetFile(path) as file:
            for group in range(file.num_row_groups):
                rows = file.read_row_group(group, columns=numbers, use_threads=False)
                for key in numbers:
                    column, part = rows.column(key), statistics[key]
                    assert isinstance(part, RunningStatistics)
                    while pa.types.is_list(column.type) or pa.types.is_fixed_size_list(column.type):
                        column = pa.chunked_array([chunk.flatten() for chunk in column.chunks], column.type.value_type)
                    part.add(column.to_numpy().reshape(-1, *features[key].shape))


def _data_files(root: Path, tables: list[pa.Table]) -> Iterator[Path]:
    seen: dict[int, None] = {number: None for table in tables for number in file_numbers(table, "data")}
    return (root / file_path(DATA_PATH, number) for number in seen)


def _add_images(root: Path, feature: Feature, tables: list[pa.Table], part: ImageStatistics) -> None:
    """Add the recorded images of one camera."""
    lengths = np.concatenate([table.column("length").to_numpy() for table in tables])
    step = image_step(*feature.shape[:2])
    counts = -(-lengths // step)  # measured images of each episode
    total = int(counts.sum())
    numbers = np.array(counted_images(0, total, part.keep), np.int64)
    episodes = np.searchsorted(np.cumsum(counts), numbers, side="right")
    frames = (np.cumsum(lengths) - lengths)[episodes] + step * (numbers - (np.cumsum(counts) - counts)[episodes])
    read = _read_videos if feature.is_video else _read_image_column
    for number, image in zip(numbers.tolist(), read(root, feature.key, tables, frames), strict=True):
        part.skip(number - part.images)
        part.add(image)
    part.skip(total - part.images)


def read_every(path: Path, step: int) -> Iterator[np.ndarray]:
    """Yield frames 0, step, 2 * step, ... of a video, uint8 (H, W, 3)."""
    video = open_video(path)
    try:
        yield from _read_batches(video, np.arange(0, video.count, step))
    finally:
        video.close()


def _read_batches(video: VideoReader, positions: np.ndarray) -> Iterator[np.ndarray]:
    for first in range(0, len(positions), _BATCH):
        yield from video.read(positions[first : first + _BATCH])


def _read_videos(root: Path, key: str, tables: list[pa.Table], frames: np.ndarray) -> Iterator[np.ndarray]:
    """Yield frames of a camera, numbered from the first frame of the recording, uint8 (H, W, 3)."""
    begin = 0
    for number in dict.fromkeys(number for table in tables for number in file_numbers(table, f"videos/{key}")):
        video = open_video(root / file_path(VIDEO_PATH, number, key))
        try:
            first, last = np.searchsorted(frames, [begin, begin + video.count])
            yield from _read_batches(video, frames[first:last] - begin)
            begin += video.count
        finally:
            video.close()


def _read_image_column(root: Path, key: str, tables: list[pa.Table], frames: np.ndarray) -> Iterator[np.ndarray]:
    """Yield images of an image column, uint8 (H, W, 3)."""
    begin = 0
    for path in _data_files(root, tables):
        with pq.ParquetFile(path) as file:
            for group in range(file.num_row_groups):
                rows = file.metadata.row_group(group).num_rows
                first, last = np.searchsorted(frames, [begin, begin + rows])
                if first < last:
                    column = file.read_row_group(group, columns=[key], use_threads=False).column(key)
                    for row in (frames[first:last] - begin).tolist():
                        image = Image.open(io.BytesIO(column[row]["bytes"].as_py())).convert("RGB")
                        yield np.asarray(image)
                begin += rows
