"""Files of arrays that are memory-mapped: Arrow IPC, so that other programs can open them, too.

A file holds one table: nested tuples, lists, dicts and dataclasses of this package, with arrays, Arrow columns, numbers
and texts as leaves. It has one record batch of one row; each array is a list in that row, so arrays may have different
lengths. The structure is JSON in the metadata of the schema, with the dtype, the shape and the checksum of each array.

Opening runs no code that a file names: a dataclass gets its fields, and only classes of this package are looked up.
"""

from __future__ import annotations

import dataclasses
import importlib
import json
import math
import os
import zlib
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa

from understudy.atomic import replace_file

FORMAT = 3
"""Number of the format. Raise it with each change of the format or of what the code that makes tables returns."""

_PACKAGE = __name__.partition(".")[0]
_STRUCTURE = b"understudy"
_CHECKSUM = b"understudy.crc32"


class Mapped(np.memmap[Any, Any]):
    """Bytes of a mapped file."""


def write_table(path: Path, table: object, durable: bool = True) -> None:
    """Write a table to a file, which is replaced in one step.

    Args:
        path: the file.
        table: nested tuples, lists, dicts and dataclasses.
        durable: whether to wait until it is on the disk.

    Raises:
        TypeError: a part of it is of another type.
        OSError: the file cannot be written.
    """
    arrays: list[np.ndarray] = []
    root = _pack(table, arrays)
    facts = [[array.dtype.str, list(array.shape), zlib.crc32(_bytes_of(array).data)] for array in arrays]
    structure = json.dumps({"format": FORMAT, "table": root, "arrays": facts}).encode()
    columns = [_as_list(array) for array in arrays]
    fields = [pa.field(f"array {number}", column.type) for number, column in enumerate(columns)]
    schema = pa.schema(fields, {_STRUCTURE: structure, _CHECKSUM: str(zlib.crc32(structure)).encode()})
    with (
        replace_file(path, durable=durable) as draft,
        pa.OSFile(str(draft), "wb") as file,
        pa.ipc.new_file(file, schema) as writer,
    ):
        writer.write_batch(pa.record_batch(columns, schema=schema))


def open_table(path: Path, verify: bool = True) -> tuple[Any, Mapped, os.stat_result]:
    """Map the table of a file.

    Args:
        path: the file.
        verify: whether the arrays are compared with their checksums.

    Returns:
        The table with read-only arrays in the mapped file, the bytes of the file, and its state.

    Raises:
        OSError: the file cannot be opened, or another user can have written it.
        ValueError: it is damaged or of another format.
    """
    whole, stat = map_file(path)
    try:
        batch = pa.ipc.open_file(pa.py_buffer(whole.data)).get_batch(0)
        metadata = batch.schema.metadata or {}
        structure = metadata.get(_STRUCTURE, b"")
        if metadata.get(_CHECKSUM) != str(zlib.crc32(structure)).encode():
            raise ValueError("the structure is damaged")
        content = json.loads(structure)
        if content["format"] != FORMAT or len(content["arrays"]) != batch.num_columns:
            raise ValueError("another format")
        arrays = []
        for column, (dtype, shape, checksum) in zip(batch.columns, content["arrays"]):
            arrays.append(_array_of(whole, column, np.dtype(dtype), shape, checksum if verify else None))
        return _unpack(content["table"], arrays), whole, stat
    except (pa.ArrowException, OSError, KeyError, TypeError, IndexError, AttributeError, ImportError) as error:
        raise ValueError(f"the file is damaged: {error}") from error


def map_file(path: str | Path) -> tuple[Mapped, os.stat_result]:
    """Map a file that only this user can have written.

    Raises:
        OSError: the file cannot be opened, or another user can have written it.
        ValueError: it is empty.
    """
    with Path(path).open("rb") as file:
        stat = os.fstat(file.fileno())
        if stat.st_uid != os.geteuid() or stat.st_mode & 0o022:
            raise OSError("another user can have written it")
        return Mapped(file, np.uint8, "r"), stat


def size_of(table: object) -> int:
    """Count the bytes of the arrays of a table."""
    arrays: list[np.ndarray] = []
    _pack(table, arrays)
    return sum(array.nbytes for array in arrays)


def _bytes_of(array: np.ndarray) -> np.ndarray:
    return np.ascontiguousarray(array).reshape(-1).view(np.uint8)


def _as_list(array: np.ndarray) -> pa.LargeListArray:
    """One list with the numbers of an array; the bytes of values that Arrow does not know as numbers of this width."""
    values = np.ascontiguousarray(array).reshape(-1)
    if values.dtype.kind not in "iuf" or not values.dtype.isnative or values.dtype.itemsize > 8:
        values = values.view(np.uint8)
    kind = pa.from_numpy_dtype(values.dtype)
    numbers = pa.Array.from_buffers(kind, len(values), [None, pa.py_buffer(values)])
    return pa.LargeListArray.from_arrays(pa.array([0, len(values)], pa.int64()), numbers)


