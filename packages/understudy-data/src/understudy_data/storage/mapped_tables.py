"""Large tables in memory-mapped files: one copy per host instead of one per process.

Eight ranks that read a dataset of ten million episodes then share one table. At a million episodes
and three cameras a process has 58 MB of its own in place of 409 (2026-11-22). A file is Arrow IPC
with checksums (`table_file.py`). It is replaced in one step and never modified; its name is the
hash of its inputs. It is read only if this user alone can have written it. Each process keeps its
own copy of a small table, and of every table if no local folder can hold the files (not writable,
full, or on a network file system).

Thousands of small tables have files in groups (`once_per_group`).

Tables follow from each other (`share`). A mapped file among the inputs is a part of the key by its
name, which is the hash of all its own inputs. So a key costs nothing, and a new first table leads
to new names of all others.
"""

from __future__ import annotations

import contextlib
import hashlib
import io
import json
import math
import mmap
import os
import pickle
import tempfile
import time
import warnings
import zlib
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, fields, is_dataclass, replace
from functools import cache as remember
from functools import partial
from multiprocessing.context import get_spawning_popen
from pathlib import Path
from typing import Any, Generic, TypeVar

import numpy as np

from understudy_base import DatasetError, __version__
from understudy_data.plain_values import flatten, restore
from understudy_data.storage import locks
from understudy_data.storage.cache_budget import evict_files
from understudy_data.storage.table_file import (
    FORMAT,
    Mapped,
    map_file,
    open_table,
    size_of,
    write_table,
)

MIN_ROWS = 100_000
"""Least number of rows of a shared table."""
BUDGET = 16 << 30
"""Bytes of all files; the least recently used are removed first. A removed file stays readable
while it is mapped.
"""
ROW_BUDGET = 64 << 30
"""The same of the columns of data files (`datasets/read/row_tables.py`), where no other size is
set.
"""

GROUP = 64
"""Small tables that share a file, about; as few or fewer need no groups."""

_LARGE = 1 << 20  # bytes of a result that has a file
# bytes of inputs whose result is kept in the process, and most such results
_SMALL = 1 << 12
_MOST_ALIKE = 4096
_SLOW = 0.02  # or seconds to make it
# bytes from which a file is compared with its checksums once until the host restarts
_CHECKED_ONCE = 1 << 24
_WAIT = 600.0  # seconds to wait for the process that makes a table; then this process makes its own
_ALIGNED = 16  # bytes: arrays of a group begin at multiples
_NETWORK = (
    "nfs",
    "cifs",
    "smb",
    "afs",
    "9p",
    "lustre",
    "gpfs",
    "beegfs",
    "ceph",
    "gluster",
    "fuse",
)

Arrays = Mapping[str, np.ndarray]
T = TypeVar("T")


def once_per_host(
    key: str,
    make: Callable[[], tuple[T, bool]],
    cache: str = "",
    *,
    folder: str = "tables",
    budget: int = 0,
    durable: bool = True,
) -> T:
    """Return the table of a key, mapped from its file; make it first if there is none.

    Args:
        key: Hex digits: the hash of all inputs of the table.
        make: Returns the table, which can be pickled, and whether it is worth a file. One process
            of the host calls it; the others wait. Arrays of a mapped table are read-only.
        cache: Preferred folder on a local disk; "" is the user's cache folder.
        folder: Name of the folder of its file there.
        budget: Bytes of all files of the folder; 0 is `BUDGET`.
        durable: Wait until the file is on the disk. Without it a power cut may damage the file,
            which is noticed.
    """
    place = table_folder(cache, folder)
    if place is None:
        return make()[0]
    path = _path(place, key)
    with contextlib.ExitStack() as stack:
        mapped = _open(path)
        if mapped is None:
            try:
                stack.enter_context(locks.hold(f"{path}.lock", wait=_WAIT))
                mapped = _open(path)
            except (OSError, DatasetError):
                return make()[0]
        if mapped is not None:
            table: T = mapped[0]
            return table
        table, is_large = make()
        if is_large:
            return _store(path, table, budget or BUDGET, durable)
        with contextlib.suppress(OSError):
            os.unlink(f"{path}.lock")
        return table


def are_many(tables: int) -> bool:
    """Return whether so many small tables have files in groups."""
    return tables > GROUP


@dataclass(frozen=True)
class Member(Generic[T]):
    """One of many small tables.

    Attributes:
        place: Name that stays when the inputs change; it decides the group.
        key: Returns text that changes with each input of the table.
        make: Returns the table, plain values (`plain_values.py`); None: it has none now, and its
            group gets no file.
    """

    place: str
    key: Callable[[], str]
    make: Callable[[], T | None]


