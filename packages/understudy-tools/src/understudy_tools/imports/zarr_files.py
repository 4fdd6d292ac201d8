"""Zarr replay buffers, folders and zip files. Nothing outside of them is read, and chunks decode to
declared sizes.
"""

import os
import struct
import zipfile
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress
from functools import partial, wraps
from pathlib import Path
from typing import Any

import numpy as np

from understudy_base import optional_imports
from understudy_tools.imports.arrays import Opened, Rows
from understudy_tools.imports.bounds import decompress, require_size
from understudy_tools.imports.inside import require_inside
from understudy_tools.imports.limits import MAX_CHUNK, MAX_METADATA
from understudy_tools.imports.recording import Recording, RecordingError, reading
from understudy_tools.imports.settings import ImportMapping

_METADATA = (".zarray", ".zgroup", ".zattrs", ".zmetadata", "zarr.json")
_LEAST = 1 << 26  # bytes that a chunk may always have: of texts no array declares a size
_OBJECTS = ("vlen-utf8", "vlen-bytes")  # codecs of texts whose number of items is checked
_limit = MAX_CHUNK  # bytes that a codec may decode to now


def zarr_episodes(path: Path, mapping: ImportMapping) -> tuple[list[Recording], str]:
    """Return the episodes of a replay buffer (`data/*`, `meta/episode_ends`), a folder or a zip
    file.
    """
    with optional_imports():
        import zarr  # noqa: F401
    with suppress(ImportError):
        from imagecodecs.numcodecs import register_codecs

        register_codecs(verbose=False)

    _bound_codecs()
    with reading(fix=explain):
        opened = _open(path)
        try:
            rows = min(
                (array.shape[0] for array in opened.arrays.values() if array.shape), default=0
            )
            size = sum(array.nbytes for array in opened.arrays.values()) // max(1, rows)
            ends = _ends(path, opened, rows)
        finally:
            opened.file.close()
    spans = list(zip([0, *ends], ends))
    return [
        Rows(
            f"{path}, episode {number}",
            size * (span[1] - span[0]),
            partial(_open, path),
            mapping,
            span,
            explain=explain,
        )
        for number, span in enumerate(spans)
    ], "umi"


def _ends(path: Path, opened: Opened, rows: int) -> list[int]:
    array = opened.file.group["meta/episode_ends"]
    if array.ndim != 1 or array.dtype.kind not in "iu" or array.shape[0] > rows:
        problem = (
            f"meta/episode_ends is {array.dtype} {array.shape}, expected at most {rows} "
            "whole numbers"
        )
        raise RecordingError("layout", problem, where=path)
    with opened.file.bounded():
        ends = [int(end) for end in np.asarray(array[:])]
    if any(not start <= stop <= rows for start, stop in zip([0, *ends], ends)):
        raise RecordingError(
            "layout", f"meta/episode_ends does not rise to the {rows} rows of data", where=path
        )
    return ends


class _Buffer:
    """An opened replay buffer: its store, its group, and the bytes that a chunk of it may decode
    to.
    """

    def __init__(self, store: Any, group: Any) -> None:
        self.store = store
        self.group = group
        self.limit = _LEAST

    @contextmanager
    def bounded(self) -> Iterator[None]:
        """Bound what codecs decode to in the block."""
        global _limit
        previous_limit = _limit
        _limit = self.limit
        try:
            yield
        finally:
            _limit = previous_limit

    def close(self) -> None:
        """Close the store."""
        self.store.close()


class _Array:
    """An array whose chunks are decoded within the limit of its buffer."""

    def __init__(self, array: Any, buffer: _Buffer) -> None:
        self._array = array
        self._buffer = buffer
        self.dtype = array.dtype
        self.shape = array.shape
        self.nbytes = array.nbytes
        self.chunks = getattr(array, "shards", None) or array.chunks

    def __getitem__(self, rows: Any) -> Any:
        with self._buffer.bounded():
            return self._array[rows]


