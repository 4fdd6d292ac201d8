"""Large tables of numbers, once per host: files that its processes map, instead of a copy in the memory of each.

Eight ranks that read a dataset of ten million episodes need its table once and not eight times. A file holds named
arrays behind a head with their checksums. It is written beside its place, flushed and renamed, so whoever finds it
finds all of it, and it is never changed. Its name is the hash of everything that it follows from. Where no folder of
this host can hold such files (none is ours to write, the disk is full, it is a network's), everybody has a copy, as for
small tables.
"""

from __future__ import annotations

import contextlib
import hashlib
import io
import json
import mmap
import os
import pickle
import tempfile
import time
import warnings
import zlib
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass
from multiprocessing.context import get_spawning_popen
from pathlib import Path
from typing import Any

import numpy as np

from understudy.errors import DatasetError

MIN_ROWS = 100_000
"""Rows from which on a table is worth a file."""
BUDGET = 16 << 30
"""Bytes of such files that are kept; the longest unused go first. Whoever has one mapped keeps it all the same."""

_MAGIC = b"understudy table 1\n"
_ALIGNED = 64
_WAIT = 600.0  # seconds for whoever makes a table; then it is made a second time, for this process alone
_STALE = 3600.0  # seconds after which a draft belongs to nobody any more
_NETWORK = ("nfs", "cifs", "smb", "afs", "9p", "lustre", "gpfs", "beegfs", "ceph", "gluster", "fuse")

Arrays = Mapping[str, np.ndarray]


@dataclass(frozen=True)
class Table:
    """Named arrays, which may not be written to where they are mapped, and what else was said of them (JSON)."""

    arrays: Arrays
    note: Any = None


def once_per_host(key: str, make: Callable[[], tuple[Table, bool]], cache: str = "") -> Table:
    """The table of that key: mapped, or made here and mapped, or only made.

    Args:
        key: hex digits, the hash of everything that the table follows from.
        make: gives the table, and whether it is worth a file. One process of the host calls it, the others wait.
        cache: a folder on a local disk to use first; "" for the user's cache folder.
    """
    folder = _folder(cache)
    if folder is None:
        return make()[0]
    from understudy.storage import locks  # not for small tables

    path = folder / key[:40]
    with contextlib.ExitStack() as stack:
        found = _mapped(path)
        if found is None:
            try:
                stack.enter_context(locks.hold(f"{path}.lock", wait=_WAIT))
                found = _mapped(path)
            except (OSError, DatasetError):
                return make()[0]
        if found is not None:
            return found
        table, worth = make()
        if not worth:
            with contextlib.suppress(OSError):
                os.unlink(f"{path}.lock")
            return table
        return _stored(path, table)


def share_arrays(arrays: Arrays, cache: str = "") -> Arrays:
    """The same arrays, mapped where they are large. Their name is the hash of what they hold."""
    if max((len(array) for array in arrays.values()), default=0) < MIN_ROWS:
        return arrays
    digest = hashlib.blake2b(digest_size=20)
    for name, array in sorted(arrays.items()):
        digest.update(f"{name} {array.dtype.str} {array.shape} ".encode())
        digest.update(np.ascontiguousarray(array).data.cast("B") if array.size else b"")
    table = once_per_host(digest.hexdigest(), lambda: (Table(arrays), True), cache)
    same = table.arrays.keys() == arrays.keys() and all(np.array_equal(table.arrays[k], a) for k, a in arrays.items())
    return table.arrays if same else arrays


def _folder(cache: str) -> Path | None:
    """A folder of this host that is ours, and where a file stays as it is while it is mapped; None: there is none."""
    from understudy.storage.options import default_cache_folder

    own = os.geteuid()
    beside = os.path.join(tempfile.gettempdir(), f"understudy-{own}")
    for root in dict.fromkeys([cache, default_cache_folder(), beside]):
        folder = Path(root, "tables")
        if not root or _is_network(root):
            continue
        try:
            folder.mkdir(mode=0o700, parents=True, exist_ok=True)
            there = folder.lstat()
        except OSError:
            continue
        if own == there.st_uid and not there.st_mode & 0o022 and os.access(folder, os.W_OK):
            return folder
    return None


def _is_network(path: str) -> bool:
    """Whether another host may take files away there: to read on in a map of such a file would end the process."""
    try:
        mounts = [line.split() for line in Path("/proc/mounts").read_text(encoding="utf-8").splitlines()]
    except (OSError, UnicodeDecodeError):
        return False
    place = os.path.join(os.path.realpath(path), "")
    points = [(mount[1].replace("\\040", " "), mount[2]) for mount in mounts if len(mount) > 2]
    inside = [(len(point), kind) for point, kind in points if place.startswith(os.path.join(point, ""))]
    return bool(inside) and max(inside, key=lambda one: one[0])[1].startswith(_NETWORK)


def _stored(path: Path, table: Table) -> Table:
    """The table, written and mapped; as it is where that cannot be."""
    try:
        _make_room(path.parent, sum(array.nbytes for array in table.arrays.values()))
        _write(path, table)
    except OSError as error:
        what = f"{path.parent}: a table cannot be shared by the processes of this host: {error.strerror}"
        warnings.warn(f"{what}; each has its own", stacklevel=2)
        return table
    return _mapped(path) or table


