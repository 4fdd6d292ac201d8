"""The server: connections over websockets, `/healthz` and `/metrics`.

The event loop reads and writes; `engine` computes. A connection has one request at a time.
"""

import asyncio
import logging
import ssl
import threading
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager, nullcontext, suppress
from http import HTTPStatus
from typing import TYPE_CHECKING, Any

from websockets.asyncio.server import ServerConnection, serve
from websockets.exceptions import ConnectionClosed
from websockets.http11 import Request as HttpRequest
from websockets.http11 import Response

from understudy import RobotPolicy
from understudy_base import ConfigError, MissingExtraError, find_entry_points
from understudy_client import (
    CONTROL,
    ERROR,
    OPENPI,
    Dialect,
    MessageError,
    decode_message,
    encode,
    is_authorized,
    is_loopback,
    printable,
    read_token,
)
from understudy_robot.serve.arriving import Arriving
from understudy_robot.serve.engine import GRACE_S, Engine, RobotGoneError
from understudy_robot.serve.metrics import Metrics
from understudy_robot.serve.requests import read_request
from understudy_robot.serve.session import Session, describe_policy, warm_up

if TYPE_CHECKING:
    from understudy_robot.serve.config import ServeConfig

LOG = logging.getLogger("understudy.serve")
_SMALL_BYTES = 1 << 16  # of a message that is decoded in the event loop
_LARGEST_IN_PART = 4  # largest messages whose bytes all messages in part may have together
_MOST_FAULTS = 20  # malformed messages of a connection, one after the other


