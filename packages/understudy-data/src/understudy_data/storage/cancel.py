"""Cancellation of a thread's work after its caller has gone."""

import threading
from collections.abc import Callable


class Cancelled(Exception):
    """The work of this thread is no longer needed."""


_of_thread = threading.local()


def cancel_when(is_gone: Callable[[], bool]) -> None:
    """Raise `Cancelled` from waits of this thread once `is_gone()`; for threads whose caller may go
    away.
    """
    _of_thread.is_gone = is_gone


def cancelled_when() -> Callable[[], bool]:
    """Return what says whether the caller of this thread has gone, for threads that work for this
    one.
    """
    is_gone: Callable[[], bool] = getattr(_of_thread, "is_gone", _never)
    return is_gone


def is_cancelled() -> bool:
    """Return whether the caller of this thread has gone."""
    return cancelled_when()()


def _never() -> bool:
    return False
