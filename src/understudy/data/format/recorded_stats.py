"""Statistics recorded with a dataset: meta/stats.json, or v2.1's per-episode records, aggregated.

Read on first access, since v2.1's records can be larger than all other metadata.

Statistics that are recorded for each episode: those of v2.1's file, or of v3's meta/episodes.
"""

import io
import json
from collections import Counter
from collections.abc import Iterator, Mapping, Sequence
from contextlib import suppress
from typing import Any

import numpy as np

from understudy.data.format.lerobot_v3 import episode_files
from understudy.data.format.meta_files import read_json
from understudy.errors import DatasetError
from understudy.storage.dataset_root import Files

Stats = dict[str, dict[str, np.ndarray]]
"""Feature key -> statistic ("min", "max", "mean", "std", "count", "q01", ...) -> float64, (C, 1, 1) for images."""

GLOBAL = "meta/stats.json"
PER_EPISODE = "meta/episodes_stats.jsonl"


def read_stats(files: Files) -> Stats:
    """Read the recorded statistics; {} when there are none.

    Raises:
        DatasetError: a file holds something else than numbers.
    """
    if files.exists(GLOBAL):
        return parse_stats(read_json(files, GLOBAL), files.where(GLOBAL))
    if files.exists(PER_EPISODE):
        return read_per_episode(files, PER_EPISODE)
    return {}


def parse_stats(entries: Mapping[str, Any], where: str) -> Stats:
    """Parse the content of stats.json; `where` names it in errors. Raises DatasetError."""
    return {key: _arrays(entry, where, key) for key, entry in entries.items()}


def aggregate(parts: list[dict[str, np.ndarray]]) -> dict[str, np.ndarray]:
    """Combine the statistics of disjoint parts (min, max, mean, std, count each).

    Mean and variance by the parallel formula: with n_i, m_i, v_i of the parts and N = sum n_i,
    m = sum n_i m_i / N and v = sum n_i (v_i + (m_i - m)^2) / N (Chan, Golub & LeVeque 1979). Quantiles do not
    follow from quantiles and are left out.
    """
    count = np.asarray([part["count"].reshape(-1)[0] for part in parts], np.float64)
    mean, std = (np.stack([part[name] for part in parts]) for name in ("mean", "std"))
    weight = (count / count.sum()).reshape(-1, *[1] * (mean.ndim - 1)) if count.sum() > 0 else np.zeros((len(parts), 1))
    total = (weight * mean).sum(0)
    with np.errstate(over="ignore", invalid="ignore"):  # overflow stays inf or NaN
        variance = (weight * (std**2 + (mean - total) ** 2)).sum(0)
    return {
        "min": np.min([part["min"] for part in parts], axis=0),
        "max": np.max([part["max"] for part in parts], axis=0),
        "mean": total,
        "std": np.sqrt(variance),
        "count": np.asarray([count.sum()]),
    }


def read_per_episode(files: Files, path: str) -> Stats:
    """Aggregate v2.1's per-episode records. Raises DatasetError."""
    where = files.where(path)
    done: dict[str, list[dict[str, np.ndarray]]] = {}
    for number, line in enumerate(io.BytesIO(files.read(path)), start=1):
        if not line.strip():
            continue
        try:
            entries = json.loads(line)["stats"].items()
        except (ValueError, KeyError, TypeError, AttributeError, RecursionError) as error:
            what = f"line {number} is not a record with 'stats': {error}"
            raise DatasetError(what, where=where, fix=f"repair line {number}") from error
        for key, entry in entries:
            part = _arrays(entry, f"{where} line {number}", key)
            lacking = {"min", "max", "mean", "std", "count"} - part.keys()
            if lacking:
                raise DatasetError(
                    f"line {number}, {key!r}: no {', '.join(sorted(lacking))}", where=where, fix="restore it"
                )
            done.setdefault(key, []).append(part)
            if len(done[key]) >= 1000:  # bounds memory for any number of episodes
                done[key] = [_aggregate(done[key], where, key)]
    return {key: _aggregate(parts, where, key) for key, parts in done.items()}


