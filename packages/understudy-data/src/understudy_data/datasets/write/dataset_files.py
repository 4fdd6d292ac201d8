"""A LeRobot v3.0 dataset on disk: paths, schemas, `info.json`, and atomic replacement of files.

Episodes are committed one by one to the open group, which is packed into one file per kind when it
is full. Group k owns meta/episodes file k and, once packed, data file k and video file k of every
camera. Before that, each of its episodes has its own small files; this is an equally valid dataset.
Every change replaces meta/episodes file k in one atomic step. Before the step the new files do not
belong to the dataset, after it the old ones do not. Files outside the dataset are removed by the
next step or on resume. No number is used twice: a reader that opened the dataset before a packing
finds a small file missing, and never another episode in it.

The episode table and packed files survive a power cut. The latest small files may be lost.
"""

import json
import os
from collections.abc import Iterable, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq

from understudy_base import DRAFT_SUFFIX, DatasetError, Record, replace_file, sync, write_text
from understudy_data.datasets.format.features import Feature
from understudy_data.datasets.format.layouts import V3, episode_files
from understudy_data.datasets.stats.running import (
    NAMES,
    ImageStatistics,
    PixelStatistics,
    RunningStatistics,
)
from understudy_data.storage.dataset_root import Files
from understudy_data.video.encode import codec_name, concat_videos

FILES_PER_CHUNK = 1000
SMALL_FILES = 1_000_000
"""Number of the small files of episode 0; those of the others follow."""
PLAIN_VIDEO = {"is_depth_map": False, "has_audio": False}
DATA_PATH = "data/chunk-{chunk_index:03d}/file-{file_index:03d}.parquet"
VIDEO_PATH = "videos/{video_key}/chunk-{chunk_index:03d}/file-{file_index:03d}.mp4"
EPISODES_PATH = "meta/episodes/chunk-{chunk_index:03d}/file-{file_index:03d}.parquet"
MARK = {b"understudy": b"recorded by understudy.data.EpisodeWriter"}
"""Schema metadata of our episode tables; only datasets with it are repaired and continued."""


def file_path(template: str, number: int, key: str = "") -> str:
    """Return the path of the `number`-th file of a kind, relative to the root."""
    chunk, file = divmod(number, FILES_PER_CHUNK)
    return template.format(chunk_index=chunk, file_index=file, video_key=key)


def file_columns(prefix: str, number: int) -> dict[str, int]:
    """Return the columns of meta/episodes that name the `number`-th file of a kind."""
    chunk, file = divmod(number, FILES_PER_CHUNK)
    return {f"{prefix}/chunk_index": chunk, f"{prefix}/file_index": file}


def replace_json(path: Path, value: Record) -> None:
    """Replace a JSON file atomically."""
    write_text(path, json.dumps(value, indent=4, ensure_ascii=False), durable=False)


def replace_parquet(
    path: Path, parts: Iterable[pa.Table], schema: pa.Schema, *, durable: bool = False
) -> None:
    """Replace a parquet file by tables, one row group each, atomically.

    Args:
        path: the file.
        parts: the tables.
        schema: their schema.
        durable: also survive a power cut, which waits for the disk.
    """
    path.parent.mkdir(parents=True, exist_ok=True)
    # Dictionary encoding only costs time: few values repeat, and each episode rewrites the episode
    # table.
    options = {"compression": "snappy", "use_dictionary": False, "write_page_checksum": True}
    with (
        replace_file(path, durable=durable) as draft,
        pq.ParquetWriter(draft, schema, **options) as writer,
    ):
        for part in parts:
            writer.write_table(part)


def column_type(feature: Feature) -> pa.DataType:
    """Return the Arrow type of a feature's column in the data files."""
    if feature.dtype == "image":
        return pa.struct({"bytes": pa.binary(), "path": pa.string()})
    kind = (
        pa.string() if feature.dtype == "string" else pa.from_numpy_dtype(np.dtype(feature.dtype))
    )
    if feature.shape == (1,):
        return kind
    if len(feature.shape) == 1:
        return pa.list_(kind, feature.shape[0])
    for _ in feature.shape:
        kind = pa.list_(kind)
    return kind


