"""Large tables in memory-mapped files: one copy per host instead of one per process.

Eight ranks that read a dataset of ten million episodes then share one table. A file holds a header with checksums and
named arrays. It is replaced in one step and never modified; its name is the hash of its inputs. Each process keeps its
own copy of a small table, and of every table if no local folder can hold the files (not writable, full, or on a network
file system).
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
import warnings
import zlib
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass
from multiprocessing.context import get_spawning_popen
from pathlib import Path
from typing import Any

import numpy as np

from understudy.atomic import replace_file
from understudy.errors import DatasetError
from understudy.storage import locks
from understudy.storage.cache_budget import evict_files

MIN_ROWS = 100_000
"""Least number of rows of a shared table."""
BUDGET = 16 << 30
"""Bytes of all files; the least recently used are removed first. A removed file stays readable while it is mapped."""

_MAGIC = b"understudy table 1\n"
_ALIGNED = 64
_WAIT = 600.0  # seconds to wait for the process that makes a table; then this process makes its own
_NETWORK = ("nfs", "cifs", "smb", "afs", "9p", "lustre", "gpfs", "beegfs", "ceph", "gluster", "fuse")

Arrays = Mapping[str, np.ndarray]


@dataclass(frozen=True)
class Table:
    """Named arrays, read-only if they are mapped.

    Attributes:
        arrays: The arrays by name.
        note: JSON value stored with them.
    """

    arrays: Arrays
    note: Any = None


def once_per_host(key: str, make: Callable[[], tuple[Table, bool]], cache: str = "") -> Table:
    """Return the table of a key, mapped from its file; make it first if there is none.

    Args:
        key: Hex digits: the hash of all inputs of the table.
        make: Returns the table, and whether it is worth a file. One process of the host calls it; the others wait.
        cache: Preferred folder on a local disk; "" is the user's cache folder.
    """
    folder = _table_folder(cache)
    if folder is None:
        return make()[0]
    path = folder / key[:40]
    with contextlib.ExitStack() as stack:
        mapped = _open(path)
        if mapped is None:
            try:
                stack.enter_context(locks.hold(f"{path}.lock", wait=_WAIT))
                mapped = _open(path)
            except (OSError, DatasetError):
                return make()[0]
        if mapped is not None:
            return mapped
        table, is_large = make()
        if not is_large:
            with contextlib.suppress(OSError):
                os.unlink(f"{path}.lock")
            return table
        return _store(path, table)


def share_arrays(arrays: Arrays, cache: str = "") -> Arrays:
    """Return the same arrays, mapped if they are large; the file's name is the hash of their content."""
    if max((len(array) for array in arrays.values()), default=0) < MIN_ROWS:
        return arrays
    digest = hashlib.blake2b(digest_size=20)
    for name, array in sorted(arrays.items()):
        digest.update(f"{name} {array.dtype.str} {array.shape} ".encode())
        digest.update(np.ascontiguousarray(array).data.cast("B") if array.size else b"")
    table = once_per_host(digest.hexdigest(), lambda: (Table(arrays), True), cache)
    same = table.arrays.keys() == arrays.keys() and all(np.array_equal(table.arrays[k], a) for k, a in arrays.items())
    return table.arrays if same else arrays


def _table_folder(cache: str) -> Path | None:
    """Return a local folder owned by this user and writable by no other; None if there is none."""
    from understudy.storage.remote_options import default_cache_folder

    user = os.geteuid()
    beside = os.path.join(tempfile.gettempdir(), f"understudy-{user}")
    for root in dict.fromkeys([cache, default_cache_folder(), beside]):
        folder = Path(root, "tables")
        if not root or is_network(root):
            continue
        try:
            folder.mkdir(mode=0o700, parents=True, exist_ok=True)
            stat = folder.lstat()
        except OSError:
            continue
        if user == stat.st_uid and not stat.st_mode & 0o022 and os.access(folder, os.W_OK):
            return folder
    return None


def is_network(path: str) -> bool:
    """Return whether a path is, or may be, on a network file system. Unknown without /proc/mounts.

    Another host can truncate files there; reading a mapped page of such a file would kill the process.
    """
    try:
        mounts = [line.split() for line in Path("/proc/mounts").read_text(encoding="utf-8").splitlines()]
    except (OSError, UnicodeDecodeError):
        return True
    folder = os.path.join(os.path.realpath(path), "")
    points = [(mount[1].replace("\\040", " "), mount[2]) for mount in mounts if len(mount) > 2]
    inside = [(len(point), kind) for point, kind in points if folder.startswith(os.path.join(point, ""))]
    return bool(inside) and max(inside, key=lambda mount: mount[0])[1].startswith(_NETWORK)


