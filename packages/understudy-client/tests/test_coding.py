"""Messages keep their values to the bit, are those of openpi's client, and no bytes break the
reader.
"""

import os
import subprocess
import sys
from contextlib import suppress
from typing import Any

import msgpack
import numpy as np
import pytest

from understudy_base.testing.refusals import refused
from understudy_client.protocol import MessageError, decode, encode

MESSAGE: dict[str, Any] = {
    "image": np.arange(24, dtype=np.uint8).reshape(2, 4, 3)[:, ::-1],
    "state": np.array([1.5, -0.0, np.inf], np.float32),
    "big endian": np.array([1, 2], ">i4"),
    "empty": np.empty((0, 3)),
    "scalar": np.float32(2.5),
    "nested": [{"flag": True, "text": "ä"}, None, 3],
}


def same(one: Any, two: Any) -> bool:
    if isinstance(one, dict):
        return one.keys() == two.keys() and all(same(one[key], two[key]) for key in one)
    if isinstance(one, np.ndarray):
        return (
            one.shape == two.shape
            and one.astype(two.dtype).tobytes() == two.tobytes()
            and two.dtype.isnative
        )
    return bool(one == two) and type(one) is type(two)


def test_values_come_back_to_the_bit() -> None:
    assert same(MESSAGE, decode(encode(MESSAGE)))


def test_values_come_back_without_the_compiled_module_of_msgpack() -> None:
    program = "import sys\nfrom understudy_client.protocol import decode, encode\n"
    program += "sys.stdout.buffer.write(encode(decode(sys.stdin.buffer.read())))"
    message = encode(MESSAGE)
    plain = os.environ | {"MSGPACK_PUREPYTHON": "1"}
    done = subprocess.run(
        [sys.executable, "-c", program],
        input=message,
        env=plain,
        stdout=subprocess.PIPE,
        check=True,
    )
    assert done.stdout == encode(decode(message))


def test_the_form_is_that_of_openpi() -> None:
    """By the bytes of the published format; and by openpi's own package, where it is installed."""
    packed = msgpack.unpackb(encode({"a": np.ones((1, 2), np.float32), "n": np.int32(3)}))
    assert packed["a"] == {
        b"__ndarray__": True,
        b"data": b"\0\0\x80?" * 2,
        b"dtype": "<f4",
        b"shape": [1, 2],
    }
    assert packed["n"] == {b"__npgeneric__": True, b"data": 3, b"dtype": "<i4"}
    theirs = pytest.importorskip(
        "openpi_client.msgpack_numpy", reason="openpi-client is not installed"
    )
    assert theirs.packb(MESSAGE) == encode(MESSAGE)
    assert same(MESSAGE, decode(theirs.packb(MESSAGE)))


def array(**changes: Any) -> bytes:
    whole = {b"__ndarray__": True, b"data": b"\0" * 8, b"dtype": "<f4", b"shape": [2]}
    return bytes(msgpack.packb(whole | {key.encode(): value for key, value in changes.items()}))


@pytest.mark.parametrize(
    "data",
    [
        b"",
        b"\xc1",
        b"\x81\xa1a",
        b"\x91" * 5000,
        array(shape=[3]),
        array(shape=[-1, -2]),
        array(shape=[1 << 62, 0]),
        array(shape="2"),
        array(dtype="|O"),
        array(dtype="<f4,<f4"),
        array(dtype="no dtype"),
        array(dtype=None),
        array(data="text"),
        msgpack.packb({b"__npgeneric__": True, b"data": [], b"dtype": "<f4"}),
        msgpack.packb({b"__npgeneric__": True, b"data": "x", b"dtype": "<i4"}),
    ],
)
def test_other_bytes_are_refused(data: bytes) -> None:
    with refused(kind=MessageError):
        decode(data)


def test_any_bytes_are_a_message_or_refused() -> None:
    rng = np.random.default_rng(0)
    whole = encode(MESSAGE)
    for _ in range(300):
        damaged = bytearray(whole[: rng.integers(1, len(whole) + 1)])
        damaged[rng.integers(len(damaged))] = rng.integers(256)
        with suppress(MessageError):
            decode(bytes(damaged))


@pytest.mark.parametrize("value", [{1, 2}, object(), np.array([None]), np.array([1j]), 1 << 70])
def test_values_without_a_form_are_refused(value: Any) -> None:
    with refused(kind=MessageError):
        encode({"a": value})
