"""LeRobot v3.0 and v3.1: many episodes per parquet and video file, tables as parquet.

Reads only the needed columns of `meta/episodes`, without the statistics (some forty columns). An episode starts in a
packed video at the sum of the lengths of the episodes before it there. The recorded `from_timestamp` gives their order
and is checked. It gives a position only in files that hold more frames than the tables list (`Videos.first_by_time`).
"""

import re
from collections.abc import Iterator
from typing import Any

import numpy as np
import pyarrow as pa

from understudy.data.format.episode_table import EpisodeTable, FileTable, Videos, starts_within
from understudy.data.format.features import Feature
from understudy.data.format.lerobot_v2 import check_episodes, task_lists, tasks_by_index
from understudy.data.format.lerobot_v2 import read_tasks as read_tasks_jsonl
from understudy.data.format.meta_files import integer_column, template_or_default
from understudy.errors import DatasetError
from understudy.plural import plural
from understudy.storage.dataset_root import Files

EPISODES = "meta/episodes"
TASKS = "meta/tasks.parquet"
_DATA = "data/chunk-{chunk_index:03d}/file-{file_index:03d}.parquet"
_VIDEO = "videos/{video_key}/chunk-{chunk_index:03d}/file-{file_index:03d}.mp4"
FIELDS = {"chunk_index", "file_index"}
_EXACT = 0.02  # frames by which a recorded time may be off: seconds have four digits or more
OF_FORMAT = re.compile(r"(data|videos|stats|meta)/|(episode_index|tasks|length|dataset_(from|to)_index)$")
"""Names of columns that belong to the format."""
_CHUNK, _FILE = re.compile(r"chunk-\d+"), re.compile(r"file-\d+\.parquet")


def read_tasks(files: Files, oddities: list[str]) -> dict[int, str]:
    """Read task_index -> text. The text column is `task`, pandas' unnamed index, or the only text column."""
    if not files.exists(TASKS) and files.exists("meta/tasks.jsonl"):
        oddities.append(f"{TASKS} is not there; meta/tasks.jsonl of an older version was read instead")
        return read_tasks_jsonl(files, oddities)
    where = files.where(TASKS)
    table = files.table(TASKS)
    texts = [f.name for f in table.schema if _is_text(f.type)]
    name = next((n for n in ("task", "__index_level_0__") if n in texts), texts[0] if len(texts) == 1 else None)
    if name is None:
        raise DatasetError(f"no text column among {table.column_names}", where=where, fix="name the task texts 'task'")
    if "task_index" in table.column_names and pa.types.is_integer(table.schema.field("task_index").type):
        indices = integer_column(table, "task_index", where)
    else:
        oddities.append(f"{TASKS} has no integer task_index; its rows were numbered in order")
        indices = np.arange(len(table), dtype=np.int64)
    return tasks_by_index(indices, table.column(name).cast(pa.string()), where)


def episode_files(files: Files) -> Iterator[str]:
    """List the parquet files of meta/episodes in order, without other files."""
    chunks = files.entries(EPISODES)
    if chunks is None:  # no listings: files are numbered without gaps
        number = 0
        while files.exists(path := f"{EPISODES}/chunk-{number // 1000:03d}/file-{number % 1000:03d}.parquet"):
            yield path
            number += 1
        return
    for chunk, is_folder in chunks:
        if is_folder and _CHUNK.fullmatch(chunk):
            for name, _ in files.entries(f"{EPISODES}/{chunk}") or []:
                if _FILE.fullmatch(name):
                    yield f"{EPISODES}/{chunk}/{name}"


