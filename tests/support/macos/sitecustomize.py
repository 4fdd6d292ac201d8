"""Hide files and calls of Linux that macOS lacks, such as /proc. Python imports this file at its
start.

A process with this folder in PYTHONPATH runs understudy as if on macOS. `sys.platform` changes with
the import of understudy, after that of packages whose libraries depend on it.
"""

import importlib
import multiprocessing
import os
import platform
import sys
import sysconfig
from contextlib import suppress
from pathlib import Path
from typing import Any

LACKING = {
    "os": (
        "sched_getaffinity sched_setaffinity sched_getscheduler sched_setscheduler sched_getparam "
        "sched_setparam posix_fadvise posix_fallocate copy_file_range memfd_create pipe2 "
        "pidfd_open eventfd getrandom splice setresuid getresuid getxattr setxattr listxattr "
        "removexattr O_DIRECT O_TMPFILE O_PATH O_RSYNC fdatasync"
    ),
    "select": "epoll",
    "signal": "sigtimedwait sigwaitinfo SIGPWR SIGRTMIN SIGRTMAX SIGPOLL SIGSTKFLT",
    "time": "pthread_getcpuclockid CLOCK_BOOTTIME CLOCK_TAI",
    "resource": "prlimit RUSAGE_THREAD",
    "mmap": "MAP_POPULATE",
}
LOADED = "numpy", "torch.distributed", "av", "pyarrow.parquet"
_stat = os.stat


def hidden(path: Any) -> bool:
    try:
        text = os.fsdecode(path)
    except TypeError:  # the number of an open file
        return False
    return text in ("/proc", "/sys") or text.startswith(("/proc/", "/sys/"))


def refuse(event: str, arguments: tuple[Any, ...]) -> None:
    if event in ("open", "os.listdir", "os.scandir") and arguments and hidden(arguments[0]):
        raise FileNotFoundError(2, "No such file or directory", arguments[0])


def stat(path: Any, *arguments: Any, **options: Any) -> os.stat_result:
    if hidden(path):
        raise FileNotFoundError(2, "No such file or directory", path)
    return _stat(path, *arguments, **options)


class Switch:
    """Finder that changes the platform at the first import of understudy."""

    def find_spec(self, name: str, path: Any = None, target: Any = None) -> None:
        if name != "understudy":
            return
        sys.meta_path.remove(self)  # type: ignore[arg-type]
        for module in LOADED:
            with suppress(ImportError):
                importlib.import_module(module)
        sysconfig.get_config_vars()  # these two read files that are named by the platform
        platform.platform()
        multiprocessing.set_start_method("spawn", force=True)  # the default of macOS
        sys.platform = "darwin"


if Path("/proc/self").exists():
    for module, names in LACKING.items():
        known = importlib.import_module(module)
        for name in names.split():
            if hasattr(known, name):
                delattr(known, name)
    os.stat = stat  # type: ignore[assignment]
    sys.addaudithook(refuse)
    sys.meta_path.insert(0, Switch())  # type: ignore[arg-type]
