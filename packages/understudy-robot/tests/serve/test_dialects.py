"""Forms of arrays that clients send: read, answered in the same form, or described."""

import time
from contextlib import ExitStack
from typing import TYPE_CHECKING, Any

import numpy as np
import pytest

from understudy.testing.arm import Observation

msgpack = pytest.importorskip("msgpack", reason="needs the extra serve")
pytest.importorskip("websockets", reason="needs the extra serve")

from websockets.exceptions import ConnectionClosed  # noqa: E402
from websockets.sync.client import connect  # noqa: E402

from understudy_client.dialects import OPENPI, Dialect  # noqa: E402
from understudy_client.protocol import MessageError, decode, decode_message, encode  # noqa: E402

if TYPE_CHECKING:
    from pathlib import Path

    from understudy_robot.serve.server import PolicyServer

DIALECTS = [Dialect(tool, keys) for tool in ("openpi", "msgpack-numpy") for keys in ("bytes", "text")]
ARRAYS = [np.arange(6, dtype=np.float32).reshape(2, 3), np.array([True]), np.array([1, 2], ">i2"), np.float32(2.5)]


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
    assert np.array_equal(msgpack.unpackb(encode(array, Dialect("msgpack-numpy")), object_hook=package.decode), array)


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


@pytest.mark.parametrize("dialect", DIALECTS)
def test_the_answer_has_the_form_of_the_question(
    server: "PolicyServer", seen: list[Observation], dialect: Dialect
) -> None:
    with connect(server.address) as connection:
        connection.recv()
        connection.send(encode(dict(seen[0]), dialect))
        reply = connection.recv()
        assert isinstance(reply, bytes)
        answer, found = decode_message(reply)
    assert answer["actions"].ndim == 2
    assert found == dialect


@pytest.mark.parametrize(
    ("value", "words"),
    [
        ({"buffer": b"", "dims": [4]}, ["a map with the keys buffer, dims", "__ndarray__", "msgpack-numpy"]),
        (b"\xff\xd8\xff\xe0 jfif", ["9 bytes", "JPEG"]),
        (msgpack.ExtType(78, b"1234"), ["extension type 78", "4 bytes"]),
        ("12.5", ["a text"]),
        (None, ["nil"]),
    ],
)
def test_unknown_forms_are_described(
    server: "PolicyServer", seen: list[Observation], value: Any, words: list[str]
) -> None:
    with connect(server.address) as connection:
        connection.recv()
        message = msgpack.unpackb(encode(dict(seen[0])))
        connection.send(msgpack.packb({**message, "observation.state": value}))
        text = connection.recv()
    assert isinstance(text, str)
    assert all(word in text for word in ["observation.state", *words]), text


def test_names_of_bytes_are_named(server: "PolicyServer") -> None:
    with connect(server.address) as connection:
        connection.recv()
        connection.send(msgpack.packb({b"observation.state": 1}))
        text = connection.recv()
    assert "b'observation.state'" in str(text)
    assert Dialect() == OPENPI


def _half(address: str, size: int, part: int, stack: ExitStack) -> Any:
    """Return a connection that has sent a part of a message."""
    connection = stack.enter_context(connect(address))
    connection.recv()
    connection.socket.sendall(b"\x82\xff" + size.to_bytes(8, "big") + b"\0" * 4 + b"\0" * part)
    return connection


def _is_open(connection: Any) -> bool:
    try:
        connection.ping().wait(0.05)
        connection.recv(timeout=0.05)
    except TimeoutError:
        return True
    except (ConnectionClosed, OSError):
        return False
    return True


def test_a_message_in_part_has_a_time(folder: "Path", seen: list[Observation]) -> None:
    from understudy_robot.testing.serving import served

    with served(folder, message_timeout_s=1.0) as server, ExitStack() as stack:
        slow = _half(server.address, 1 << 20, 1 << 10, stack)
        honest = stack.enter_context(connect(server.address))
        honest.recv()
        data = encode(dict(seen[0]))
        frame = b"\x82\xfe" + len(data).to_bytes(2, "big") if len(data) < 1 << 16 else b""
        frame = frame or b"\x82\xff" + len(data).to_bytes(8, "big")
        frame += b"\0" * 4 + data
        for start in range(0, len(frame), len(frame) // 4 + 1):  # slow, and within its time
            honest.socket.sendall(frame[start : start + len(frame) // 4 + 1])
            time.sleep(0.05)
        assert "actions" in decode(honest.recv())  # type: ignore[arg-type]
        end = time.monotonic() + 30
        while _is_open(slow) and time.monotonic() < end:
            time.sleep(0.1)
        assert not _is_open(slow)
        assert _is_open(honest)


def test_all_messages_in_part_have_a_bound(folder: "Path", seen: list[Observation]) -> None:
    from understudy_robot.testing.serving import served

    with served(folder, max_message_mb=1.0) as server, ExitStack() as stack:
        halves = [_half(server.address, 900_000, 800_000, stack) for _ in range(8)]
        end = time.monotonic() + 30
        while sum(map(_is_open, halves)) > 5 and time.monotonic() < end:
            time.sleep(0.1)
        assert sum(map(_is_open, halves)) <= 5
        with connect(server.address) as connection:
            connection.recv()
            connection.send(encode(dict(seen[0])))
            assert "actions" in decode(connection.recv())  # type: ignore[arg-type]
