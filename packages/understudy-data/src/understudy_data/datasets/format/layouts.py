"""Tables of episodes and tasks in LeRobot's two layouts: v2.0 and v2.1, and v3.0 and v3.1.

v2 has one parquet file per episode and one video file per episode and camera, and tables as JSON
lines. v3 packs many episodes into each file, and has tables as parquet. Only the needed columns of
`meta/episodes` are read, without the statistics (some forty columns). An episode starts in a packed
video at the sum of the lengths of the episodes before it there. The recorded `from_timestamp` gives
their order and is checked. It gives a position only in files that hold more frames than the tables
list (`Videos.first_by_time`).
"""

import json
import re
from collections.abc import Callable, Iterable, Iterator, Mapping
from dataclasses import dataclass, replace
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from understudy_base import DatasetError, EmptyDatasetError, plural
from understudy_data.datasets.format.episode_table import (
    EpisodeTable,
    FileTable,
    Videos,
    starts_within,
)
from understudy_data.datasets.format.features import Feature
from understudy_data.datasets.format.meta_files import (
    integer_column,
    read_columns,
    template_or_default,
    whole_numbers,
)
from understudy_data.storage.dataset_root import Files


@dataclass(frozen=True)
class Layout:
    """Places of the tables and files of a version.

    Attributes:
        is_packed: whether files hold several episodes, and tables are parquet.
        episodes: the table of episodes; a folder where it is parquet.
        data_path: default template of the data files.
        video_path: default template of the video files.
        fields: fields of both templates, without `video_key`.
    """

    is_packed: bool
    episodes: str
    data_path: str
    video_path: str
    fields: frozenset[str]


V2 = Layout(
    False,
    "meta/episodes.jsonl",
    "data/chunk-{episode_chunk:03d}/episode_{episode_index:06d}.parquet",
    "videos/chunk-{episode_chunk:03d}/{video_key}/episode_{episode_index:06d}.mp4",
    frozenset({"episode_chunk", "episode_index"}),
)
V3 = Layout(
    True,
    "meta/episodes",
    "data/chunk-{chunk_index:03d}/file-{file_index:03d}.parquet",
    "videos/{video_key}/chunk-{chunk_index:03d}/file-{file_index:03d}.mp4",
    frozenset({"chunk_index", "file_index"}),
)
LAYOUTS = {"v2.0": V2, "v2.1": V2, "v3.0": V3, "v3.1": V3}
"""Supported versions."""

_TASKS = "meta/tasks.parquet"
_TASK_LINES = "meta/tasks.jsonl"
_EPISODES_SCHEMA = pa.schema(
    [("episode_index", pa.int64()), ("length", pa.int64()), ("tasks", pa.list_(pa.string()))]
)
_TASKS_SCHEMA = pa.schema([("task_index", pa.int64()), ("task", pa.string())])
_CLEAR = 0.25  # share of an episode by which times may be off, and still give the order
_EXACT = 0.02  # frames by which a recorded time may be off: seconds have four digits or more
OF_FORMAT = re.compile(
    r"(data|videos|stats|meta)/|(episode_index|tasks|length|dataset_(from|to)_index)$"
)
"""Names of columns that belong to the format."""
END_IS_CUT = "end_is_cut"
"""Metadata of episodes: true where the episode is a part of a longer one, without its last frame.
"""
_CHUNK = re.compile(r"chunk-\d+")
_FILE = re.compile(r"file-\d+\.parquet")


def asked_first(
    layout: Layout, info: Mapping[str, Any], cameras: Iterable[str]
) -> tuple[list[str], list[str]]:
    """Return files and folders that the opening of a dataset asks for, behind info.json."""
    if not layout.is_packed:
        return [_TASK_LINES, layout.episodes], ["meta"]
    chunk = f"{layout.episodes}/chunk-000"
    folders = ["meta", layout.episodes, chunk]
    fields = layout.fields | {"video_key"}
    template = template_or_default(
        info.get("video_path"), fields, layout.video_path, [], "video_path"
    )
    first = FileTable(template, np.zeros(1, np.int64), np.zeros(1, np.int64))
    folders += [replace(first, key=camera).path(0).rpartition("/")[0] for camera in cameras]
    return [_TASKS, f"{chunk}/file-000.parquet"], folders


