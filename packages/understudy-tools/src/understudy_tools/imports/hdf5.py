"""HDF5 files of robomimic, LIBERO, ALOHA and other layouts. Nothing outside of the file is opened
or read.

HDF5 can point elsewhere: external links, external raw storage, and virtual datasets of other files.
Links are resolved here, one by one, so the library never follows one; arrays whose bytes lie
elsewhere are barred.
"""

import json
import re
import zlib
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np

from understudy_base import optional_imports
from understudy_tools.imports.arrays import Opened, Rows
from understudy_tools.imports.limits import MAX_CHUNK
from understudy_tools.imports.recording import Recording, RecordingError, reading
from understudy_tools.imports.settings import ImportMapping

HDF5 = (".hdf5", ".h5")
_DEFLATE = 1  # number of the filter
_RATIO = 1032  # most bytes that a byte of deflate decodes to
_SMALL = 1 << 26  # bytes that may be declared without being stored
_DECODED = 1 << 28  # bytes that a chunk may decode to without a look at it
_MOST_KEYS = 20_000
_DEEPEST = 32  # groups and links below each other
_FIX = (
    "other files are not read: copy the array into this file (`h5repack`, or h5py's `copy`), or "
    "leave it out"
)


def hdf5_episodes(path: Path, mapping: ImportMapping) -> tuple[list[Recording], str]:
    """Return the episodes of an HDF5 file, and its layout: robomimic, libero, aloha or ""."""
    with optional_imports():
        import h5py

    with reading(fix=explain), h5py.File(path, "r") as file:
        data = _at(file, file, "data")
        groups: list[str] = []
        if _is_group(data):
            groups = [name for name in data if re.fullmatch(r"demo_\d{1,18}", name)]
        groups.sort(key=lambda name: int(name[5:]))
        env_args = _fact(data, "env_args") if groups else {}
        problem_info = _fact(data, "problem_info") if groups else {}
        layout = "" if _at(file, file, "observations/qpos") is None else "aloha"
        if groups:
            is_libero = _is_there(file, data, f"{groups[0]}/obs/agentview_rgb")
            layout = "libero" if is_libero else "robomimic"
        rate = None if mapping.source_fps else _rate(env_args)
        task = _task(problem_info)
    size = path.stat().st_size // max(1, len(groups))
    places = {f"{path}, {name}": f"data/{name}" for name in groups} or {str(path): "/"}
    recordings: list[Recording] = []
    for where, group in places.items():
        rows = Rows(where, size, partial(_open, path, group), mapping, None, rate, explain=explain)
        if isinstance(task, str):
            rows.task = task
        else:
            rows.task_fault = task
        recordings.append(rows)
    return recordings, layout


def _fact(data: Any, name: str) -> dict[str, Any]:
    """Return an attribute with a JSON object; an empty one where it is not there."""
    if name not in data.attrs:
        return {}
    text = data.attrs[name]
    try:
        decoded = text.decode() if isinstance(text, bytes) else text
        content = json.loads(decoded)
    except (ValueError, TypeError, RecursionError) as error:
        problem = f"attribute {name} of data is {str(text)[:40]!r}, expected JSON: {error}"
        raise RecordingError("unreadable", problem) from error
    if not isinstance(content, dict):
        raise RecordingError(
            "unreadable", f"attribute {name} of data is {str(text)[:40]}, expected a JSON object"
        )
    return content


def _rate(env_args: dict[str, Any]) -> float | None:
    """Return the rows per second that robomimic's facts state."""
    fix = "correct it in the file, or state `source_fps` in a mapping"
    arguments = env_args.get("env_kwargs") or {}
    if not isinstance(arguments, dict):
        problem = (
            f"env_kwargs of env_args is {str(arguments)[:40]}, expected an object with control_freq"
        )
        raise RecordingError("rate", problem, fix=fix)
    rate = arguments.get("control_freq")
    if rate is None:
        return None
    if isinstance(rate, bool) or not isinstance(rate, int | float) or not 0 < rate < np.inf:
        problem = (
            f"control_freq of env_args is {rate!r}, expected a number of rows per second above 0"
        )
        raise RecordingError("rate", problem, fix=fix)
    return float(rate)


