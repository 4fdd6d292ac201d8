"""Messages keep their values to the bit, are those of openpi's client, and no bytes break the
reader.
"""

import os
import subprocess
import sys
import tracemalloc
from contextlib import suppress
from typing import Any

import msgpack
import numpy as np
import pytest

from understudy_base.testing.refusals import refused
from understudy_client.dialects import Dialect
from understudy_client.protocol import MessageError, decode, decode_message, encode

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


SMALL: dict[str, Any] = {
    "image": np.arange(6, dtype=np.uint8).reshape(1, 2, 3),
    "state": np.array([1.5, -0.0], np.float32),
    "scalar": np.float32(2.5),
    "plain": [np.float64(0.5), 3, -1, True, None, "ä", b"x", (1, 2)],
    "big": np.array([1], ">i4"),
}
GOLDEN = {
    Dialect("openpi", "bytes"): (
        "85a5696d61676584c40b5f5f6e6461727261795f5fc3c40464617461c406000102030405c4056474"
        "797065a37c7531c405736861706593010203a5737461746584c40b5f5f6e6461727261795f5fc3c4"
        "0464617461c4080000c03f00000080c4056474797065a33c6634c40573686170659102a67363616c"
        "617283c40d5f5f6e7067656e657269635f5fc3c40464617461cb4004000000000000c40564747970"
        "65a33c6634a5706c61696e98cb3fe000000000000003ffc3c0a2c3a4c40178920102a362696784c4"
        "0b5f5f6e6461727261795f5fc3c40464617461c40400000001c4056474797065a33e6934c4057368"
        "6170659101"
    ),
    Dialect("openpi", "text"): (
        "85a5696d61676584ab5f5f6e6461727261795f5fc3a464617461c406000102030405a56474797065"
        "a37c7531a5736861706593010203a5737461746584ab5f5f6e6461727261795f5fc3a464617461c4"
        "080000c03f00000080a56474797065a33c6634a573686170659102a67363616c617283ad5f5f6e70"
        "67656e657269635f5fc3a464617461cb4004000000000000a56474797065a33c6634a5706c61696e"
        "98cb3fe000000000000003ffc3c0a2c3a4c40178920102a362696784ab5f5f6e6461727261795f5f"
        "c3a464617461c40400000001a56474797065a33e6934a573686170659101"
    ),
    Dialect("msgpack-numpy", "bytes"): (
        "85a5696d61676585c4026e64c3c40474797065a37c7531c4046b696e64c400c40573686170659301"
        "0203c40464617461c406000102030405a5737461746585c4026e64c3c40474797065a33c6634c404"
        "6b696e64c400c40573686170659102c40464617461c4080000c03f00000080a67363616c617283c4"
        "026e64c2c40474797065a33c6634c40464617461c40400002040a5706c61696e98cb3fe000000000"
        "000003ffc3c0a2c3a4c40178920102a362696785c4026e64c3c40474797065a33e6934c4046b696e"
        "64c400c40573686170659101c40464617461c40400000001"
    ),
    Dialect("msgpack-numpy", "text"): (
        "85a5696d61676585a26e64c3a474797065a37c7531a46b696e64c400a5736861706593010203a464"
        "617461c406000102030405a5737461746585a26e64c3a474797065a33c6634a46b696e64c400a573"
        "686170659102a464617461c4080000c03f00000080a67363616c617283a26e64c2a474797065a33c"
        "6634a464617461c40400002040a5706c61696e98cb3fe000000000000003ffc3c0a2c3a4c4017892"
        "0102a362696785a26e64c3a474797065a33e6934a46b696e64c400a573686170659101a464617461"
        "c40400000001"
    ),
}
"""Dialect -> bytes of `SMALL`, which robots and servers of other versions send and read."""


@pytest.mark.parametrize("dialect", GOLDEN)
def test_the_bytes_of_a_message_stay(dialect: Dialect) -> None:
    assert encode(SMALL, dialect).hex() == GOLDEN[dialect]
    assert decode_message(bytes.fromhex(GOLDEN[dialect]))[1] == dialect


def test_a_list_that_is_too_long_is_refused_before_it_is_made() -> None:
    """Of empty lists, a message of 2 MB would stand for 130 MB."""
    count = 2_000_000
    message = b"\xdd" + count.to_bytes(4, "big") + b"\x90" * count
    tracemalloc.start()
    try:
        with refused(kind=MessageError):
            decode(message)
        most = tracemalloc.get_traced_memory()[1]
    finally:
        tracemalloc.stop()
    assert most < len(message)


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