def _write(path: Path, table: Table) -> None:
    arrays = {name: np.ascontiguousarray(array) for name, array in table.arrays.items()}
    first: dict[int, str] = {}  # an array that several names have is written once
    same = {name: first.setdefault(id(table.arrays[name]), name) for name in arrays}
    at, places = 0, {}
    for name, array in arrays.items():
        if same[name] == name:
            places[name] = [at, array.dtype.str, list(array.shape), zlib.crc32(_bytes(array))]
            at += -(-array.nbytes // _ALIGNED) * _ALIGNED
    head = json.dumps({"places": places, "same": same, "bytes": at, "note": table.note}).encode()
    head = b"%s%020d %010d\n%s" % (_MAGIC, len(head), zlib.crc32(head), head)
    head += b" " * (-len(head) % _ALIGNED)
    handle, draft = tempfile.mkstemp(suffix=".part", dir=path.parent)
    try:
        with os.fdopen(handle, "wb") as file:
            file.write(head)
            for name in places:
                file.write(_bytes(arrays[name]))
                file.write(bytes(-arrays[name].nbytes % _ALIGNED))
            file.flush()
            os.fsync(file.fileno())
        os.replace(draft, path)
    except BaseException:
        Path(draft).unlink(missing_ok=True)
        raise


def _bytes(array: np.ndarray) -> memoryview | bytes:
    return array.data.cast("B") if array.size else b""


def _mapped(path: Path) -> Table | None:
    """What lies there, if it is ours, whole and as it was written."""
    try:
        whole = _map(path)
        begin = len(_MAGIC)
        size, told = (int(text) for text in bytes(whole[begin : begin + 32]).split())
        head = bytes(whole[begin + 32 : begin + 32 + size])
        if bytes(whole[:begin]) != _MAGIC or zlib.crc32(head) != told:
            return None
        said = json.loads(head)
        base = -(-(begin + 32 + size) // _ALIGNED) * _ALIGNED
        if len(whole) != base + said["bytes"]:
            return None
        found = {}
        for name, (at, kind, shape, checksum) in said["places"].items():
            found[name] = _view(whole, base + at, kind, tuple(shape))
            if zlib.crc32(_bytes(found[name])) != checksum:
                return None
        os.utime(path)  # used now
        return Table({name: found[other] for name, other in said["same"].items()}, said["note"])
    except (OSError, ValueError, KeyError, TypeError):
        return None


def _map(path: Path) -> np.memmap[Any, Any]:
    with path.open("rb") as file:
        if os.fstat(file.fileno()).st_uid != os.geteuid():
            raise OSError("another user's")
        return np.memmap(file, np.uint8, "r")


def _view(whole: np.ndarray, at: int, kind: str, shape: tuple[int, ...]) -> np.ndarray:
    dtype = np.dtype(kind)
    size = int(np.prod(shape, dtype=np.int64)) * dtype.itemsize
    if at < 0 or at + size > len(whole):
        raise ValueError("outside of the file")
    return np.asarray(whole[at : at + size].view(dtype)).reshape(shape)


def _make_room(folder: Path, wanted: int) -> None:
    """Remove drafts of killed processes, and the longest unused files until `wanted` bytes more are within `BUDGET`."""
    there = []
    for entry in os.scandir(folder):
        with contextlib.suppress(OSError):
            stat = entry.stat()
            if entry.name.endswith((".part", ".lock")):
                if time.time() - stat.st_mtime > _STALE:
                    os.unlink(entry.path)
            else:
                there.append((stat.st_mtime_ns, stat.st_size, entry.path))
    total = wanted + sum(size for _, size, _ in there)
    for _, size, path in sorted(there):
        if total <= BUDGET:
            return
        with contextlib.suppress(OSError):
            os.unlink(path)
        total -= size


# Processes that are started: a child on this host is told which part of which file, instead of given a copy.


def dumps(state: Any) -> bytes:
    """A pickle of `state`. One for a process that is being started maps what is mapped here; any other is whole."""
    file = io.BytesIO()
    kind = pickle.Pickler if get_spawning_popen() is None else _Pickler
    kind(file, protocol=5).dump(state)
    return file.getvalue()


def loads(data: bytes) -> Any:
    """What `dumps` was given. Raises DatasetError where the file is not there any more that it would map."""
    return _Unpickler(io.BytesIO(data)).load()


class _Pickler(pickle.Pickler):
    def persistent_id(self, item: Any) -> tuple[Any, ...] | None:
        if type(item) is not np.ndarray or not item.flags.c_contiguous or not item.size:
            return None
        whole = next((base for base in _bases(item) if isinstance(base.base, mmap.mmap)), None)
        if not isinstance(whole, np.memmap) or whole.filename is None:
            return None
        at = item.__array_interface__["data"][0] - whole.__array_interface__["data"][0]
        path = str(whole.filename)
        with contextlib.suppress(OSError):
            return path, _identity(path), at, item.dtype.str, item.shape
        return None  # it was removed meanwhile


def _bases(array: np.ndarray) -> Iterator[np.ndarray]:
    base: object = array
    while isinstance(base, np.ndarray):
        yield base
        base = base.base


def _identity(path: str) -> tuple[int, int, int]:
    stat = os.stat(path)
    return stat.st_dev, stat.st_ino, stat.st_size


class _Unpickler(pickle.Unpickler):
    def __init__(self, file: io.BytesIO) -> None:
        super().__init__(file)
        self._maps: dict[str, np.ndarray] = {}

    def persistent_load(self, place: tuple[Any, ...]) -> np.ndarray:
        path, identity, at, kind, shape = place
        try:
            if path not in self._maps:
                self._maps[path] = _map(Path(path))
                if _identity(path) != tuple(identity):
                    raise OSError("it is another file by now")
        except OSError as error:
            fix = "start again: it is made anew"
            raise DatasetError(f"this table was removed while it was used: {error}", where=path, fix=fix) from error
        return _view(self._maps[path], at, kind, tuple(shape))
