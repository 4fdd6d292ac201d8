"""Cancellation of what a thread waits for, once the caller it works for is gone."""

import threading
from collections.abc import Callable


class Cancelled(Exception):
    """Whoever asked has gone."""


_of_thread = threading.local()


def cancel_when(gone: Callable[[], bool]) -> None:
    """Have whatever this thread waits for given up (`Stopped`) once `gone()`: for threads that read for somebody who
    may go away."""
    _of_thread.gone = gone


def is_cancelled() -> bool:
    """Whether the one this thread works for has gone."""
    gone: Callable[[], bool] | None = getattr(_of_thread, "gone", None)
    return gone is not None and gone()
