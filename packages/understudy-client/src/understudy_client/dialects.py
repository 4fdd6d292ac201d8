"""Forms of numpy arrays in msgpack: openpi's and msgpack-numpy's, each with keys of bytes or of
text.

openpi's array is a map {b"__ndarray__": True, b"data", b"dtype", b"shape"}, its number
{b"__npgeneric__": True, b"data", b"dtype"}. msgpack-numpy's array is {b"nd": True, b"type",
b"kind": b"", b"shape", b"data"}, its number {b"nd": False, b"type", b"data"}. A client reads its
own form alone, so an answer has the form of the question.
"""

from collections.abc import Mapping
from typing import Any, Literal, NamedTuple

import numpy as np


class Dialect(NamedTuple):
    """One form of arrays."""

    tool: Literal["openpi", "msgpack-numpy"] = "openpi"
    keys: Literal["bytes", "text"] = "bytes"

    def key(self, name: str) -> str | bytes:
        """Return a key of a map."""
        return name if self.keys == "text" else name.encode()


OPENPI = Dialect()


class Form(NamedTuple):
    """Parts of an array or number in a message, unchecked."""

    dialect: Dialect
    is_array: bool
    dtype: Any
    shape: Any
    data: Any


class FormError(ValueError):
    """A map has the marks of an array, and is none."""


_OPENPI_FORMS = (OPENPI, Dialect("openpi", "text"))
_MARKS = {"__ndarray__": True, "__npgeneric__": False}
"""Key of openpi's mark -> whether it is that of an array."""
_NUMPY_FORMS = (Dialect("msgpack-numpy", "bytes"), Dialect("msgpack-numpy", "text"))


def read_form(value: Mapping[Any, Any]) -> Form | None:
    """Return the parts of the array or number that a map describes; None for any other map.

    Raises:
        FormError: it has the marks of one, and is none.
    """
    for dialect in _OPENPI_FORMS:
        for name, is_array in _MARKS.items():
            if dialect.key(name) in value:
                return _read_openpi(value, dialect, name, is_array)
    for dialect in _NUMPY_FORMS:
        if all(dialect.key(name) in value for name in ("nd", "type", "data")):
            return _read_numpy(value, dialect)
    return None


def _read_openpi(value: Mapping[Any, Any], dialect: Dialect, name: str, is_array: bool) -> Form:
    key = dialect.key
    mark = value[key(name)]
    if mark is not True:
        raise FormError(
            f"a map has {key(name)!r}: {str(mark)[:40]}; an array of openpi has True there"
        )
    dtype = _text(value.get(key("dtype")))
    return Form(dialect, is_array, dtype, value.get(key("shape")), value.get(key("data")))


def _read_numpy(value: Mapping[Any, Any], dialect: Dialect) -> Form:
    key = dialect.key
    mark = value[key("nd")]
    if not isinstance(mark, bool):
        raise FormError(
            f"a map has {key('nd')!r}: {str(mark)[:40]}; an array of msgpack-numpy has True or "
            "False there"
        )
    kind = _text(value.get(key("kind"), ""))
    if kind in ("V", "O"):
        what = "fields" if kind == "V" else "objects, which are pickled and may run code"
        raise FormError(f"an array of msgpack-numpy has {what}; send booleans, numbers or strings")
    dtype = _text(value[key("type")])
    return Form(dialect, mark, dtype, value.get(key("shape")), value[key("data")])


def _text(value: Any) -> Any:
    """Return a name that came as bytes as text."""
    return value.decode("ascii", "backslashreplace") if isinstance(value, bytes) else value


def pack_array(value: np.ndarray, dialect: Dialect) -> dict[Any, Any]:
    """Return an array as a map."""
    key = dialect.key
    if dialect.tool == "openpi":
        parts = {key("__ndarray__"): True, key("data"): value.tobytes()}
        return {**parts, key("dtype"): value.dtype.str, key("shape"): value.shape}
    parts = {key("nd"): True, key("type"): value.dtype.str, key("kind"): b""}
    return {**parts, key("shape"): value.shape, key("data"): value.tobytes()}


def pack_number(value: "np.generic[Any]", dialect: Dialect) -> dict[Any, Any]:
    """Return a number of numpy as a map."""
    key = dialect.key
    if dialect.tool == "openpi":
        return {
            key("__npgeneric__"): True,
            key("data"): value.item(),
            key("dtype"): value.dtype.str,
        }
    return {key("nd"): False, key("type"): value.dtype.str, key("data"): value.tobytes()}
