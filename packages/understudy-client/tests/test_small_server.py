"""The small server speaks to clients of every dialect as the protocol says."""

from typing import Any

import numpy as np
import pytest
from websockets.exceptions import ConnectionClosed, InvalidStatus
from websockets.sync.client import ClientConnection, connect

from understudy_client.dialects import Dialect
from understudy_client.protocol import decode_message, encode
from understudy_client.testing.small_server import METADATA, Close, scripted_chunk, small_server

DIALECTS = [
    Dialect(tool, keys) for tool in ("openpi", "msgpack-numpy") for keys in ("bytes", "text")
]


def ask(connection: ClientConnection, message: bytes) -> Any:
    """The answer: a text, or the message and its dialect."""
    connection.send(message)
    answer = connection.recv(5)
    return answer if isinstance(answer, str) else decode_message(answer)


@pytest.mark.parametrize("dialect", DIALECTS)
def test_a_client_of_openpi_gets_chunks_in_its_form(dialect: Dialect) -> None:
    with small_server() as server, connect(server.address, proxy=None) as connection:
        greeting = connection.recv(5)
        assert isinstance(greeting, bytes)
        assert decode_message(greeting)[0] == METADATA
        message, found = ask(
            connection, encode({"observation.state": np.zeros(2), "prompt": "push"}, dialect)
        )
        assert found == dialect
        assert np.array_equal(message["actions"], scripted_chunk(0))
        assert server.observations[0]["prompt"] == "push"
        assert server.controls == [{}]


def test_errors_are_text_for_clients_of_openpi() -> None:
    with (
        small_server(script=[ValueError("joints")]) as server,
        connect(server.address, proxy=None) as connection,
    ):
        connection.recv(5)
        assert ask(connection, encode({"prompt": "push"})) == "joints"
        assert isinstance(ask(connection, b"\xc1"), str)
        assert isinstance(ask(connection, encode([1])), str)
        assert ask(connection, encode({"understudy": {"op": "reset"}}))[0] == {"mismatches": []}


def test_faults_of_the_connection() -> None:
    with small_server(script=[Close(1013)], statuses=[503]) as server:
        with pytest.raises(InvalidStatus) as refusal:
            connect(server.address, proxy=None).__enter__()
        assert refusal.value.response.status_code == 503
        with connect(server.address, proxy=None) as connection:
            connection.recv(5)
            with pytest.raises(ConnectionClosed) as caught:
                ask(connection, encode({"prompt": "push"}))
        assert caught.value.rcvd is not None
        assert caught.value.rcvd.code == 1013


def test_a_closed_server_leaves_no_connection() -> None:
    with small_server() as server:
        connection = connect(server.address, proxy=None).__enter__()
        connection.recv(5)
    with pytest.raises(ConnectionClosed):
        connection.recv(5)
    with pytest.raises(OSError):
        connect(server.address, proxy=None).__enter__()