def _store(path: Path, table: Table) -> Table:
    """Write a table and return it mapped; return it unchanged if that fails."""
    try:
        _write(path, table)
        evict_files(path.parent, BUDGET, keep=path)
    except OSError as error:
        problem = f"{path.parent}: a table cannot be shared by the processes of this host: {error.strerror}"
        warnings.warn(f"{problem}; each has its own", stacklevel=2)
        return table
    return _open(path) or table


def _write(path: Path, table: Table) -> None:
    arrays = {name: np.ascontiguousarray(array) for name, array in table.arrays.items()}
    first: dict[int, str] = {}  # an array with several names is written once
    same = {name: first.setdefault(id(table.arrays[name]), name) for name in arrays}
    offset, places = 0, {}
    for name, array in arrays.items():
        if same[name] == name:
            places[name] = [offset, array.dtype.str, list(array.shape), zlib.crc32(_bytes(array))]
            offset += -(-array.nbytes // _ALIGNED) * _ALIGNED
    head = json.dumps({"places": places, "same": same, "bytes": offset, "note": table.note}).encode()
    head = b"%s%020d %010d\n%s" % (_MAGIC, len(head), zlib.crc32(head), head)
    head += b" " * (-len(head) % _ALIGNED)
    with replace_file(path) as draft, draft.open("wb") as file:
        file.write(head)
        for name in places:
            file.write(_bytes(arrays[name]))
            file.write(bytes(-arrays[name].nbytes % _ALIGNED))


def _bytes(array: np.ndarray) -> memoryview | bytes:
    return array.data.cast("B") if array.size else b""


def _open(path: Path) -> Table | None:
    """Map the table of a file; None if it is missing, damaged or another user's."""
    try:
        whole = _map(path)
        begin = len(_MAGIC)
        size, checksum = (int(text) for text in bytes(whole[begin : begin + 32]).split())
        head = bytes(whole[begin + 32 : begin + 32 + size])
        if bytes(whole[:begin]) != _MAGIC or zlib.crc32(head) != checksum:
            return None
        header = json.loads(head)
        base = -(-(begin + 32 + size) // _ALIGNED) * _ALIGNED
        if len(whole) != base + header["bytes"]:
            return None
        arrays = {}
        for name, (offset, kind, shape, crc) in header["places"].items():
            arrays[name] = _view(whole, base + offset, kind, tuple(shape))
            if zlib.crc32(_bytes(arrays[name])) != crc:
                return None
        os.utime(path)  # marks it as used
        return Table({name: arrays[other] for name, other in header["same"].items()}, header["note"])
    except (OSError, ValueError, KeyError, TypeError):
        return None


def _map(path: Path) -> np.memmap[Any, Any]:
    with path.open("rb") as file:
        if os.fstat(file.fileno()).st_uid != os.geteuid():
            raise OSError("it belongs to another user")
        return np.memmap(file, np.uint8, "r")


def _view(whole: np.ndarray, offset: int, kind: str, shape: tuple[int, ...]) -> np.ndarray:
    dtype = np.dtype(kind)
    size = int(np.prod(shape, dtype=np.int64)) * dtype.itemsize
    if offset < 0 or offset + size > len(whole):
        raise ValueError("beyond the end of the file")
    return np.asarray(whole[offset : offset + size].view(dtype)).reshape(shape)


# Pickles for a child process on this host hold the file and the position of a mapped array instead of a copy.


def dumps(state: Any) -> bytes:
    """Pickle `state`. For a process that is being started, mapped arrays are pickled as references to their files."""
    file = io.BytesIO()
    kind = pickle.Pickler if get_spawning_popen() is None else _Pickler
    kind(file, protocol=5).dump(state)
    return file.getvalue()


def loads(data: bytes) -> Any:
    """Unpickle the result of `dumps`; raises DatasetError if a referenced file is gone."""
    return _Unpickler(io.BytesIO(data)).load()


class _Pickler(pickle.Pickler):
    def persistent_id(self, item: Any) -> tuple[Any, ...] | None:
        if type(item) is not np.ndarray or not item.flags.c_contiguous or not item.size:
            return None
        whole = next((base for base in _bases(item) if isinstance(base.base, mmap.mmap)), None)
        if not isinstance(whole, np.memmap) or whole.filename is None:
            return None
        offset = item.__array_interface__["data"][0] - whole.__array_interface__["data"][0]
        path = str(whole.filename)
        with contextlib.suppress(OSError):
            return path, _identity(path), offset, item.dtype.str, item.shape
        return None  # the file was removed meanwhile


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
        path, identity, offset, kind, shape = place
        try:
            if path not in self._maps:
                self._maps[path] = _map(Path(path))
                if _identity(path) != tuple(identity):
                    raise OSError("it was replaced by another file")
        except OSError as error:
            fix = "start again: the table is made again"
            raise DatasetError(f"this table was removed while it was used: {error}", where=path, fix=fix) from error
        return _view(self._maps[path], offset, kind, tuple(shape))
