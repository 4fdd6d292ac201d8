"""Origin of an edited dataset, in its meta/edit.json: command, versions, sources, and the origin of each episode."""

import hashlib
import json
import platform
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import av
import numpy as np
import pyarrow as pa

from understudy._version import __version__
from understudy.credentials import strip_credentials
from understudy.data.format.catalog import INFO, Catalog
from understudy.data.format.json_files import read_json
from understudy.data.write.dataset_files import replace_json
from understudy.edit.plan import Plan
from understudy.errors import DatasetError

PATH = "meta/edit.json"
"""File of the origin, relative to the root."""
_ENDS = 1 << 16  # bytes at each end of a file that count for its digest


def write_provenance(root: Path, command: Sequence[str], plan: Plan) -> None:
    """Write meta/edit.json of an output; each of its episodes becomes [source, episode id, start, stop].

    Args:
        root: folder of the output.
        command: words of the command line.
        plan: the output.
    """
    sources = []
    for number, catalog in enumerate(plan.sources):
        rows = sorted({piece.row for piece in plan.pieces if piece.source == number})
        sources.append(describe_source(catalog, rows, plan.cameras))
    ids = [catalog.episodes.ids for catalog in plan.sources]
    content = {
        "format": 1,
        "command": [strip_credentials(word) for word in command],
        "versions": {
            "understudy": __version__,
            "python": platform.python_version(),
            "pyarrow": pa.__version__,
            "av": av.__version__,
        },
        "sources": sources,
        "episodes": [[p.source, int(ids[p.source][p.row]), p.start, p.stop] for p in plan.pieces],
    }
    replace_json(root / PATH, content)


def describe_source(catalog: Catalog, rows: Sequence[int], cameras: Sequence[str]) -> dict[str, Any]:
    """Describe a source: root, version, counts, a digest of the files in use, and its own origin if it was edited."""
    found: dict[str, Any] = {
        "root": catalog.root,
        "version": catalog.version,
        "episodes": catalog.num_episodes,
        "frames": catalog.num_frames,
        "digest": digest_files(catalog, rows, cameras),
    }
    try:
        if catalog.files.exists(PATH):
            found["edited"] = {k: v for k, v in read_json(catalog.files, PATH).items() if k != "episodes"}
    except DatasetError:
        pass  # the origin of a source is no condition for reading it
    return found


def digest_files(catalog: Catalog, rows: Sequence[int], cameras: Sequence[str]) -> str:
    """Return a digest of info.json and of the files of table rows: path, size, first and last 64 KiB of each.

    Args:
        catalog: the source.
        rows: table rows of the episodes in use.
        cameras: keys of the video cameras in use, under the output's names.
    """
    episodes = catalog.episodes
    tables = [(episodes.data, episodes.data_file)] + [(v.files, v.file) for v in map(catalog.videos, cameras)]
    paths = [table.find(catalog.files, file) for table, of in tables for file in np.unique(of[list(rows)]).tolist()]
    digest = hashlib.sha256(json.dumps(read_json(catalog.files, INFO), sort_keys=True).encode())
    for path in sorted(paths):
        source = catalog.files.source(path)
        try:
            first = source.read(0, min(source.size, _ENDS))
            last = source.read(max(0, source.size - _ENDS), min(source.size, _ENDS))
        finally:
            source.close()
        digest.update(f"{path}\0{source.size}\0".encode() + first + last)
    return digest.hexdigest()[:32]