def task_files(layout: Layout) -> tuple[str, ...]:
    """Paths of the tables of tasks, of which the first one that is there is read."""
    return (_TASKS, _TASK_LINES) if layout.is_packed else (_TASK_LINES,)


def read_tasks(files: Files, layout: Layout, oddities: list[str]) -> dict[int, str]:
    """Read task_index -> text. The text column is `task`, pandas' unnamed index, or the only text
    column.
    """
    if layout.is_packed and (files.exists(_TASKS) or not files.exists(_TASK_LINES)):
        return _read_packed_tasks(files, oddities)
    if layout.is_packed:
        oddities.append(
            f"{_TASKS} is not there; {_TASK_LINES} of an older version was read instead"
        )
    table = read_columns(files, _TASK_LINES, _TASKS_SCHEMA)
    where = files.where(_TASK_LINES)
    return _tasks_by_index(integer_column(table, "task_index", where), table.column("task"), where)


def _read_packed_tasks(files: Files, oddities: list[str]) -> dict[int, str]:
    where = files.where(_TASKS)
    table = files.table(_TASKS)
    texts = [f.name for f in table.schema if _is_text(f.type)]
    only_text = texts[0] if len(texts) == 1 else None
    name = next((n for n in ("task", "__index_level_0__") if n in texts), only_text)
    if name is None:
        raise DatasetError(
            f"no text column among {table.column_names}",
            where=where,
            fix="name the task texts 'task'",
        )
    kind = (
        table.schema.field("task_index").type if "task_index" in table.column_names else pa.null()
    )
    if pa.types.is_integer(kind) or pa.types.is_floating(kind):
        numbers = whole_numbers(table.column("task_index"), "task_index", where)
        if numbers.null_count:
            lost = table.column(name).filter(numbers.is_null()).to_pylist()
            oddities.append(
                f"{_TASKS}: {plural(len(lost), 'task has', 'tasks have')} no task_index, first "
                f"{lost[0]!r}"
            )
            table = table.filter(numbers.is_valid())
        indices = numbers.drop_null().to_numpy()
    else:
        oddities.append(f"{_TASKS} has no integer task_index; its rows were numbered in order")
        indices = np.arange(len(table), dtype=np.int64)
    return _tasks_by_index(indices, table.column(name).cast(pa.string()), where)


def _tasks_by_index(indices: np.ndarray, texts: pa.ChunkedArray, where: str) -> dict[int, str]:
    """Build task_index -> text. Refuses repeated or negative indices and missing texts."""
    if texts.null_count:
        raise DatasetError("a task has no text", where=where, fix="give every task_index a task")
    unique, counts = np.unique(indices, return_counts=True)
    if (counts > 1).any() or (len(unique) and unique[0] < 0):
        bad = int(unique[counts > 1][0]) if (counts > 1).any() else int(unique[0])
        raise DatasetError(
            f"task_index {bad} is negative or listed twice",
            where=where,
            fix="number the tasks 0, 1, 2, ...",
        )
    return {int(index): text for index, text in zip(indices, texts.to_pylist())}


def episode_files(files: Files, layout: Layout = V3) -> Iterator[str]:
    """List the files of the episode table in order, without other files of its folder."""
    if not layout.is_packed:
        yield layout.episodes
        return
    chunks = files.entries(layout.episodes)
    if chunks is None:  # no listings: files are numbered without gaps
        number = 0
        while files.exists(
            path := f"{layout.episodes}/chunk-{number // 1000:03d}/file-{number % 1000:03d}.parquet"
        ):
            yield path
            number += 1
        return
    for chunk, is_folder in chunks:
        if is_folder and _CHUNK.fullmatch(chunk):
            for name, _ in files.entries(f"{layout.episodes}/{chunk}") or []:
                if _FILE.fullmatch(name):
                    yield f"{layout.episodes}/{chunk}/{name}"


