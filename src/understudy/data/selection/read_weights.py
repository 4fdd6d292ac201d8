"""Weights of frames, read from a parquet file or from a column of the dataset, as runs of equal weight.

A file has the columns `episode`, `frame` and `weight` (or LeRobot's names `episode_index` and `frame_index`), a row per
frame, in any sequence. A column has a number per frame. Either is read in pieces: memory is needed for the runs only.
"""

import os
from collections.abc import Iterator
from dataclasses import dataclass
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq

from understudy.data.format.catalog import Catalog
from understudy.data.format.episode_table import describe_ids
from understudy.data.read.rows import Rows
from understudy.data.selection.segment_table import EPISODE_STRIDE
from understudy.errors import DatasetError

LARGEST, SMALLEST = 1000.0, 1e-6
"""Bounds of a weight above 0."""

_NAMES = {"episode": ("episode", "episode_index"), "frame": ("frame", "frame_index"), "weight": ("weight",)}
_BATCH = 1 << 20  # rows read at once
_CACHE = 64 << 20  # bytes of loaded data files


@dataclass(frozen=True)
class WeightRuns:
    """Runs of frames of equal weight, ascending, disjoint, as long as they can be.

    `starts`, `stops`: int64 (R,), frames packed as episode * 2^32 + frame, the end excluded. `weights`: float64 (R,).
    """

    starts: np.ndarray
    stops: np.ndarray
    weights: np.ndarray


def is_weight_file(given: str | os.PathLike[str]) -> bool:
    """Return whether frame weights are a file; otherwise they are the name of a column."""
    return not isinstance(given, str) or given.endswith(".parquet")


def read_weights(catalog: Catalog, given: str | os.PathLike[str], segments: np.ndarray) -> WeightRuns:
    """Read the weights of frames.

    Args:
        catalog: the dataset.
        given: a parquet file, or the key of a feature with one number per frame.
        segments: int64 (K, 3), rows [episode, start, stop): the frames of which a column is read.

    Raises:
        DatasetError: the file or column cannot be read, has another form, names a frame that is not in the dataset, or
            names one twice; a weight is negative, not finite, above 1000, or above 0 and below 1e-6.
    """
    where = os.fspath(given) if is_weight_file(given) else f"{catalog.root}: column {given!r}"
    parts = list(_read_file(catalog, where) if is_weight_file(given) else _read_column(catalog, str(given), segments))
    if not parts:
        raise DatasetError("frame_weights has no rows", where=where, fix="give a row per frame: episode, frame, weight")
    runs = WeightRuns(*(np.concatenate(columns) for columns in zip(*parts)))
    order = np.argsort(runs.starts, kind="stable")
    runs = WeightRuns(runs.starts[order], runs.stops[order], runs.weights[order])
    twice = np.flatnonzero(runs.starts[1:] < runs.stops[:-1])
    if len(twice):
        what = f"{_place(runs.starts[twice[0] + 1])} has two weights"
        raise DatasetError(what, where=where, fix="keep one row per frame")
    return _join(runs)


def _join(runs: WeightRuns) -> WeightRuns:
    """Join neighbours of equal weight."""
    new = np.ones(len(runs.starts), bool)
    new[1:] = (runs.starts[1:] != runs.stops[:-1]) | (runs.weights[1:] != runs.weights[:-1])
    first = np.flatnonzero(new)
    last = np.append(first[1:], len(new)) - 1
    return WeightRuns(runs.starts[first], runs.stops[last], runs.weights[first])


def _make_runs(packed: np.ndarray, weights: np.ndarray, where: str) -> tuple[np.ndarray, np.ndarray, np.ndarray]:
    """Return starts, stops and weights of the runs of packed frames, int64 (n,), after a check of their weights."""
    wrong = ~((weights == 0) | ((weights >= SMALLEST) & (weights <= LARGEST)))  # also NaN
    if wrong.any():
        at = int(np.flatnonzero(wrong)[0])
        what = f"{_place(packed[at])} has the weight {weights[at]:g} ({int(wrong.sum())} such frames)"
        fix = f"give 0, which leaves the frame out, or a number from {SMALLEST:g} to {LARGEST:g}"
        raise DatasetError(what, where=where, fix=fix)
    runs = _join(WeightRuns(packed, packed + 1, weights))
    return runs.starts, runs.stops, runs.weights


