"""JSON files of `meta/`, checked value by value: an error names the file and the line.

info.json is untrusted input: its path templates are checked so that every path stays under the
dataset's folder. A template is not a general format string: it may hold plain names, `{field}` and
`{field:03d}` only.
"""

import json
import logging
import math
import re
from collections.abc import Collection
from string import Formatter
from typing import Any

import numpy as np
import pyarrow as pa

from understudy_base import DatasetError
from understudy_data.storage.dataset_root import Files

logger = logging.getLogger("understudy.data.format.meta_files")


def read_json(files: Files, path: str) -> dict[str, Any]:
    """Read a JSON file that holds one object. Raises DatasetError."""
    data = files.read(path)
    if not data.strip():
        raise DatasetError(
            "the file is empty", where=files.where(path), fix="restore it or download it again"
        )
    try:
        value = json.loads(
            data, object_pairs_hook=lambda pairs: _last_of_each(pairs, files.where(path))
        )
    except (ValueError, RecursionError) as error:
        raise DatasetError(
            f"not valid JSON: {error}", where=files.where(path), fix="repair or restore it"
        ) from error
    if not isinstance(value, dict):
        raise DatasetError(
            "does not hold a JSON object", where=files.where(path), fix="repair or restore it"
        )
    return value


def _last_of_each(pairs: list[tuple[str, Any]], where: str) -> dict[str, Any]:
    """Return a JSON object; the last value of a repeated key counts, and a warning names the
    key.
    """
    mapping = dict(pairs)
    if len(mapping) < len(pairs):
        names = [name for name, _ in pairs]
        twice = next(name for name in names if names.count(name) > 1)
        logger.warning(
            "%s: key %r is there %d times, and the last one counts",
            where,
            twice,
            names.count(twice),
        )
    return mapping


def read_columns(files: Files, path: str, schema: pa.Schema) -> pa.Table:
    """Read columns of a file with one JSON object per line; missing keys are null, other keys are
    skipped.

    A list column also takes a single value. pyarrow's own JSON reader crashes the process on some
    lines that are not objects.

    Raises:
        DatasetError: a line does not match the schema; names the line.
    """
    data = files.read(path)
    where = files.where(path)
    try:
        text = data.decode("utf-8-sig")
    except UnicodeDecodeError as error:
        problem = f"line {data[: error.start].count(10) + 1} is not UTF-8 text"
        raise DatasetError(problem, where=where, fix="repair or restore it") from error
    columns: list[tuple[str, pa.DataType, list[Any]]] = [
        (field.name, field.type, []) for field in schema
    ]
    for number, line in enumerate(text.split("\n"), start=1):  # JSON Lines ends lines with \n only
        if not line.strip():
            continue
        try:
            entry = json.loads(line)
        except (ValueError, RecursionError) as error:
            fix = f"repair line {number}: {line[:80]}"
            raise DatasetError(
                f"line {number} is not valid JSON: {error}", where=where, fix=fix
            ) from error
        if not isinstance(entry, dict):
            raise DatasetError(
                f"line {number} is not a JSON object", where=where, fix=f"repair line {number}"
            )
        for name, kind, values in columns:
            value = entry.get(name)
            try:
                values.append(_coerce(value, kind))
            except (ValueError, TypeError, OverflowError) as error:
                problem = f"line {number}: {name!r} is {str(value)[:60]!r}, not {kind}"
                raise DatasetError(
                    problem, where=where, fix=f"repair line {number}: {line[:80]}"
                ) from error
    return pa.table([pa.array(values, kind) for _, kind, values in columns], schema=schema)


def _coerce(value: Any, kind: pa.DataType) -> Any:
    """Convert a JSON value to the schema's type; integers may be written as floats."""
    if value is None:
        return None
    if kind == pa.string():
        if type(value) is not str:
            raise TypeError
        value.encode()  # raises for a lone surrogate
        return value
    if kind == pa.int64():
        if type(value) is float and math.isnan(value):
            return None  # as pandas writes an absent number
        if type(value) is float and value == int(value):
            value = int(value)
        if type(value) is not int or not -(1 << 63) <= value < 1 << 63:
            raise ValueError
        return value
    items = value if isinstance(value, list) else [value]
    return [_coerce(item, kind.value_type) for item in items]


