"""Summaries of sources on disk, for the next run, under a hash of everything they depend on.

    <folder>/statistics/<hash>.npz      the summaries of one source

The hash covers the frames, the keys and how they are learnt, the places of the rows by the metadata, and size and time
of change (remote: etag or revision) of every data file that was read. A file appears by a rename and holds its own name
and checksums. A torn or foreign file is computed again. The oldest files are removed beyond `BUDGET`.
"""

import contextlib
import hashlib
import json
import os
import warnings
from collections.abc import Callable, Mapping
from pathlib import Path

import numpy as np

from understudy.atomic import replace_file
from understudy.batch_keys import ACTION, STATE
from understudy.data.dataset import EpisodeDataset
from understudy.data.stats.summary import FIGURES, ROWS, Summary
from understudy.storage.cache_budget import evict_files

FORMAT = 1
"""Incremented whenever summaries of the same data would differ."""

BUDGET = 4 << 30
"""Most bytes of all summaries in a folder."""

Summaries = dict[str, Summary]


def load_or_compute(
    folder: Path | None,
    data: EpisodeDataset,
    delta: tuple[int, ...],
    chunk: int,
    strides: Mapping[str, int],
    compute: Callable[[], Summaries],
) -> Summaries:
    """Return the stored result of `compute`, or compute and store it.

    The other arguments describe the result, see `summarize`. A stored result with a smaller stride serves a larger one.

    Args:
        folder: cache folder; None always computes.
        data: the source.
        delta: dimensions of the action that are differences to the state.
        chunk: frames of the action's window.
        strides: strides of the sampled rows, by key.
        compute: computes the summaries.
    """
    if folder is None:
        return compute()
    name = _hash_inputs(data, delta, chunk)
    path = folder / "statistics" / f"{name}.npz"
    found = _read(path, name, strides)
    if found is not None:
        return found
    found = compute()
    if _hash_inputs(data, delta, chunk) == name:  # no file changed while it was read
        try:
            _write(path, name, found)
        except OSError as error:
            warnings.warn(f"{path}: cannot be written; the next run computes it again: {error.strerror}", stacklevel=2)
    return found


def _hash_inputs(data: EpisodeDataset, delta: tuple[int, ...], chunk: int) -> str:
    """Hash everything that summaries depend on."""
    catalog, table = data.catalog, data.catalog.episodes
    rows = table.rows_of(np.unique(data.segments[:, 0]))
    keys = {
        key: [
            catalog.stored_names.get(key, key),
            catalog.features[key].dtype,
            catalog.features[key].shape,
            data.reach_of(key),
        ]
        for key in (ACTION, STATE)
        if key in catalog.features
    }
    parts = [FORMAT, ROWS, np.__version__, catalog.root, keys, list(delta), chunk, table.own_files]
    digest = hashlib.sha256(json.dumps(parts).encode())
    arrays = (data.segments, data.window_stops, table.lengths[rows], table.data_file[rows], table.data_row[rows])
    for array in arrays:
        digest.update(f"{array.shape}".encode() + np.ascontiguousarray(array, np.int64).tobytes())
    for file in np.unique(table.data_file[rows]).tolist():
        path = table.data.find(catalog.files, file)
        digest.update(json.dumps([path, catalog.files.version(path)]).encode())
    return digest.hexdigest()


def _read(path: Path, name: str, strides: Mapping[str, int]) -> Summaries | None:
    """Read a file if it is complete, has this name, and its rows are not sampled more coarsely than `strides`."""
    try:
        with np.load(path, allow_pickle=False) as file:  # zip: a checksum for each array, a directory at the end
            if str(file["name"]) != name:
                return None
            found = {}
            for at, (key, count, stride) in enumerate(json.loads(str(file["columns"]))):
                mean, std, low, high = (file[f"{at} {figure}"] for figure in FIGURES)
                found[key] = Summary(int(count), mean, std, low, high, file[f"{at} rows"], int(stride))
    except Exception:  # numpy and zipfile document no error type for a broken file
        return None
    for key, summary in found.items():
        wanted = strides[key]
        if summary.stride != wanted and (wanted % summary.stride if summary.stride else wanted):
            return None
    with contextlib.suppress(OSError):
        os.utime(path)  # marks the file as used
    return {key: summary.thinned(strides[key]) for key, summary in found.items()}


def _write(path: Path, name: str, summaries: Summaries) -> None:
    path.parent.mkdir(parents=True, exist_ok=True)
    arrays = {
        f"{at} {figure}": getattr(summary, figure)
        for at, summary in enumerate(summaries.values())
        for figure in (*FIGURES, "rows")
    }
    columns = json.dumps([[key, summary.count, summary.stride] for key, summary in summaries.items()])
    with replace_file(path) as draft, draft.open("wb") as file:
        np.savez(file, name=np.array(name), columns=np.array(columns), **arrays)
    evict_files(path.parent, BUDGET, keep=path)
