"""What one machine is asked for at most: a number beyond it is a slip of the keyboard, and would take the host down.

No torch here.
"""

import os
from pathlib import Path

THREADS = (16, 4)
"""Arithmetic threads: this many, or so many per processor, whichever is more."""
LOADER_THREADS = (64, 8)
PROCESSES = (64, 1)


def most(of: tuple[int, int]) -> int:
    """The bound on this machine."""
    least, each = of
    return max(least, each * (os.cpu_count() or 1))


def too_many(name: str, asked: int | str | None, of: tuple[int, int]) -> list[str]:
    """One line where `asked` is a number beyond the bound."""
    if not isinstance(asked, int) or asked <= most(of):
        return []
    return [f"{name}: {asked}: at most {most(of)} on this machine, which has {os.cpu_count()} processors"]


def memory() -> int:
    """Bytes of memory that processes here may have together: the machine's, or less where a container has less."""
    found = [os.sysconf("SC_PAGE_SIZE") * os.sysconf("SC_PHYS_PAGES")]
    for path in ("/sys/fs/cgroup/memory.max", "/sys/fs/cgroup/memory/memory.limit_in_bytes"):
        try:
            found.append(int(Path(path).read_text()))
        except (OSError, ValueError):  # another version of it, or "max"
            continue
    return min(found)