def _open(path: Path) -> Opened:
    import zarr

    store: Any = _zip_store(path) if path.is_file() else _folder_store(path)
    try:
        buffer = _Buffer(store, zarr.open_group(store, mode="r", use_consolidated=False))
        group = buffer.group["data"]
        arrays = dict[str, Any]()
        barred = dict[str, RecordingError]()
        for name in store.names("data"):
            try:
                array = group[name]
            except RecordingError as error:
                barred[name] = error
                continue
            except KeyError:
                continue  # a file that is no array
            if not isinstance(array, zarr.Array) or not array.shape:
                continue
            if (fault := _fault(array)) is not None:
                barred[name] = fault
                continue
            arrays[name] = _Array(array, buffer)
        sizes = [_bytes(array) for array in arrays.values() if _bytes(array) <= MAX_CHUNK]
        largest = max(sizes, default=0)
        buffer.limit = max(_LEAST, largest, min(2 * largest, MAX_CHUNK))  # filters change types
        store.limit = buffer.limit
    except BaseException:
        store.close()
        raise
    return Opened(buffer, arrays, barred)


def _bytes(array: Any) -> int:
    size = int(array.dtype.itemsize)
    for length in array.chunks:
        size *= int(length)
    return size


def _fault(array: Any) -> RecordingError | None:
    """Return why an array cannot be read by what its metadata say."""
    if getattr(array.metadata, "storage_transformers", ()):
        return RecordingError("unreadable", "has storage transformers, which are not applied")
    filters = [
        of.codec_id
        for of in getattr(array.metadata, "filters", None) or ()
        if hasattr(of, "codec_id")
    ]
    if array.dtype.kind == "O" and (odd := [name for name in filters if name not in _OBJECTS]):
        return RecordingError(
            "unreadable", f"is of objects in {', '.join(odd)}; texts are read in {_OBJECTS[0]}"
        )
    return None


def _folder_store(path: Path) -> Any:
    from zarr.storage import LocalStore

    class Folder(LocalStore):  # type: ignore[misc]
        """A folder whose links are followed within it only."""

        limit = _LEAST

        def _check(self, key: str) -> None:
            file = path / key
            require_inside(file, path)
            with suppress(OSError):
                require_size(file.stat().st_size, _stored_limit(key, self.limit), f"{key}, stored,")

        async def get(self, key: str, *args: Any, **kwargs: Any) -> Any:
            self._check(key)
            return await super().get(key, *args, **kwargs)

        def get_sync(self, key: str, *args: Any, **kwargs: Any) -> Any:
            self._check(key)
            return super().get_sync(key, *args, **kwargs)

        async def get_partial_values(self, prototype: Any, key_ranges: Any) -> Any:
            ranges = list(key_ranges)
            for key, _ in ranges:
                self._check(key)
            return await super().get_partial_values(prototype, ranges)

        async def exists(self, key: str) -> bool:
            self._check(key)
            return await super().exists(key)

        def names(self, group: str) -> list[str]:
            require_inside(path / group, path)
            return sorted(
                entry.name for entry in os.scandir(path / group) if not entry.name.startswith(".")
            )

    return Folder(path, read_only=True)


def _zip_store(path: Path) -> Any:
    from zarr.storage import ZipStore

    with zipfile.ZipFile(path) as file:
        sizes = {entry.filename: entry.file_size for entry in file.infolist()}

    class Zip(ZipStore):  # type: ignore[misc]
        """A zip file whose entries are not larger than the chunks that its arrays declare."""

        limit = _LEAST

        def _check(self, key: str) -> None:
            require_size(sizes.get(key, 0), _stored_limit(key, self.limit), f"{key}, stored,")

        async def get(self, key: str, *args: Any, **kwargs: Any) -> Any:
            self._check(key)
            return await super().get(key, *args, **kwargs)

        async def get_partial_values(self, prototype: Any, key_ranges: Any) -> Any:
            ranges = list(key_ranges)
            for key, _ in ranges:
                self._check(key)
            return await super().get_partial_values(prototype, ranges)

        def names(self, group: str) -> list[str]:
            inside = {key.split("/")[1] for key in sizes if key.startswith(f"{group}/")}
            return sorted(name for name in inside if name and not name.startswith("."))

    return Zip(path, mode="r", read_only=True)


