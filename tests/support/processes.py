"""Processes of this host, by `ps`."""

import os
import subprocess
from pathlib import Path


def _listed() -> list[tuple[int, int, str]]:
    """Process, parent and words of all processes."""
    printed = subprocess.run(["ps", "-eww", "-o", "pid=,ppid=,args="], capture_output=True, text=True).stdout
    lines = [line.split(None, 2) for line in printed.splitlines()]
    return [(int(pid), int(parent), words) for pid, parent, words in lines]


def spawned(parents: list[int]) -> list[int]:
    """Processes that `multiprocessing` started for others."""
    return [pid for pid, parent, words in _listed() if parent in parents and "spawn_main" in words]


def children() -> list[int]:
    """Processes that `multiprocessing` started for this one."""
    return spawned([os.getpid()])


def processes_of(script: Path) -> list[int]:
    """The process of a script and its children."""
    parents = [pid for pid, _, words in _listed() if str(script) in words and "-c" not in words.split()[:2]]
    return parents + spawned(parents)
