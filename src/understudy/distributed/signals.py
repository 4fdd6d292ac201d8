"""Stop requests by signal or by file, noted and checked between two steps, so that no step is interrupted.

Before the first step, while data is opened, there is nothing to save: a single process then exits at once.
"""

import os
import signal
import threading
import time
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from types import FrameType

SIGNALS = (signal.SIGTERM, signal.SIGINT, signal.SIGUSR1)
SAME_REQUEST = 5.0
"""Seconds within which signals are one request. A scheduler signals all processes of a job, so a rank gets a signal
from the scheduler and another one from its launcher, which forwards it."""


class Stopped(BaseException):
    """A stop request when nothing needs to be saved. No Exception, like KeyboardInterrupt, so it is not swallowed."""


class Stop:
    """State of a stop request.

    Attributes:
        at_once: whether a request raises `Stopped` immediately instead of being noted.
        file: a file whose existence is a request, for containers that signals do not reach; None for none.
        noted: whether a signal was received.
    """

    file: Path | None = None
    noted = False

    def __init__(self, at_once: bool) -> None:
        self.at_once = at_once

    @property
    def asked(self) -> bool:
        """Whether a stop was requested."""
        return self.noted or (self.file is not None and self.file.exists())


@contextmanager
def interrupted_by_sigterm() -> Iterator[None]:
    """Raise KeyboardInterrupt at SIGTERM, with the number of the signal: the block ends as at Ctrl-C.

    Others within `SAME_REQUEST` do not interrupt the cleanup. A later one raises again: Python drops an exception of a
    `__del__`, and the block continues.
    """
    raised = float("-inf")

    def interrupt(number: int, _: FrameType | None) -> None:
        nonlocal raised
        if time.monotonic() - raised <= SAME_REQUEST:
            return
        raised = time.monotonic()
        raise KeyboardInterrupt(number)

    if threading.current_thread() is not threading.main_thread():
        yield
        return
    before = signal.signal(signal.SIGTERM, interrupt)
    try:
        yield
    finally:
        signal.signal(signal.SIGTERM, before)


@contextmanager
def stop_signals(*, at_once: bool = False) -> Iterator[Stop]:
    """Handle SIGTERM, SIGINT and SIGUSR1 as stop requests within this context.

    A second request acts as the signal did before. Signals reach only the main thread, so in another thread nothing
    changes.
    """
    stop = Stop(at_once)
    if threading.current_thread() is not threading.main_thread():
        yield stop
        return
    before = {number: signal.getsignal(number) for number in SIGNALS}

    first = 0.0

    def request(number: int, _: FrameType | None) -> None:
        nonlocal first
        if not stop.noted:
            stop.noted, first = True, time.monotonic()
            if stop.at_once:
                raise Stopped(signal.Signals(number).name)
        elif time.monotonic() - first > SAME_REQUEST:
            for signal_number, handler in before.items():
                signal.signal(signal_number, handler)
            os.kill(os.getpid(), number)

    for number in SIGNALS:
        signal.signal(number, request)
    try:
        yield stop
    finally:
        for number, handler in before.items():
            signal.signal(number, handler)
