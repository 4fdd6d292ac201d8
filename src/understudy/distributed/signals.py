"""Being asked to stop, by a signal or by a file: noted, and looked at between two steps. Nothing is cut in half.

Before the first step, while data is being opened, there is nothing to save: a process on its own then leaves at once.
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
SAME = 5.0
"""Seconds within which signals are one request: a scheduler signals all processes of a job, so that a rank hears from
the scheduler and from its launcher, who hands on what it was told."""


class Stopped(BaseException):
    """Asked to stop where nothing needs to be saved first. As KeyboardInterrupt no Exception: nobody may swallow it."""


class Stop:
    """Whether the run has been asked to stop.

    Attributes:
        at_once: a request raises `Stopped` where it finds the process, instead of being noted.
        file: a file that is such a request too, for where signals do not reach (containers); None: none.
    """

    def __init__(self, at_once: bool, file: Path | None) -> None:
        self.at_once, self.file, self.noted = at_once, file, False

    @property
    def asked(self) -> bool:
        return self.noted or (self.file is not None and self.file.exists())


@contextmanager
def stop_signals(*, at_once: bool = False, file: Path | None = None) -> Iterator[Stop]:
    """While this lasts, SIGTERM, SIGINT and SIGUSR1 ask for a stop; a second request acts as the signal did before.

    Signals reach the main thread alone, so in any other thread they change nothing.
    """
    stop = Stop(at_once, file)
    if threading.current_thread() is not threading.main_thread():
        yield stop
        return
    before = {number: signal.getsignal(number) for number in SIGNALS}

    first = 0.0

    def ask(number: int, _: FrameType | None) -> None:
        nonlocal first
        if not stop.noted:
            stop.noted, first = True, time.monotonic()
            if stop.at_once:
                raise Stopped(signal.Signals(number).name)
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
