"""Episode tables of large datasets: parsed by one process of the host, memory-mapped by the others.

The key of a stored table covers the metadata files, their versions and everything else that parsing depends on. Small
datasets are parsed by each process.
"""

from __future__ import annotations

import hashlib
import json
from collections.abc import Callable, Iterable, Mapping
from dataclasses import fields
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa

from understudy.data.format.episode_table import EpisodeTable, FileTable, Videos
from understudy.storage import mapped_tables
from understudy.storage.dataset_root import Files

_KINDS = (EpisodeTable, Videos, FileTable)


def load_episode_table(
    files: Files,
    info: Mapping[str, Any],
    meta_files: Callable[[], Iterable[str]],
    depends_on: Any,
    oddities: list[str],
    read: Callable[[list[str]], EpisodeTable],
) -> EpisodeTable:
    """Return `read(oddities)`, shared with other processes of the host if info.json declares a large dataset.

    Args:
        files: the dataset's files.
        info: content of info.json.
        meta_files: lists the files that `read` parses.
        depends_on: plain values that the table also depends on.
        oddities: receives irregularities of the metadata.
        read: parses the table.
    """
    total = info.get("total_episodes")
    if isinstance(total, bool) or not isinstance(total, int) or total < mapped_tables.MIN_ROWS:
        return read(oddities)

    def versions() -> list[tuple[str, str]]:
        return [(path, files.version(path)) for path in meta_files()]

    before = versions()
    parts = [_code_version(), files.root, before, info, depends_on]
    key = hashlib.sha256(json.dumps(parts, sort_keys=True, default=str).encode()).hexdigest()

    def make() -> tuple[mapped_tables.Table, bool]:
        odd: list[str] = []
        table = read(odd)
        pa.default_memory_pool().release_unused()  # more than the table itself
        worth = len(table) >= mapped_tables.MIN_ROWS and versions() == before
        arrays: dict[str, np.ndarray] = {}
        structure = _split_arrays(table, "table", arrays)
        return mapped_tables.Table(arrays, {"table": structure, "oddities": odd}), worth

    cache = files.options.cache if files.options is not None else ""
    found = mapped_tables.once_per_host(key, make, cache)
    oddities += found.note["oddities"]
    table: EpisodeTable = _join_arrays(found.note["table"], found.arrays)
    return table


def _code_version() -> list[tuple[str, int, int]]:
    """Size and time of each source file that parses metadata."""
    sources = [*sorted(Path(__file__).parent.glob("*.py")), Path(mapped_tables.__file__)]
    there = [(path.name, path.stat()) for path in sources]
    return [(name, stat.st_size, stat.st_mtime_ns) for name, stat in there]


def _split_arrays(value: Any, name: str, arrays: dict[str, np.ndarray]) -> Any:
    """Describe a table as JSON values; its arrays go to `arrays` by name."""
    if isinstance(value, np.ndarray):
        arrays[name] = value
        return {"array": name}
    if isinstance(value, _KINDS):
        parts = {
            own.name: _split_arrays(getattr(value, own.name), f"{name}.{own.name}", arrays) for own in fields(value)
        }
        return {"kind": type(value).__name__, "fields": parts}
    if isinstance(value, Mapping):
        return {"mapping": [[key, _split_arrays(one, f"{name}.{key}", arrays)] for key, one in value.items()]}
    assert value is None or isinstance(value, str | bool), f"{name}: a {type(value).__name__}"
    return {"value": value}


def _join_arrays(structure: Mapping[str, Any], arrays: mapped_tables.Arrays) -> Any:
    """Invert `_split_arrays`."""
    if "array" in structure:
        return arrays[structure["array"]]
    if "kind" in structure:
        kind = next(kind for kind in _KINDS if kind.__name__ == structure["kind"])
        return kind(**{name: _join_arrays(one, arrays) for name, one in structure["fields"].items()})
    if "mapping" in structure:
        return {key: _join_arrays(one, arrays) for key, one in structure["mapping"]}
    return structure["value"]
