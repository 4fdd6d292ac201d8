"""JSON files of `meta/`, parsed fast when they are as they should be and line by line, with a line number, when not."""

import io
import json
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.json

from understudy.data.errors import DatasetError
from understudy.data.files import Files


def read_json(files: Files, path: str) -> dict[str, Any]:
    """A JSON file that holds one object."""
    data = files.read(path)
    try:
        value = json.loads(data)
    except (ValueError, RecursionError) as error:
        raise DatasetError(f"not valid JSON: {error}", where=files.where(path), fix="repair or restore it") from error
    if not isinstance(value, dict):
        raise DatasetError("does not hold a JSON object", where=files.where(path), fix="repair or restore it")
    return value


def read_columns(files: Files, path: str, schema: pa.Schema) -> pa.Table:
    """Columns of a file with one JSON object per line; other keys of the objects are skipped. A key that an object
    lacks is null.

    A list column also takes a single value. Raises DatasetError with the line that is not as the schema says.
    """
    data = files.read(path)
    try:
        data.decode("utf-8")
    except UnicodeDecodeError as error:
        what = f"line {data[: error.start].count(10) + 1} is not UTF-8 text"
        raise DatasetError(what, where=files.where(path), fix="repair or restore it") from error
    try:
        longest = max((len(line) for line in data.splitlines()), default=0)
        if longest == 0:
            return schema.empty_table()
        return pyarrow.json.read_json(
            io.BytesIO(data),
            read_options=pyarrow.json.ReadOptions(use_threads=False, block_size=max(1 << 22, 2 * longest)),
            parse_options=pyarrow.json.ParseOptions(explicit_schema=schema, unexpected_field_behavior="ignore"),
        ).select(schema.names)
    except (pa.ArrowException, KeyError):
        return _by_line(data, schema, files.where(path))


def _by_line(data: bytes, schema: pa.Schema, where: str) -> pa.Table:
    columns: dict[str, list[Any]] = {name: [] for name in schema.names}
    for number, line in enumerate(data.decode("utf-8-sig").splitlines(), start=1):
        if not line.strip():
            continue
        fix = f"repair line {number}: {line[:80]}"
        try:
            entry = json.loads(line)
        except (ValueError, RecursionError) as error:
            raise DatasetError(f"line {number} is not valid JSON: {error}", where=where, fix=fix) from error
        if not isinstance(entry, dict):
            raise DatasetError(f"line {number} is not a JSON object", where=where, fix=fix)
        for field in schema:
            value = entry.get(field.name)
            try:
                columns[field.name].append(_coerce(value, field.type))
            except (ValueError, TypeError, OverflowError) as error:
                what = f"line {number}: {field.name!r} is {str(value)[:60]!r}, not {field.type}"
                raise DatasetError(what, where=where, fix=fix) from error
    return pa.table(columns, schema=schema)


def _coerce(value: Any, kind: pa.DataType) -> Any:
    if value is None:
        return None
    if pa.types.is_list(kind):
        return [_coerce(item, kind.value_type) for item in (value if isinstance(value, list) else [value])]
    if pa.types.is_integer(kind):
        if isinstance(value, bool) or not isinstance(value, (int, float)) or value != int(value):
            raise ValueError
        return int(np.int64(int(value)))
    if not isinstance(value, str):
        raise TypeError
    return value


def integers(table: pa.Table, name: str, where: str, *, default: int | None = None) -> np.ndarray:
    """A whole-number column as int64; nulls become `default`, or are refused when there is none."""
    column = table.column(name)
    if default is not None:
        column = column.fill_null(default)
    if column.null_count:
        line = int(np.flatnonzero(column.is_null().to_numpy(zero_copy_only=False))[0]) + 1
        raise DatasetError(f"entry {line} has no {name!r}", where=where, fix="repair or restore this file")
    return column.to_numpy(zero_copy_only=False).astype(np.int64, copy=False)
