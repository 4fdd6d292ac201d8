"""Threads that fetch spans before they are read, and a measure of transfer latency.

Threads start when there is work and end shortly after the last of it, or at once on `close`. So a reader that is
dropped, a Ctrl-C or a fork needs no cleanup. Errors are discarded: the reader of the span fetches it again and raises.
"""

import threading
import time
from collections import deque
from collections.abc import Callable, Iterable, Iterator
from itertools import islice

_IDLE = 0.5  # seconds without work after which a thread ends
_MEASURED = 64  # latest transfers that the latency is computed from


Job = Callable[[threading.Event], None]


class Fetcher:
    """Runs jobs in at most `num_threads` threads, in order of submission.

    A job is created when a thread is about to be free for it: there may be more jobs than fit in memory.
    """

    def __init__(self, num_threads: int) -> None:
        self._num_threads = num_threads
        self._jobs: deque[tuple[Job, Iterator[Job]]] = deque()  # next job of a submission, and its remaining ones
        self._wake = threading.Condition()
        self._threads: set[threading.Thread] = set()  # threads that take jobs
        self._started: list[threading.Thread] = []  # those, and threads that are about to end
        self._idle = 0
        self.stop = threading.Event()  # stops everything under way; `close` replaces it

    def submit(self, jobs: Iterable[Job]) -> None:
        """Run `job(stop)` for each job soon; errors are discarded."""
        rest, none = iter(jobs), iter(())
        with self._wake:
            first = list(islice(rest, self._num_threads))
            for number, job in enumerate(first, start=1):
                self._jobs.append((job, rest if number == len(first) else none))
                self._start_thread()
            self._wake.notify_all()

    def _take(self) -> Job:
        job, rest = self._jobs.popleft()
        following = next(rest, None)
        if following is not None:
            self._jobs.appendleft((following, rest))
            self._start_thread()
        return job

    def _start_thread(self) -> None:
        if self._idle < len(self._jobs) and len(self._threads) < self._num_threads:
            thread = threading.Thread(target=self._run, args=(self.stop,), name="understudy-fetch", daemon=True)
            self._threads.add(thread)
            thread.start()
            self._started = [*(other for other in self._started if other.is_alive()), thread]

    def _run(self, stop: threading.Event) -> None:
        try:
            while not stop.is_set():
                with self._wake:
                    if not self._jobs:
                        self._idle += 1
                        try:
                            self._wake.wait_for(lambda: self._jobs or stop.is_set(), timeout=_IDLE)
                        finally:
                            self._idle -= 1
                        if not self._jobs or stop.is_set():
                            self._threads.discard(threading.current_thread())  # under the lock, so `submit` sees it
                            return
                    job = self._take()
                try:
                    job(stop)
                except Exception:  # the reader of the span meets the error again and raises it
                    continue
        finally:
            with self._wake:
                self._threads.discard(threading.current_thread())

    def close(self, abort: Callable[[], None], wait: float = 5.0) -> None:
        """Drop all jobs, stop those under way and join the threads.

        Args:
            abort: Ends transfers under way; called repeatedly.
            wait: Longest wait in seconds.
        """
        with self._wake:
            self._jobs.clear()
            stop, self.stop = self.stop, threading.Event()
            stop.set()
            threads = list(self._started)
            self._wake.notify_all()
        end = time.monotonic() + wait
        while any(thread.is_alive() for thread in threads) and time.monotonic() < end:
            abort()
            for thread in threads:
                thread.join(0.02)


class Latency:
    """Duration of recent transfers."""

    def __init__(self) -> None:
        self._recent: deque[float] = deque(maxlen=_MEASURED)

    def add(self, seconds: float) -> None:
        """Record a transfer."""
        self._recent.append(seconds)

    @property
    def seconds(self) -> float:
        """Ninth decile of recent transfers; 0 before the first."""
        recent = sorted(self._recent)
        return recent[len(recent) * 9 // 10] if recent else 0.0