def to_column(values: Any, feature: Feature) -> pa.Array:
    """Convert values of a feature, one per frame, to an Arrow column of `column_type`.

    Args:
        values: encoded images as bytes, strings, or numbers: an array (n, *shape) or a list of
            arrays.
        feature: the feature.
    """
    kind = column_type(feature)
    if feature.dtype == "image":
        return pa.array([{"bytes": value, "path": None} for value in values], kind)
    if feature.dtype == "string":
        return pa.array(values, kind)
    stacked = values if isinstance(values, np.ndarray) else np.stack(values)
    column = pa.array(stacked.reshape(-1))
    if feature.shape == (1,):
        return column
    if len(feature.shape) == 1:
        return pa.FixedSizeListArray.from_arrays(column, type=kind)
    for size in reversed(feature.shape):
        column = pa.ListArray.from_arrays(
            pa.array(np.arange(0, len(column) + 1, size), pa.int32()), column
        )
    return column.cast(kind)


def _hugging_face_type(feature: Feature) -> dict[str, Any]:
    if feature.dtype == "image":
        return {"_type": "Image"}
    value = {"dtype": feature.dtype, "_type": "Value"}
    if feature.shape == (1,):
        return value
    if len(feature.shape) == 1:
        return {"feature": value, "length": feature.shape[0], "_type": "List"}
    return {
        "shape": list(feature.shape),
        "dtype": feature.dtype,
        "_type": f"Array{len(feature.shape)}D",
    }


def _nested_type(kind: pa.DataType) -> Any:
    """Name an Arrow type of lists, structs and values as the `datasets` library does."""
    if pa.types.is_struct(kind):
        return {
            kind.field(i).name: _nested_type(kind.field(i).type) for i in range(kind.num_fields)
        }
    if pa.types.is_list(kind) or pa.types.is_large_list(kind):
        return {"feature": _nested_type(kind.value_type), "_type": "List"}
    name = {"double": "float64", "float": "float32"}.get(str(kind), str(kind))
    return {"dtype": name, "_type": "Value"}


def data_schema(
    features: Mapping[str, Feature], nested: Mapping[str, pa.DataType] | None = None
) -> pa.Schema:
    """Return the schema of the data files, with the type metadata of the `datasets` library.

    Args:
        features: all features.
        nested: Arrow types of `language` columns, which their features do not determine.
    """
    kinds = nested or {}
    stored = {key: feature for key, feature in features.items() if not feature.is_video}
    named: dict[str, Any] = {}
    fields = []
    for key, feature in stored.items():
        if key in kinds:
            named[key] = _nested_type(kinds[key])
            fields.append(pa.field(key, kinds[key]))
        else:
            named[key] = _hugging_face_type(feature)
            fields.append(pa.field(key, column_type(feature)))
    blob = {"info": {"features": named}}
    return pa.schema(fields, metadata={b"huggingface": json.dumps(blob).encode()})


def episode_schema(features: Mapping[str, Feature]) -> pa.Schema:
    """Return the schema of meta/episodes: the place of each episode, and its statistics."""
    whole = pa.int64()
    seconds = pa.float64()
    fields: dict[str, pa.DataType] = {
        "episode_index": whole,
        "tasks": pa.list_(pa.string()),
        "length": whole,
    }
    fields |= {"data/chunk_index": whole, "data/file_index": whole}
    fields |= {"dataset_from_index": whole, "dataset_to_index": whole}
    for key, feature in features.items():
        if feature.is_video:
            prefix = f"videos/{key}"
            fields |= {f"{prefix}/chunk_index": whole, f"{prefix}/file_index": whole}
            fields |= {f"{prefix}/from_timestamp": seconds, f"{prefix}/to_timestamp": seconds}
    for key, feature in features.items():
        if not feature.is_text:
            fields |= {f"stats/{key}/{name}": statistic_type(feature, name) for name in NAMES}
    fields |= {"meta/episodes/chunk_index": whole, "meta/episodes/file_index": whole}
    return pa.schema([pa.field(name, kind) for name, kind in fields.items()], metadata=MARK)


