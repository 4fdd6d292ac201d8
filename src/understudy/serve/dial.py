"""One connection of a client: the handshake, and errors that another attempt cannot mend."""

import logging
import ssl as tls
import threading
import time as clock
from collections.abc import Iterator
from contextlib import contextmanager
from urllib.parse import urlsplit

from understudy.credentials import redact
from understudy.optional_packages import optional_imports
from understudy.serve.access import VARIABLE, authorization, is_loopback
from understudy.serve.protocol import RemoteError

with optional_imports():
    from websockets.exceptions import InvalidStatus, WebSocketException
    from websockets.sync.client import ClientConnection, connect

FAILURES = (OSError, WebSocketException)
"""Errors of a connection that another one may not have."""
LOG = logging.getLogger("understudy.serve")
PATIENCE_S = 2.0
"""Seconds without a server after which the log names it."""


@contextmanager
def announced(name: str, end: float) -> Iterator[None]:
    """Log once that the block waits for a server, if it takes longer than `PATIENCE_S`.

    Args:
        name: address of the server.
        end: `time.monotonic` at which the block gives up.
    """
    left = end - clock.monotonic() - PATIENCE_S
    timer = threading.Timer(PATIENCE_S, LOG.warning, ("waiting for %s, up to %.0f s more", name, left))
    timer.daemon = True
    timer.start()
    try:
        yield
    finally:
        timer.cancel()


def dial(url: str, token: str | None, ssl: tls.SSLContext | None, max_size: int, timeout: float) -> ClientConnection:
    """Connect once. A proxy of the environment is not used for this machine.

    Args:
        url: see `check_address`.
        token: of the server.
        ssl: of a wss:// address whose certificate the system does not know.
        max_size: largest message in bytes.
        timeout: seconds.

    Raises:
        RemoteError: the server refuses the robot ("refused"), or is not ready ("closing"). FAILURES: no connection.
    """
    name = redact(url)
    try:
        return connect(
            url,
            ssl=ssl,
            compression=None,
            open_timeout=timeout,
            close_timeout=1,
            max_size=max_size,
            additional_headers=authorization(token),
            proxy=None if is_loopback(urlsplit(url).hostname or "") else True,
        ).__enter__()  # newer releases connect in a `with` alone; `hang_up` closes
    except InvalidStatus as error:
        status, body = error.response.status_code, error.response.body.decode(errors="replace").strip()
        fix = f"; give token=, or {VARIABLE}" if status == 401 else ""
        fault = "refused" if status in (401, 403) else "closing"
        raise RemoteError(f"{name}: {status}, {body}{fix}", fault) from error
    except tls.SSLCertVerificationError as error:
        raise RemoteError(f"{name}: {error}; give ssl= with its certificate", "refused") from error


def hang_up(connection: ClientConnection) -> None:
    """End a connection."""
    try:
        connection.close()
    except FAILURES:
        connection.socket.close()


def check_address(url: str) -> str:
    """Return an address with its scheme.

    Raises:
        ValueError: it is none of a websocket.
    """
    found = url if "://" in url else f"ws://{url}"
    parts = urlsplit(found)
    if parts.scheme not in ("ws", "wss") or not parts.hostname:
        raise ValueError(f"{redact(url)!r} is no address of a policy server; give ws://HOST:PORT or wss://HOST:PORT")
    return found
