"""Files of arrays that are memory-mapped: Arrow IPC, so that other programs can open them, too.

A file holds one table: plain values (`plain_values.py`) and Arrow columns. It has one record batch
of one row; each array is a list in that row, so arrays may have different lengths. The structure is
JSON in the metadata of the schema, with the checksum of each array.
"""

from __future__ import annotations

import json
import os
import zlib
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa

from understudy_base import replace_file
from understudy_data.plain_values import flatten, register, restore

FORMAT = 4
"""Number of the format. Raise it with each change of the format or of what the code that makes
tables returns.
"""

_STRUCTURE = b"understudy"
_CHECKSUM = b"understudy.crc32"


class Mapped(np.memmap[Any, Any]):
    """Bytes of a mapped file."""


def write_table(path: Path, table: object, durable: bool = True) -> None:
    """Write a table to a file, which is replaced in one step.

    Args:
        path: the file.
        table: plain values, and Arrow columns.
        durable: whether to wait until it is on the disk.

    Raises:
        TypeError: a part of it is of another type.
        OSError: the file cannot be written.
    """
    root, arrays = flatten(table)
    columns = [_as_list(array) for array in arrays]
    checksums = [zlib.crc32(memoryview(column.values.buffers()[1])) for column in columns]
    structure = json.dumps({"format": FORMAT, "table": root, "checksums": checksums}).encode()
    fields = [pa.field(f"array {number}", column.type) for number, column in enumerate(columns)]
    schema = pa.schema(
        fields, {_STRUCTURE: structure, _CHECKSUM: str(zlib.crc32(structure)).encode()}
    )
    with (
        replace_file(path, durable=durable) as draft,
        pa.OSFile(str(draft), "wb") as file,
        pa.ipc.new_file(file, schema) as writer,
    ):
        # `map_file` refuses what the umask of many users lets their group write
        os.chmod(draft, 0o600)
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
        checksums = content["checksums"]
        if content["format"] != FORMAT or len(checksums) != batch.num_columns:
            raise ValueError("another format")
        contents = [_content_of(whole, column) for column in batch.columns]
        if verify and [zlib.crc32(part.data) for part in contents] != checksums:
            raise ValueError("an array differs from its checksum")
        return restore(content["table"], contents), whole, stat
    except (pa.ArrowException, OSError, KeyError, TypeError, AttributeError) as error:
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
    return sum(array.nbytes for array in flatten(table)[1])


def _as_list(array: np.ndarray) -> pa.LargeListArray:
    """One list with the numbers of an array; the bytes of values that Arrow does not know as
    numbers of this width.
    """
    values = array.ravel("A")
    if values.dtype.kind not in "iuf" or not values.dtype.isnative or values.dtype.itemsize > 8:
        values = values.view(np.uint8)
    kind = pa.from_numpy_dtype(values.dtype)
    numbers = pa.Array.from_buffers(kind, len(values), [None, pa.py_buffer(values)])
    return pa.LargeListArray.from_arrays(pa.array([0, len(values)], pa.int64()), numbers)


def _content_of(whole: Mapped, column: pa.LargeListArray) -> np.ndarray:
    """The bytes of a column, as a part of the mapped ones."""
    values = column.values
    size = len(values) * (values.type.bit_width // 8)
    if size == 0:
        return np.zeros(0, np.uint8)
    begin = values.buffers()[1].address - whole.__array_interface__["data"][0]
    if begin < 0 or begin + size > len(whole):
        raise ValueError("an array is outside of the file")
    return whole[begin : begin + size]


def _stream(column: pa.ChunkedArray) -> np.ndarray:
    """An Arrow column in the format of IPC streams, uint8 (n,)."""
    batch = pa.record_batch([column.combine_chunks()], ["values"])
    sink = pa.BufferOutputStream()
    with pa.ipc.new_stream(sink, batch.schema) as writer:
        writer.write_batch(batch)
    return np.frombuffer(sink.getvalue(), np.uint8)


def _column_of(stream: np.ndarray) -> pa.ChunkedArray:
    batch = pa.ipc.open_stream(pa.py_buffer(stream.data)).read_next_batch()
    return pa.chunked_array([batch.column(0)])


register(pa.ChunkedArray, "Arrow column", _stream, _column_of)
