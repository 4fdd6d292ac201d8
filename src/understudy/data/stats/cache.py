"""Summaries of sources, kept for the next run under a hash of all they follow from.

    <folder>/statistics/<hash>.npz      the summaries of one source
                        *.part          being written

The hash covers the frames, the keys and how they are learnt, what the metadata says of where the rows lie, and size and
time of change (elsewhere: the etag or revision) of every data file that was read; a change of any of them is another
name. A file appears by a rename, holds its own name and checksums, and is never trusted: what is torn or foreign is
computed again. The oldest go when all together outgrow `BUDGET`.
"""

import contextlib
import hashlib
import json
import os
import tempfile
import warnings
from collections.abc import Callable, Mapping
from pathlib import Path

import numpy as np

from understudy.batch_keys import ACTION, STATE
from understudy.data.dataset import EpisodeDataset
from understudy.data.stats.summary import FIGURES, ROWS, Summary

FORMAT = 1
"""Counts up whenever summaries of the same data would come out otherwise."""

BUDGET = 4 << 30
"""Bytes of all summaries in a folder."""

Summaries = dict[str, Summary]


def kept(
    folder: Path | None,
    data: EpisodeDataset,
    delta: tuple[int, ...],
    chunk: int,
    strides: Mapping[str, int],
    compute: Callable[[], Summaries],
) -> Summaries:
    """What `compute` gives, from the folder where it is there, and left there otherwise. None always computes.

    Args:
        data, delta, chunk, strides: what `compute` summarises, see `summarise`. What was kept with a smaller stride
            serves a larger one.
    """
    if folder is None:
        return compute()
    name = _name(data, delta, chunk)
    path = folder / "statistics" / f"{name}.npz"
    found = _read(path, name, strides)
    if found is not None:
        return found
    found = compute()
    if _name(data, delta, chunk) == name:  # no file changed while it was read
        try:
            _write(path, name, found)
        except OSError as error:
            warnings.warn(f"{path}: cannot be written, the next run computes it again: {error.strerror}", stacklevel=2)
    return found


def _name(data: EpisodeDataset, delta: tuple[int, ...], chunk: int) -> str:
    """The hash of everything that summaries follow from."""
    catalog, table = data.catalog, data.catalog.episodes
    rows = table.rows_of(np.unique(data.segments[:, 0]))
    keys = {
        key: [
            catalog.stored.get(key, key),
            catalog.features[key].dtype,
            catalog.features[key].shape,
            key in data.windows,
        ]
        for key in (ACTION, STATE)
        if key in catalog.features
    }
    said = [FORMAT, ROWS, np.__version__, catalog.root, keys, list(delta), chunk, table.own_files]
    digest = hashlib.sha256(json.dumps(said).encode())
    arrays = (data.segments, data.window_stops, table.lengths[rows], table.data_file[rows], table.data_row[rows])
    for array in arrays:
        digest.update(f"{array.shape}".encode() + np.ascontiguousarray(array, np.int64).tobytes())
    for file in np.unique(table.data_file[rows]).tolist():
        path = table.data.find(catalog.files, file)
        digest.update(json.dumps([path, catalog.files.version(path)]).encode())
    return digest.hexdigest()


def _read(path: Path, name: str, strides: Mapping[str, int]) -> Summaries | None:
    """What lies there, if it is whole, of that name, and thinned no further than asked for."""
    try:
        with np.load(path, allow_pickle=False) as file:  # zip: a checksum for each array, a directory at the end
            if str(file["name"]) != name:
                return None
            found = {}
            for at, (key, count, stride) in enumerate(json.loads(str(file["columns"]))):
                mean, std, low, high = (file[f"{at} {figure}"] for figure in FIGURES)
                found[key] = Summary(int(count), mean, std, low, high, file[f"{at} rows"], int(stride))
    except Exception:  # numpy and zipfile promise no kind of error for a broken file
        return None
    for key, summary in found.items():
        wanted = strides[key]
        if summary.stride != wanted and (wanted % summary.stride if summary.stride else wanted):
            return None
    with contextlib.suppress(OSError):
        os.utime(path)  # used now
    return {key: summary.thinned(strides[key]) for key, summary in found.items()}


def _write(path: Path, name: str, summaries: Summaries) -> None:
    path.parent.mkdir(parents=True, exist_ok=True)
    arrays = {
        f"{at} {what}": getattr(summary, what)
        for at, summary in enumerate(summaries.values())
        for what in (*FIGURES, "rows")
    }
    columns = json.dumps([[key, summary.count, summary.stride] for key, summary in summaries.items()])
    handle, draft = tempfile.mkstemp(suffix=".part", dir=path.parent)
    try:
        with os.fdopen(handle, "wb") as file:
            np.savez(file, name=np.array(name), columns=np.array(columns), **arrays)
            file.flush()
            os.fsync(file.fileno())
        os.replace(draft, path)
    except BaseException:
        Path(draft).unlink(missing_ok=True)
        raise
    _make_room(path)


def _make_room(newest: Path) -> None:
    """Remove the longest unused until the rest is within `BUDGET`, drafts of killed processes among them."""
    there = []
    for entry in os.scandir(newest.parent):
        with contextlib.suppress(FileNotFoundError):  # another process makes room, too
            there.append((entry.stat().st_mtime_ns, entry.stat().st_size, entry.path))
    total = sum(size for _, size, _ in there)
    for _, size, path in sorted(there):
        if total <= BUDGET:
            return
        if path != str(newest):
            Path(path).unlink(missing_ok=True)
            total -= size
