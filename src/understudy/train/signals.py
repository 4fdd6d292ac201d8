"""Being asked to stop: a signal sets a flag, the loop looks at it between two steps. Nothing is ever cut in half."""

import signal
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from types import FrameType

SIGNALS = (signal.SIGTERM, signal.SIGINT, signal.SIGUSR1)


@dataclass
class Stop:
    """Whether a signal has asked the run to stop."""

    asked: bool = False


@contextmanager
def stop_signals() -> Iterator[Stop]:
    """While this lasts, SIGTERM, SIGINT and SIGUSR1 ask for a stop; a second one of them acts as it always does.

    Signals reach the main thread alone, so in any other thread this changes nothing.
    """
    stop = Stop()
    if threading.current_thread() is not threading.main_thread():
        yield stop
        return
    before = {number: signal.getsignal(number) for number in SIGNALS}

    def ask(number: int, _: FrameType | None) -> None:
        stop.asked = True
        for each, handler in before.items():
            signal.signal(each, handler)

    for number in SIGNALS:
        signal.signal(number, ask)
    try:
        yield stop
    finally:
        for number, handler in before.items():
            signal.signal(number, handler)
