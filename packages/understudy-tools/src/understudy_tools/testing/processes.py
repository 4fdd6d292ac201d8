"""Processes of this host, by `ps`."""

import os
import subprocess
from pathlib import Path


def _listed() -> list[tuple[int, int, str]]:
    """Process, parent and words of all processes."""
    printed = subprocess.run(
        ["ps", "-eww", "-o", "pid=,ppid=,args="], capture_output=True, text=True
    ).stdout
    lines = [line.split(None, 2) for line in printed.splitlines()]
    return [(int(pid), int(parent), words) for pid, parent, words in lines]


def forked(parents: list[int]) -> list[int]:
    """Fork servers of `multiprocessing`, or the processes that these forked."""
    return [
        pid
        for pid, parent, words in _listed()
        if parent in parents and "multiprocessing.forkserver" in words
    ]


def children() -> list[int]:
    """Processes that the fork server of this one forked."""
    return forked(forked([os.getpid()]))


def processes_of(script: Path) -> list[int]:
    """The process of a script, its fork server, and the processes that this forked."""
    parents = [
        pid for pid, _, words in _listed() if str(script) in words and "-c" not in words.split()[:2]
    ]
    servers = forked(parents)
    return parents + servers + forked(servers)


def ray_workers() -> list[int]:
    """Busy processes of the Ray nodes that this process started."""
    listed = _listed()
    nodes = [pid for pid, parent, _ in listed if parent == os.getpid()]
    return [
        pid for pid, parent, words in listed if parent in nodes and words.startswith("ray::_remote")
    ]
