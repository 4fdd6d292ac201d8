"""Descriptions of values that are no arrays of numbers, for errors."""

from collections.abc import Mapping
from typing import Any

SENT = (
    "send numpy arrays in the form of openpi's msgpack_numpy, {b'__ndarray__': True, b'data', "
    "b'dtype', b'shape'}, or of msgpack-numpy, {b'nd': True, b'type', b'kind', b'shape', b'data'}"
)
_MAGIC = {
    b"\xff\xd8\xff": "a JPEG image",
    b"\x89PNG": "a PNG image",
    b"\x93NUMPY": "a file of numpy",
    b"\x80": "a pickle",
}


def describe(value: Any) -> str:
    """Describe a value of a message for an error: its form, not its container."""
    if isinstance(value, Mapping):
        keys = []
        for key in list(value)[:6]:
            shown = str(key) if isinstance(key, str) else repr(key)
            keys.append(shown[:40])
        more = ", ..." if len(value) > len(keys) else ""
        return f"a map with the keys {', '.join(keys)}{more}" if value else "an empty map"
    if isinstance(value, bytes):
        name = next((name for magic, name in _MAGIC.items() if value.startswith(magic)), "")
        form = f", which begin as {name}" if name else ""
        return f"{len(value):,} bytes{form}"
    if value is None:
        return "nil"
    if hasattr(value, "code") and hasattr(value, "data"):
        return f"the extension type {value.code} of msgpack, with {len(value.data):,} bytes"
    if isinstance(value, list | tuple) and len(value):
        return f"a list of {len(value)}, the first of them {describe(value[0])}"
    names = {
        str: "a text",
        bool: "a truth value",
        int: "a whole number",
        float: "a number",
        list: "an empty list",
    }
    return names.get(type(value), f"a {type(value).__name__}")
