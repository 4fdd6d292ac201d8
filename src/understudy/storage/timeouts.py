"""Deadlines of HTTP requests that include connecting, the response header and the body.

A socket's own timeout restarts with each byte, so a server that sends a byte now and then never exceeds it. A name
look-up cannot be interrupted at all; look-ups, connections, TLS and proxies therefore run in a thread of their own.
"""

from __future__ import annotations

import io
import threading
import time
from collections.abc import Callable
from http.client import HTTPResponse
from typing import Any, TypeVar

from understudy.cancel import is_cancelled

T = TypeVar("T")
_POLL = 0.1  # seconds between two checks for cancellation


class DeadlineExceeded(Exception):
    """The call took too long; it may still be running in its own thread."""


class _Deadline(threading.local):
    """Deadline of this thread's request (`time.monotonic`), and its longest wait for one byte in seconds."""

    end = float("inf")
    stall: float | None = None


_deadline = _Deadline()


def set_deadline(end: float, stall: float) -> None:
    """End requests of this thread at `end` (`time.monotonic`), or after `stall` seconds without a byte."""
    _deadline.end, _deadline.stall = end, stall


def call_with_timeout(seconds: float, act: Callable[[], T]) -> T:
    """Return `act()`, run in a thread of its own.

    Raises:
        DeadlineExceeded: `seconds` have passed, or this thread's work is cancelled (`cancel.cancel_when`). `act`
            continues in its thread and its result is dropped.
    """
    outcome: list[tuple[T | None, BaseException | None]] = []
    done = threading.Event()

    def run() -> None:
        try:
            outcome.append((act(), None))
        except BaseException as error:
            outcome.append((None, error))
        done.set()

    try:
        threading.Thread(target=run, name="understudy-connect", daemon=True).start()
    except RuntimeError:  # no more threads: run without a limit
        run()
    end = time.monotonic() + seconds
    while not done.wait(max(0.0, min(_POLL, end - time.monotonic()))):
        if time.monotonic() >= end or is_cancelled():
            raise DeadlineExceeded
    result, error = outcome[0]
    if error is not None:
        raise error
    return result  # type: ignore[return-value]


class _Raw(io.RawIOBase):
    """Bytes from a connection, read within this thread's deadline."""

    def __init__(self, raw: Any, connection: Any) -> None:
        self._raw, self._socket = raw, connection

    def readable(self) -> bool:
        return True

    def fileno(self) -> int:
        return int(self._raw.fileno())

    def readinto(self, buffer: Any) -> int | None:
        left = _deadline.end - time.monotonic()
        if left <= 0:
            raise TimeoutError("timed out")
        if _deadline.stall is not None:
            self._socket.settimeout(min(left, _deadline.stall))
        count: int | None = self._raw.readinto(buffer)
        return count

    def close(self) -> None:
        if not self.closed:
            super().close()
            self._raw.close()


class _Response(HTTPResponse):
    def __init__(self, sock: Any, *args: Any, **more: Any) -> None:
        super().__init__(sock, *args, **more)
        self.fp: Any = io.BufferedReader(_Raw(self.fp.detach(), sock))  # nothing has been read from it yet


def with_deadlines(connection_class: Any, opened: Any) -> Any:
    """Derive a urllib3 connection class that obeys `set_deadline` and adds its connections to the set `opened`."""
    from urllib3.exceptions import ConnectTimeoutError

    class Connection(connection_class):
        response_class = _Response
        given_up = False

        def connect(self) -> None:
            left = min(_deadline.end - time.monotonic(), _deadline.stall or float("inf"))
            try:
                call_with_timeout(min(left, threading.TIMEOUT_MAX), self._connect)
            except DeadlineExceeded:
                self.given_up = True
                raise ConnectTimeoutError(self, "it took too long to connect") from None
            opened.add(self)

        def _connect(self) -> None:
            super().connect()
            if self.given_up:
                self.close()

    return Connection