class PolicyServer:
    """A policy behind a websocket, and on request behind LeRobot's gRPC service.

    Args:
        robot: the policy; its own state is not used.
        options: settings; `policy` is the name in the metadata.

    Raises:
        ConfigError: a certificate or a token cannot be read, or LeRobot's clients cannot drive this
            policy.
    """

    def __init__(self, robot: RobotPolicy, options: "ServeConfig") -> None:
        self.robot = robot
        self.options = options
        self._engine = Engine(robot, options)
        self.metrics = self._engine.metrics
        self._most_bytes = int(options.max_message_mb * 1e6)
        self.metadata = describe_policy(robot, options.policy, options.contract)
        self.metadata["max_message_bytes"] = self._most_bytes
        self.port = options.port
        """Port that it listens on, once it does."""
        self._token = read_token(options.token_file)
        self._tls = _tls(options)
        lerobot = lerobot_service() if options.lerobot_port >= 0 else None
        self._lerobot = lerobot(self._engine, self._token) if lerobot is not None else None

        host = {"0.0.0.0": "127.0.0.1", "::": "::1", "": "127.0.0.1"}.get(
            options.host, options.host
        )
        self._host = f"[{host}]" if ":" in host else host

    @property
    def address(self) -> str:
        """Address for clients."""
        scheme = "wss" if self._tls else "ws"
        return f"{scheme}://{self._host}:{self.port}"

    @property
    def lerobot_address(self) -> str | None:
        """Address for LeRobot's clients, HOST:PORT; None: they are not served."""
        return f"{self._host}:{self._lerobot.port}" if self._lerobot is not None else None

    async def run(self, stop: asyncio.Event, ready: Callable[[], None] = lambda: None) -> None:
        """Serve until `stop` is set; then answers in work are finished for up to `GRACE_S`.

        Args:
            stop: ends the server.
            ready: called when the policy is warm.

        Raises:
            OSError: the address cannot be used.
        """
        options = self.options
        engine = self._engine
        arriving = Arriving(
            _LARGEST_IN_PART * self._most_bytes, options.message_timeout_s, self.metrics
        )
        handshake_timeout = options.open_timeout_s if self._tls else None
        lerobot = self._lerobot if self._lerobot is not None else nullcontext()
        engine.start()
        try:
            async with (
                serve(
                    self._serve,
                    options.host,
                    options.port,
                    ssl=self._tls,
                    process_request=self._process_request,
                    create_connection=limited_connections(
                        2 * options.max_connections + 16, self.metrics, arriving
                    ),
                    origins=[None],  # a browser names its page
                    compression=None,
                    open_timeout=options.open_timeout_s,
                    close_timeout=options.open_timeout_s,
                    max_size=self._most_bytes,
                    max_queue=1,
                    logger=logging.getLogger("understudy.serve.connection"),
                    server_header=None,
                    ssl_handshake_timeout=handshake_timeout,
                ) as server,
                lerobot,
            ):
                self.port = next(iter(server.sockets)).getsockname()[1]
                await asyncio.to_thread(warm_up, self.robot, options.max_batch, options.warm_up)
                engine.ready.set()
                ready()
                await stop.wait()
                engine.closing = True
                end = time.monotonic() + GRACE_S
                while engine.busy and time.monotonic() < end:
                    await asyncio.sleep(0.01)
        finally:
            await asyncio.to_thread(engine.close)

    # -- connections -------------------------------------------------------------------------------

    @property
    def _is_open(self) -> bool:
        return self._engine.ready.is_set() and not self._engine.closing

    def _process_request(
        self, connection: ServerConnection, request: HttpRequest
    ) -> Response | None:
        """Answer an HTTP request; None: it continues as a websocket."""
        headers = request.headers
        path = request.path.partition("?")[0]
        hosts = headers.get_all("Host")
        if len(hosts) != 1 or not is_own_host(hosts[0], self.options.host):
            return self._refuse(
                connection, HTTPStatus.FORBIDDEN, "this server has no such name", "host"
            )
        if path == "/healthz":
            if self._is_open:
                return connection.respond(HTTPStatus.OK, "ok\n")
            return connection.respond(HTTPStatus.SERVICE_UNAVAILABLE, "not ready\n")
        tokens = headers.get_all("Authorization")
        token = tokens[0] if len(tokens) == 1 else None
        if not is_authorized(token, self._token):
            text = "a token is needed: Authorization: Bearer TOKEN"
            return self._refuse(connection, HTTPStatus.UNAUTHORIZED, text, "token")
        if path == "/metrics":
            gauges = {
                "understudy_connections": self._engine.connected,
                "understudy_queue": self._engine.waiting,
            }
            response = connection.respond(HTTPStatus.OK, self.metrics.text(gauges))
            del response.headers["Content-Type"]
            response.headers["Content-Type"] = "text/plain; version=0.0.4; charset=utf-8"
            return response
        if not self._is_open:
            return self._refuse(
                connection, HTTPStatus.SERVICE_UNAVAILABLE, "the server is not ready", "not ready"
            )
        if self._engine.connected >= self.options.max_connections:
            text = (
                f"{self._engine.connected} robots are connected, the most that may "
                "(max_connections)"
            )
            return self._refuse(connection, HTTPStatus.SERVICE_UNAVAILABLE, text, "full")
        return None

    def _refuse(
        self, connection: ServerConnection, status: HTTPStatus, text: str, reason: str
    ) -> Response:
        self.metrics.count("understudy_refused_connections_total", f'reason="{reason}"')
        return connection.respond(status, text + "\n")

    async def _serve(self, connection: ServerConnection) -> None:
        """Serve one robot until it leaves."""
        if self._engine.connected >= self.options.max_connections:
            await connection.close(1013, "too many robots")
            return
        self._engine.connected += 1
        number, session = self._engine.open_session()
        robot = f"robot {number} at {_peer(connection)}"
        LOG.info("%s connected", robot)
        closed = asyncio.ensure_future(connection.wait_closed())
        faults = 0
        try:
            await self._send(connection, self.metadata)
            while True:
                data = await connection.recv()
                self._engine.busy += 1
                try:
                    outcome, reply = await self._answer(session, data, closed, robot)
                    self._engine.count(outcome)
                    if reply is None:
                        return
                    await self._send(connection, reply, session.dialect)
                finally:
                    self._engine.busy -= 1
                faults = faults + 1 if outcome == "message" else 0
                if faults >= _MOST_FAULTS:
                    await connection.close(
                        1007, f"{faults} malformed messages, one after the other"
                    )
                    return
        except ConnectionClosed as error:
            LOG.info("%s left: %s", robot, printable(str(error)))  # the reason is the robot's text
        finally:
            self._engine.connected -= 1
            closed.cancel()

    async def _send(
        self, connection: ServerConnection, reply: Any, dialect: Dialect = OPENPI
    ) -> None:
        """Send a reply; a robot that does not take it in time loses its connection."""
        try:
            async with asyncio.timeout(self.options.open_timeout_s):
                message = reply if isinstance(reply, str) else encode(reply, dialect)
                await connection.send(message)
        except TimeoutError:
            connection.transport.abort()
            await connection.wait_closed()
            raise ConnectionError("the robot does not take its answers") from None

    async def _answer(
        self, session: Session, data: str | bytes, closed: "asyncio.Future[None]", robot: str
    ) -> tuple[str, Any]:
        """Return (outcome, reply) of one message; a reply of None: the robot is gone."""
        since = time.monotonic()
        own_client = False
        try:
            if isinstance(data, str):
                raise MessageError("the message is text; send binary messages of msgpack")
            is_large = len(data) > _SMALL_BYTES
            message, dialect = (
                await asyncio.to_thread(decode_message, data) if is_large else decode_message(data)
            )
            session.dialect = dialect
            own_client = isinstance(message, dict) and CONTROL in message
            request, observation = read_request(message)
            answer = await self._engine.compute(session, request, observation, robot, since, closed)
        except RobotGoneError:
            return "vanished", None
        except Exception as error:
            described = self._engine.describe(error, robot)
            refusal = {ERROR: described} if own_client else described["message"]
            return str(described["fault"]), refusal
        mismatches = [mismatch.to_json() for mismatch in answer.mismatches]
        if answer.ready is None:
            return "ok", {"mismatches": mismatches}
        seconds = {
            "infer": answer.compute_s,
            "queue": answer.queue_s,
            "total": time.monotonic() - since,
        }
        timing = {f"{stage}_ms": 1000 * duration for stage, duration in seconds.items()} | {
            "robots": answer.robots
        }
        result: dict[str, Any] = {"actions": answer.actions, "clamped": answer.clamped}
        if answer.text is not None:
            result = {"response": answer.text}
        return "ok", result | {"mismatches": mismatches, "server_timing": timing}