def whole_numbers(column: pa.ChunkedArray, name: str, where: str) -> pa.ChunkedArray:
    """Convert a column to int64; NaN, with which pandas marks an absent number, becomes null.

    Raises:
        DatasetError: a value is no whole number, or the column holds none at all.
    """
    fix = f"write {name!r} as whole numbers"
    if pa.types.is_floating(column.type):
        numbers = column.cast(pa.float64()).fill_null(np.nan).to_numpy()
        finite = np.isfinite(numbers)
        odd = ~np.isnan(numbers) & (
            ~finite | (np.floor(np.where(finite, numbers, 0)) != np.where(finite, numbers, 0))
        )
        if odd.any():
            entry = int(odd.argmax())
            raise DatasetError(
                f"entry {entry + 1}: {name!r} is {numbers[entry]:g}", where=where, fix=fix
            )
        column = pa.chunked_array([pa.array(numbers, from_pandas=True)], pa.float64())
    try:
        return column.cast(pa.int64())
    except pa.ArrowException as error:
        raise DatasetError(
            f"column {name!r} is {column.type}, not whole numbers", where=where, fix=fix
        ) from error


def integer_column(
    table: pa.Table, name: str, where: str, *, default: int | None = None
) -> np.ndarray:
    """Return an integer column as int64. Nulls become `default`; without a default they are an
    error.
    """
    column = table.column(name)
    if default is not None:
        column = column.fill_null(default)
    if column.null_count:
        line = int(np.flatnonzero(column.is_null().to_numpy(zero_copy_only=False))[0]) + 1
        raise DatasetError(
            f"entry {line} has no {name!r}", where=where, fix="repair or restore this file"
        )
    return column.to_numpy(zero_copy_only=False).astype(np.int64, copy=False)


# at most 99 digits: wider would cost memory and name no file
_WIDTH = re.compile(r"(0?[1-9][0-9]?)?d?")
_FIX = "repair info.json, or give the template when the dataset is opened"


def check_template(template: object, fields: Collection[str]) -> str:
    """Return a usable template. Raises ValueError with the reason for any other."""
    if not isinstance(template, str):
        raise ValueError("is missing")
    # ValueError for an unclosed brace
    for _, name, spec, conversion in Formatter().parse(template):
        if name is None:
            continue
        if name not in fields:
            raise ValueError(f"{{{name}}} is not one of {', '.join(sorted(fields))}")
        if conversion is not None:
            raise ValueError(f"{{{name}!{conversion}}} is converted")
        if spec and (name == "video_key" or not _WIDTH.fullmatch(spec)):
            raise ValueError(f"{{{name}:{spec}}} has another format than 03d")
    examples: dict[str, Any] = dict.fromkeys(fields, 1)
    if "video_key" in examples:
        examples["video_key"] = "x"
    if not is_inside(template.format(**examples)):
        raise ValueError("leaves the dataset's folder")
    return template


def template_or_default(
    template: object, fields: Collection[str], default: str, oddities: list[str], name: str
) -> str:
    """Return the dataset's own template if usable, else the default of the format."""
    try:
        return check_template(template, fields)
    except ValueError as error:
        oddities.append(
            f"info.json: {name} {str(template)[:200]!r} cannot be used ({error}); using {default!r}"
        )
        return default


def is_inside(path: str) -> bool:
    """Check that a relative path stays under its root and is a valid file name."""
    return not path.startswith("/") and "\0" not in path and ".." not in path.split("/")


def fill_template(template: str, **fields: int | str) -> str:
    """Return the path of one file. Raises DatasetError if it leaves the dataset's folder."""
    path = template.format(**fields)
    if not is_inside(path):
        problem = (
            f"the path template {template!r} names {path[:200]!r}, which is outside the dataset"
        )
        raise DatasetError(problem, fix=_FIX)
    return path
