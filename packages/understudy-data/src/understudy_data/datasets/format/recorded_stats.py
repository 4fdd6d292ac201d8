"""Statistics recorded with a dataset: meta/stats.json, or v2.1's per-episode records, aggregated.

Read on first access, since v2.1's records can be larger than all other metadata.
"""

import io
import json
from typing import Any

import numpy as np

from understudy_base import DatasetError, Record, holds_boolean
from understudy_data.datasets.format.meta_files import read_json
from understudy_data.storage.dataset_root import Files

Stats = dict[str, dict[str, np.ndarray]]
"""Feature key -> statistic ("min", "max", "mean", "std", "count", "q01", ...) -> float64, (C, 1, 1)
for images.
"""

GLOBAL = "meta/stats.json"
PER_EPISODE = "meta/episodes_stats.jsonl"
_MAY_BE_BOOLEAN = ("min", "max", "mask")
"""Figures that may be booleans: LeRobot writes the extremes of `next.done` so, and others a mask of
dimensions.
"""


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


def parse_stats(entries: Record, where: str) -> Stats:
    """Parse the content of stats.json; `where` names it in errors. Raises DatasetError."""
    return {key: _arrays(entry, where, key) for key, entry in entries.items()}


def aggregate(parts: list[dict[str, np.ndarray]]) -> dict[str, np.ndarray]:
    """Combine the statistics of disjoint parts (min, max, mean, std, count each).

    Mean and variance by the parallel formula: with n_i, m_i, v_i of the parts and N = sum n_i, m =
    sum n_i m_i / N and v = sum n_i (v_i + (m_i - m)^2) / N (Chan, Golub & LeVeque 1979). Quantiles
    do not follow from quantiles and are left out.
    """
    count = np.asarray([part["count"].reshape(-1)[0] for part in parts], np.float64)
    mean = np.stack([part["mean"] for part in parts])
    std = np.stack([part["std"] for part in parts])
    if count.sum() > 0:
        weight = (count / count.sum()).reshape(-1, *[1] * (mean.ndim - 1))
    else:
        weight = np.zeros((len(parts), 1))
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
            problem = f"line {number} is not a record with 'stats': {error}"
            raise DatasetError(problem, where=where, fix=f"repair line {number}") from error
        for key, entry in entries:
            part = _arrays(entry, f"{where} line {number}", key)
            lacking = {"min", "max", "mean", "std", "count"} - part.keys()
            if lacking:
                raise DatasetError(
                    f"line {number}, {key!r}: no {', '.join(sorted(lacking))}",
                    where=where,
                    fix="restore it",
                )
            done.setdefault(key, []).append(part)
            if len(done[key]) >= 1000:  # bounds memory for any number of episodes
                done[key] = [_aggregate(done[key], where, key)]
    return {key: _aggregate(parts, where, key) for key, parts in done.items()}


def _aggregate(parts: list[dict[str, np.ndarray]], where: str, key: str) -> dict[str, np.ndarray]:
    try:
        return aggregate(parts)
    except (ValueError, IndexError) as error:
        problem = f"{key!r}: episodes disagree in shape, or have no count: {error}"
        raise DatasetError(problem, where=where, fix="restore it") from error


def _arrays(entry: Any, where: str, key: str) -> dict[str, np.ndarray]:
    if not isinstance(entry, dict):
        raise DatasetError(
            f"statistics of {key!r} are not an object",
            where=where,
            fix="restore this file or remove it",
        )
    arrays = {}
    for name, value in entry.items():
        try:
            if name not in _MAY_BE_BOOLEAN and holds_boolean(value):
                raise TypeError("a boolean is none")
            arrays[name] = np.asarray(value, dtype=np.float64)
        except (ValueError, TypeError, OverflowError) as error:
            problem = f"statistic {name!r} of {key!r} holds no numbers: {error}"
            raise DatasetError(
                problem, where=where, fix="restore this file or remove it"
            ) from error
        if arrays[name].ndim == 0:
            arrays[name] = arrays[name].reshape(1)
    return arrays