def _array_of(
    whole: Mapped, column: pa.LargeListArray, dtype: np.dtype, shape: list[int], checksum: int | None
) -> np.ndarray:
    """The array of a column, as a part of the mapped bytes."""
    if dtype.hasobject:
        raise ValueError("an array of objects")
    count = math.prod(shape)
    size = count * dtype.itemsize
    if size == 0:
        return np.zeros(shape, dtype)
    values = column.values
    stored = values.buffers()[1]
    begin = stored.address - whole.__array_interface__["data"][0]
    if len(values) * (values.type.bit_width // 8) != size or begin < 0 or begin + size > len(whole):
        raise ValueError("an array has another size than the structure says")
    content = whole[begin : begin + size]
    if checksum is not None and zlib.crc32(content.data) != checksum:
        raise ValueError("an array differs from its checksum")
    return np.asarray(content).view(dtype).reshape(shape)


def _pack(value: Any, arrays: list[np.ndarray]) -> Any:
    """Describe a value in JSON; its arrays are appended to `arrays`."""
    if value is None or isinstance(value, (bool, int, str)):
        return value
    if isinstance(value, float):
        return {"float": value.hex()}
    if isinstance(value, (np.ndarray, np.generic)):
        array = np.asarray(value)
        if array.dtype.hasobject:
            raise TypeError("an array of objects cannot be stored: give numbers, or an Arrow column")
        arrays.append(array)
        return {"scalar" if isinstance(value, np.generic) else "array": len(arrays) - 1}
    if isinstance(value, (pa.Array, pa.ChunkedArray)):
        arrays.append(_stream(value))
        return {"arrow": len(arrays) - 1}
    if type(value) in (tuple, list):
        return {type(value).__name__: [_pack(item, arrays) for item in value]}
    if isinstance(value, Mapping):
        return {"dict": [[_pack(key, arrays), _pack(item, arrays)] for key, item in value.items()]}
    kind = type(value)
    if dataclasses.is_dataclass(kind) and kind.__module__.partition(".")[0] == _PACKAGE:
        names = [field.name for field in dataclasses.fields(kind)]
        content = [[name, _pack(getattr(value, name), arrays)] for name in names]
        return {"class": f"{kind.__module__}:{kind.__qualname__}", "fields": content}
    raise TypeError(f"{kind.__module__}.{kind.__qualname__} cannot be stored in a table")


def _unpack(node: Any, arrays: list[np.ndarray]) -> Any:
    if not isinstance(node, dict):
        return node
    if "float" in node:
        return float.fromhex(node["float"])
    if "array" in node:
        return arrays[node["array"]]
    if "scalar" in node:
        return arrays[node["scalar"]][()]
    if "arrow" in node:
        return _column_of(arrays[node["arrow"]])
    if "tuple" in node:
        return tuple(_unpack(item, arrays) for item in node["tuple"])
    if "list" in node:
        return [_unpack(item, arrays) for item in node["list"]]
    if "dict" in node:
        return {_unpack(key, arrays): _unpack(item, arrays) for key, item in node["dict"]}
    kind = _class_of(node["class"])
    names = {field.name for field in dataclasses.fields(kind)}
    made = object.__new__(kind)
    made.__dict__.update({name: _unpack(item, arrays) for name, item in node["fields"] if name in names})
    if made.__dict__.keys() != names:
        raise ValueError(f"{node['class']} has other fields")
    return made


def _class_of(address: str) -> Any:
    """The dataclass of this package at MODULE:NAME."""
    module, _, name = address.partition(":")
    if module.partition(".")[0] != _PACKAGE:
        raise ValueError(f"{address} is not of this package")
    kind: Any = importlib.import_module(module)
    for part in name.split("."):
        kind = getattr(kind, part)
    if not isinstance(kind, type) or not dataclasses.is_dataclass(kind):
        raise ValueError(f"{address} is no dataclass")
    return kind


def _stream(column: pa.Array | pa.ChunkedArray) -> np.ndarray:
    """An Arrow column in the format of IPC streams, uint8 (n,)."""
    whole = column.combine_chunks() if isinstance(column, pa.ChunkedArray) else column
    batch = pa.record_batch([whole], ["values"])
    sink = pa.BufferOutputStream()
    with pa.ipc.new_stream(sink, batch.schema) as writer:
        writer.write_batch(batch)
    return np.frombuffer(sink.getvalue(), np.uint8)


def _column_of(stream: np.ndarray) -> pa.ChunkedArray:
    batch = pa.ipc.open_stream(pa.py_buffer(stream.data)).read_next_batch()
    return pa.chunked_array([batch.column(0)])