def number_statistics(feature: Feature) -> RunningStatistics:
    """Return empty statistics of a feature of numbers: per channel where they are images."""
    if (axes := feature.pixel_axes) is None:
        return RunningStatistics(feature.shape)
    largest = 255.0 if feature.dtype == "uint8" else 1.0
    return PixelStatistics(feature.statistics_shape, axes, largest)


def is_recorded_here(files: Files) -> bool:
    """Return whether `EpisodeWriter` recorded a dataset: all files of its episode table have its
    mark.
    """
    paths = list(episode_files(files)) if files.exists(f"{V3.episodes}") else []
    for path in paths:
        with files.parquet(path) as file:
            if not MARK.items() <= (file.schema_arrow.metadata or {}).items():
                return False
    return bool(paths)


def statistic_type(feature: Feature, name: str) -> pa.DataType:
    """Return the Arrow type of one statistic: nested lists; extremes of integers are integers."""
    kind = pa.int64() if _is_integer(feature, name) else pa.float64()
    if name == "count":
        return pa.list_(kind)
    depth = 3 if feature.is_encoded else len(feature.statistics_shape)
    for _ in range(depth):
        kind = pa.list_(kind)
    return kind


def statistic_value(feature: Feature, name: str, figure: np.ndarray) -> Any:
    """Convert one statistic to nested lists of Python numbers of `statistic_type`."""
    if not _is_integer(feature, name):
        return figure.astype(np.float64).tolist()
    # floats of 64-bit integers
    return figure.clip(-(2.0**63), np.nextafter(2.0**63, 0)).astype(np.int64).tolist()


def _is_integer(feature: Feature, name: str) -> bool:
    if name not in ("min", "max"):
        return name == "count"
    is_scaled = feature.is_encoded or (feature.pixel_axes is not None and feature.dtype == "uint8")
    return not is_scaled and np.dtype(feature.dtype).kind in "biu"


def statistic_columns(feature: Feature, figures: Mapping[str, np.ndarray]) -> dict[str, Any]:
    """Return the columns of meta/episodes with the statistics of a feature."""
    return {
        f"stats/{feature.key}/{name}": statistic_value(feature, name, figures[name])
        for name in NAMES
    }


def stats_json(
    features: Mapping[str, Feature], statistics: Mapping[str, RunningStatistics | ImageStatistics]
) -> dict[str, Any]:
    """Return the content of meta/stats.json."""
    results = {key: part.result() for key, part in statistics.items()}
    content = {}
    for key, figures in results.items():
        feature = features[key]
        content[key] = {name: statistic_value(feature, name, figures[name]) for name in NAMES}
    return content


def episode_columns(episode: int, tasks: Sequence[str], length: int, first: int) -> dict[str, Any]:
    """Return the columns of meta/episodes about an episode whose first frame has the index
    `first`.
    """
    return {
        "episode_index": episode,
        "tasks": tasks,
        "length": length,
        "dataset_from_index": first,
        "dataset_to_index": first + length,
    }


def tasks_table(tasks: Sequence[str]) -> pa.Table:
    """Build meta/tasks.parquet: task_index, and the text as pandas' index."""
    table = pa.table(
        {
            "task_index": pa.array(range(len(tasks)), pa.int64()),
            "task": pa.array(tasks, pa.string()),
        }
    )
    columns = [
        {
            "name": "task_index",
            "field_name": "task_index",
            "pandas_type": "int64",
            "numpy_type": "int64",
        },
        {"name": "task", "field_name": "task", "pandas_type": "unicode", "numpy_type": "object"},
    ]
    pandas = {
        "index_columns": ["task"],
        "column_indexes": [],
        "columns": [{**column, "metadata": None} for column in columns],
        "creator": {"library": "pyarrow", "version": pa.__version__},
        "pandas_version": "2.2.0",
    }
    return table.replace_schema_metadata({b"pandas": json.dumps(pandas).encode()})


