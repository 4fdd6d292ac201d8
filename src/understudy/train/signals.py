"""Being asked to stop: a signal sets a flag, the loop looks at it between two steps. Nothing is ever cut in half."""

import os
import signal
import threading
import time
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from types import FrameType

SIGNALS = (signal.SIGTERM, signal.SIGINT, signal.SIGUSR1)
SAME = 5.0
"""Seconds within which signals are one request: a scheduler signals all processes of a job, so that a rank hears from
the scheduler and from its launcher, who hands on what it was told."""


@dataclass
class Stop:
    """Whether a signal has asked the run to stop."""

    asked: bool = False


@contextmanager
def stop_signals() -> Iterator[Stop]:
    """While this lasts, SIGTERM, SIGINT and SIGUSR1 ask for a stop; a second request acts as the signal always does.

    Signals reach the main thread alone, so in any other thread this changes nothing.
    """
    stop = Stop()
    if threading.current_thread() is not threading.main_thread():
        yield stop
        return
    before = {number: signal.getsignal(number) for number in SIGNALS}

    first = 0.0

    def ask(number: int, _: FrameType | None) -> None:
        nonlocal first
        if not stop.asked:
            stop.asked, first = True, time.monotonic()
        elif time.monotonic() - first > SAME:
            for each, handler in before.items():
                signal.signal(each, handler)
            os.kill(os.getpid(), number)

    for number in SIGNALS:
        signal.signal(number, ask)
    try:
        yield stop
    finally:
        for number, handler in before.items():
            signal.signal(number, handler)
