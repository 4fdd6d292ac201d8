"""Number of processor cores, and the share of one process of a host."""

import os

MOST_LOADER_THREADS = 8


def available_cores() -> int:
    """Return the number of cores that this process may use; macOS knows only that of the
    machine.
    """
    if hasattr(os, "sched_getaffinity"):
        return len(os.sched_getaffinity(0))
    return os.cpu_count() or 1


def processes_here() -> int:
    """Return the number of ranks on this host: LOCAL_WORLD_SIZE, as torchrun and its kin set it;
    else 1.
    """
    text = os.environ.get("LOCAL_WORLD_SIZE", "")
    if not (text.isascii() and text.isdigit()):
        return 1
    return max(1, int(text))


def fair_threads(processes: int) -> int:
    """Return the number of loader threads of one of `processes` on this host: its share of the
    cores, 1 to 8.
    """
    return max(1, min(MOST_LOADER_THREADS, available_cores() // processes))