def video_info(
    height: int, width: int, codec: str, pix_fmt: str | None, fps: float, channels: int
) -> dict[str, Any]:
    """Return facts about the videos of a camera, for its entry in info.json."""
    names = ("height", "width", "codec", "pix_fmt", "fps", "channels")
    return {
        f"video.{name}": fact
        for name, fact in zip(names, (height, width, codec, pix_fmt, fps, channels))
    }


def feature_entries(
    features: Mapping[str, Feature], fps: int, codec: str, gop: int, crf: int | None
) -> dict[str, Any]:
    """Return the `features` of info.json."""
    entries: dict[str, Any] = {}
    for key, feature in features.items():
        entry: dict[str, Any] = {
            "dtype": feature.dtype,
            "shape": list(feature.shape),
            "names": feature.names,
        }
        if feature.is_video:
            height, width, channels = feature.shape
            entry["info"] = video_info(height, width, codec_name(codec), "yuv420p", fps, channels)
            entry["info"]["video.g"] = gop
            if crf is not None:
                entry["info"]["video.crf"] = crf
            entry["info"] |= PLAIN_VIDEO
        entries[key] = entry
    return entries


def info_json(
    entries: Record,
    *,
    fps: int,
    robot_type: str | None,
    episodes: int,
    frames: int,
    tasks: int,
    data_file_mb: float,
    video_file_mb: float,
) -> dict[str, Any]:
    """Return the content of meta/info.json."""
    has_video = any(entry["dtype"] == "video" for entry in entries.values())
    video_path = VIDEO_PATH if has_video else None
    return {
        "codebase_version": "v3.0",
        "robot_type": robot_type,
        "total_episodes": episodes,
        "total_frames": frames,
        "total_tasks": tasks,
        "chunks_size": FILES_PER_CHUNK,
        "data_files_size_in_mb": data_file_mb,
        "video_files_size_in_mb": video_file_mb,
        "fps": fps,
        "splits": {"train": f"0:{episodes}"},
        "data_path": DATA_PATH,
        "video_path": video_path,
        "features": dict(entries),
    }


MAX_EPISODES = 1000  # each episode rewrites the group's table, some 10 ms at this size
_DRAFTS = (DRAFT_SUFFIX, ".tmp")  # the latter of version 0.1


@dataclass
class Group:
    """The open group.

    Attributes:
        number: number of the group.
        rows: its rows of meta/episodes.
        next_file: number of the next small file.
        sizes: bytes of the small files, "" for data and by camera.
    """

    number: int
    rows: pa.Table
    next_file: int
    sizes: dict[str, int] = field(default_factory=dict)


def empty_group(number: int, features: Mapping[str, Feature], episodes: int = 0) -> Group:
    """Return a group without episodes, after groups with some."""
    return Group(number, episode_schema(features).empty_table(), SMALL_FILES + episodes)


def video_keys(features: Mapping[str, Feature]) -> list[str]:
    """Keys of the cameras recorded as video."""
    return [key for key, feature in features.items() if feature.is_video]


def small_files(root: Path, features: Mapping[str, Feature], number: int) -> dict[str, Path]:
    """Paths of the data file ("") and the video files (by camera) of one number."""
    paths = {"": root / file_path(DATA_PATH, number)}
    return paths | {key: root / file_path(VIDEO_PATH, number, key) for key in video_keys(features)}


def commit(root: Path, features: Mapping[str, Feature], group: Group, row: dict[str, Any]) -> None:
    """Add an episode to the dataset; its files (number `group.next_file`) must be complete."""
    paths = small_files(root, features, group.next_file)
    for kind in ("data", *(f"videos/{key}" for key in video_keys(features))):
        row |= file_columns(kind, group.next_file)
    row |= file_columns("meta/episodes", group.number)
    rows = pa.concat_tables(
        [group.rows, pa.Table.from_pylist([row], group.rows.schema)]
    ).combine_chunks()
    replace_parquet(
        root / file_path(EPISODES_PATH, group.number), [rows], rows.schema, durable=True
    )
    group.rows = rows
    group.next_file = group.next_file + 1
    for key, path in paths.items():
        group.sizes[key] = group.sizes.get(key, 0) + path.stat().st_size