def read_episodes(
    files: Files,
    layout: Layout,
    info: dict[str, Any],
    features: dict[str, Feature],
    tasks: dict[int, str],
    oddities: list[str],
    lengths_by_id: Mapping[int, int] | None = None,
) -> EpisodeTable:
    """Read the episode table. A video that no other episode shares starts with its episode's first
    frame.

    Args:
        files: the dataset's files.
        layout: that of its version.
        info: content of info.json.
        features: the features by key; those of videos have places in files.
        tasks: text by task_index.
        oddities: receives irregularities of the metadata.
        lengths_by_id: lengths to take in place of the recorded ones, one for each episode id.

    Raises:
        DatasetError: a table cannot be read, or contradicts itself.
    """
    where = files.where(layout.episodes)
    cameras = [key for key, feature in features.items() if feature.is_video]
    if layout.is_packed:
        table = _read_packed(files, cameras)
    else:
        table = read_columns(files, layout.episodes, _EPISODES_SCHEMA)
    ids = integer_column(table, "episode_index", where)
    lengths = integer_column(table, "length", where)
    order = _check_episodes(ids, lengths, where)
    table = table if np.array_equal(order, np.arange(len(order))) else table.take(pa.array(order))
    ids = ids[order]
    lengths = lengths[order]
    if lengths_by_id is not None:
        lengths = np.array([lengths_by_id[episode] for episode in ids.tolist()], np.int64)

    index_from = np.cumsum(lengths) - lengths
    lists_places = False
    if "dataset_from_index" in table.column_names:
        recorded = integer_column(table, "dataset_from_index", where, default=-1)
        if (recorded >= 0).all():
            index_from = recorded
            lists_places = True
    if layout.is_packed:
        chunk, number = _file_numbers(table, "data", where)
        if (number < 0).all():
            raise DatasetError(
                "no episode names a data file", where=where, fix="restore meta/episodes"
            )
    else:
        chunk = ids // _chunk_size(info, oddities)
        number = ids
    template = template_or_default(
        info.get("data_path"), layout.fields, layout.data_path, oddities, "data_path"
    )
    data, data_file = _file_table(template, chunk, number, unnamed=True)
    videos: dict[str, Videos] = {}
    if cameras:
        fields = layout.fields | {"video_key"}
        template = template_or_default(
            info.get("video_path"), fields, layout.video_path, oddities, "video_path"
        )
        if layout.is_packed:
            fps = float(info["fps"])
            videos = {
                key: _videos(table, key, template, ids, index_from, lengths, fps, where, oddities)
                for key in cameras
            }
        else:  # all cameras share their arrays
            first = np.zeros(len(ids), np.int64)
            drift = np.zeros(len(ids))
            places = {key: replace(data, template=template, key=key) for key in cameras}
            videos = {
                key: Videos(place, data_file, first, drift, lengths)
                for key, place in places.items()
            }
    offsets = np.zeros(len(ids) + 1, np.int64)
    indices = np.zeros(0, np.int32)
    if "tasks" in table.column_names:
        offsets, indices = _task_lists(table.column("tasks"), tasks, oddities, layout.episodes)
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
        own_files=not layout.is_packed,
        lists_places=lists_places,
    )


def _chunk_size(info: dict[str, Any], oddities: list[str]) -> int:
    size = info.get("chunks_size")
    if type(size) is int and 0 < size < 1 << 31:
        return size
    oddities.append(f"info.json: chunks_size {size!r} is not a positive number; using 1000")
    return 1000


def read_metadata(files: Files, layout: Layout) -> dict[str, dict[int, Any]]:
    """Read the values about episodes that are not of the format: name -> episode id -> value;
    without nulls.
    """
    if layout.is_packed:
        return read_episode_columns(files, lambda name: OF_FORMAT.match(name) is None)
    columns: dict[str, dict[int, Any]] = {}
    for line in files.read(layout.episodes).splitlines():
        entry = json.loads(line) if line.strip() else {}
        for name, value in entry.items():
            if value is not None and name not in _EPISODES_SCHEMA.names:
                columns.setdefault(name, {})[int(entry["episode_index"])] = value
    return columns