def read_episodes(
    files: Files, info: dict[str, Any], features: dict[str, Feature], tasks: dict[int, str], oddities: list[str]
) -> EpisodeTable:
    """Read the episode table from meta/episodes."""
    where = files.where(EPISODES)
    cameras = [key for key, feature in features.items() if feature.is_video]
    table = _read(files, cameras)
    for name in ("episode_index", "length"):
        if name not in table.column_names:
            raise DatasetError(f"has no column {name!r}", where=where, fix="restore meta/episodes")
    ids, lengths = integer_column(table, "episode_index", where), integer_column(table, "length", where)
    order = check_episodes(ids, lengths, where)
    table = table if np.array_equal(order, np.arange(len(order))) else table.take(pa.array(order))
    ids, lengths = ids[order], lengths[order]

    index_from = np.cumsum(lengths) - lengths
    if "dataset_from_index" in table.column_names:
        recorded = integer_column(table, "dataset_from_index", where, default=-1)
        if (recorded >= 0).all():
            index_from = recorded
    chunk, number = _file_numbers(table, "data", where)
    if (number < 0).any():
        raise DatasetError(
            f"episode {int(ids[number < 0][0])} names no data file", where=where, fix="restore meta/episodes"
        )
    template = template_or_default(info.get("data_path"), FIELDS, _DATA, oddities, "data_path")
    data, data_file = _file_table(template, chunk, number)
    videos: dict[str, Videos] = {}
    if cameras:
        template = template_or_default(info.get("video_path"), FIELDS | {"video_key"}, _VIDEO, oddities, "video_path")
        fps = float(info["fps"])
        videos = {key: _videos(table, key, template, ids, lengths, fps, where, oddities) for key in cameras}
    offsets, indices = np.zeros(len(ids) + 1, np.int64), np.zeros(0, np.int32)
    if "tasks" in table.column_names:
        offsets, indices = task_lists(table.column("tasks"), tasks, oddities, EPISODES)
    return EpisodeTable(
        ids=ids,
        lengths=lengths,
        index_from=index_from,
        data=data,
        data_file=data_file,
        data_row=starts_within(data_file, index_from, lengths),
        videos=videos,
        task_offsets=offsets,
        task_indices=indices,
    )


def read_metadata(files: Files) -> dict[str, dict[int, Any]]:
    """Read the columns of meta/episodes beyond those of the format: name -> episode id -> value; without nulls."""
    columns: dict[str, dict[int, Any]] = {}
    for path in episode_files(files):
        with files.parquet(path) as file:
            names = [name for name in file.schema_arrow.names if not OF_FORMAT.match(name)]
        table = files.table(path, [*names, "episode_index"])
        ids = table.column("episode_index").to_pylist()
        for name in names:
            values = zip(ids, table.column(name).to_pylist())
            columns.setdefault(name, {}).update({int(e): value for e, value in values if value is not None})
    return columns


def _is_text(kind: pa.DataType) -> bool:
    value = kind.value_type if pa.types.is_dictionary(kind) else kind
    return bool(pa.types.is_string(value) or pa.types.is_large_string(value))


def _read(files: Files, cameras: list[str]) -> pa.Table:
    """Read the needed columns of all files of meta/episodes, integers as int64."""
    kinds: dict[str, pa.DataType] = {name: pa.int64() for name in ("episode_index", "length", "dataset_from_index")}
    for kind in ("data", *(f"videos/{key}" for key in cameras)):
        kinds |= {f"{kind}/chunk_index": pa.int64(), f"{kind}/file_index": pa.int64()}
    kinds |= {f"videos/{key}/from_timestamp": pa.float64() for key in cameras}
    kinds["tasks"] = pa.list_(pa.string())
    tables = []
    for path in episode_files(files):
        table = files.table(path, list(kinds))
        for column, field in enumerate(table.schema):
            try:
                table = table.set_column(column, field.name, table.column(column).cast(kinds[field.name]))
            except pa.ArrowException as error:
                problem = f"column {field.name!r} is {field.type}, not {kinds[field.name]}"
                raise DatasetError(problem, where=files.where(path), fix="restore this file") from error
        tables.append(table)
    if not tables:
        raise DatasetError(
            "holds no chunk-*/file-*.parquet",
            where=files.where(EPISODES),
            fix="copy it from the source of the dataset: it gives the place of each episode",
        )
    return pa.concat_tables(tables, promote_options="default")


def _file_numbers(table: pa.Table, name: str, where: str) -> tuple[np.ndarray, np.ndarray]:
    """Return (chunk, file), int64 (N,) each, for one kind of file; -1 where the metadata names none."""
    both = [f"{name}/chunk_index", f"{name}/file_index"]
    if not set(both) <= set(table.column_names):
        nothing = np.full(len(table), -1, np.int64)
        return nothing, nothing
    chunk, number = (integer_column(table, column, where, default=-1) for column in both)
    absent = (chunk < 0) | (number < 0)
    return np.where(absent, -1, chunk), np.where(absent, -1, number)


