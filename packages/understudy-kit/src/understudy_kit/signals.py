"""Stop requests by signal or by file, noted and checked between two steps, so that no step is
interrupted.

Before the first step, while data is opened, there is nothing to save: a single process then exits
at once.
"""

import _thread
import os
import signal
import socket
import sys
import threading
import time
from collections.abc import Callable, Iterable, Iterator
from contextlib import contextmanager
from pathlib import Path
from types import FrameType
from typing import Any

SIGNALS = (signal.SIGTERM, signal.SIGINT, signal.SIGUSR1)
SAME_REQUEST = 5.0
"""Seconds within which signals are one request. A scheduler signals all processes of a job, so a
rank gets a signal from the scheduler and another one from its launcher, which forwards it.
"""

CALL = 1.0
"""Seconds for which a signal waits for the end of a call of C, in `ended_in_calls`."""
LONGEST = 30.0
"""Seconds for which a signal inside an import waits for the end of that import."""


class Stopped(BaseException):
    """A stop request when nothing needs to be saved. No Exception, like KeyboardInterrupt, so it is
    not swallowed.
    """


class Stop:
    """State of a stop request.

    Attributes:
        at_once: whether a request raises `Stopped` immediately instead of being noted.
        begun: whether there is something to save.
        file: a file whose existence is a request, for containers that signals do not reach; None
            for none.
        noted: whether a signal was received.
    """

    file: Path | None = None
    noted = False
    begun = False

    def __init__(self, at_once: bool) -> None:
        self.at_once = at_once

    @property
    def asked(self) -> bool:
        """Whether a stop was requested."""
        return self.noted or (self.file is not None and self.file.exists())

    @staticmethod
    @contextmanager
    def on_signals(*, at_once: bool = False) -> Iterator["Stop"]:
        """Handle SIGTERM, SIGINT and SIGUSR1 as stop requests within this context.

        A second request acts as the signal did before. Signals reach only the main thread, so in
        another thread nothing changes.
        """
        stop = Stop(at_once)
        previous_handlers = {number: signal.getsignal(number) for number in SIGNALS}
        first = 0.0
        imports = _Imports(sys._getframe(2))

        def request(number: int, frame: FrameType | None) -> None:
            nonlocal first
            if stop.at_once and imports.delay(number, frame):
                return
            if not stop.noted:
                first = time.monotonic()
                stop.noted = True
                if stop.at_once:
                    raise Stopped(signal.Signals(number).name)
            elif time.monotonic() - first > SAME_REQUEST:
                for signal_number, handler in previous_handlers.items():
                    signal.signal(signal_number, handler)
                os.kill(os.getpid(), number)

        with _handled(SIGNALS, request):
            try:
                yield stop
            except Exception:
                imports.stop_if_waiting(stop)  # the signal came before the error
                raise
            imports.stop_if_waiting(stop)


class Interrupted(KeyboardInterrupt):
    """A signal asks a command to end; `args` has its number.

    It is not KeyboardInterrupt itself: after that has left an `eval` of a text, as of a namedtuple
    in an import, Python ends `python -m` by SIGINT at its exit, although the exception was handled.
    """


@contextmanager
def interrupted_by_signals() -> Iterator[None]:
    """Raise `Interrupted` at SIGTERM and at Ctrl-C: the block ends, and what is unfinished is
    removed.

    A signal inside an import waits for its end, and one whose exception Python drops, as in a
    `__del__`, comes again. Others within `SAME_REQUEST` do not interrupt the cleanup; a later one
    raises again.
    """
    raised = float("-inf")
    imports = _Imports(sys._getframe(2))

    def interrupt(number: int, frame: FrameType | None) -> None:
        nonlocal raised
        if time.monotonic() - raised <= SAME_REQUEST or imports.delay(number, frame):
            return
        raised = time.monotonic()
        raise Interrupted(number)

    def dropped(unraisable: Any) -> None:
        nonlocal raised
        if isinstance(unraisable.exc_value, Interrupted):
            raised = float("-inf")
            _send_again(unraisable.exc_value.args[0])
        else:
            others(unraisable)

    others = sys.unraisablehook
    with _handled(_ending(), interrupt):
        sys.unraisablehook = dropped
        try:
            yield
        finally:
            sys.unraisablehook = others


