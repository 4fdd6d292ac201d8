"""Waiting for work that rank 0 does alone, for as long as it makes progress.

A collective fails after the timeout of its process group, and work of rank 0 alone (statistics of a
billion frames) may take longer. So a thread of rank 0 sends a heartbeat each second, with the CPU
time of the working thread and its helpers. The other ranks wait while that time grows, and give up
after `limit` seconds without growth. A dead rank is noticed at once, since its connections close. A
stopped one sends no heartbeat, which the process group notices.
"""

import threading
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager

import torch
from torch import distributed as dist

from understudy_base import UnderstudyError

INTERVAL = 1.0
"""Seconds between two heartbeats."""
IDLE = int(1e7)
"""Nanoseconds of CPU time between two heartbeats that do not count as work: the heartbeats
themselves take some.
"""


class RankStalled(UnderstudyError, RuntimeError):
    """Rank 0 is alive but makes no progress."""


@contextmanager
def send_heartbeats() -> Iterator[None]:
    """Send heartbeats around work of rank 0, while the others are in `wait_for_rank_0`. Excludes
    other collectives.
    """
    ended = threading.Event()
    used = _clock()

    def send() -> None:
        try:
            last = False
            while not last:
                last = ended.wait(INTERVAL)
                dist.broadcast(torch.tensor([int(last), used()]), src=0)
        except RuntimeError:
            pass  # the others are gone; the next collective of this rank fails

    thread = threading.Thread(target=send, name="understudy-heartbeat", daemon=True)
    thread.start()
    try:
        yield
    finally:
        ended.set()
        thread.join()


def wait_for_rank_0(limit: float) -> None:
    """Wait, on the other ranks, until rank 0 has left `send_heartbeats`.

    Raises:
        RankStalled: rank 0 used no CPU time for `limit` seconds.
    """
    beat = torch.zeros(2, dtype=torch.int64)
    seen = -1
    since = time.monotonic()
    while True:
        dist.broadcast(beat, src=0)
        last, used = beat.tolist()
        if last:
            return
        if used != seen:
            seen = used
            since = time.monotonic()
        elif time.monotonic() - since > limit:
            raise RankStalled(
                f"rank 0 made no progress for {limit:g} seconds (parallel.timeout) while the "
                "others waited for it"
            )


def _clock() -> Callable[[], int]:
    """Return a function, callable from any thread, that gives CPU time in nanoseconds.

    The time of the calling thread counts fully (where the system provides it). That of the whole
    process counts only above `IDLE`, since the calling thread may wait for helpers.
    """
    clock = (
        time.pthread_getcpuclockid(threading.get_ident())
        if hasattr(time, "pthread_getcpuclockid")
        else None
    )
    seen = time.process_time_ns()
    worked = 0

    def used() -> int:
        nonlocal seen, worked
        now = time.process_time_ns()
        if now - seen > IDLE:
            worked += now - seen
        seen = now
        counted = time.clock_gettime_ns(clock) if clock is not None else 0
        return worked + counted

    return used
