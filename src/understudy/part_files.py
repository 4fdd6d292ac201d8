r"""Files of results: plain values with a checksum. Nothing in a file is executed or imported.

    b"understudy result 1\n"   the format
    32 bytes                   SHA-256 of the file's name, a zero byte, and all that follows
    8 bytes                    length of the structure, little-endian
    structure                  JSON; arrays and bytes are places in the data
    data                       their bytes, in order

Numbers keep all their bits, arrays also their dtype, their shape and their order in memory. Objects are of classes that
this process registered by `storable`, and of a few errors.
"""

import hashlib
import json
import os
from collections import Counter
from collections.abc import Callable, Iterable
from dataclasses import fields, is_dataclass
from functools import cached_property
from pathlib import Path
from typing import Any, TypeVar

import numpy as np

from understudy.atomic import replace_file
from understudy.errors import DatasetError, EmptyDatasetError, LfsPointerError, MissingFileError, SourceError

_MAGIC = b"understudy result 1\n"
_LENGTH = 8
_DIGEST = hashlib.sha256().digest_size
_EXACT = 1 << 63  # magnitude from which integers are written as texts; Python limits the digits of JSON's
_ARRAYS = "biufcmMSU"  # kinds of dtype without references to Python objects
_ERRORS: dict[str, type[DatasetError]] = {
    kind.__name__: kind for kind in (DatasetError, EmptyDatasetError, LfsPointerError, MissingFileError, SourceError)
}
_CLASSES: dict[str, type] = {}

Class = TypeVar("Class", bound=type)


def storable(kind: Class) -> Class:
    """Register a class whose objects may be part of a result, under its module and name; a decorator.

    An object is stored as what `__getstate__` returns, which is `vars` by default. It is made again without `__init__`,
    by `__setstate__` where there is one.
    """
    _CLASSES[_name(kind)] = kind
    return kind


def _name(kind: type) -> str:
    return f"{kind.__module__}.{kind.__qualname__}"


def write_result(path: Path, value: Any) -> None:
    """Write a value.

    Raises:
        TypeError: it has a part of a type that is not stored.
    """
    writer = _Writer()
    structure = json.dumps(writer.plain(value), separators=(",", ":")).encode()
    head = len(structure).to_bytes(_LENGTH, "little") + structure
    with replace_file(path) as draft, draft.open("wb") as file:
        file.write(_MAGIC + _digest(path, head, *writer.data))
        file.writelines((head, *writer.data))


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
    end = _LENGTH + int.from_bytes(content[:_LENGTH], "little")
    try:
        return (_value(json.loads(bytes(content[_LENGTH:end])), content[end:]),)
    except (ValueError, TypeError, LookupError, AttributeError, ArithmeticError, RecursionError):
        return ()  # of classes that are others by now


def _digest(path: Path, *content: bytes | memoryview) -> bytes:
    digest = hashlib.sha256(os.fsencode(path.name) + b"\0")
    for part in content:
        digest.update(part)
    return digest.digest()


class _Writer:
    """Structure of a value: JSON's null, booleans, numbers and texts, and lists that begin with a tag.

    Attributes:
        data: bytes of arrays, to follow each other.
    """

    def __init__(self) -> None:
        self.data: list[bytes | memoryview] = []
        self._size = 0
        self._plain: dict[type, Callable[[Any], Any]] = {
            type(None): _itself,
            bool: _itself,
            float: _itself,
            str: _itself,
            int: lambda value: value if -_EXACT < value < _EXACT else ["int", hex(value)],
            bytes: lambda value: ["bytes", len(value), self._place(value)],
            np.ndarray: self._array,
            dict: lambda value: ["dict", *self._pairs(value.items())],
            Counter: lambda value: ["Counter", *self._pairs(value.items())],
        }
        self._plain |= dict.fromkeys((list, tuple, set), self._list)

    def plain(self, value: Any) -> Any:
        """Return the structure of a value."""
        if (make := self._plain.get(type(value))) is not None:
            return make(value)
        if isinstance(value, np.generic):
            return ["scalar", *self._array(np.asarray(value))[1:]]
        if isinstance(value, Path):
            return ["Path", str(value)]
        if _ERRORS.get(type(value).__name__) is type(value):
            where = value.where if isinstance(value.where, Path | None) else str(value.where)
            return ["error", type(value).__name__, *self._pairs({**value.fields(), "where": where}.items())]
        if (name := _name(type(value))) not in _CLASSES:
            raise TypeError(f"{name} in a result: only plain values and classes with @storable have files")
        return ["object", name, *self._pairs((value.__getstate__() or {}).items())]

    def _list(self, value: Any) -> list[Any]:
        return [type(value).__name__, *map(self.plain, value)]

    def _pairs(self, items: Iterable[tuple[Any, Any]]) -> list[Any]:
        return [self.plain(part) for item in items for part in item]

    def _array(self, value: np.ndarray) -> list[Any]:
        if value.dtype.kind not in _ARRAYS:
            raise TypeError(f"an array of {value.dtype} in a result: only numbers, times and texts have files")
        order = "F" if value.flags.f_contiguous and not value.flags.c_contiguous else "C"
        content = value.tobytes(order)  # type: ignore[arg-type]  # a Literal
        return ["array", value.dtype.str, list(value.shape), order, self._place(content)]

    def _place(self, content: bytes | memoryview) -> int:
        place = self._size
        self.data.append(content)
        self._size += len(content)
        return place


def _itself(value: Any) -> Any:
    return value


def _value(plain: Any, data: memoryview) -> Any:
    """Return the value of a structure. One that `_Writer` does not make is an error of a kind that `_read` catches."""
    if not isinstance(plain, list):
        return plain
    return _MADE[plain[0]](plain[1:], data)


def _array(content: list[Any], data: memoryview) -> np.ndarray:
    dtype, shape, order, place = content
    kind = np.dtype(dtype)
    if kind.kind not in _ARRAYS:
        raise ValueError(f"an array of {kind}")
    return np.ndarray(tuple(shape), kind, data, place, order=order).copy("K")


def _bytes(content: list[Any], data: memoryview) -> bytes:
    length, place = content
    return bytes(data[place : place + length])


def _values(content: list[Any], data: memoryview) -> list[Any]:
    return [_value(part, data) for part in content]


def _dict(content: list[Any], data: memoryview) -> dict[Any, Any]:
    values = _values(content, data)
    return dict(zip(values[::2], values[1::2], strict=True))


def _object(content: list[Any], data: memoryview) -> Any:
    kind, state = _CLASSES[content[0]], _dict(content[1:], data)
    computed = {name for name in state if isinstance(getattr(kind, name, None), cached_property)}
    if is_dataclass(kind) and state.keys() - computed != {field.name for field in fields(kind)}:
        raise ValueError(f"{content[0]} with the fields {', '.join(state)}")
    value: Any = object.__new__(kind)
    if hasattr(kind, "__setstate__"):
        value.__setstate__(state)
    else:
        vars(value).update(state)
    return value


_MADE: dict[str, Callable[[list[Any], memoryview], Any]] = {
    "int": lambda content, data: int(content[0], 16),
    "bytes": _bytes,
    "array": _array,
    "scalar": lambda content, data: _array(content, data)[()],
    "list": _values,
    "tuple": lambda content, data: tuple(_values(content, data)),
    "set": lambda content, data: set(_values(content, data)),
    "dict": _dict,
    "Counter": lambda content, data: Counter(_dict(content, data)),
    "Path": lambda content, data: Path(content[0]),
    "error": lambda content, data: _ERRORS[content[0]](**_dict(content[1:], data)),
    "object": _object,
}
