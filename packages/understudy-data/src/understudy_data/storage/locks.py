"""File locks between the processes of a host: `flock` on small files, released when the process
ends in any way.

A lock belongs to an open file, so threads exclude each other as processes do. A forked child closes
the descriptors that it inherits; otherwise the parent's locks would outlive the parent.
"""

import contextlib
import fcntl
import os
import time
from collections.abc import Iterator

from understudy_base import DatasetError

_held: set[int] = set()  # descriptors that hold a lock


def _after_fork() -> None:
    for number in list(_held):
        with contextlib.suppress(OSError):
            os.close(number)  # the parent's own descriptor keeps the lock
    _held.clear()


os.register_at_fork(after_in_child=_after_fork)


def acquire(path: str, shared: bool = False, create: bool = False) -> int | None:
    """Lock a file without waiting and return its descriptor; None if it is locked, missing or just
    removed.

    Args:
        path: The file.
        shared: Allow other shared locks.
        create: Create the file if it is missing.

    Raises:
        DatasetError: The file system has no locks.
    """
    creation = os.O_CREAT if create else 0
    try:
        number = os.open(path, os.O_RDWR | os.O_CLOEXEC | creation, 0o644)
    except FileNotFoundError:
        return None
    _held.add(number)
    try:
        kind = fcntl.LOCK_SH if shared else fcntl.LOCK_EX
        fcntl.flock(number, kind | fcntl.LOCK_NB)
        if os.fstat(number).st_nlink:
            return number
    except BlockingIOError:
        pass
    except OSError as error:
        release(number)
        problem = f"its file system has no locks ({error.strerror})"
        raise DatasetError(
            problem, where=path, fix="name a cache folder on a local disk"
        ) from error
    except BaseException:
        release(number)
        raise
    release(number)
    return None


def downgrade(number: int) -> bool:
    """Turn an exclusive lock into a shared one; return False if another process locked the file in
    between.
    """
    try:
        fcntl.flock(number, fcntl.LOCK_SH | fcntl.LOCK_NB)
    except OSError:
        return False
    return True


def release(number: int) -> None:
    """Release a lock and close its descriptor."""
    if number in _held:
        _held.discard(number)
        with contextlib.suppress(OSError):
            # closing is not enough while a forked child has the same open file
            fcntl.flock(number, fcntl.LOCK_UN)
        os.close(number)


@contextlib.contextmanager
def hold(path: str, wait: float = 600.0) -> Iterator[int | None]:
    """Hold the lock of a file during the block, creating the file if needed.

    Args:
        path: The file.
        wait: Longest wait in seconds.

    Yields:
        The locked descriptor; None if the lock was not free in time.
    """
    number = acquire(path, create=True)
    pause = 0.0005
    end = time.monotonic() + wait
    while number is None and time.monotonic() < end:
        time.sleep(pause)
        pause = min(2 * pause, 0.02)
        number = acquire(path, create=True)
    try:
        yield number
    finally:
        if number is not None:
            release(number)
