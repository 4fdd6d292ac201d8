r"""Plain values as a structure for JSON and a list of arrays, and back; files of them with a
checksum.

JSON's null, booleans, numbers and texts are themselves. Each other value is a list that begins with
the name of its kind. Numbers keep all their bits, arrays also their dtype, their shape and their
order in memory. Objects are of classes that this process registered, and of a few errors. Nothing
in a file is executed or imported.

Tables that are mapped are Arrow files (`storage/table_file.py`). A result of `parts.py` has
thousands of arrays of a few numbers, and is read into memory from any file system:

    b"understudy result 2\n"   the format
    32 bytes                   SHA-256 of the file's name, a zero byte, and all that follows
    8 bytes                    length of the structure, little-endian
    structure                  JSON: the sizes of the arrays, and the structure of the value
    data                       the bytes of the arrays, in order
"""

import hashlib
import json
import os
from collections import Counter
from collections.abc import Callable, Sequence
from dataclasses import fields, is_dataclass
from functools import partial
from itertools import chain
from pathlib import Path
from typing import Any, NamedTuple, TypeVar

import numpy as np

from understudy_base import (
    DataAccessError,
    DatasetError,
    EmptyDatasetError,
    LfsPointerError,
    MissingFileError,
    SourceError,
    replace_file,
)

_MAGIC = b"understudy result 2\n"
_LENGTH = 8
_DIGEST = hashlib.sha256().digest_size
# magnitude from which integers are written as texts; Python limits the digits of JSON's
_EXACT = 1 << 63
_ARRAYS = "biufcmMSU"  # kinds of dtype without references to Python objects
_ITSELF = (type(None), bool, float, str)

Class = TypeVar("Class", bound=type)


class _Kind(NamedTuple):
    name: str
    take: Callable[[Any], Any]
    make: Callable[[Any], Any]


_OF_CLASS: dict[type, _Kind] = {}
_NAMED: dict[str, _Kind] = {}


def register(kind: type, name: str, take: Callable[[Any], Any], make: Callable[[Any], Any]) -> None:
    """Let values of a class, not of its subclasses, be stored.

    Args:
        kind: the class.
        name: its name in files.
        take: returns the content of a value, of simpler kinds.
        make: returns the value of a content.
    """
    _OF_CLASS[kind] = _NAMED[name] = _Kind(name, take, make)


def storable(kind: Class) -> Class:
    """Register a class under its module and name; a decorator.

    An object is stored as the fields of a dataclass, else as the result of `__getstate__`, which is
    `vars` by default. It is made again without `__init__`, by `__setstate__` where there is one.
    """
    register(kind, _name(kind), _state, partial(_object, kind))
    return kind


def flatten(value: Any) -> tuple[Any, list[np.ndarray]]:
    """Return the structure of a value, and its arrays; a file holds the bytes of an array in its
    order in memory, "A".

    Raises:
        TypeError: it has a part of a kind that is not registered.
    """
    arrays: list[np.ndarray] = []
    return _plain(value, arrays), arrays


def restore(structure: Any, contents: Sequence[np.ndarray]) -> Any:
    """Return the value of a structure.

    Args:
        structure: from `flatten`.
        contents: bytes of its arrays, uint8 (n,) each. Arrays of the value are views of them.

    Raises:
        ValueError: it names a kind that is not registered, or is not from `flatten`.
    """
    try:
        return _value(structure, contents)
    except (TypeError, LookupError, AttributeError, ArithmeticError, RecursionError) as error:
        raise ValueError(f"the structure is damaged: {error}") from error


def write_result(path: Path, value: Any) -> None:
    """Write a value.

    Raises:
        TypeError: it has a part of a type that is not stored.
    """
    structure, arrays = flatten(value)
    sizes = [array.nbytes for array in arrays]
    head = json.dumps([sizes, structure], separators=(",", ":")).encode()
    content = [
        len(head).to_bytes(_LENGTH, "little"),
        head,
        *(array.tobytes("A") for array in arrays),
    ]
    with replace_file(path) as draft, draft.open("wb") as file:
        file.write(_MAGIC + _digest(path, *content))
        file.writelines(content)


def is_result(path: Path) -> bool:
    """Return whether a file is whole, and was written under its name in this format."""
    return bool(_read(path))


def read_result(path: Path) -> Any:
    """Return the value of a file.

    Raises:
        DatasetError: it was changed since `is_result`.
    """
    for value in _read(path):
        return value
    raise DatasetError("was changed while it was in use", where=path, fix="start again")


