"""Forms of arrays that clients send to a server: answered in the same form, or described."""

import time
from contextlib import ExitStack
from typing import TYPE_CHECKING, Any

import pytest

from understudy_client.testing.arm import Observation

msgpack = pytest.importorskip("msgpack", reason="needs the extra serve")
pytest.importorskip("websockets", reason="needs the extra serve")

from websockets.exceptions import ConnectionClosed  # noqa: E402
from websockets.sync.client import connect  # noqa: E402

from understudy_client import OPENPI, Dialect, decode_message, encode  # noqa: E402
from understudy_client.protocol import decode  # noqa: E402

if TYPE_CHECKING:
    from pathlib import Path

    from understudy_robot.serve.server import PolicyServer

DIALECTS = [
    Dialect(tool, keys) for tool in ("openpi", "msgpack-numpy") for keys in ("bytes", "text")
]


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
        (
            {"buffer": b"", "dims": [4]},
            ["a map with the keys buffer, dims", "__ndarray__", "msgpack-numpy"],
        ),
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


@pytest.mark.long
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
