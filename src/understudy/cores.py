"""Number of processor cores."""

import os


def available_cores() -> int:
    """Return the number of cores that this process may use; macOS knows only that of the machine."""
    return len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else os.cpu_count() or 1
