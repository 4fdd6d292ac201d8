"""Options for reading remote datasets, and the default cache folder.

Retries have backoff with jitter, deadlines, and `Retry-After`. A source that is slow, short or
failing never changes the samples. It is asked again until a deadline without progress has passed;
then the failure is raised.
"""

import itertools
import os
import random
import sys
import threading
import time
import warnings
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from typing import Any, TypeVar

from understudy_base import SourceError
from understudy_data.storage.cancel import Cancelled, is_cancelled

T = TypeVar("T")
MAX_RETRY_AFTER = 600.0
"""Longest sum of the waits in seconds that a server may ask for."""

_count = itertools.count()


@dataclass(frozen=True)
class RetryPolicy:
    """Deadlines of requests, and pauses between attempts.

    Attributes:
        deadline: Seconds without progress after which reading fails.
        stall: Seconds without a byte after which a request is repeated. Connecting and the response
            header together may take no longer than this either.
        initial_backoff: Seconds before the second attempt. Pauses double up to `max_backoff`; half
            of each is jitter.
        max_backoff: Longest pause in seconds.
        min_rate: Bytes per second; a read may take `deadline` plus the time that its size needs at
            this rate.
    """

    deadline: float = 120.0
    stall: float = 20.0
    initial_backoff: float = 0.2
    max_backoff: float = 10.0
    min_rate: float = 16384.0

    def pause(self, failures: int) -> float:
        """Return the seconds to wait after `failures` >= 1 failures in a row.

        The jitter comes from a counter: no global random generator is used.
        """
        base = min(self.max_backoff, self.initial_backoff * 2.0 ** min(failures - 1, 30))
        return base * (0.5 + 0.5 * random.Random((os.getpid() << 32) + next(_count)).random())


class TransientError(Exception):
    """A failure that another attempt may not meet.

    Attributes:
        what: Description of the failure.
        after: Seconds that the server asks to wait, or None.
        tries: Number of such failures in a row after which retrying ends early, or None.
    """

    def __init__(self, problem: str, after: float | None = None, tries: int | None = None) -> None:
        super().__init__(problem)
        self.what = problem
        self.after = after
        self.tries = tries


def should_stop(stop: threading.Event) -> bool:
    """Return whether `stop` is set or the work of this thread is cancelled (`cancel.py`)."""
    return stop.is_set() or is_cancelled()


def call_with_retries(
    act: Callable[[], T], where: str, retry: RetryPolicy, stop: threading.Event
) -> T:
    """Return `act()`, repeated after each TransientError.

    A caller that loops over parts of a read starts with a fresh deadline for each: one success is
    progress.

    Raises:
        SourceError: The deadline has passed without success.
        Cancelled: See `should_stop`.
    """
    begun = time.monotonic()
    waited = 0.0
    failures = 0
    odd = 0
    while True:
        if should_stop(stop):
            raise Cancelled
        try:
            return act()
        except TransientError as error:
            failures = failures + 1
            odd = odd + 1 if error.tries is not None else 0
            spent = time.monotonic() - begun - waited
            pause = retry.pause(failures)
            if error.after is not None and waited + error.after > MAX_RETRY_AFTER:
                problem = f"{error.what}, and the server asks to wait {error.after:.0f} s"
                raise SourceError(
                    problem, where=where, fix="try again later", transient=True
                ) from error
            if (error.tries is not None and odd >= error.tries) or spent + pause > retry.deadline:
                times = "once" if failures == 1 else f"{failures} times in {spent:.1f} s"
                fix = (
                    "check the connection and the server, then run again: fetched bytes stay in "
                    "the cache"
                )
                raise SourceError(
                    f"{error.what} ({times})", where=where, fix=fix, transient=True
                ) from error
            if error.after is not None and error.after > pause:
                pause = error.after
                waited += pause  # the server's wait does not count against the deadline
                if pause > retry.max_backoff:
                    warnings.warn(
                        f"{where}: {error.what}; the server asks to wait {pause:.0f} s",
                        stacklevel=2,
                    )
            end = time.monotonic() + pause
            while (left := end - time.monotonic()) > 0 and not should_stop(stop):
                stop.wait(min(left, 0.1))


@dataclass(frozen=True)
class RemoteOptions:
    """Options for reading a remote dataset.

    Attributes:
        storage_options: Options of the file system's fsspec driver (`key`, `token`, `endpoint_url`,
            ...); `headers` for https://. Credentials that the driver finds by itself can be left
            out.
        cache: Folder on a local disk, shared by all processes of this host; "" is the user's cache
            folder.
        cache_bytes: Most bytes that the cache holds.
        retry: Deadlines, and pauses between attempts.
        num_threads: Number of spans that are prefetched, and of files that are opened ahead, at the
            same time.
    """

    # may hold credentials
    storage_options: Mapping[str, Any] = field(default_factory=dict, repr=False)
    cache: str = ""
    cache_bytes: int = 64 << 30
    retry: RetryPolicy = field(default_factory=RetryPolicy)
    num_threads: int = 24

    def __post_init__(self) -> None:
        for name, least in (("cache_bytes", 0), ("num_threads", 1)):
            value = getattr(self, name)
            if isinstance(value, bool) or not isinstance(value, int) or value < least:
                raise ValueError(f"{name}={value!r}: it must be a whole number, at least {least}")

    @property
    def folder(self) -> str:
        """Absolute path of the cache folder."""
        if not self.cache:
            return default_cache_folder()
        return os.path.abspath(os.path.expanduser(self.cache))


def default_cache_folder() -> str:
    """Return `$XDG_CACHE_HOME/understudy`, or the operating system's equivalent."""
    home = os.environ.get("XDG_CACHE_HOME", "")
    if not os.path.isabs(home):
        usual = "~/Library/Caches" if sys.platform == "darwin" else "~/.cache"
        home = os.path.expanduser(usual)
    return os.path.join(home, "understudy")
