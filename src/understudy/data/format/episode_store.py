"""The episode table of a large dataset, read from its metadata by one process of the host and mapped by the others.

What is mapped is what was read: its name follows from the metadata's files and their versions, and from all else that
the reading depends on. Small datasets are read by everybody.
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
from understudy.storage import mapped
from understudy.storage.files import Files

_KINDS = (EpisodeTable, Videos, FileTable)


def episodes_once(
    files: Files,
    info: Mapping[str, Any],
    meta: Callable[[], Iterable[str]],
    follows: Any,
    oddities: list[str],
    read: Callable[[list[str]], EpisodeTable],
) -> EpisodeTable:
    """The table that `read(oddities)` gives, from the host's files where it is large by what info.json says.

    Args:
        meta: gives the files that it is read from. follows: what else it follows from (plain values).
        oddities: what was odd in reading it is added.
    """
    said = info.get("total_episodes")
    if isinstance(said, bool) or not isinstance(said, int) or said < mapped.LEAST:
        return read(oddities)

    def versions() -> list[tuple[str, str]]:
        return [(path, files.version(path)) for path in meta()]

    before = versions()
    what = [_code(), files.root, before, info, follows]
    key = hashlib.sha256(json.dumps(what, sort_keys=True, default=str).encode()).hexdigest()

    def make() -> tuple[mapped.Table, bool]:
        odd: list[str] = []
        table = read(odd)
        pa.default_memory_pool().release_unused()  # more than the table takes
        worth = len(table) >= mapped.LEAST and versions() == before
        arrays: dict[str, np.ndarray] = {}
        said = _apart(table, "table", arrays)
        return mapped.Table(arrays, {"table": said, "oddities": odd}), worth

    cache = files.remote.cache if files.remote is not None else ""
    found = mapped.once_per_host(key, make, cache)
    oddities += found.note["oddities"]
    table: EpisodeTable = _together(found.note["table"], found.arrays)
    return table


def _code() -> list[tuple[str, int, int]]:
    """What says that the reading itself has changed."""
    sources = [*sorted(Path(__file__).parent.glob("*.py")), Path(mapped.__file__)]
    there = [(path.name, path.stat()) for path in sources]
    return [(name, stat.st_size, stat.st_mtime_ns) for name, stat in there]


def _apart(value: Any, name: str, arrays: dict[str, np.ndarray]) -> Any:
    """What JSON can say of a table, its arrays put into `arrays` by name."""
    if isinstance(value, np.ndarray):
        arrays[name] = value
        return {"array": name}
    if isinstance(value, _KINDS):
        parts = {own.name: _apart(getattr(value, own.name), f"{name}.{own.name}", arrays) for own in fields(value)}
        return {"kind": type(value).__name__, "fields": parts}
    if isinstance(value, Mapping):
        return {"mapping": [[key, _apart(one, f"{name}.{key}", arrays)] for key, one in value.items()]}
    assert value is None or isinstance(value, str | bool), f"{name}: a {type(value).__name__}"
    return {"value": value}


def _together(said: Mapping[str, Any], arrays: mapped.Arrays) -> Any:
    if "array" in said:
        return arrays[said["array"]]
    if "kind" in said:
        kind = next(kind for kind in _KINDS if kind.__name__ == said["kind"])
        return kind(**{name: _together(one, arrays) for name, one in said["fields"].items()})
    if "mapping" in said:
        return {key: _together(one, arrays) for key, one in said["mapping"]}
    return said["value"]