def _read_file(catalog: Catalog, where: str) -> Iterator[tuple[np.ndarray, np.ndarray, np.ndarray]]:
    try:
        with pq.ParquetFile(where) as file:
            names = _column_names(file.schema_arrow, where)
            for batch in file.iter_batches(_BATCH, columns=list(names.values())):
                columns = {role: _numbers(batch.column(name), name, where) for role, name in names.items()}
                if batch.num_rows:
                    packed = _pack(catalog, columns["episode"], columns["frame"], where)
                    yield _make_runs(packed, columns["weight"].astype(np.float64), where)
    except (OSError, pa.ArrowException) as error:
        what = f"frame_weights cannot be read: {error}"
        raise DatasetError(what, where=where, fix="give a parquet file with episode, frame, weight") from error


def _column_names(schema: Any, where: str) -> dict[str, str]:
    """Return the column of each of episode, frame and weight."""
    found = {}
    for role, names in _NAMES.items():
        own = [name for name in schema.names if name in names]
        if len(own) != 1:
            problem = f"has {' and '.join(own)}" if own else f"has no column {role!r}"
            fix = f"give exactly one of {' or '.join(map(repr, names))}; its columns are {', '.join(schema.names)}"
            raise DatasetError(f"frame_weights {problem}", where=where, fix=fix)
        kind = schema.field(own[0]).type
        good = pa.types.is_integer(kind) or (role == "weight" and pa.types.is_floating(kind))
        if not good:
            needed = "numbers" if role == "weight" else "integers"
            raise DatasetError(f"column {own[0]!r} holds {kind}", where=where, fix=f"store {needed}")
        found[role] = own[0]
    return found


def _numbers(column: Any, name: str, where: str) -> np.ndarray:
    if column.null_count:
        raise DatasetError(f"column {name!r} has {column.null_count} nulls", where=where, fix="store a number per row")
    return np.asarray(column.to_numpy(zero_copy_only=False))


def _pack(catalog: Catalog, episodes: np.ndarray, frames: np.ndarray, where: str) -> np.ndarray:
    """Return episode * 2^32 + frame, int64 (n,), of frames that are in the dataset."""
    ids = catalog.episodes.ids
    unknown = ~np.isin(episodes, ids)
    if unknown.any():
        what = f"frame_weights names episode {episodes[unknown][0]}, which the dataset does not have"
        raise DatasetError(what, where=where, fix=f"there are {describe_ids(ids)}")
    episodes = episodes.astype(np.int64)
    lengths = catalog.episodes.lengths[catalog.episodes.rows_of(episodes)]
    beyond = (frames < 0) | (frames >= lengths)
    if beyond.any():
        at = int(np.flatnonzero(beyond)[0])
        what = f"frame_weights names frame {frames[at]} of episode {episodes[at]}"
        raise DatasetError(what, where=where, fix=f"its frames are 0 to {lengths[at] - 1}")
    return episodes * EPISODE_STRIDE + frames.astype(np.int64)


def _read_column(
    catalog: Catalog, key: str, segments: np.ndarray
) -> Iterator[tuple[np.ndarray, np.ndarray, np.ndarray]]:
    features = catalog.features
    numeric = [name for name, f in features.items() if not (f.is_text or f.is_camera) and np.prod(f.value_shape) == 1]
    if key not in numeric:
        what = f"frame_weights is {key!r}, which is no file *.parquet and no feature with one number per frame"
        raise DatasetError(what, where=catalog.root, fix=f"such features are {', '.join(numeric)}")
    rows, where = Rows(catalog, [key], _CACHE), f"{catalog.root}: column {key!r}"
    for episode, start, stop in segments.tolist():
        row, frames = catalog.episodes.rows_of(np.array([episode])), np.arange(start, stop)[None]
        values = np.asarray(rows.take(row, {key: frames})[key], np.float64).reshape(-1)
        yield _make_runs(episode * int(EPISODE_STRIDE) + frames[0], values, where)


def _place(packed: int) -> str:
    return f"frame {int(packed) % int(EPISODE_STRIDE)} of episode {int(packed) // int(EPISODE_STRIDE)}"
