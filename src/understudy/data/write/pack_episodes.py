"""The open group of episodes: committed one by one, packed into one file per kind when full.

Group k owns meta/episodes file k and, once packed, data file k and video file k of every camera. Before that, each of
its episodes has its own small files, numbered from k+1 on; this is an equally valid dataset. Every change replaces
meta/episodes file k in one atomic step. Before the step the new files do not belong to the dataset, after it the old
ones do not. Files outside the dataset are removed by the next step or on resume.

The episode table and packed files survive a power cut. The latest small files may be lost.
"""

import os
from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq

from understudy.atomic import DRAFT_SUFFIX, sync
from understudy.data.format.features import Feature
from understudy.data.write.dataset_files import (
    DATA_PATH,
    EPISODES_PATH,
    FILES_PER_CHUNK,
    VIDEO_PATH,
    data_schema,
    episode_schema,
    file_path,
    replace_parquet,
)
from understudy.errors import DatasetError
from understudy.video.encode import concat_videos

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


def empty_group(number: int, features: Mapping[str, Feature]) -> Group:
    """Return a group without episodes."""
    return Group(number, episode_schema(features).empty_table(), number + 1)


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
    chunk, file = divmod(group.next_file, FILES_PER_CHUNK)
    row |= {"data/chunk_index": chunk, "data/file_index": file}
    for key in video_keys(features):
        row |= {f"videos/{key}/chunk_index": chunk, f"videos/{key}/file_index": file}
    chunk, file = divmod(group.number, FILES_PER_CHUNK)
    row |= {"meta/episodes/chunk_index": chunk, "meta/episodes/file_index": file}
    rows = pa.concat_tables([group.rows, pa.Table.from_pylist([row], group.rows.schema)]).combine_chunks()
    replace_parquet(root / file_path(EPISODES_PATH, group.number), [rows], rows.schema, durable=True)
    group.rows, group.next_file = rows, group.next_file + 1
    for key, path in paths.items():
        group.sizes[key] = group.sizes.get(key, 0) + path.stat().st_size


def is_full(group: Group, data_file_mb: float, video_file_mb: float) -> bool:
    """Check whether the group reached a file size or `MAX_EPISODES`."""
    over = any(size >= (video_file_mb if key else data_file_mb) * 1e6 for key, size in group.sizes.items())
    return over or group.rows.num_rows >= MAX_EPISODES


def pack(root: Path, features: Mapping[str, Feature], group: Group, fps: int) -> Group:
    """Join the group's small files into one per kind; return the next, empty group.

    The data file has one row group per episode. Videos are joined by stream copy.
    """
    if group.rows.num_rows == 0:
        return group
    lengths = group.rows.column("length").to_numpy()
    ends = np.cumsum(lengths)
    numbers = file_numbers(group.rows, "data")
    old = [small_files(root, features, number) for number in numbers]
    new = small_files(root, features, group.number)
    tables = (pq.read_table(paths[""], use_threads=False) for paths in old)
    replace_parquet(new[""], tables, data_schema(features), durable=True)
    columns = ["data"]
    for key in video_keys(features):
        counts = concat_videos([paths[key] for paths in old], new[key])
        if not np.array_equal(counts, lengths):
            wrong = int(np.flatnonzero(np.array(counts) != lengths)[0])
            what = f"has {counts[wrong]} frames, its episode {lengths[wrong]} frames"
            raise DatasetError(what, where=old[wrong][key], fix="record the episode again")
        sync(new[key])
        sync(new[key].parent)
        columns.append(f"videos/{key}")
    rows = group.rows
    chunk, file = divmod(group.number, FILES_PER_CHUNK)
    for name in columns:
        rows = _set(rows, f"{name}/chunk_index", np.full(len(lengths), chunk))
        rows = _set(rows, f"{name}/file_index", np.full(len(lengths), file))
        if name != "data":
            rows = _set(rows, f"{name}/from_timestamp", (ends - lengths) / fps)
            rows = _set(rows, f"{name}/to_timestamp", ends / fps)
    replace_parquet(root / file_path(EPISODES_PATH, group.number), [rows], rows.schema, durable=True)
    for paths in old:
        for path in paths.values():
            path.unlink()
    return empty_group(group.number + 1, features)


def file_numbers(rows: pa.Table, kind: str) -> list[int]:
    """Return the file number of each row for "data" or "videos/<key>"."""
    chunk, file = (rows.column(f"{kind}/{name}").to_numpy() for name in ("chunk_index", "file_index"))
    return [int(number) for number in chunk * FILES_PER_CHUNK + file]


def remove_orphans(root: Path, features: Mapping[str, Feature], tables: list[pa.Table]) -> None:
    """Delete unlisted data and video files and temporary files in the writer's folders."""
    kinds = {"data": (DATA_PATH, "")} | {f"videos/{key}": (VIDEO_PATH, key) for key in video_keys(features)}
    for kind, (template, key) in kinds.items():
        named = {root / file_path(template, number, key) for table in tables for number in file_numbers(table, kind)}
        for found in (root / kind).glob("chunk-*/*"):
            temporary = found.name.startswith(".") and found.name.endswith(_DRAFTS)
            if temporary or (found.suffix == Path(template).suffix and found not in named):
                found.unlink()
        missing = sorted(path for path in named if not path.exists())
        if missing:
            raise DatasetError("is missing", where=missing[0], fix="restore the file; the recording cannot continue")
    for suffix in _DRAFTS:
        for found in [*(root / "meta").glob(f".*{suffix}"), *(root / "meta/episodes").glob(f"chunk-*/.*{suffix}")]:
            os.unlink(found)


def _set(rows: pa.Table, name: str, values: np.ndarray) -> pa.Table:
    at = rows.schema.get_field_index(name)
    return rows.set_column(at, rows.schema.field(at), pa.array(values, rows.schema.field(at).type))
