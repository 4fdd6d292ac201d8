"""Temporary folders that the next process removes if theirs was killed.

The owner holds a lock (flock) of its folder as long as it lives, and the system releases it at any
death. So a folder with our mark that nobody holds is left over. Where there are no locks, nothing
is removed but by its owner.
"""

import atexit
import fcntl
import os
import re
import shutil
import sys
import tempfile
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from functools import cache
from multiprocessing import process, util
from pathlib import Path
from typing import Any

PREFIX = ".understudy-"
"""Short, since the address of a socket in the folder has at most 107 bytes."""
_NAME = re.compile(re.escape(PREFIX) + r"[a-z0-9_]{8}")
_MARK = ".temporary"
_PROCESS = os.getpid()


@contextmanager
def temporary_folder() -> Iterator[Path]:
    """Make a folder in the folder of temporary files, and remove it after the block."""
    folder, lock = _make()
    try:
        yield folder
    finally:
        shutil.rmtree(folder, ignore_errors=True)
        os.close(lock)


def use_for_sockets() -> None:
    """Let `multiprocessing` place sockets of this process in such a folder until its end, where it
    has none yet.
    """
    config = process.current_process()._config  # type: ignore[attr-defined]
    if config.get("tempdir") is None:
        folder, lock = _make()
        config["tempdir"] = str(folder)
        # At the end of this process, not of those that it forks; after all other ends, as
        # multiprocessing's own.
        util.Finalize(None, _remove, args=(folder, lock, config), exitpriority=-100)


def _remove(folder: Path, lock: int, config: dict[str, object]) -> None:
    shutil.rmtree(folder, ignore_errors=True)
    os.close(lock)
    config["tempdir"] = None


def _make() -> tuple[Path, int]:
    """Make a folder; return it and the handle that holds its lock."""
    _remove_left(Path(tempfile.gettempdir()))
    folder = Path(tempfile.mkdtemp(prefix=PREFIX))
    lock = os.open(folder, os.O_RDONLY)
    with suppress(OSError):  # there are no locks
        fcntl.flock(lock, fcntl.LOCK_EX)
    (folder / _MARK).touch()  # after the lock: without the mark nobody takes it as left over
    return folder, lock


@cache
def _remove_left(parent: Path) -> None:
    """Remove the folders of this user in `parent` whose processes have ended; once in a process."""
    with suppress(OSError), os.scandir(parent) as entries:
        for name in [entry.name for entry in entries if _NAME.fullmatch(entry.name)]:
            with suppress(OSError):
                _remove_unheld(parent / name)


def _remove_unheld(folder: Path) -> None:
    """Remove a folder that is ours and that nobody holds. Raises OSError where it cannot."""
    lock = os.open(folder, os.O_RDONLY | os.O_DIRECTORY | os.O_NOFOLLOW)
    try:
        fcntl.flock(lock, fcntl.LOCK_EX | fcntl.LOCK_NB)
        if os.fstat(lock).st_uid == os.getuid() and (folder / _MARK).is_file():
            shutil.rmtree(folder, ignore_errors=True)
    finally:
        os.close(lock)


def fork_server() -> Any:
    """Facts of the fork server that this process has, is, or was forked from; None without one."""
    return getattr(sys.modules.get("multiprocessing.forkserver"), "_forkserver", None)


@atexit.register
def _remove_own_socket() -> None:
    """In a fork server, whose command may be killed: remove the folder of its socket, if it is one
    of ours.

    Not in a process that it forked.
    """
    server = fork_server()
    if os.getpid() != _PROCESS or server is None or server._forkserver_pid is not None:
        return
    if server._inherited_fds is None and server._forkserver_address:
        folder = Path(server._forkserver_address).parent
        if (folder / _MARK).is_file():
            shutil.rmtree(folder, ignore_errors=True)
