"""Statistics that are recorded for each episode: those of v2.1's file, or of v3's meta/episodes."""

import json
from collections import Counter
from collections.abc import Iterator, Mapping, Sequence
from contextlib import suppress
from typing import Any

import numpy as np

from understudy.data.format.lerobot_v3 import episode_files
from understudy.data.format.recorded_stats import PER_EPISODE
from understudy.storage.dataset_root import Files

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
