"""Waiting for what rank 0 does alone, for as long as it takes.

A collective gives up after the timeout of its process group, and what rank 0 does alone (statistics of a billion
frames) may take longer. So rank 0 sends a beat each second from a thread of its own. A beat says how much CPU time the
thread at work and its helpers have used, so that the others wait as long as they work, and give up when they have not
for `limit` seconds. A rank that dies is noticed at once, since its connections close; a stopped one sends no beat,
which the process group notices.
"""

import threading
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager

import torch
from torch import distributed as dist

from understudy.errors import UnderstudyError

BEAT = 1.0
"""Seconds between two beats."""
IDLE = int(1e7)
"""Nanoseconds of CPU time between two beats that are no work: the beats themselves take some."""


class Stuck(UnderstudyError, RuntimeError):
    """Rank 0 lives, and does not work."""


@contextmanager
def beating() -> Iterator[None]:
    """On rank 0, around its work: the others are in `listen` meanwhile, and no collective is called in this block."""
    ended, used = threading.Event(), _clock()

    def beat() -> None:
        try:
            last = False
            while not last:
                last = ended.wait(BEAT)
                dist.broadcast(torch.tensor([int(last), used()]), src=0)
        except RuntimeError:
            pass  # the others are gone, which the next collective of this rank says

    thread = threading.Thread(target=beat, name="understudy-beat", daemon=True)
    thread.start()
    try:
        yield
    finally:
        ended.set()
        thread.join()


def listen(limit: float) -> None:
    """On the other ranks: wait until rank 0 has left `beating`.

    Raises:
        Stuck: for `limit` seconds rank 0 has used no CPU time.
    """
    beat, seen, since = torch.zeros(2, dtype=torch.int64), -1, time.monotonic()
    while True:
        dist.broadcast(beat, src=0)
        last, used = beat.tolist()
        if last:
            return
        if used != seen:
            seen, since = used, time.monotonic()
        elif time.monotonic() - since > limit:
            raise Stuck(
                f"rank 0 has done nothing for {limit:g} seconds (parallel.timeout) while the others wait for it"
            )


def _clock() -> Callable[[], int]:
    """Gives the CPU time in nanoseconds, to any thread: of the calling thread, any of it (where the system can tell),
    and of the whole process where it is more than `IDLE`, since the calling thread may wait for threads that work."""
    clock = time.pthread_getcpuclockid(threading.get_ident()) if hasattr(time, "pthread_getcpuclockid") else None
    seen, worked = time.process_time_ns(), 0

    def used() -> int:
        nonlocal seen, worked
        now = time.process_time_ns()
        if now - seen > IDLE:
            worked += now - seen
        seen = now
        return worked + (time.clock_gettime_ns(clock) if clock is not None else 0)

    return used