def first_key(key: str, later: Callable[[], str]) -> Callable[[], str]:
    """Return a function that returns `key` once, and `later()` from the second call on.

    Args:
        key: Key that the caller has computed.
        later: Computes it again: the inputs may have changed.
    """
    computed = [key]
    return lambda: computed.pop() if computed else later()


def once_per_group(
    members: Sequence[Member[T]],
    cache: str = "",
    *,
    folder: str = "tables",
    budget: int = 0,
    mapped: bool = True,
) -> Iterator[tuple[int, T | None]]:
    """Yield the number and the table of each member, from the files of groups; make what is not
    there.

    A change of any member makes the file of its group again. The group of a member follows from its
    place and the number of members (in powers of two), so other members come and go without an
    effect on most groups. A file is not written where a key changed meanwhile.

    Args:
        members: The tables.
        cache: See `once_per_host`, as of the others.
        folder: Name of the folder of the files.
        budget: Bytes of all files of the folder.
        mapped: Whether arrays stay in the files; otherwise they are read into memory.
    """
    groups = 1 << (len(members) // GROUP).bit_length()
    grouped: dict[int, list[int]] = {}
    for number, member in enumerate(members):
        grouped.setdefault(zlib.crc32(member.place.encode()) % groups, []).append(number)
    for numbers in grouped.values():
        tables = _of_group([members[number] for number in numbers], cache, folder, budget, mapped)
        yield from zip(numbers, tables, strict=True)


def _of_group(
    members: Sequence[Member[T]], cache: str, folder: str, budget: int, mapped: bool
) -> list[T | None]:
    keys = [member.key() for member in members]
    key = hashlib.sha256(json.dumps([code_version(), keys]).encode()).hexdigest()
    tables: list[T | None] = []

    def make() -> tuple[dict[str, Any], bool]:
        tables[:] = [member.make() for member in members]
        is_whole = (
            all(table is not None for table in tables)
            and [member.key() for member in members] == keys
        )
        if not is_whole:
            return {}, False
        return _packed(tables), True

    stored = once_per_host(key, make, cache, folder=folder, budget=budget, durable=False)
    with contextlib.suppress(ValueError):  # of classes that are others by now
        return _unpacked(stored, mapped) if stored else tables
    return [member.make() for member in members]


def _packed(tables: Sequence[Any]) -> dict[str, Any]:
    """Return tables as one array and a text: a file with thousands of arrays would cost more than
    their content.
    """
    structure, arrays = flatten(list(tables))
    sizes = np.array([array.nbytes for array in arrays], np.int64)
    begins = _begins(sizes).tolist()
    values = np.zeros(begins[-1], np.uint8)
    for begin, array in zip(begins, arrays):
        values[begin : begin + array.nbytes] = np.frombuffer(array.tobytes("A"), np.uint8)
    return {"structure": json.dumps(structure), "sizes": sizes, "values": values}


def _unpacked(packed: Mapping[str, Any], mapped: bool) -> list[Any]:
    sizes = packed["sizes"]
    values = packed["values"] if mapped else np.array(packed["values"])
    begins = _begins(sizes)[:-1].tolist()
    contents = [values[begin : begin + size] for begin, size in zip(begins, sizes.tolist())]
    tables: list[Any] = restore(json.loads(packed["structure"]), contents)
    return tables


def _begins(sizes: np.ndarray) -> np.ndarray:
    """First byte of each array of a group, and the number of all bytes."""
    return np.append(0, np.cumsum(-(-sizes // _ALIGNED) * _ALIGNED))


def is_stored(folder: Path, key: str) -> bool:
    """Return whether there is a file of a key in a folder (`table_folder`), sound or not."""
    return _path(folder, key).exists()


def _path(folder: Path, key: str) -> Path:
    return folder / key[:40]


def share(make: Callable[[], T], *inputs: Any, cache: str = "") -> T:
    """Return `make()`, from a file of this host if an input is a large array and the result large
    or slow to make.

    Of small inputs this process computes it once: thousands of datasets have few distinct ones.
    Arrays of a shared result are read-only.

    Args:
        make: A function without state, or a `partial` of one; its name is part of the key.
        inputs: Everything that the result depends on: arrays, None, numbers and texts.
        cache: See `once_per_host`.
    """
    function = make.func if isinstance(make, partial) else make
    is_large = any(
        isinstance(part, np.ndarray) and part.ndim and len(part) >= MIN_ROWS for part in inputs
    )
    if not is_large:
        return _share_alike(make, (function.__module__, function.__qualname__), inputs)
    if table_folder(cache) is None:
        return make()
    parts = [code_version(), function.__module__, function.__qualname__, *map(_mark, inputs)]
    key = hashlib.sha256(repr(parts).encode()).hexdigest()

    def make_measured() -> tuple[T, bool]:
        begun = time.thread_time()
        table = make()
        seconds = time.thread_time() - begun
        return table, seconds > _SLOW or size_of(table) >= _LARGE

    return once_per_host(key, make_measured, cache)


_alike: dict[tuple[Any, ...], tuple[Any]] = {}  # results of small inputs, by these


def _share_alike(make: Callable[[], T], name: tuple[str, str], inputs: Sequence[Any]) -> T:
    """Return `make()`, computed once for small inputs of equal content."""
    size = 0
    key: list[Any] = [name]
    for part in inputs:
        if isinstance(part, np.ndarray):
            size += part.nbytes
            if size > _SMALL or part.dtype.hasobject:
                return make()
            key += [str(part.dtype), part.shape, part.tobytes()]
        elif isinstance(part, (type(None), bool, int, float, str)):
            key += [type(part), repr(part)]  # -0.0 equals 0.0, and NaN nothing
        else:
            return make()
    whole = tuple(key)
    found = _alike.get(whole)  # in one look: another thread may clear the table
    if found is not None:
        known: T = found[0]
        return known
    result = make()
    try:
        kept = _read_only(result)
    except TypeError:
        return result
    if len(_alike) >= _MOST_ALIKE:
        _alike.clear()
    _alike[whole] = (kept,)
    return kept


def _read_only(value: T) -> T:
    """Return a value with read-only copies of its arrays. Raises TypeError for another kind."""
    kept: Any
    if isinstance(value, np.ndarray):
        kept = value.copy()
        kept.setflags(write=False)
    elif isinstance(value, tuple):
        kept = tuple(map(_read_only, value))
    elif isinstance(value, dict):
        kept = {name: _read_only(part) for name, part in value.items()}
    elif is_dataclass(value) and not isinstance(value, type):
        parts = {field.name: _read_only(getattr(value, field.name)) for field in fields(value)}
        kept = replace(value, **parts)
    elif isinstance(value, (type(None), bool, int, float, str)):
        kept = value
    else:
        raise TypeError(f"{type(value).__name__} is not shared")
    result: T = kept
    return result


def share_arrays(arrays: Arrays, cache: str = "") -> Arrays:
    """Return the same arrays, mapped if they are large."""
    if all(len(array) < MIN_ROWS for array in arrays.values()):
        return _contiguous(arrays)
    if all(_mapped_place(array) for array in arrays.values()):
        return arrays
    names = sorted(arrays)
    return share(
        partial(_contiguous, arrays), *names, *(arrays[name] for name in names), cache=cache
    )


def _contiguous(arrays: Arrays) -> Arrays:
    return {name: np.ascontiguousarray(array) for name, array in arrays.items()}


def code_version() -> list[Any]:
    """Versions of all that makes tables: of their format, of this package and of NumPy."""
    return [FORMAT, __version__, np.__version__]


def _mark(part: Any) -> tuple[Any, ...]:
    """Identity of an input: of a mapped array its place in its file, of another one a hash of its
    content.
    """
    if not isinstance(part, np.ndarray):
        if part is None or isinstance(part, (bool, int, float, str)):
            return type(part).__name__, part
        raise TypeError(f"an input is {type(part).__name__}: give arrays, numbers and texts")
    if (place := _mapped_place(part)) is not None:
        return Path(place[0]).name, place[1], part.dtype.str, part.shape, part.strides
    content = np.ascontiguousarray(part)
    content_bytes = content.data.cast("B") if content.size else memoryview(b"")
    digest = hashlib.blake2b(content_bytes, digest_size=20)
    return digest.hexdigest(), part.dtype.str, part.shape


def table_folder(cache: str, name: str = "tables") -> Path | None:
    """Return a local folder of this name owned by this user and writable by no other; None if there
    is none.
    """
    from understudy_data.storage.remote_options import default_cache_folder

    user = os.geteuid()
    temporary = os.path.join(tempfile.gettempdir(), f"understudy-{user}")
    for root in dict.fromkeys([cache, default_cache_folder(), temporary]):
        folder = Path(root, name)
        if not root or is_network(root):
            continue
        try:
            folder.mkdir(mode=0o700, parents=True, exist_ok=True)
            stat = folder.lstat()
            if user == stat.st_uid and stat.st_mode & 0o022 and not folder.is_symlink():
                # it was made with the umask of many users, which lets their group write
                folder.chmod(0o700)
                stat = folder.lstat()
        except OSError:
            continue
        if user == stat.st_uid and not stat.st_mode & 0o022 and os.access(folder, os.W_OK):
            return folder
    return None


def is_mapped(array: np.ndarray) -> bool:
    """Return whether an array is a part of a mapped table, and not in the memory of this process
    alone.
    """
    return _mapped_place(array) is not None


def is_network(path: str) -> bool:
    """Return whether a path is, or may be, on a network file system. Unknown without /proc/mounts.

    Another host can truncate files there; reading a mapped page of such a file would kill the
    process.
    """
    try:
        mounts = [
            line.split() for line in Path("/proc/mounts").read_text(encoding="utf-8").splitlines()
        ]
    except (OSError, UnicodeDecodeError):
        return True
    folder = os.path.join(os.path.realpath(path), "")
    points = [(mount[1].replace("\\040", " "), mount[2]) for mount in mounts if len(mount) > 2]
    inside = [
        (len(point), kind) for point, kind in points if folder.startswith(os.path.join(point, ""))
    ]
    return bool(inside) and max(inside, key=lambda mount: mount[0])[1].startswith(_NETWORK)


def _store(path: Path, table: T, budget: int, durable: bool) -> T:
    """Write a table and return it mapped; return it unchanged if that fails."""
    try:
        write_table(path, table, durable)
        evict_files(path.parent, budget, keep=path)
    except OSError as error:
        problem = (
            f"{path.parent}: a table cannot be shared by the processes of this host: "
            f"{error.strerror}"
        )
        warnings.warn(f"{problem}; each has its own", stacklevel=2)
        return table
    mapped = _open(path)
    return table if mapped is None else mapped[0]


def _open(path: Path) -> tuple[Any] | None:
    """Map the table of a file; None if it is missing, damaged or another user's."""
    lock = Path(f"{path}.lock")
    try:
        stat = path.stat()
        mark = f"{_boot()} {stat.st_dev} {stat.st_ino} {stat.st_size} {stat.st_mtime_ns}"
        is_large = stat.st_size >= _CHECKED_ONCE
        is_checked = (
            is_large
            and bool(_boot())
            and lock.exists()
            and lock.read_text(encoding="utf-8") == mark
        )
        table, _, opened = open_table(path, verify=not is_checked)
        if (opened.st_ino, opened.st_size) != (stat.st_ino, stat.st_size):
            return None  # it was replaced meanwhile
        if is_large and not is_checked:
            lock.write_text(mark, encoding="utf-8")
        os.utime(path, ns=(time.time_ns(), stat.st_mtime_ns))  # the time of access: it is in use
    except (OSError, ValueError):
        return None
    return (table,)


@remember
def _boot() -> str:
    """Identity of the host's last start; "" if it is not known."""
    with contextlib.suppress(OSError):
        return Path("/proc/sys/kernel/random/boot_id").read_text(encoding="ascii").strip()
    return ""


# Pickles for a child process on this host hold the file and the position of a mapped array instead
# of a copy.


class SharedState:
    """Base of objects whose mapped arrays are not copied to child processes."""

    def __getstate__(self) -> bytes:
        return dumps(self.__dict__)

    def __setstate__(self, state: bytes) -> None:
        self.__dict__.update(loads(state))


def dumps(state: Any) -> bytes:
    """Pickle `state`. For a process that is being started, mapped arrays are pickled as references
    to their files.
    """
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
        if (place := _mapped_place(item)) is None:
            return None
        with contextlib.suppress(OSError):
            return place[0], _identity(place[0]), place[1], item.dtype.str, item.shape
        return None  # the file was removed meanwhile


def _mapped_place(array: np.ndarray) -> tuple[str, int] | None:
    """File of a mapped array, and the offset of its first element; None for another array."""
    whole = next((base for base in _bases(array) if isinstance(base.base, mmap.mmap)), None)
    if not isinstance(whole, Mapped):
        return None
    return str(whole.filename), array.__array_interface__["data"][0] - whole.__array_interface__[
        "data"
    ][0]


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
                self._maps[path] = map_file(path)[0]
                if _identity(path) != tuple(identity):
                    raise OSError("it was replaced by another file")
        except OSError as error:
            fix = "start again: the table is made again"
            raise DatasetError(
                f"this table was removed while it was used: {error}", where=path, fix=fix
            ) from error
        dtype = np.dtype(kind)
        part = self._maps[path][offset : offset + math.prod(shape) * dtype.itemsize]
        return np.asarray(part.view(dtype)).reshape(shape)