def read_episode_columns(
    files: Files, is_needed: Callable[[str], bool]
) -> dict[str, dict[int, Any]]:
    """Read columns of v3's meta/episodes: name -> episode id -> value; without nulls."""
    columns: dict[str, dict[int, Any]] = {}
    for path in episode_files(files):
        with files.parquet(path) as file:
            names = [name for name in file.schema_arrow.names if is_needed(name)]
        table = files.table(path, [*names, "episode_index"])
        ids = table.column("episode_index").to_pylist()
        for name in names:
            values = zip(ids, table.column(name).to_pylist())
            columns.setdefault(name, {}).update(
                {int(e): value for e, value in values if value is not None}
            )
    return columns


def _check_episodes(ids: np.ndarray, lengths: np.ndarray, where: str) -> np.ndarray:
    """Return the order that sorts the ids.

    Raises:
        DatasetError: an id is repeated or negative, or a length is below 0 or at least 2**31
            frames.
    """
    order = np.argsort(ids, kind="stable")
    fix = "repair or restore this file"
    if len(ids) == 0:
        raise EmptyDatasetError(
            "lists no episode", where=where, fix="record or download the dataset again"
        )
    if ids[order[0]] < 0:
        raise DatasetError(f"episode id {int(ids[order[0]])} is negative", where=where, fix=fix)
    twice = np.flatnonzero(np.diff(ids[order]) == 0)
    if len(twice):
        raise DatasetError(
            f"episode {int(ids[order[twice[0]]])} is listed twice", where=where, fix=fix
        )
    bad = np.flatnonzero((lengths < 0) | (lengths >= 1 << 31))
    if len(bad):
        raise DatasetError(
            f"episode {int(ids[bad[0]])} has length {int(lengths[bad[0]])}", where=where, fix=fix
        )
    return order


def _task_lists(
    column: pa.ChunkedArray, tasks: dict[int, str], oddities: list[str], path: str
) -> tuple[np.ndarray, np.ndarray]:
    """Convert per-episode task texts to (offsets int64 (N+1,), task indices int32); -1 for texts
    not in `tasks`.
    """
    lists = column.combine_chunks()
    counts = (
        pc.fill_null(pc.list_value_length(lists), 0).to_numpy(zero_copy_only=False).astype(np.int64)
    )
    offsets = np.concatenate([np.zeros(1, np.int64), np.cumsum(counts)])
    texts = lists.flatten()
    matches = pc.index_in(texts, value_set=pa.array(list(tasks.values()), pa.string()))
    position = pc.fill_null(matches, -1).to_numpy(zero_copy_only=False).astype(np.int64)
    numbers = np.asarray([*tasks, -1], np.int32)  # the last one serves position -1
    indices = numbers[position]
    unknown = np.flatnonzero(position < 0)
    if len(unknown):
        text = texts[int(unknown[0])].as_py()
        oddities.append(
            f"{path}: {len(unknown)} task texts are not in the task list, the first is {text!r}"
        )
    return offsets, indices


def _is_text(kind: pa.DataType) -> bool:
    value = kind.value_type if pa.types.is_dictionary(kind) else kind
    return bool(pa.types.is_string(value) or pa.types.is_large_string(value))


def _read_packed(files: Files, cameras: list[str]) -> pa.Table:
    """Read the needed columns of all files of meta/episodes, integers as int64."""
    kinds: dict[str, pa.DataType] = {
        name: pa.int64() for name in ("episode_index", "length", "dataset_from_index")
    }
    for kind in ("data", *(f"videos/{key}" for key in cameras)):
        kinds |= {f"{kind}/chunk_index": pa.int64(), f"{kind}/file_index": pa.int64()}
    kinds |= {f"videos/{key}/from_timestamp": pa.float64() for key in cameras}
    kinds["tasks"] = pa.list_(pa.string())
    tables = []
    where = files.where(V3.episodes)
    for path in episode_files(files):
        table = files.table(path, list(kinds))
        for column, field in enumerate(table.schema):
            kind = kinds[field.name]
            values = table.column(column)
            try:
                if kind == pa.int64():
                    values = whole_numbers(values, field.name, files.where(path))
                table = table.set_column(column, field.name, values.cast(kind))
            except pa.ArrowException as error:
                problem = f"column {field.name!r} is {field.type}, not {kind}"
                fix = f"write the column as {kind}"
                raise DatasetError(problem, where=files.where(path), fix=fix) from error
        tables.append(table)
    if not tables:
        fix = "copy it from the source of the dataset: it gives the place of each episode"
        raise DatasetError("holds no chunk-*/file-*.parquet", where=where, fix=fix)
    table = pa.concat_tables(tables, promote_options="default")
    for name in ("episode_index", "length"):
        if name not in table.column_names:
            raise DatasetError(f"has no column {name!r}", where=where, fix="restore meta/episodes")
    return table