def _stored_limit(key: str, limit: int) -> int:
    """Return the bytes that a file of a store may have; codecs add little to what does not
    shrink.
    """
    return MAX_METADATA if key.rpartition("/")[2] in _METADATA else limit + limit // 8 + (1 << 16)


def _bound_codecs() -> None:
    """Let the codecs of `numcodecs` stop at `_limit`; they have no limit of their own, and zarr's
    use them.
    """
    import numcodecs
    from numcodecs import blosc, lz4, vlen, zstd

    streams = {
        "gzip": numcodecs.GZip,
        "zlib": numcodecs.Zlib,
        "bz2": numcodecs.BZ2,
        "zstd": zstd.Zstd,
    }
    for kind, codec in streams.items():
        _replace(codec, partial(_bounded_stream, kind))
    _replace(numcodecs.LZMA, _bounded_lzma)
    _replace(blosc.Blosc, partial(_bounded_header, "blosc", 4))
    _replace(lz4.LZ4, partial(_bounded_header, "lz4", 0))
    for codec in (vlen.VLenUTF8, vlen.VLenBytes):
        _replace(codec, _bounded_items)


def _replace(codec: Any, decode: Callable[..., Any]) -> None:
    original = codec.decode
    if hasattr(original, "is_bounded"):
        return

    @wraps(original)
    def bounded(self: Any, buf: Any, out: Any = None) -> Any:
        return decode(partial(original, self), buf, out)

    bounded.is_bounded = True  # type: ignore[attr-defined]
    codec.decode = bounded


def _as_bytes(data: Any) -> bytes:
    from numcodecs.compat import ensure_bytes

    return bytes(ensure_bytes(data))


def _bounded_stream(kind: str, original: Callable[..., Any], buf: Any, out: Any) -> Any:
    if out is not None:
        return original(buf, out)
    return decompress(kind, _as_bytes(buf), _limit, "a chunk")


def _bounded_lzma(original: Callable[..., Any], buf: Any, out: Any) -> Any:
    try:
        return _bounded_stream("lzma", original, buf, out)
    except RecordingError:
        raise
    except Exception:  # another form of it, which its own decoder reads
        pass
    require_size(np.asarray(buf).nbytes, _limit >> 8, "a chunk of raw LZMA")
    return original(buf, out)


def _bounded_header(name: str, place: int, original: Callable[..., Any], buf: Any, out: Any) -> Any:
    head = _as_bytes(buf)[: place + 4]
    if len(head) == place + 4:
        require_size(
            struct.unpack_from("<I", head, place)[0], _limit, f"a chunk of {name}, decoded,"
        )
    return original(buf, out)


def _bounded_items(original: Callable[..., Any], buf: Any, out: Any) -> Any:
    data = _as_bytes(buf)
    if len(data) >= 4 and 4 * struct.unpack_from("<I", data)[0] > len(data):
        raise RecordingError(
            "size", f"a chunk of {len(data):,} bytes states more texts than it can hold"
        )
    return original(buf, out)


def explain(error: Exception) -> str:
    """Return the remedy for an error of zarr."""
    text = str(error)
    if "imagecodecs" in text:
        return "the codec of UMI's images comes with `pip install imagecodecs`"
    if "codec" in text.lower() and (
        "not available" in text or "nknown" in text or "not registered" in text
    ):
        return "no installed package has this codec"
    if isinstance(error, zipfile.BadZipFile):
        return "the zip file is cut or damaged: copy it again"
    if "checksum" in text.lower():
        return "the chunk is damaged: copy the file again"
    if isinstance(error, KeyError) and "episode_ends" in text:
        return "a replay buffer has `data` and `meta/episode_ends`"
    return ""
