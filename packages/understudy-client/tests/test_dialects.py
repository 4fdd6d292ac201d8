"""Forms of arrays that clients send: read to the bit, refused or described."""

from typing import Any

import msgpack
import numpy as np
import pytest

from understudy_client.dialects import OPENPI, Dialect
from understudy_client.protocol import MessageError, decode, decode_message, encode

DIALECTS = [
    Dialect(tool, keys) for tool in ("openpi", "msgpack-numpy") for keys in ("bytes", "text")
]
ARRAYS = [
    np.arange(6, dtype=np.float32).reshape(2, 3),
    np.array([True]),
    np.array([1, 2], ">i2"),
    np.float32(2.5),
]


@pytest.mark.parametrize("dialect", DIALECTS)
@pytest.mark.parametrize("array", ARRAYS)
def test_arrays_of_every_dialect_come_back(dialect: Dialect, array: Any) -> None:
    message, found = decode_message(encode({"x": array, "y": {"z": [1, "a"]}}, dialect))
    assert np.array_equal(message["x"], array)
    assert np.asarray(message["x"]).dtype == np.asarray(array).dtype.newbyteorder("=")
    assert found == dialect
    assert message["y"] == {"z": [1, "a"]}


def test_the_form_is_that_of_msgpack_numpy() -> None:
    """By the published format, and by the package, where it is installed."""
    array = np.arange(4, dtype="<f4")
    theirs = {b"nd": True, b"type": "<f4", b"kind": b"", b"shape": [4], b"data": array.tobytes()}
    assert msgpack.unpackb(encode(array, Dialect("msgpack-numpy"))) == theirs
    package = pytest.importorskip("msgpack_numpy", reason="msgpack-numpy is not installed")
    assert np.array_equal(decode(msgpack.packb(array, default=package.encode)), array)
    assert np.array_equal(
        msgpack.unpackb(encode(array, Dialect("msgpack-numpy")), object_hook=package.decode), array
    )


@pytest.mark.parametrize("kind", [b"", b"f", "", "f"])
@pytest.mark.parametrize("dtype", ["<f4", b"<f4"])
def test_kinds_and_dtypes_may_be_bytes(kind: Any, dtype: Any) -> None:
    array = np.arange(4, dtype="<f4")
    form = {b"nd": True, b"type": dtype, b"kind": kind, b"shape": [4], b"data": array.tobytes()}
    assert np.array_equal(decode(msgpack.packb(form)), array)
    form = {b"__ndarray__": True, b"dtype": dtype, b"shape": [4], b"data": array.tobytes()}
    assert np.array_equal(decode(msgpack.packb(form)), array)


@pytest.mark.parametrize(
    "form",
    [
        {b"__ndarray__": False, b"dtype": "<f4", b"shape": [1], b"data": b"\0" * 4},
        {"__ndarray__": 1, "dtype": "<f4", "shape": [1], "data": b"\0" * 4},
        {b"nd": True, b"type": "|O", b"kind": b"O", b"shape": [1], b"data": b"\x80\x04."},
        {b"nd": True, b"type": [["a", "<f4"]], b"kind": b"V", b"shape": [1], b"data": b"\0" * 4},
        {b"nd": "yes", b"type": "<f4", b"kind": b"", b"shape": [1], b"data": b"\0" * 4},
        {b"nd": False, b"type": "<f4", b"data": b"\0" * 3},
        {"n" * 5000: 1},
    ],
)
def test_forms_that_are_no_arrays_are_refused(form: Any) -> None:
    with pytest.raises(MessageError):
        decode(msgpack.packb({"observation.state": form}))


def test_plain_maps_stay_maps() -> None:
    for value in ({"nd": 3}, {"type": "a", "data": "b"}, {"data": b"x", "dtype": "<f4"}):
        assert decode(msgpack.packb({"x": value})) == {"x": value}


def test_the_dialect_of_a_message_is_that_of_its_first_array() -> None:
    ones = np.ones(2)
    first = Dialect("msgpack-numpy", "text")
    second = Dialect("openpi", "bytes")
    parts = {
        "a": [{"x": 1}],
        "b": msgpack.unpackb(encode(ones, first)),
        "c": msgpack.unpackb(encode(ones, second)),
    }
    message, found = decode_message(msgpack.packb(parts))
    assert found == first
    assert np.array_equal(message["b"], message["c"])
    assert decode_message(msgpack.packb({"a": 1}))[1] == OPENPI