def _aggregate(parts: list[dict[str, np.ndarray]], where: str, key: str) -> dict[str, np.ndarray]:
    try:
        return aggregate(parts)
    except (ValueError, IndexError) as error:
        what = f"{key!r}: episodes disagree in shape, or have no count: {error}"
        raise DatasetError(what, where=where, fix="restore it") from error


def _arrays(entry: Any, where: str, key: str) -> dict[str, np.ndarray]:
    if not isinstance(entry, dict):
        raise DatasetError(
            f"statistics of {key!r} are not an object", where=where, fix="restore this file or remove it"
        )
    arrays = {}
    for name, value in entry.items():
        try:
            arrays[name] = np.asarray(value, dtype=np.float64)
        except (ValueError, TypeError, OverflowError) as error:
            what = f"statistic {name!r} of {key!r} holds no numbers: {error}"
            raise DatasetError(what, where=where, fix="restore this file or remove it") from error
        if arrays[name].ndim == 0:
            arrays[name] = arrays[name].reshape(1)
    return arrays


COMPARED = ("mean", "std", "min", "max")
"""Statistics of episodes that do not depend on the writer."""


def read_episode_stats(
    files: Files, version: str, ids: np.ndarray, keys: Sequence[str]
) -> dict[str, dict[str, np.ndarray]]:
    """Read the statistics that are recorded for each episode: those of v2.1's file, or of v3's meta/episodes.

    Args:
        files: the dataset's files.
        version: its format.
        ids: int64 (N,), ids of its episodes, ascending.
        keys: numeric features.

    Returns:
        Key -> "min", "max", "mean" or "std" -> float64 (N, D), NaN where an episode has no record or one of another
        width. Keys and statistics without any record are absent.

    Raises:
        DatasetError: a file cannot be read.
    """
    found: dict[str, dict[str, dict[int, Any]]] = {}
    for episode, key, name, value in _records(files, version, keys):
        found.setdefault(key, {}).setdefault(name, {})[episode] = value
    return {key: {name: _table(own, ids) for name, own in entry.items()} for key, entry in found.items()}


def _records(files: Files, version: str, keys: Sequence[str]) -> Iterator[tuple[int, str, str, Any]]:
    """Yield (episode id, key, statistic, values) of all records."""
    if version.startswith("v2"):
        if files.exists(PER_EPISODE):
            for line in files.read(PER_EPISODE).splitlines():
                entry = json.loads(line) if line.strip() else {}
                if isinstance(entry.get("episode_index"), int):
                    for key in keys:
                        own = entry["stats"].get(key, {})
                        yield from ((entry["episode_index"], key, name, own[name]) for name in COMPARED if name in own)
        return
    columns = {f"stats/{key}/{name}": (key, name) for key in keys for name in COMPARED}
    for path in episode_files(files):
        with files.parquet(path) as file:
            there = [name for name in columns if name in file.schema_arrow.names]
        table = files.table(path, [*there, "episode_index"]) if there else None
        for column in there:
            assert table is not None
            values = zip(table["episode_index"].to_pylist(), table[column].to_pylist())
            yield from ((int(episode), *columns[column], value) for episode, value in values if value is not None)


def _table(values: Mapping[int, Any], ids: np.ndarray) -> np.ndarray:
    """Records as rows of a table, those of the most frequent width."""
    arrays = {}
    for episode, value in values.items():
        with suppress(ValueError, TypeError):
            arrays[episode] = np.asarray(value, np.float64).reshape(-1)
    widths = Counter(map(len, arrays.values()))
    table = np.full((len(ids), widths.most_common(1)[0][0] if widths else 0), np.nan)
    for episode, array in arrays.items():
        row = int(np.searchsorted(ids, episode))
        if row < len(ids) and ids[row] == episode and len(array) == table.shape[1]:
            table[row] = array
    return table