@contextmanager
def ended_by_signals(name: str, code: int | None = None) -> Iterator[None]:
    """End the process at SIGTERM and at Ctrl-C with one line within the block, which has nothing to
    remove.

    Args:
        name: the command, for the line.
        code: the exit code; None: 128 and the number of the signal.
    """

    def end(number: int, _: FrameType | None) -> None:
        os.write(2, f"{name}: interrupted\n".encode())
        status = 128 + number if code is None else code
        os._exit(status)

    with _handled(_ending(), end):
        yield


@contextmanager
def ended_in_calls(code: int | None = None) -> Iterator[None]:
    """End the process at a signal within the block, while it waits in a call of C, where Python
    runs no handler.

    A call that returns within a second leaves the signal to its handler. The block must not fork: a
    signal to the child would count here. Signals without a handler of Python act as ever.

    Args:
        code: the exit code; None: 128 and the number of the signal.
    """
    if threading.current_thread() is not threading.main_thread():
        yield
        return
    left = threading.Event()
    ours, theirs = socket.socketpair()
    theirs.setblocking(False)

    def end() -> None:
        while numbers := ours.recv(1):
            if numbers[0] in SIGNALS and not left.wait(CALL):
                os.write(2, b"understudy: interrupted\n")
                status = 128 + numbers[0] if code is None else code
                os._exit(status)

    previous_fd = signal.set_wakeup_fd(theirs.fileno())
    thread = threading.Thread(target=end, name="understudy-signals", daemon=True)
    thread.start()
    try:
        yield
    finally:
        left.set()
        signal.set_wakeup_fd(previous_fd)
        theirs.close()
        thread.join()
        ours.close()


def _ending() -> list[signal.Signals]:
    """Signals that end a command; not an ignored SIGINT, as in a background command of a shell."""
    if signal.getsignal(signal.SIGINT) == signal.SIG_IGN:
        return [signal.SIGTERM]
    return [signal.SIGTERM, signal.SIGINT]


@contextmanager
def _handled(
    numbers: Iterable[int], handler: Callable[[int, FrameType | None], None]
) -> Iterator[None]:
    """Handle signals within the block; elsewhere than in the main thread, do nothing."""
    if threading.current_thread() is not threading.main_thread():
        yield
        return
    previous_handlers = {number: signal.getsignal(number) for number in numbers}
    try:
        for number in previous_handlers:
            signal.signal(number, handler)
        yield
    finally:
        for number, earlier in previous_handlers.items():
            signal.signal(number, earlier)


class _Imports:
    """Signals that come inside an import: an exception there is lost, becomes an ImportError, or
    leaves half a module.

    Args:
        outer: frame of the block that handles signals; imports around it do not count.
    """

    def __init__(self, outer: FrameType) -> None:
        self._outer = outer
        self._first = dict[int, float]()

    def stop_if_waiting(self, stop: Stop) -> None:
        """Raise `Stopped` where a signal still waits for the end of an import, which was the last
        of the block.
        """
        waiting = list(self._first)
        self._first.clear()
        if waiting and stop.at_once and not stop.noted:
            raise Stopped(signal.Signals(waiting[0]).name) from None

    def delay(self, number: int, frame: FrameType | None) -> bool:
        """Send a signal again in a moment if `frame` is inside an import; return whether it is."""
        while (
            frame is not None
            and frame is not self._outer
            and "importlib._bootstrap" not in frame.f_code.co_filename
        ):
            frame = frame.f_back
        is_inside = frame is not None and frame is not self._outer
        if (
            not is_inside
            or time.monotonic() - self._first.setdefault(number, time.monotonic()) > LONGEST
        ):
            self._first.pop(number, None)
            return False
        _send_again(number, lambda: number in self._first)
        return True


def _send_again(number: int, is_wanted: Callable[[], bool] = lambda: True) -> None:
    """Send a signal to this process in a moment, whatever handles it then, if it is wanted then."""

    def send() -> None:
        time.sleep(0.05)
        if not is_wanted():
            return
        signal.pthread_kill(threading.main_thread().ident or 0, number)

    _thread.start_new_thread(send, ())  # not a Thread, whose locks the main thread may hold
