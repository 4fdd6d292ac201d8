"""A limit on connections of websockets, counted from their start: before the handshakes of TLS and of the websocket."""

import asyncio
from typing import Any

from understudy.optional_packages import optional_imports
from understudy.serve.metrics import Metrics

with optional_imports():
    from websockets.asyncio.server import ServerConnection


def limited_connections(most: int, metrics: Metrics) -> type[ServerConnection]:
    """Return a class of connections of which at most `most` are open; further ones are closed and counted."""
    number = 0

    class Limited(ServerConnection):
        def __init__(self, *args: Any, **options: Any) -> None:
            super().__init__(*args, **options)
            nonlocal number
            number += 1
            self._counted = True
            # asyncio makes a connection in the task that accepts it. The task ends with the handshake of TLS, and
            # without it `connection_lost` is never called.
            accepting = asyncio.current_task()
            assert accepting is not None
            accepting.add_done_callback(self._accepted)
            if number > most:
                metrics.count("understudy_refused_connections_total", 'reason="unfinished handshakes"')
                accepting.cancel()

        def _accepted(self, task: "asyncio.Task[Any]") -> None:
            if task.cancelled() or not hasattr(self, "transport"):
                self._release()

        def connection_lost(self, exc: Exception | None) -> None:
            self._release()
            super().connection_lost(exc)

        def _release(self) -> None:
            nonlocal number
            number -= self._counted
            self._counted = False

    return Limited