def _task(problem_info: dict[str, Any]) -> str | RecordingError:
    """Return LIBERO's task text, or the fault to raise where no other text is given."""
    stated = problem_info.get("language_instruction", "")
    words = [stated] if isinstance(stated, str) else stated
    if isinstance(words, list) and all(isinstance(word, str) for word in words):
        return "".join(words)
    problem = f"language_instruction of problem_info is {str(stated)[:40]}, expected a text"
    return RecordingError("task", problem, fix="--task TEXT, or correct it in the file")


def _open(path: Path, group: str) -> Opened:
    import h5py

    file = h5py.File(path, "r")
    try:
        start = _at(file, file, group)
        arrays = dict[str, Any]()
        barred = dict[str, RecordingError]()
        if start is None:
            raise RecordingError("layout", f"{group} is a link to nothing")
        if not _is_group(start):
            raise RecordingError("layout", f"{group} is an array, expected a group")
        _list(file, start, "", [], arrays, barred)
    except BaseException:
        file.close()
        raise
    return Opened(file, arrays, barred, check_size)


def _is_group(item: Any) -> bool:
    import h5py

    return isinstance(item, h5py.Group)


def _at(file: Any, group: Any, path: str, depth: int = 0) -> Any:
    """Return what is at a path, links resolved within the file; None for nothing.

    Raises:
        RecordingError: a link leads to another file, or around in a circle.
    """
    import h5py

    if depth > _DEEPEST:
        raise RecordingError("link", f"{path} leads through more than {_DEEPEST} links")
    item = file if path.startswith("/") else group
    for name in (name for name in path.split("/") if name not in ("", ".")):
        if not _is_group(item):
            return None
        try:
            link = item.get(name, getlink=True)
        except TypeError as error:
            raise RecordingError(
                "link", f"{item.name}/{name} is a link of a kind that is not followed"
            ) from error
        if link is None:
            return None
        if isinstance(link, h5py.ExternalLink):
            place = f"{item.name.rstrip('/')}/{name}"
            problem = f"{place} is a link to {link.path} in another file, {link.filename}"
            raise RecordingError("link", problem, fix=_FIX)
        if isinstance(link, h5py.SoftLink):
            item = _at(file, item, link.path, depth + 1)
        else:
            item = item[name]
    return item


def _is_there(file: Any, group: Any, path: str) -> bool:
    """Return whether something of the file is at a path."""
    try:
        return _at(file, group, path) is not None
    except RecordingError:
        return False


def _list(
    file: Any,
    group: Any,
    prefix: str,
    above: list[Any],
    arrays: dict[str, Any],
    barred: dict[str, RecordingError],
) -> None:
    """Add the arrays below a group, and the faults of those that lie elsewhere."""
    import h5py

    if len(above) > _DEEPEST:
        raise RecordingError(
            "layout", f"has more than {_DEEPEST} groups below each other, as at {group.name[:80]}"
        )
    for name in group:
        if len(arrays) + len(barred) > _MOST_KEYS:
            raise RecordingError("layout", f"has more than {_MOST_KEYS:,} arrays in an episode")
        key = f"{prefix}{name}"
        try:
            item = _at(file, group, name)
            if isinstance(item, h5py.Dataset) and item.shape:
                _require_own(file, item, 0)
                arrays[key] = item
            elif _is_group(item) and item not in above and item != group:
                _list(file, item, f"{key}/", [*above, group], arrays, barred)
        except RecordingError as error:
            if error.kind != "link":
                raise
            barred[key] = error


