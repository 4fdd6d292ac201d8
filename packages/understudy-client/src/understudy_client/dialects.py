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


def read_form(value: Mapping[Any, Any]) -> Form | None:
    """Return the parts of the array or number that a map describes; None for any other map.

    Raises:
        FormError: it has the marks of one, and is none.
    """
    for keys in (Dialect("openpi", "bytes"), Dialect("openpi", "text")):
        for name, is_array in (("__ndarray__", True), ("__npgeneric__", False)):
            mark = keys.key(name)
            if mark in value:
                if value[mark] is not True:
                    raise FormError(
                        f"a map has {mark!r}: {str(value[mark])[:40]}; an array of openpi has True "
                        "there"
                    )
                shape = value.get(keys.key("shape"))
                return Form(
                    keys,
                    is_array,
                    _text(value.get(keys.key("dtype"))),
                    shape,
                    value.get(keys.key("data")),
                )
    for keys in (Dialect("msgpack-numpy", "bytes"), Dialect("msgpack-numpy", "text")):
        nd = keys.key("nd")
        kind = keys.key("type")
        if nd not in value or kind not in value or keys.key("data") not in value:
            continue
        if value[nd] not in (True, False) or (
            isinstance(value[nd], int | float) and not isinstance(value[nd], bool)
        ):
            raise FormError(
                f"a map has {nd!r}: {str(value[nd])[:40]}; an array of msgpack-numpy has True or "
                "False there"
            )
        sort = _text(value.get(keys.key("kind"), ""))
        if sort in ("V", "O"):
            what = "fields" if sort == "V" else "objects, which are pickled and may run code"
            raise FormError(
                f"an array of msgpack-numpy has {what}; send booleans, numbers or strings"
            )
        dtype = _text(value[kind])
        shape = value.get(keys.key("shape"))
        return Form(keys, bool(value[nd]), dtype, shape, value[keys.key("data")])
    return None


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