def _file_numbers(table: pa.Table, name: str, where: str) -> tuple[np.ndarray, np.ndarray]:
    """Return (chunk, file), int64 (N,) each, for one kind of file; -1 where the metadata names
    none.
    """
    both = [f"{name}/chunk_index", f"{name}/file_index"]
    if not set(both) <= set(table.column_names):
        nothing = np.full(len(table), -1, np.int64)
        return nothing, nothing
    chunk, number = (integer_column(table, column, where, default=-1) for column in both)
    absent = (chunk < 0) | (number < 0)
    return np.where(absent, -1, chunk), np.where(absent, -1, number)


def _file_table(
    template: str, chunk: np.ndarray, number: np.ndarray, key: str = "", unnamed: bool = False
) -> tuple[FileTable, np.ndarray]:
    """Build the table of distinct files, and the file of each episode: int32 (N,), -1 for none.

    With `unnamed`, the episodes that name none have a file of the number -1, which is not there.
    """
    present = (number >= 0) | unnamed
    listed = np.stack([chunk[present], number[present]], 1)
    # episodes of a file are neighbors
    begins = np.append(True, (listed[1:] != listed[:-1]).any(axis=1))[: len(listed)]
    pairs, of_run = np.unique(listed[begins], axis=0, return_inverse=True)
    file = np.full(len(number), -1, np.int32)
    file[present] = of_run.reshape(-1)[np.cumsum(begins) - 1]
    return FileTable(template, pairs[:, 0].copy(), pairs[:, 1].copy(), key), file


def _videos(
    table: pa.Table,
    key: str,
    template: str,
    ids: np.ndarray,
    index_from: np.ndarray,
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
    sort_keys = np.where(timed, start, 0.0) if timed.all() else ids
    first = starts_within(file, sort_keys, lengths)
    off = np.where(timed & (file >= 0), np.abs(np.where(timed, start, 0.0) * fps - first), 0.0)
    drift = np.zeros(len(files))
    expected = np.zeros(len(files), np.int64)
    np.maximum.at(drift, file[file >= 0], off[file >= 0])
    np.add.at(expected, file[file >= 0], lengths[file >= 0])
    late = np.flatnonzero(off > 0.5)
    shared = np.bincount(file[file >= 0], minlength=len(files)) > 1
    drift[np.unique(file[(file >= 0) & ~timed])] = np.inf  # the order cannot be checked
    drift[~shared & np.isinf(drift)] = 0.0
    if len(late):
        e = int(late[0])
        oddities.append(
            f"{key}: from_timestamp of {plural(len(late), 'episode')} is more than half a frame "
            f"off its place in order (first: episode {int(ids[e])} in {files.path(int(file[e]))}, "
            f"recorded {start[e]:.4f} s = frame {start[e] * fps:.2f}, in order frame "
            f"{int(first[e])}); the order is used, except in files that also hold frames of other "
            "episodes"
        )
    moved = (file >= 0) & (lengths > 0) & (first != starts_within(file, index_from, lengths))
    doubtful = np.zeros(len(files), bool)
    doubtful[file[moved]] = True
    shortest = np.full(len(files), np.inf)
    np.minimum.at(shortest, file[moved], lengths[moved])
    doubtful &= drift > np.maximum(0.5, _CLEAR * shortest)
    by_time = _first_by_time(file, first, start, lengths, fps)
    doubts = doubtful if doubtful.any() else None
    return Videos(files, file, first, drift, expected, by_time, doubts)


def _first_by_time(
    file: np.ndarray, first: np.ndarray, start: np.ndarray, lengths: np.ndarray, fps: float
) -> np.ndarray | None:
    """Compute `Videos.first_by_time`.

    The tables may list only some of a file's episodes. Recorded times that are exact to the frame
    then give the number of frames before each listed episode.
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
