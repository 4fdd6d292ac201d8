"""Messages that have arrived in part: a limit of time for each, and of bytes for all of a server.

A robot that sends half of a message holds its bytes in the memory of the server. A message whose
sender has not finished it within `seconds` ends its connection. Where all of them together have
more than `most_bytes`, the one that has been arriving for longest ends first. A message that waits
because the server reads no further has no limit of time.
"""

import asyncio
import logging
import time
from typing import TYPE_CHECKING, Any

from understudy_robot.serve.metrics import Metrics

if TYPE_CHECKING:
    from websockets.asyncio.server import ServerConnection

LOG = logging.getLogger("understudy.serve")


class Arriving:
    """Messages in part, of all connections."""

    def __init__(self, most_bytes: int, seconds: float, metrics: Metrics) -> None:
        self.most_bytes = most_bytes
        self.seconds = seconds
        self.metrics = metrics
        self._sizes: dict[ServerConnection, int] = {}
        """Bytes by connection, the message that began first at the front."""
        self._timers: dict[ServerConnection, asyncio.TimerHandle] = {}
        self._total = 0

    def update(self, connection: "ServerConnection") -> None:
        """Take note of the bytes of a connection after some have arrived."""
        size = _bytes_in_part(connection.protocol)
        before = self._sizes.pop(connection, 0) if not size else self._sizes.get(connection, 0)
        self._total += size - before
        if not size:
            self._stop_timer(connection)
            return
        self._sizes[connection] = size
        if connection not in self._timers:
            self._start_timer(connection, self.seconds)
        while self._total > self.most_bytes:
            oldest = next(iter(self._sizes))
            self.end(
                oldest,
                f"all messages in part have {self._total:,} bytes, more than {self.most_bytes:,}",
            )

    def forget(self, connection: "ServerConnection") -> None:
        """Forget a connection that has ended."""
        self._total -= self._sizes.pop(connection, 0)
        self._stop_timer(connection)

    def end(self, connection: "ServerConnection", reason: str) -> None:
        """End a connection whose message has not arrived."""
        LOG.warning("a connection ends, its message has arrived in part: %s", reason)
        self.metrics.count("understudy_refused_connections_total", 'reason="message in part"')
        self.forget(connection)
        connection.transport.abort()

    def _start_timer(self, connection: "ServerConnection", seconds: float) -> None:
        loop = asyncio.get_running_loop()
        self._timers[connection] = loop.call_later(
            seconds, self._check, connection, time.monotonic()
        )

    def _stop_timer(self, connection: "ServerConnection") -> None:
        timer = self._timers.pop(connection, None)
        if timer is not None:
            timer.cancel()

    def _check(self, connection: "ServerConnection", since: float) -> None:
        del self._timers[connection]
        if not connection.transport.is_reading():  # the server waits, not the robot
            self._start_timer(connection, self.seconds)
            return
        size = self._sizes.get(connection, 0)
        self.end(connection, f"{size:,} bytes in {time.monotonic() - since:.0f} s")


def _bytes_in_part(protocol: Any) -> int:
    """Bytes of a message that has not arrived whole: of its last frame, and of the frames
    before.
    """
    frames = getattr(protocol, "current_size", getattr(protocol, "cur_size", None))
    return len(protocol.reader.buffer) + (frames or 0)
