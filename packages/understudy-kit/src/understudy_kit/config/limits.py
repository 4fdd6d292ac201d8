"""Largest values that one machine may be asked for. A larger number is a typing mistake that could
stop the host.
"""

import os
from pathlib import Path

THREADS = (16, 4)
"""Arithmetic threads: the first number, or the second per processor, whichever is larger."""
LOADER_THREADS = (64, 8)
PROCESSES = (64, 1)


def largest(bound: tuple[int, int]) -> int:
    """Return the bound on this machine."""
    least, per_processor = bound
    return max(least, per_processor * (os.cpu_count() or 1))


def too_many(name: str, value: int | str | None, bound: tuple[int, int]) -> list[str]:
    """Return one line if `value` is a number beyond the bound, else none."""
    if not isinstance(value, int) or value <= largest(bound):
        return []
    return [
        f"{name}: {value}: at most {largest(bound)} on this machine, which has {os.cpu_count()} "
        "processors"
    ]


def available_memory() -> int:
    """Return the bytes of memory for all processes here: the machine's, or less where a container
    has less.
    """
    limits = [os.sysconf("SC_PAGE_SIZE") * os.sysconf("SC_PHYS_PAGES")]
    for path in ("/sys/fs/cgroup/memory.max", "/sys/fs/cgroup/memory/memory.limit_in_bytes"):
        try:
            limits.append(int(Path(path).read_text(encoding="utf-8")))
        except (OSError, ValueError):  # another version of cgroups, or "max"
            continue
    return min(limits)
