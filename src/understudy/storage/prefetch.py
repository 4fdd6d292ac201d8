"""A few threads that fetch what will be read soon, and a measure of how long that takes.

Threads start with the work and end by themselves soon after it, or at once when they are told to, so nobody has to
clean up behind a reader that was dropped, a Ctrl-C or a fork. What fails here is tried again, and raised, by whoever
needs it.
"""

import threading
import time
from collections import deque
from collections.abc import Callable, Iterable, Iterator
from itertools import islice

_IDLE = 0.5  # seconds without work after which a thread ends
_MEASURED = 64  # transfers that the latency is taken from


Job = Callable[[threading.Event], None]


class Fetcher:
    """Runs jobs in at most `threads` threads, first come first served. A job is made when a thread is about to be free
    for it: there may be more of them than memory holds."""

    def __init__(self, threads: int) -> None:
        self._most = threads
        self._jobs: deque[tuple[Job, Iterator[Job]]] = (
            deque()
        )  # the next of those that were submitted together, the rest
        self._wake = threading.Condition()
        self._threads: set[threading.Thread] = set()  # that take jobs
        self._started: list[threading.Thread] = []  # and those that are just ending
        self._idle = 0
        self.stop = threading.Event()  # of everything under way; a new one follows a stop

    def submit(self, jobs: Iterable[Job]) -> None:
        """Run `job(stop)` of each soon; whatever it raises is dropped."""
        rest, none = iter(jobs), iter(())
        with self._wake:
            first = list(islice(rest, self._most))
            for number, job in enumerate(first, start=1):
                self._jobs.append((job, rest if number == len(first) else none))
                self._start_one()
            self._wake.notify_all()

    def _take(self) -> Job:
        job, rest = self._jobs.popleft()
        following = next(rest, None)
        if following is not None:
            self._jobs.appendleft((following, rest))
            self._start_one()
        return job

    def _start_one(self) -> None:
        if self._idle < len(self._jobs) and len(self._threads) < self._most:
            thread = threading.Thread(target=self._run, args=(self.stop,), name="understudy-fetch", daemon=True)
            self._threads.add(thread)
            thread.start()
            self._started = [*(one for one in self._started if one.is_alive()), thread]

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
                            self._threads.discard(threading.current_thread())  # under the lock: a new job sees it
                            return
                    job = self._take()
                try:
                    job(stop)
                except Exception:  # the one who needs it will meet it again, and raise it
                    continue
        finally:
            with self._wake:
                self._threads.discard(threading.current_thread())

    def close(self, abort: Callable[[], None], wait: float = 5.0) -> None:
        """Drop the jobs, stop those under way (`abort` ends their transfers), and wait for the threads to end."""
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
    """Seconds that a transfer takes, as lately measured."""

    def __init__(self) -> None:
        self._lately: deque[float] = deque(maxlen=_MEASURED)

    def add(self, seconds: float) -> None:
        self._lately.append(seconds)

    @property
    def seconds(self) -> float:
        """What nine of ten transfers did not exceed; 0 before the first."""
        lately = sorted(self._lately)
        return lately[len(lately) * 9 // 10] if lately else 0.0
