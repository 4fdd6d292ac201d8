"""Columns of data files as numpy arrays.

Storage varies between writers: list or fixed-size list, nested lists for arrays of two dimensions
and more, double where float32 is declared. The declaration in info.json decides; values that the
declared type cannot hold are refused.
"""

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from understudy_base import DatasetError
from understudy_data.datasets.format.features import Feature

_REPAIR = "repair the file, or leave the key out with keys=[...]"


def to_numpy(column: pa.ChunkedArray, feature: Feature | None, where: str, key: str) -> np.ndarray:
    """Convert a numeric column to an array (rows, *shape).

    Args:
        column: the column.
        feature: the declaration in info.json; None keeps dtype and shape as stored.
        where: name of the file, for errors.
        key: name of the column, for errors.

    Raises:
        DatasetError: nulls, rows of different sizes, another shape than declared, or values that
            are not numbers.
    """
    array = column.combine_chunks()
    array = array.storage if isinstance(array, pa.ExtensionArray) else array
    rows = len(array)
    sizes = [len(array)]
    kind = array.type
    while _is_list(kind):
        _refuse_nulls(array, where, key, rows)
        sizes.append(_list_size(array, where, key))
        array = array.flatten()
        kind = array.type
    _refuse_nulls(array, where, key, rows)
    if not is_numeric(kind):
        raise DatasetError(
            f"column {key!r} holds {column.type} instead of numbers", where=where, fix=_REPAIR
        )
    values = array.to_numpy(zero_copy_only=False)
    stored = tuple(sizes[1:])
    if feature is None:
        return values.reshape(rows, *stored)
    shape = feature.value_shape
    flat = len(stored) == 1 and stored[0] == int(np.prod(shape))
    if rows and not flat and _without_ones(stored) != _without_ones(shape):
        problem = (
            f"column {key!r} holds values of shape {stored}, info.json declares {feature.shape}"
        )
        raise DatasetError(problem, where=where, fix="correct the shape in info.json")
    return _cast(values, np.dtype(feature.dtype), where, key).reshape(rows, *shape)


def fill_absent(
    column: pa.ChunkedArray, feature: Feature | None
) -> tuple[pa.ChunkedArray, np.ndarray | None]:
    """Fill absent whole numbers, null or NaN as pandas writes them, so that only their episodes are
    unusable.

    Returns:
        The column with -1 or 0 in their place, and which rows lack one, bool (n,); (`column`, None)
        where none does.
    """
    kind = column.type
    is_number = pa.types.is_floating(kind) or pa.types.is_integer(kind)
    if (
        feature is None
        or feature.is_text
        or not is_number
        or np.dtype(feature.dtype).kind not in "iu"
    ):
        return column, None
    absent = np.asarray(pc.is_null(column, nan_is_null=True).to_numpy())
    if not absent.any():
        return column, None
    filler = (
        -1 if np.dtype(feature.dtype).kind == "i" and not pa.types.is_unsigned_integer(kind) else 0
    )
    values = pc.if_else(pa.array(absent), pa.scalar(filler, kind), column)
    if not isinstance(values, pa.ChunkedArray):
        values = pa.chunked_array([values])
    return values, absent


def read_numbers(
    column: pa.ChunkedArray, feature: Feature | None, where: str, key: str, declared: Feature | None
) -> tuple[np.ndarray, np.ndarray | None]:
    """Convert a numeric column that may lack whole numbers.

    Args:
        column: the column.
        feature: see `to_numpy`, which gives the array; also for `where` and `key`.
        where: name of the file, for errors.
        key: name of the column, for errors.
        declared: tells whether the numbers are whole (`fill_absent`); None: they are not.

    Returns:
        The array, and which rows lack a number, bool (rows,); None where none does.

    Raises:
        DatasetError: see `to_numpy`.
    """
    filled, absent = fill_absent(column, declared)
    return to_numpy(filled, feature, where, key), absent


def _without_ones(shape: tuple[int, ...]) -> list[int]:
    return [size for size in shape if size != 1]


def is_numeric(kind: pa.DataType) -> bool:
    """Check that a stored type is numbers or (nested) lists of numbers."""
    while _is_list(kind):
        kind = kind.value_type
    return bool(
        pa.types.is_integer(kind) or pa.types.is_floating(kind) or pa.types.is_boolean(kind)
    )


def _is_list(kind: pa.DataType) -> bool:
    return bool(
        pa.types.is_list(kind) or pa.types.is_large_list(kind) or pa.types.is_fixed_size_list(kind)
    )


def _list_size(array: pa.Array, where: str, key: str) -> int:
    if pa.types.is_fixed_size_list(array.type):
        return int(array.type.list_size)
    lengths = array.value_lengths().to_numpy(zero_copy_only=False)
    if len(lengths) == 0:
        return 0
    if (lengths != lengths[0]).any():
        row = int(np.flatnonzero(lengths != lengths[0])[0])
        problem = (
            f"column {key!r} has {int(lengths[0])} values in its first row and "
            f"{int(lengths[row])} in row {row}"
        )
        raise DatasetError(problem, where=where, fix=_REPAIR)
    return int(lengths[0])


def _refuse_nulls(array: pa.Array, where: str, key: str, rows: int) -> None:
    if array.null_count:
        first = int(np.flatnonzero(array.is_null().to_numpy(zero_copy_only=False))[0])
        row = first * rows // max(1, len(array))
        raise DatasetError(
            f"column {key!r} has {array.null_count} nulls, the first in row {row}",
            where=where,
            fix=_REPAIR,
        )


def _cast(values: np.ndarray, dtype: np.dtype, where: str, key: str) -> np.ndarray:
    if values.dtype == dtype:
        return values
    with np.errstate(over="ignore", invalid="ignore"):
        result = values.astype(dtype)
        exact = dtype.kind == "f" or bool(np.array_equal(result.astype(values.dtype), values))
    if not exact:
        problem = (
            f"column {key!r} holds {values.dtype} values that {dtype}, which info.json "
            "declares, cannot hold"
        )
        raise DatasetError(problem, where=where, fix="correct the dtype in info.json")
    return result
