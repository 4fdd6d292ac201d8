"""When to try again, and when to give up: backoff with jitter, deadlines, and what a server asks for.

A source that is slow, short or failing changes nothing about what is read: it is asked again until a deadline without
any progress has passed, then the failure is raised.
"""

import itertools
import os
import threading
import time
import warnings
from collections.abc import Callable
from dataclasses import dataclass
from typing import TypeVar

from understudy.cancel import Cancelled, is_cancelled
from understudy.errors import SourceError

T = TypeVar("T")
_MAX_RETRY_AFTER = 600.0  # seconds that a server may ask us to stay away, all its wishes together
_count = itertools.count()
_MASK = (1 << 64) - 1


@dataclass(frozen=True)
class RetryPolicy:
    """How long to wait for a source.

    Attributes:
        deadline: seconds without any progress after which reading is given up.
        stall: seconds without a byte after which one request is given up and made again; also the longest that
            connecting and the head of the answer may take together.
        initial_backoff, max_backoff: seconds between attempts, doubling from the one to the other, half of it jitter.
        min_rate: bytes per second; a read takes no longer than `deadline` and this rate allow.
    """

    deadline: float = 120.0
    stall: float = 20.0
    initial_backoff: float = 0.2
    max_backoff: float = 10.0
    min_rate: float = 16384.0

    def pause(self, failures: int) -> float:
        """Seconds to wait after so many failures in a row (1, 2, ...). The jitter comes from a counter: no global
        generator is read or advanced."""
        base = min(self.max_backoff, self.initial_backoff * 2.0 ** min(failures - 1, 30))
        return base * (0.5 + 0.5 * _fraction((os.getpid() << 32) + next(_count)))


class TransientError(Exception):
    """An attempt failed in a way that may pass.

    Attributes:
        what: what happened, for people.
        after: seconds that the server asks us to wait.
        tries: such failures in a row after which they are believed to be no accident.
    """

    def __init__(self, what: str, after: float | None = None, tries: int | None = None) -> None:
        super().__init__(what)
        self.what, self.after, self.tries = what, after, tries


def should_stop(stop: threading.Event) -> bool:
    """Whether to give up: `stop` is set, or the one this thread works for has gone."""
    return stop.is_set() or is_cancelled()


def call_with_retries(act: Callable[[], T], where: str, retry: RetryPolicy, stop: threading.Event) -> T:
    """What `act` gives, trying again on `Transient` failures. One success is progress: a caller that loops starts with
    the whole deadline again. Raises SourceFailed when that has passed, `Stopped` when it is over (`is_over`)."""
    begun, waited, failures, odd = time.monotonic(), 0.0, 0, 0
    while True:
        if should_stop(stop):
            raise Cancelled
        try:
            return act()
        except TransientError as error:
            failures, odd = failures + 1, odd + 1 if error.tries is not None else 0
            spent = time.monotonic() - begun - waited
            pause = retry.pause(failures)
            if error.after is not None and waited + error.after > _MAX_RETRY_AFTER:
                raise SourceError(
                    f"{error.what}, and the server asks to wait {error.after:.0f} s", where=where, fix="try again later"
                ) from error
            if (error.tries is not None and odd >= error.tries) or spent + pause > retry.deadline:
                times = "once" if failures == 1 else f"{failures} times in {spent:.1f} s"
                fix = "check the connection and the server, then run again: what was fetched is kept"
                raise SourceError(f"{error.what} ({times})", where=where, fix=fix) from error
            if error.after is not None and error.after > pause:
                pause = error.after
                waited += pause  # the server's wish does not count against our deadline
                if pause > retry.max_backoff:
                    warnings.warn(f"{where}: {error.what}; the server asks to wait {pause:.0f} s", stacklevel=2)
            end = time.monotonic() + pause
            while (left := end - time.monotonic()) > 0 and not should_stop(stop):
                stop.wait(min(left, 0.1))


def _fraction(n: int) -> float:
    """SplitMix64's output for n, in [0, 1)."""
    z = (n * 0x9E3779B97F4A7C15) & _MASK
    z = ((z ^ (z >> 30)) * 0xBF58476D1CE4E5B9) & _MASK
    z = ((z ^ (z >> 27)) * 0x94D049BB133111EB) & _MASK
    return (z ^ (z >> 31)) / 2.0**64
