"""Calls of a loader's code that always end: with its result, its error, that of one of its threads, or a time limit.

A loader that waits for a thread which has died waits forever. So its code runs in a thread that the check can leave
behind, and errors of other threads are caught meanwhile.
"""

import contextvars
import queue
import threading
import time
from collections.abc import Callable
from typing import Any, Self

from understudy.errors import UnderstudyError

GRACE = 5.0
"""Seconds that a loader has for its next batch after a thread that was there before the check has failed."""

_POLL = 0.05  # seconds


class LoaderStalled(UnderstudyError):
    """The loader gave nothing in time, or one of its threads failed."""


class ForeignCalls:
    """A thread for the loader's code. A context manager, which notes the errors of all threads inside.

    Args:
        timeout: seconds of one call.
    """

    def __init__(self, timeout: float) -> None:
        self._timeout = timeout
        self._tasks: queue.SimpleQueue[Any] | None = None
        self._thread: threading.Thread | None = None
        self._failed: list[tuple[bool, float, BaseException, str]] = []  # new thread, time, error, name
        self._stalled: LoaderStalled | None = None

    def __enter__(self) -> Self:
        self._before = {thread.ident for thread in threading.enumerate()}
        self._previous = threading.excepthook
        threading.excepthook = self._note
        return self

    def __exit__(self, *error: object) -> None:
        threading.excepthook = self._previous
        if self._tasks is not None:
            self._tasks.put(None)
            self._tasks = None

    def _note(self, args: Any) -> None:
        from_loader = args.thread is None or args.thread.ident not in self._before
        if args.exc_value is not None:
            name = args.thread.name if args.thread is not None else "?"
            self._failed.append((from_loader, time.monotonic(), args.exc_value, name))
        if not from_loader:
            self._previous(args)

    def call(self, work: Callable[[], Any]) -> Any:
        """Return the result of `work`, run in the loader's thread; called from there, run at once.

        Raises:
            LoaderStalled: it took too long, or a thread failed; also at each later call.
            BaseException: the error of `work`.
        """
        if self._stalled is not None:
            raise self._stalled
        if self._thread is threading.current_thread():
            return work()
        if self._tasks is None:
            self._tasks = queue.SimpleQueue()
            self._thread = threading.Thread(target=_serve, args=(self._tasks,), name="check_loader", daemon=True)
            self._thread.start()
        done: queue.SimpleQueue[tuple[Any, BaseException | None]] = queue.SimpleQueue()
        self._tasks.put((contextvars.copy_context(), work, done))
        end = time.monotonic() + self._timeout
        while True:
            try:
                result, error = done.get(timeout=_POLL)
            except queue.Empty:
                self._check_threads(end)
                continue
            if error is not None:
                raise error
            self._check_threads(end, waiting=False)
            return result

    def _check_threads(self, end: float, waiting: bool = True) -> None:
        """Raise LoaderStalled where a thread has failed, or the time is up; from then on no call is made."""
        now = time.monotonic()
        for from_loader, when, error, name in self._failed:
            if from_loader or (waiting and now > when + GRACE):
                words = f"{type(error).__name__}: {' '.join(str(error).split())[:300]} (in the thread {name})"
                self._give_up(words, error)
        if waiting and now > end:
            self._give_up(f"no answer within {self._timeout:g} seconds (timeout)", None)

    def _give_up(self, words: str, error: BaseException | None) -> None:
        self._stalled = LoaderStalled(words)
        self._tasks = None  # its thread may wait forever
        raise self._stalled from error


def _serve(tasks: "queue.SimpleQueue[Any]") -> None:
    while (task := tasks.get()) is not None:
        context, work, done = task
        try:
            done.put((context.run(work), None))
        except BaseException as error:  # the caller decides
            done.put((None, error))
        del task, context, work, done  # holds no batch while it waits