def _peer(connection: ServerConnection) -> str:
    address = connection.remote_address
    return f"{address[0]}:{address[1]}" if isinstance(address, tuple) else str(address)


def limited_connections(most: int, metrics: Metrics, arriving: Arriving) -> type[ServerConnection]:
    """Return a class of connections of which at most `most` are open; further ones are closed and
    counted.

    They are counted from their start: before the handshakes of TLS and of the websocket.

    Args:
        most: number of connections.
        metrics: counters of refused ones.
        arriving: limits of their messages in part.
    """
    number = 0

    class Limited(ServerConnection):
        def __init__(self, *args: Any, **options: Any) -> None:
            super().__init__(*args, **options)
            nonlocal number
            number += 1
            self._counted = True
            # asyncio makes a connection in the task that accepts it. The task ends with the
            # handshake of TLS, and without it `connection_lost` is never called.
            accepting = asyncio.current_task()
            assert accepting is not None
            accepting.add_done_callback(self._accepted)
            if number > most:
                metrics.count(
                    "understudy_refused_connections_total", 'reason="unfinished handshakes"'
                )
                accepting.cancel()

        def _accepted(self, task: "asyncio.Task[Any]") -> None:
            if task.cancelled() or not hasattr(self, "transport"):
                self._release()

        def data_received(self, data: bytes) -> None:
            super().data_received(data)
            arriving.update(self)

        def connection_lost(self, exc: Exception | None) -> None:
            self._release()
            arriving.forget(self)
            super().connection_lost(exc)

        def _release(self) -> None:
            nonlocal number
            number -= self._counted
            self._counted = False

    return Limited


def _tls(options: "ServeConfig") -> ssl.SSLContext | None:
    if not options.tls_cert:
        return None
    context = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
    try:
        context.load_cert_chain(options.tls_cert, options.tls_key or None)
    except (OSError, ssl.SSLError) as error:
        raise ConfigError(
            f"tls_cert: {options.tls_cert} {options.tls_key}".rstrip() + f": {error}"
        ) from error
    return context


def lerobot_service() -> Callable[[Engine, str | None], Any]:
    """Return the class of LeRobot's service: an asynchronous context with `port`, made from an
    engine and a token.

    Raises:
        MissingExtraError: its package is not installed.
    """
    points = find_entry_points("understudy.services")
    if "lerobot" not in points:
        package = "understudy-lerobot-service"
        raise MissingExtraError(
            f"lerobot_port: the package {package} is not installed: pip install {package}"
        )
    return points["lerobot"].load()


def is_own_host(header: str | None, host: str) -> bool:
    """Return whether a `Host` header is one of this server.

    A page of the web can lead a browser of this machine to a server on loopback, under the page's
    own name. Such names are refused there. Behind other addresses a server cannot know its names.
    """
    if not is_loopback(host):
        return True
    name = (header or "").strip()
    if name.startswith("[") and "]" in name:
        return is_loopback(name[: name.index("]") + 1])
    return is_loopback(name.partition(":")[0])


def warn_if_open(options: "ServeConfig", token: str | None) -> str | None:
    """Return a line where the network may use the server, or read its messages."""
    if is_loopback(options.host):
        return None
    if token is None:
        return (
            f"{options.host}: everybody who can reach this address may use the policy; "
            "--token-file keeps others out"
        )
    return (
        None
        if options.tls_cert
        else f"{options.host}: the token crosses the network in clear text; see tls_cert"
    )


@contextmanager
def running_server(robot: RobotPolicy, options: "ServeConfig") -> Iterator[PolicyServer]:
    """Run a server in a thread of this process; it ends with the block.

    Raises:
        OSError: the address cannot be used.
    """
    server = PolicyServer(robot, options)
    started = threading.Event()
    loop = asyncio.new_event_loop()
    failed = []
    stop = asyncio.Event()

    def run() -> None:
        try:
            loop.run_until_complete(server.run(stop, started.set))
        except BaseException as error:
            failed.append(error)
        finally:
            started.set()
            loop.close()

    thread = threading.Thread(target=run, name="understudy-server", daemon=True)
    thread.start()
    started.wait()
    try:
        if failed:
            raise failed[0]
        yield server
    finally:
        with suppress(RuntimeError):  # the loop has ended
            loop.call_soon_threadsafe(stop.set)
        thread.join()
