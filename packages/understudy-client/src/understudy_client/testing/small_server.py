"""A server of the protocol without a policy: scripted answers and faults.

with small_server() as server, RemotePolicy(server.address) as policy:
    server.script += [ValueError("joints"), Close(1011)]
    policy.act(observation)

It speaks to our client and to openpi's. `understudy serve` has the same messages, with a policy
behind them.
"""

import threading
from collections import deque
from collections.abc import Iterator, Mapping
from contextlib import contextmanager, suppress
from dataclasses import dataclass, field
from http import HTTPStatus
from typing import Any, NamedTuple

import numpy as np
from websockets.exceptions import ConnectionClosed
from websockets.http11 import Request, Response
from websockets.sync.server import ServerConnection, serve

from understudy_client.access import is_authorized
from understudy_client.dialects import OPENPI, Dialect
from understudy_client.protocol import (
    CONTROL,
    ERROR,
    MessageError,
    decode_message,
    describe_error,
    encode,
)

CHUNK = 8
ACTION_DIM = 2
METADATA: dict[str, Any] = {
    "protocol": 1,
    "policy": "small",
    "type": "scripted",
    "chunk": CHUNK,
    "action_dim": ACTION_DIM,
    "action_names": ["x", "y"],
    "state_dim": 2,
    "state_names": ["x", "y"],
    "cameras": {},
    "fps": 10.0,
    "heads": ["arm"],
    "head": "arm",
    "past_steps": 0,
    "history": {},
    "reaction": "warn",
    "contract": None,
    "continues_chunks": True,
    "action_bounds": "off",
    "max_delay": 0,
    "response_tokens": 0,
    "max_message_bytes": 1_000_000,
}
"""Greeting of the server."""


class Close(NamedTuple):
    """The server closes the connection in place of an answer."""

    code: int = 1011


class Vanish(NamedTuple):
    """The connection ends in place of an answer, without a closing handshake: the server was
    killed.
    """


class Late(NamedTuple):
    """The answer comes later; the end of the server does not wait for it."""

    seconds: float


Answer = Mapping[str, Any] | str | bytes | Exception | Close | Vanish | Late
"""A reply as values, as text or as bytes; an error of the policy; or a fault of the connection."""


def scripted_chunk(step: int) -> np.ndarray:
    """Return the usual chunk of a control step: float32 [CHUNK, ACTION_DIM], row t is (step + t,
    -step).
    """
    chunk = np.full((CHUNK, ACTION_DIM), -step, np.float32)
    chunk[:, 0] = step + np.arange(CHUNK)
    return chunk


@dataclass
class SmallServer:
    """A running server. Its fields may be changed while robots are connected.

    Attributes:
        greeting: first message of each connection; None: the connection stays silent.
        token: robots need it; None: no token.
        script: answers of the next requests for a chunk; then each gets `scripted_chunk`.
        hello: answer to the statements of a robot.
        statuses: HTTP statuses that refuse the next handshakes.
        observations: of each request for a chunk, without `CONTROL`.
        controls: fields under `CONTROL` of all requests; {} for those of other clients.
        tokens: `Authorization` header of each handshake.
        connections: handshakes that became connections.
    """

    port: int = 0
    greeting: Mapping[str, Any] | str | bytes | None = field(default_factory=lambda: dict(METADATA))
    token: str | None = None
    script: deque[Answer] = field(default_factory=deque)
    hello: Answer = field(default_factory=dict)
    statuses: deque[int] = field(default_factory=deque)
    observations: list[dict[str, Any]] = field(default_factory=list)
    controls: list[dict[str, Any]] = field(default_factory=list)
    tokens: list[str | None] = field(default_factory=list)
    connections: int = 0
    _ended: threading.Event = field(default_factory=threading.Event)
    _open: list[ServerConnection] = field(default_factory=list)

    def __post_init__(self) -> None:
        self.script = deque(self.script)
        self.statuses = deque(self.statuses)

    @property
    def address(self) -> str:
        """Address for clients."""
        return f"ws://127.0.0.1:{self.port}"

    @property
    def steps(self) -> list[int]:
        """Control step of each request for a chunk."""
        return [control["step"] for control in self.controls if control.get("op") == "act"]

    def end(self) -> None:
        """Close all connections, and let no answer wait."""
        self._ended.set()
        for connection in self._open:
            connection.close(1001)

    def _process_request(self, connection: ServerConnection, request: Request) -> Response | None:
        header = request.headers.get("Authorization")
        self.tokens.append(header)
        if self.statuses:
            status = HTTPStatus(self.statuses.popleft())
            return connection.respond(status, f"{status.phrase}\n")
        if not is_authorized(header, self.token):
            return connection.respond(HTTPStatus.UNAUTHORIZED, "a token is needed\n")
        return None

    def _serve(self, connection: ServerConnection) -> None:
        self._open.append(connection)
        self.connections += 1
        with suppress(ConnectionClosed):
            if self.greeting is not None:
                _send(connection, self.greeting, OPENPI)
            while True:
                self._reply(connection, connection.recv())

    def _reply(self, connection: ServerConnection, data: Any) -> None:
        """Answer one message."""
        own_client = False
        dialect = OPENPI
        try:
            if isinstance(data, str):
                raise MessageError("the message is text")
            message, dialect = decode_message(data)
            if not isinstance(message, dict):
                raise MessageError(f"the message is a {type(message).__name__}")
            own_client = CONTROL in message
            answer = self._choose(message.pop(CONTROL, {}), message)
        except MessageError as error:
            answer = error
        if isinstance(answer, Exception):
            described = describe_error(answer)
            answer = {ERROR: described} if own_client else str(described["message"])
        if isinstance(answer, Close):
            connection.close(answer.code)
        elif isinstance(answer, Vanish):
            connection.close_socket()
        else:
            assert not isinstance(answer, Late)
            _send(connection, answer, dialect)

    def _choose(self, control: dict[str, Any], observation: dict[str, Any]) -> Answer:
        """Return the answer of a request, after its delay."""
        self.controls.append(control)
        if control.get("op") == "hello":
            return self.hello
        if control.get("op") == "reset":
            return {"mismatches": []}
        self.observations.append(observation)
        answer = self.script.popleft() if self.script else {}
        if isinstance(answer, Late):
            self._ended.wait(answer.seconds)
            answer = {}
        if isinstance(answer, Mapping):
            usual = {"actions": scripted_chunk(control.get("step", 0)), "mismatches": []}
            return {**usual, **answer}
        return answer


def _send(
    connection: ServerConnection, message: Mapping[str, Any] | str | bytes, dialect: Dialect
) -> None:
    if isinstance(message, Mapping):
        message = encode(dict(message), dialect)
    connection.send(message)


@contextmanager
def small_server(port: int = 0, **fields: Any) -> Iterator[SmallServer]:
    """Serve on this machine.

    Args:
        port: 0 for a free one; that of an earlier server restarts it.
        fields: fields of `SmallServer`; a `greeting` of values is completed by `METADATA`.
    """
    server = SmallServer(**fields)
    if isinstance(server.greeting, Mapping):
        server.greeting = {**METADATA, **server.greeting}
    with serve(
        server._serve,
        "127.0.0.1",
        port,
        process_request=server._process_request,
        compression=None,
        max_size=None,
        close_timeout=1,
    ) as running:
        server.port = running.socket.getsockname()[1]
        thread = threading.Thread(target=running.serve_forever, name="small-server")
        thread.start()
        try:
            yield server
        finally:
            server.end()
            running.shutdown()
            server.end()
            thread.join()
