"""Keeps an encoder from making this process a real-time one.

SVT-AV1, run as root, gives the calling thread and its own threads the policy SCHED_FIFO at priority 99 each time an
encoder is opened. Every thread and process started afterwards inherits it, and a machine of few cores then runs
nothing else. `kept_scheduling` goes around a call that may open an encoder.
"""

from __future__ import annotations

import contextlib
import os
from collections.abc import Iterator

_TASKS = "/proc/self/task"


@contextlib.contextmanager
def kept_scheduling() -> Iterator[None]:
    """Leave the calling thread's scheduling as it was, and give threads started meanwhile the same.

    The calling thread gets its policy, priority and cores back. A thread that appeared in the meantime and is a
    real-time one gets the policy and priority of the calling thread. All other threads are left alone, so a thread
    that the user made a real-time one stays so. Does nothing where the system has no such calls (macOS, Windows).
    """
    if not (hasattr(os, "sched_getscheduler") and os.path.isdir(_TASKS)):
        yield
        return
    before, policy, parameter, cores = (
        _threads(),
        os.sched_getscheduler(0),
        os.sched_getparam(0),
        os.sched_getaffinity(0),
    )
    try:
        yield
    finally:
        kept = policy, parameter.sched_priority
        if (os.sched_getscheduler(0), os.sched_getparam(0).sched_priority) != kept:
            os.sched_setscheduler(0, policy, parameter)
        if os.sched_getaffinity(0) != cores:
            os.sched_setaffinity(0, cores)
        for thread in _threads() - before:
            with contextlib.suppress(ProcessLookupError):  # it has ended
                now = os.sched_getscheduler(thread), os.sched_getparam(thread).sched_priority
                if now != kept and now[1] > 0:
                    os.sched_setscheduler(thread, policy, parameter)


def _threads() -> set[int]:
    return {int(name) for name in os.listdir(_TASKS)}