def is_full(group: Group, data_file_mb: float, video_file_mb: float) -> bool:
    """Check whether the group reached a file size or `MAX_EPISODES`."""
    for key, size in group.sizes.items():
        most_mb = video_file_mb if key else data_file_mb
        if size >= most_mb * 1e6:
            return True
    return group.rows.num_rows >= MAX_EPISODES


def pack(root: Path, features: Mapping[str, Feature], group: Group, fps: int) -> Group:
    """Join the group's small files into one per kind; return the next, empty group.

    The data file has one row group per episode. Videos are joined by stream copy.
    """
    if group.rows.num_rows == 0:
        return group
    lengths = group.rows.column("length").to_numpy()
    ends = np.cumsum(lengths)
    numbers = file_numbers(group.rows, "data")
    small = [small_files(root, features, number) for number in numbers]
    joined = small_files(root, features, group.number)
    tables = (pq.read_table(paths[""], use_threads=False) for paths in small)
    replace_parquet(joined[""], tables, data_schema(features), durable=True)
    columns = ["data"]
    for key in video_keys(features):
        joined[key].parent.mkdir(parents=True, exist_ok=True)
        counts = concat_videos([paths[key] for paths in small], joined[key])
        if not np.array_equal(counts, lengths):
            wrong = int(np.flatnonzero(np.array(counts) != lengths)[0])
            problem = f"has {counts[wrong]} frames, its episode {lengths[wrong]} frames"
            raise DatasetError(problem, where=small[wrong][key], fix="record the episode again")
        sync(joined[key])
        sync(joined[key].parent)
        columns.append(f"videos/{key}")
    rows = group.rows
    for name in columns:
        for column, number in file_columns(name, group.number).items():
            rows = _set(rows, column, np.full(len(lengths), number))
        if name != "data":
            rows = _set(rows, f"{name}/from_timestamp", (ends - lengths) / fps)
            rows = _set(rows, f"{name}/to_timestamp", ends / fps)
    replace_parquet(
        root / file_path(EPISODES_PATH, group.number), [rows], rows.schema, durable=True
    )
    for paths in small:
        for path in paths.values():
            path.unlink()
            with suppress(OSError):  # has other files
                path.parent.rmdir()
    return empty_group(group.number + 1, features, group.next_file - SMALL_FILES)


def file_numbers(rows: pa.Table, kind: str) -> list[int]:
    """Return the file number of each row for "data" or "videos/<key>"."""
    chunk, file = (
        rows.column(f"{kind}/{name}").to_numpy() for name in ("chunk_index", "file_index")
    )
    return [int(number) for number in chunk * FILES_PER_CHUNK + file]


def remove_orphans(root: Path, features: Mapping[str, Feature], rows: pa.Table) -> None:
    """Delete unlisted data and video files and temporary files in the writer's folders."""
    kinds = {"data": (DATA_PATH, "")} | {
        f"videos/{key}": (VIDEO_PATH, key) for key in video_keys(features)
    }
    for kind, (template, key) in kinds.items():
        named = {root / file_path(template, number, key) for number in file_numbers(rows, kind)}
        for path in (root / kind).glob("chunk-*/*"):
            temporary = path.name.startswith(".") and path.name.endswith(_DRAFTS)
            if temporary or (path.suffix == Path(template).suffix and path not in named):
                path.unlink()
        missing = sorted(path for path in named if not path.exists())
        if missing:
            raise DatasetError(
                "is missing",
                where=missing[0],
                fix="restore the file; the recording cannot continue",
            )
    for suffix in _DRAFTS:
        for path in [
            *(root / "meta").glob(f".*{suffix}"),
            *(root / "meta/episodes").glob(f"chunk-*/.*{suffix}"),
        ]:
            os.unlink(path)


def _set(rows: pa.Table, name: str, values: np.ndarray) -> pa.Table:
    place = rows.schema.get_field_index(name)
    return rows.set_column(
        place, rows.schema.field(place), pa.array(values, rows.schema.field(place).type)
    )
