"""Nothing of a request is waited for without end: its connection, the head of its answer and the body count together.

A socket's own timeout starts anew with each byte, so a server that sends one byte now and then never meets it. Names,
connections, TLS and proxies are waited for from outside, since a look-up of a name cannot be interrupted.
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
_LOOK = 0.1  # seconds between two looks whether somebody still waits


class DeadlineExceeded(Exception):
    """The time for it has passed; what was begun may still be under way in a thread of its own."""


class _Limit(threading.local):
    """Until when this thread waits for its request (by `time.monotonic`), and for one byte of it (seconds)."""

    end = float("inf")
    stall: float | None = None


_limit = _Limit()


def set_deadline(end: float, stall: float) -> None:
    """Set when the requests of this thread end: at `end`, or after `stall` seconds without a byte."""
    _limit.end, _limit.stall = end, stall


def call_with_timeout(seconds: float, act: Callable[[], T]) -> T:
    """What `act()` gives or raises. Raises Late after so many seconds, or once whoever this thread works for has gone
    (`cancel.give_up_when`): `act` then goes on in its thread, and nobody hears of its result."""
    said: list[tuple[T | None, BaseException | None]] = []
    done = threading.Event()

    def run() -> None:
        try:
            said.append((act(), None))
        except BaseException as error:
            said.append((None, error))
        done.set()

    try:
        threading.Thread(target=run, name="understudy-connect", daemon=True).start()
    except RuntimeError:  # no thread can be had: then without a limit
        run()
    end = time.monotonic() + seconds
    while not done.wait(max(0.0, min(_LOOK, end - time.monotonic()))):
        if time.monotonic() >= end or is_cancelled():
            raise DeadlineExceeded
    result, error = said[0]
    if error is not None:
        raise error
    return result  # type: ignore[return-value]


class _Raw(io.RawIOBase):
    """What a connection sends, no longer than this thread waits."""

    def __init__(self, raw: Any, connection: Any) -> None:
        self._raw, self._socket = raw, connection

    def readable(self) -> bool:
        return True

    def fileno(self) -> int:
        return int(self._raw.fileno())

    def readinto(self, buffer: Any) -> int | None:
        left = _limit.end - time.monotonic()
        if left <= 0:
            raise TimeoutError("timed out")
        if _limit.stall is not None:
            self._socket.settimeout(min(left, _limit.stall))
        count: int | None = self._raw.readinto(buffer)
        return count

    def close(self) -> None:
        if not self.closed:
            super().close()
            self._raw.close()


class _Response(HTTPResponse):
    def __init__(self, sock: Any, *args: Any, **more: Any) -> None:
        super().__init__(sock, *args, **more)
        self.fp: Any = io.BufferedReader(_Raw(self.fp.detach(), sock))  # nothing was read of it yet


def with_deadlines(kind: Any, opened: Any) -> Any:
    """A class of urllib3's connections that keeps to `wait_until`. What is connected is put down in `opened`."""
    from urllib3.exceptions import ConnectTimeoutError

    class Connection(kind):
        response_class = _Response
        given_up = False

        def connect(self) -> None:
            left = min(_limit.end - time.monotonic(), _limit.stall or float("inf"))
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