def _file_table(template: str, chunk: np.ndarray, number: np.ndarray, key: str = "") -> tuple[FileTable, np.ndarray]:
    """Build the table of distinct files, and the file of each episode: int32 (N,), -1 for none."""
    present = number >= 0
    pairs, inverse = np.unique(np.stack([chunk[present], number[present]], 1), axis=0, return_inverse=True)
    file = np.full(len(number), -1, np.int32)
    file[present] = inverse.reshape(-1)
    return FileTable(template, pairs[:, 0].copy(), pairs[:, 1].copy(), key), file


def _videos(
    table: pa.Table,
    key: str,
    template: str,
    ids: np.ndarray,
    lengths: np.ndarray,
    fps: float,
    where: str,
    oddities: list[str],
) -> Videos:
    chunk, number = _file_numbers(table, f"videos/{key}", where)
    files, file = _file_table(template, chunk, number, key)
    column = f"videos/{key}/from_timestamp"
    start = np.full(len(ids), np.nan)
    if column in table.column_names:
        start = table.column(column).fill_null(np.nan).to_numpy(zero_copy_only=False)
    timed = np.isfinite(start)
    # Recorded times give the order, even when they drift. Without them the ids do.
    first = starts_within(file, np.where(timed, start, 0.0) if timed.all() else ids, lengths)
    off = np.where(timed & (file >= 0), np.abs(np.where(timed, start, 0.0) * fps - first), 0.0)
    drift, expected = np.zeros(len(files)), np.zeros(len(files), np.int64)
    np.maximum.at(drift, file[file >= 0], off[file >= 0])
    np.add.at(expected, file[file >= 0], lengths[file >= 0])
    late = np.flatnonzero(off > 0.5)
    shared = np.bincount(file[file >= 0], minlength=len(files)) > 1
    drift[np.unique(file[(file >= 0) & ~timed])] = np.inf  # the order cannot be checked
    drift[~shared & np.isinf(drift)] = 0.0
    if len(late):
        e = int(late[0])
        oddities.append(
            f"{key}: from_timestamp of {plural(len(late), 'episode')} is more than half a frame off its place in order "
            f"(first: episode {int(ids[e])} in {files.path(int(file[e]))}, recorded {start[e]:.4f} s = frame "
            f"{start[e] * fps:.2f}, in order frame {int(first[e])}); the order is used, except in files that also hold "
            "frames of other episodes"
        )
    return Videos(files, file, first, drift, expected, _first_by_time(file, first, start, lengths, fps))


def _first_by_time(
    file: np.ndarray, first: np.ndarray, start: np.ndarray, lengths: np.ndarray, fps: float
) -> np.ndarray | None:
    """Compute `Videos.first_by_time`.

    The tables may list only some of a file's episodes. Recorded times that are exact to the frame then give the number
    of frames before each listed episode.
    """
    frame_time = np.where(np.isfinite(start), start, -1.0) * fps
    near = np.abs(frame_time) < 1 << 40
    number = np.where(near, np.round(np.where(near, frame_time, 0.0)), -1).astype(np.int64)
    exact = near & (number >= first) & (np.abs(frame_time - number) < _EXACT)
    odd = np.unique(file[(file >= 0) & exact & (number > first)])
    if not len(odd):
        return None
    first_frames = np.full(len(file), -1, np.int64)
    for odd_file in odd.tolist():
        rows = np.flatnonzero((file == odd_file) & (lengths > 0))
        rows = rows[np.argsort(first[rows], kind="stable")]
        gaps = number[rows] - np.concatenate([[0], (number[rows] + lengths[rows])[:-1]])
        # A gap of one frame is more likely a clock that is one off than an episode of one frame.
        if exact[rows].all() and (gaps >= 0).all() and not (gaps == 1).any():
            first_frames[rows] = number[rows]
    return first_frames if (first_frames >= 0).any() else None
