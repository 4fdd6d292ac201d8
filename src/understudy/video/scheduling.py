"""Protection from encoders that make this process a real-time process.

SVT-AV1, run as root, sets the policy SCHED_FIFO at priority 99 for the calling thread and its own threads each time an
encoder is opened. Every thread and process started afterwards inherits it, and a machine of few cores then runs nothing
else. Wrap a call that may open an encoder in `preserve_scheduling`.
"""

from __future__ import annotations

import contextlib
import os
from collections.abc import Iterator

_TASKS = "/proc/self/task"


@contextlib.contextmanager
def preserve_scheduling() -> Iterator[None]:
    """Restore the scheduling of the calling thread, and apply it to threads started meanwhile.

    The calling thread gets its policy, priority and cores back. A real-time thread that was started meanwhile gets the
    policy and priority of the calling thread. All other threads keep theirs, so a thread that the user made
    real-time stays real-time. Does nothing where the system has no such calls (macOS, Windows).
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
        own = policy, parameter.sched_priority
        if (os.sched_getscheduler(0), os.sched_getparam(0).sched_priority) != own:
            os.sched_setscheduler(0, policy, parameter)
        if os.sched_getaffinity(0) != cores:
            os.sched_setaffinity(0, cores)
        for thread in _threads() - before:
            with contextlib.suppress(ProcessLookupError):  # the thread has ended
                now = os.sched_getscheduler(thread), os.sched_getparam(thread).sched_priority
                if now != own and now[1] > 0:
                    os.sched_setscheduler(thread, policy, parameter)


def _threads() -> set[int]:
    return {int(name) for name in os.listdir(_TASKS)}
