"""A LeRobot v3.0 dataset on disk: paths, schemas, `info.json`, and atomic replacement of files."""

import json
from collections.abc import Iterable, Mapping, Sequence
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq

from understudy.atomic import replace_file, write_text
from understudy.data.format.features import Feature
from understudy.data.stats.running import NAMES
from understudy.video.encode import codec_name

FILES_PER_CHUNK = 1000
DATA_PATH = "data/chunk-{chunk_index:03d}/file-{file_index:03d}.parquet"
VIDEO_PATH = "videos/{video_key}/chunk-{chunk_index:03d}/file-{file_index:03d}.mp4"
EPISODES_PATH = "meta/episodes/chunk-{chunk_index:03d}/file-{file_index:03d}.parquet"
MARK = {b"understudy": b"recorded by understudy.data.EpisodeWriter"}
"""Schema metadata of our episode tables; only datasets with it are repaired and continued."""

DEFAULTS = {
    "timestamp": Feature("timestamp", "float32", (1,)),
    "frame_index": Feature("frame_index", "int64", (1,)),
    "episode_index": Feature("episode_index", "int64", (1,)),
    "index": Feature("index", "int64", (1,)),
    "task_index": Feature("task_index", "int64", (1,)),
}
"""The five columns of every dataset, filled by the writer."""


def file_path(template: str, number: int, key: str = "") -> str:
    """Return the path of the `number`-th file of a kind, relative to the root."""
    chunk, file = divmod(number, FILES_PER_CHUNK)
    return template.format(chunk_index=chunk, file_index=file, video_key=key)


def replace_json(path: Path, value: Mapping[str, Any]) -> None:
    """Replace a JSON file atomically."""
    write_text(path, json.dumps(value, indent=4, ensure_ascii=False), durable=False)


def replace_parquet(path: Path, parts: Iterable[pa.Table], schema: pa.Schema, *, durable: bool = False) -> None:
    """Replace a parquet file by tables, one row group each, atomically.

    Args:
        path: the file.
        parts: the tables.
        schema: their schema.
        durable: also survive a power cut, which waits for the disk.
    """
    path.parent.mkdir(parents=True, exist_ok=True)
    # Dictionary encoding only costs time: few values repeat, and each episode rewrites the episode table.
    options = {"compression": "snappy", "use_dictionary": False, "write_page_checksum": True}
    with replace_file(path, durable=durable) as draft, pq.ParquetWriter(draft, schema, **options) as writer:
        for part in parts:
            writer.write_table(part)


