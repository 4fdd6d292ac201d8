"""LeRobot v2.0 and v2.1: per episode one parquet file and one video file per camera; tables as JSON lines."""

import json
from collections.abc import Iterator
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from understudy.data.format.episode_table import EpisodeTable, FileTable, Videos
from understudy.data.format.features import Feature
from understudy.data.format.meta_files import integer_column, read_columns, template_or_default
from understudy.errors import DatasetError
from understudy.storage.dataset_root import Files

EPISODES = "meta/episodes.jsonl"
TASKS = "meta/tasks.jsonl"
_DATA = "data/chunk-{episode_chunk:03d}/episode_{episode_index:06d}.parquet"
_VIDEO = "videos/chunk-{episode_chunk:03d}/{video_key}/episode_{episode_index:06d}.mp4"
FIELDS = {"episode_chunk", "episode_index"}
_EPISODES_SCHEMA = pa.schema([("episode_index", pa.int64()), ("length", pa.int64()), ("tasks", pa.list_(pa.string()))])
_TASKS_SCHEMA = pa.schema([("task_index", pa.int64()), ("task", pa.string())])


def read_tasks(files: Files, oddities: list[str]) -> dict[int, str]:
    """Read meta/tasks.jsonl as task_index -> text."""
    table = read_columns(files, TASKS, _TASKS_SCHEMA)
    where = files.where(TASKS)
    return tasks_by_index(integer_column(table, "task_index", where), table.column("task"), where)


def tasks_by_index(indices: np.ndarray, texts: pa.ChunkedArray, where: str) -> dict[int, str]:
    """Build task_index -> text for either format. Refuses repeated or negative indices and missing texts."""
    if texts.null_count:
        raise DatasetError("a task has no text", where=where, fix="give every task_index a task")
    unique, counts = np.unique(indices, return_counts=True)
    if (counts > 1).any() or (len(unique) and unique[0] < 0):
        bad = int(unique[counts > 1][0]) if (counts > 1).any() else int(unique[0])
        raise DatasetError(
            f"task_index {bad} is negative or listed twice", where=where, fix="number the tasks 0, 1, 2, ..."
        )
    return {int(index): text for index, text in zip(indices, texts.to_pylist())}


def episode_files(files: Files) -> Iterator[str]:
    """List the files of the episode table."""
    yield EPISODES


def read_episodes(
    files: Files, info: dict[str, Any], features: dict[str, Feature], tasks: dict[int, str], oddities: list[str]
) -> EpisodeTable:
    """Read the episode table from meta/episodes.jsonl. Every video starts with its episode's first frame."""
    where = files.where(EPISODES)
    table = read_columns(files, EPISODES, _EPISODES_SCHEMA)
    ids, lengths = integer_column(table, "episode_index", where), integer_column(table, "length", where)
    order = check_episodes(ids, lengths, where)
    ids, lengths, tasks_column = ids[order], lengths[order], table.column("tasks")
    if not np.array_equal(order, np.arange(len(order))):
        tasks_column = tasks_column.take(pa.array(order))
    size = info.get("chunks_size")
    if type(size) is not int or not 0 < size < 1 << 31:
        oddities.append(f"info.json: chunks_size {size!r} is not a positive number; using 1000")
        size = 1000
    chunk = ids // size
    episode = np.arange(len(ids), dtype=np.int32)
    data = FileTable(template_or_default(info.get("data_path"), FIELDS, _DATA, oddities, "data_path"), chunk, ids)
    videos: dict[str, Videos] = {}
    if any(feature.is_video for feature in features.values()):
        template = template_or_default(info.get("video_path"), FIELDS | {"video_key"}, _VIDEO, oddities, "video_path")
        zeros = np.zeros(len(ids), np.int64)
        for key, feature in features.items():
            if feature.is_video:
                place = FileTable(template, chunk, ids, key)
                videos[key] = Videos(place, episode, zeros, zeros.astype(np.float64), lengths)
    offsets, indices = task_lists(tasks_column, tasks, oddities, EPISODES)
    return EpisodeTable(
        ids=ids,
        lengths=lengths,
        index_from=np.cumsum(lengths) - lengths,
        data=data,
        data_file=episode,
        data_row=np.zeros(len(ids), np.int64),
        videos=videos,
        task_offsets=offsets,
        task_indices=indices,
        own_files=True,
    )


def read_metadata(files: Files) -> dict[str, dict[int, Any]]:
    """Read the values of meta/episodes.jsonl under unknown keys: name -> episode id -> value; without nulls."""
    columns: dict[str, dict[int, Any]] = {}
    for line in files.read(EPISODES).splitlines():
        entry = json.loads(line) if line.strip() else {}
        for name, value in entry.items():
            if value is not None and name not in _EPISODES_SCHEMA.names:
                columns.setdefault(name, {})[int(entry["episode_index"])] = value
    return columns


def check_episodes(ids: np.ndarray, lengths: np.ndarray, where: str) -> np.ndarray:
    """Return the order that sorts the ids.

    Raises:
        DatasetError: an id is repeated or negative, or a length is below 0 or at least 2**31 frames.
    """
    order = np.argsort(ids, kind="stable")
    fix = "repair or restore this file"
    if len(ids) == 0:
        raise DatasetError("lists no episode", where=where, fix="record or download the dataset again")
    if ids[order[0]] < 0:
        raise DatasetError(f"episode id {int(ids[order[0]])} is negative", where=where, fix=fix)
    twice = np.flatnonzero(np.diff(ids[order]) == 0)
    if len(twice):
        raise DatasetError(f"episode {int(ids[order[twice[0]]])} is listed twice", where=where, fix=fix)
    bad = np.flatnonzero((lengths < 0) | (lengths >= 1 << 31))
    if len(bad):
        raise DatasetError(f"episode {int(ids[bad[0]])} has length {int(lengths[bad[0]])}", where=where, fix=fix)
    return order


def task_lists(
    column: pa.ChunkedArray, tasks: dict[int, str], oddities: list[str], path: str
) -> tuple[np.ndarray, np.ndarray]:
    """Convert per-episode task texts to (offsets int64 (N+1,), task indices int32); -1 for texts not in `tasks`."""
    lists = column.combine_chunks()
    counts = pc.fill_null(pc.list_value_length(lists), 0).to_numpy(zero_copy_only=False).astype(np.int64)
    offsets = np.concatenate([np.zeros(1, np.int64), np.cumsum(counts)])
    texts = lists.flatten()
    matches = pc.index_in(texts, value_set=pa.array(list(tasks.values()), pa.string()))
    position = pc.fill_null(matches, -1).to_numpy(zero_copy_only=False).astype(np.int64)
    numbers = np.asarray([*tasks, -1], np.int32)  # the last one serves position -1
    indices = numbers[position]
    unknown = np.flatnonzero(position < 0)
    if len(unknown):
        text = texts[int(unknown[0])].as_py()
        oddities.append(f"{path}: {len(unknown)} task texts are not in the task list, the first is {text!r}")
    return offsets, indices