def _read(path: Path) -> tuple[Any, ...]:
    """Return the only value of a regular file; () for one that does not count."""
    try:
        if not path.is_file():  # reading a pipe would block
            return ()
        whole = memoryview(path.read_bytes())
    except OSError:
        return ()
    begin = len(_MAGIC) + _DIGEST
    content = whole[begin:]
    if whole[: len(_MAGIC)] != _MAGIC or whole[len(_MAGIC) : begin] != _digest(path, content):
        return ()
    place = _LENGTH + int.from_bytes(content[:_LENGTH], "little")
    arrays = []
    try:
        sizes, structure = json.loads(bytes(content[_LENGTH:place]))
        for size in sizes:
            arrays.append(np.frombuffer(content, np.uint8, size, place).copy())
            place += size
        return (restore(structure, arrays),)
    except (ValueError, TypeError, RecursionError):
        return ()  # of classes that are others by now


def _digest(path: Path, *content: bytes | memoryview) -> bytes:
    digest = hashlib.sha256(os.fsencode(path.name) + b"\0")
    for part in content:
        digest.update(part)
    return digest.digest()


def _plain(value: Any, arrays: list[np.ndarray]) -> Any:
    kind = type(value)
    if kind in _ITSELF or (kind is int and -_EXACT < value < _EXACT):
        return value
    if kind is list:
        return ["list", *(_plain(part, arrays) for part in value)]
    if kind is dict:
        return ["dict", *(_plain(part, arrays) for part in chain.from_iterable(value.items()))]
    if kind is np.ndarray:
        if value.dtype.kind not in _ARRAYS:
            raise TypeError(
                f"an array of {value.dtype} cannot be stored: give numbers, times or texts"
            )
        arrays.append(value)
        memory_order = "F" if value.flags.fnc else "C"
        return ["array", value.dtype.str, list(value.shape), memory_order, len(arrays) - 1]
    if kind not in _OF_CLASS:
        raise TypeError(
            f"{_name(kind)} cannot be stored: give plain values, or objects of a class with "
            "@storable"
        )
    name, take, _ = _OF_CLASS[kind]
    return [name, _plain(take(value), arrays)]


def _value(structure: Any, contents: Sequence[np.ndarray]) -> Any:
    if not isinstance(structure, list):
        return structure
    name, *parts = structure
    if name == "array":
        dtype, shape, order, number = parts
        if np.dtype(dtype).kind not in _ARRAYS:
            raise ValueError(f"an array of {dtype}")
        return np.ndarray(tuple(shape), dtype, contents[number], order=order)
    if name not in _NAMED and name not in ("list", "dict"):
        raise ValueError(f"{name} is not registered: a file makes no class known")
    values = [_value(part, contents) for part in parts]
    if name == "list":
        return values
    if name == "dict":
        return dict(zip(values[::2], values[1::2], strict=True))
    (content,) = values
    return _NAMED[name].make(content)


def _name(kind: type) -> str:
    return f"{kind.__module__}.{kind.__qualname__}"


def _state(value: Any) -> Any:
    if is_dataclass(value):
        return {field.name: getattr(value, field.name) for field in fields(value)}
    return value.__getstate__() or {}


def _object(kind: type, state: Any) -> Any:
    if is_dataclass(kind) and state.keys() != {field.name for field in fields(kind)}:
        raise ValueError(f"{_name(kind)} with the fields {', '.join(state)}")
    value: Any = object.__new__(kind)
    if hasattr(kind, "__setstate__"):
        value.__setstate__(state)
    else:
        vars(value).update(state)
    return value


def _error_fields(error: DataAccessError) -> dict[str, Any]:
    where = error.where if isinstance(error.where, Path | None) else str(error.where)
    return error.fields() | {"where": where}


def _error(kind: type[DataAccessError], arguments: Any) -> DataAccessError:
    return kind(**arguments)


register(int, "int", hex, lambda text: int(text, 16))
register(bytes, "bytes", lambda value: np.frombuffer(value, np.uint8), np.ndarray.tobytes)
register(tuple, "tuple", list, tuple)
register(set, "set", list, set)
register(Counter, "Counter", dict, Counter)
register(type(Path()), "Path", str, Path)
for _scalar in set(np.sctypeDict.values()) - {np.object_, np.void}:
    register(_scalar, "scalar", np.asarray, lambda array: array[()])
for _kind in (DatasetError, EmptyDatasetError, LfsPointerError, MissingFileError, SourceError):
    register(_kind, _kind.__name__, _error_fields, partial(_error, _kind))