def column_type(feature: Feature) -> pa.DataType:
    """Return the Arrow type of a feature's column in the data files."""
    if feature.dtype == "image":
        return pa.struct({"bytes": pa.binary(), "path": pa.string()})
    kind = pa.string() if feature.dtype == "string" else pa.from_numpy_dtype(np.dtype(feature.dtype))
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
        values: encoded images as bytes, strings, or numbers: an array (n, *shape) or a list of arrays.
        feature: the feature.
    """
    kind = column_type(feature)
    if feature.dtype == "image":
        return pa.array([{"bytes": value, "path": None} for value in values], kind)
    if feature.dtype == "string":
        return pa.array(values, kind)
    stacked = np.stack(values)
    column = pa.array(stacked.reshape(-1))
    if feature.shape == (1,):
        return column
    if len(feature.shape) == 1:
        return pa.FixedSizeListArray.from_arrays(column, type=kind)
    for size in reversed(feature.shape):
        column = pa.ListArray.from_arrays(pa.array(np.arange(0, len(column) + 1, size), pa.int32()), column)
    return column.cast(kind)


def _hugging_face_type(feature: Feature) -> dict[str, Any]:
    if feature.dtype == "image":
        return {"_type": "Image"}
    value = {"dtype": feature.dtype, "_type": "Value"}
    if feature.shape == (1,):
        return value
    if len(feature.shape) == 1:
        return {"feature": value, "length": feature.shape[0], "_type": "List"}
    return {"shape": list(feature.shape), "dtype": feature.dtype, "_type": f"Array{len(feature.shape)}D"}


def _nested_type(kind: pa.DataType) -> Any:
    """Name an Arrow type of lists, structs and values as the `datasets` library does."""
    if pa.types.is_struct(kind):
        return {kind.field(i).name: _nested_type(kind.field(i).type) for i in range(kind.num_fields)}
    if pa.types.is_list(kind) or pa.types.is_large_list(kind):
        return {"feature": _nested_type(kind.value_type), "_type": "List"}
    name = {"double": "float64", "float": "float32"}.get(str(kind), str(kind))
    return {"dtype": name, "_type": "Value"}


def data_schema(features: Mapping[str, Feature], nested: Mapping[str, pa.DataType] | None = None) -> pa.Schema:
    """Return the schema of the data files, with the type metadata of the `datasets` library.

    Args:
        features: all features.
        nested: Arrow types of `language` columns, which their features do not determine.
    """
    kinds = nested or {}
    stored = {key: feature for key, feature in features.items() if not feature.is_video}
    named = {
        key: _nested_type(kinds[key]) if key in kinds else _hugging_face_type(feature)
        for key, feature in stored.items()
    }
    blob = {"info": {"features": named}}
    fields = [pa.field(key, kinds[key] if key in kinds else column_type(f)) for key, f in stored.items()]
    return pa.schema(fields, metadata={b"huggingface": json.dumps(blob).encode()})


def episode_schema(features: Mapping[str, Feature]) -> pa.Schema:
    """Return the schema of meta/episodes: the place of each episode, and its statistics."""
    whole, seconds = pa.int64(), pa.float64()
    fields: dict[str, pa.DataType] = {"episode_index": whole, "tasks": pa.list_(pa.string()), "length": whole}
    fields |= {"data/chunk_index": whole, "data/file_index": whole}
    fields |= {"dataset_from_index": whole, "dataset_to_index": whole}
    for key, feature in features.items():
        if feature.is_video:
            at = f"videos/{key}"
            fields |= {f"{at}/chunk_index": whole, f"{at}/file_index": whole}
            fields |= {f"{at}/from_timestamp": seconds, f"{at}/to_timestamp": seconds}
    for key, feature in features.items():
        if not feature.is_text:
            fields |= {f"stats/{key}/{name}": statistic_type(feature, name) for name in NAMES}
    fields |= {"meta/episodes/chunk_index": whole, "meta/episodes/file_index": whole}
    return pa.schema([pa.field(name, kind) for name, kind in fields.items()], metadata=MARK)


def statistic_type(feature: Feature, name: str) -> pa.DataType:
    """Return the Arrow type of one statistic: nested lists; extremes of integers are integers."""
    if name == "count":
        return pa.list_(pa.int64())
    kind = pa.float64()
    if name in ("min", "max") and not feature.is_encoded and np.dtype(feature.dtype).kind in "biu":
        kind = pa.int64()
    for _ in range(3 if feature.is_encoded else len(feature.shape)):
        kind = pa.list_(kind)
    return kind


def statistic_value(feature: Feature, name: str, figure: np.ndarray) -> Any:
    """Convert one statistic to nested lists of Python numbers of `statistic_type`."""
    kind = statistic_type(feature, name)
    while pa.types.is_list(kind):
        kind = kind.value_type
    if not pa.types.is_integer(kind):
        return figure.astype(np.float64).tolist()
    return figure.clip(-(2.0**63), np.nextafter(2.0**63, 0)).astype(np.int64).tolist()  # floats of 64-bit integers


def tasks_table(tasks: Sequence[str]) -> pa.Table:
    """Build meta/tasks.parquet: task_index, and the text as pandas' index."""
    table = pa.table({"task_index": pa.array(range(len(tasks)), pa.int64()), "task": pa.array(tasks, pa.string())})
    columns = [
        {"name": "task_index", "field_name": "task_index", "pandas_type": "int64", "numpy_type": "int64"},
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


def feature_entries(features: Mapping[str, Feature], fps: int, codec: str, gop: int, crf: int | None) -> dict[str, Any]:
    """Return the `features` of info.json."""
    entries: dict[str, Any] = {}
    for key, feature in features.items():
        entry: dict[str, Any] = {"dtype": feature.dtype, "shape": list(feature.shape), "names": feature.names}
        if feature.is_video:
            height, width, channels = feature.shape
            entry["info"] = {
                "video.height": height,
                "video.width": width,
                "video.codec": codec_name(codec),
                "video.pix_fmt": "yuv420p",
                "video.fps": fps,
                "video.channels": channels,
                "video.g": gop,
                **({} if crf is None else {"video.crf": crf}),
                "is_depth_map": False,
                "has_audio": False,
            }
        entries[key] = entry
    return entries


def info_json(
    entries: Mapping[str, Any],
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
        "video_path": VIDEO_PATH if has_video else None,
        "features": dict(entries),
    }
