"""Settings of commands whose work is cut into parts."""

from dataclasses import dataclass

from understudy_base import available_cores
from understudy_kit.config.declare import Processes

LITTLE = 10_000
"""Frames of a process; the start of one takes the time of about a thousand."""


@dataclass(frozen=True)
class WorkersConfig:
    """Processes that share the work of a command; the result is the same for any number of them."""

    workers: Processes | None = None
    """Processes on this machine. The default is 1 for `check`, `ranges` and the values of `score`,
    else one per core, and fewer for little work. Above 1 a killed process is replaced and its part
    of the work done again.
    """
    ray: str = ""
    """Address of a Ray cluster (`auto`, HOST:PORT or ray://HOST:PORT) that does the work, instead
    of `--workers`. All nodes see the same paths and have the same version.
    """
    work: str = ""
    """Folder for finished parts of the work: the same command continues there after a kill or an
    error. A part is computed again when its files or settings have changed. A command that writes a
    dataset needs a new or its own folder, on the file system of a local output, and removes it at
    its end.
    """

    def processes(self, frames: int = 0) -> int:
        """Return the number of processes for a number of frames to read or write; 0: 1 by
        default.
        """
        return self.workers or max(1, min(available_cores(), frames // LITTLE))

    def worker_problems(self) -> list[str]:
        """List errors in these settings."""
        if self.ray and self.workers:
            return ["ray: give either --ray, or --workers"]
        return []