def _require_own(file: Any, array: Any, depth: int) -> None:
    """Refuse an array whose bytes lie in another file, also those that it is put together from."""
    if array.external:
        files = ", ".join(dict.fromkeys(str(name) for name, _, _ in array.external))
        raise RecordingError("link", f"its bytes lie in another file, {files}", fix=_FIX)
    if not array.is_virtual:
        return
    if depth > _DEEPEST:
        raise RecordingError("link", f"is put together from arrays in more than {_DEEPEST} steps")
    for source in array.virtual_sources():
        if source.file_name != ".":
            raise RecordingError(
                "link", f"is put together from another file, {source.file_name}", fix=_FIX
            )
        if "%" in source.dset_name:
            problem = (
                f"is put together from arrays by the pattern {source.dset_name}, which is "
                "not followed"
            )
            raise RecordingError("link", problem, fix=_FIX)
        item = _at(file, file, f"/{source.dset_name}")
        if item is not None and not _is_group(item):
            _require_own(file, item, depth + 1)


def check_size(array: Any) -> None:
    """Refuse an array of which little is stored, or whose chunks decode to more than they declare.

    Raises:
        RecordingError: kind `size`.
    """
    stored = int(array.id.get_storage_size())
    declared = int(array.nbytes)
    if (
        declared > _SMALL
        and stored * 2 * _RATIO < declared
        and array.dtype.kind != "O"
        and not array.is_virtual
    ):
        problem = (
            f"declares {declared:,} bytes, of which {stored:,} are stored; the limit is "
            f"{_SMALL:,} of missing ones"
        )
        raise RecordingError("size", problem, fix="write its rows, or leave the stream out")
    if not array.chunks:
        return
    filters = [
        array.id.get_create_plist().get_filter(i)
        for i in range(array.id.get_create_plist().get_nfilters())
    ]
    kinds = [of[0] for of in filters]
    if kinds.count(_DEFLATE) > 1:
        raise RecordingError("size", "is compressed twice, so that its size cannot be known")
    if not kinds:
        return
    chunk = array.dtype.itemsize * int(np.prod(array.chunks, dtype=object))
    limit = max(_DECODED, min(4 * chunk, MAX_CHUNK))
    for info in _stored_chunks(array):
        if info.size > chunk + chunk // 8 + (1 << 16):
            problem = f"stores {info.size:,} bytes of a chunk that declares {chunk:,}"
            raise RecordingError("size", problem)
        if _DEFLATE in kinds and info.size * _RATIO > limit:
            decoder = zlib.decompressobj()
            size = 0
            remaining = array.id.read_direct_chunk(info.chunk_offset)[1]
            while remaining and not decoder.eof and size <= limit:
                try:
                    size += len(decoder.decompress(remaining, 1 << 20))
                except zlib.error:
                    # its filter is switched off for this chunk, or it is damaged: the library says
                    # so
                    break
                remaining = decoder.unconsumed_tail
            if size > limit:
                problem = (
                    f"has a chunk of {info.size:,} bytes that decodes to more than "
                    f"{limit:,}, its limit"
                )
                raise RecordingError("size", problem)


def _stored_chunks(array: Any) -> list[Any]:
    """Return place and size of the stored chunks of an array."""
    chunks = list[Any]()
    if hasattr(array.id, "chunk_iter"):
        array.id.chunk_iter(chunks.append)
        return chunks
    # An older library walks over all chunks for each of them.
    return [array.id.get_chunk_info(number) for number in range(array.id.get_num_chunks())]


def explain(error: Exception) -> str:
    """Return the remedy for an error of h5py."""
    text = str(error)
    if "truncated file" in text or "file signature not found" in text:
        return "the file is cut or no HDF5: copy it again"
    if "filter" in text and (
        "plugin" in text or "not available" in text or "not registered" in text
    ):
        return (
            "its filter is no part of h5py: rewrite the file with `h5repack -f GZIP=4`, or "
            "install hdf5plugin"
        )
    if "checksum" in text.lower() or "fletcher" in text.lower():
        return "the file is damaged: copy it again"
    return ""
