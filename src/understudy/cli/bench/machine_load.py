"""Reliability of a measurement: load by other processes, and impossible figures.

Rates are measured in wall time, which a busy machine stretches unequally. A decode limit measured while other processes
use the cores is too low, and a loader may then seem to exceed it. CPU time per sample is disturbed far less.
"""

import os
import time
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

from understudy.cores import available_cores
from understudy.records import Record

MOST = 0.1
"""Largest share of the cores that other processes may use in a quotable measurement."""
STAT = Path("/proc/stat")


class Others:
    """CPU time of other processes on the cores of this one, during its measurements."""

    def __init__(self) -> None:
        self._load = os.getloadavg()[0] if hasattr(os, "getloadavg") else None  # before we contribute to it
        self._theirs, self._seconds = 0.0, 0.0

    @contextmanager
    def watched(self) -> Iterator[None]:
        """Count other processes during a round of this one; a context manager."""
        busy, process_s, start = busy_seconds(), time.process_time(), time.perf_counter()
        yield
        if busy is not None and (later := busy_seconds()) is not None:
            self._theirs += max(0.0, later - busy - (time.process_time() - process_s))
            self._seconds += time.perf_counter() - start

    def figures(self) -> dict[str, Any]:
        """Return {"load": load average before the first round, "others": cores used by other processes in the rounds}.

        A value that the system does not provide is None.
        """
        return {"load": self._load, "others": self._theirs / self._seconds if self._seconds else None}


def doubt(report: Record) -> str:
    """Explain why the ratios of a measurement must not be quoted; "" if they may be."""
    conditions = report["conditions"]
    load, others, core_count = conditions["load"], conditions["others"], conditions["cores"]
    used, limit = (others, MOST) if others is not None else (load, 0.5)  # a load average includes the recent past
    if used is not None and used > limit * core_count:
        load_text = "" if load is None else f"load {load:.1f} on {core_count} cores"
        others_text = "" if others is None else f"others used {others:.1f} of them"
        return f"the machine is busy ({', '.join(filter(None, (load_text, others_text)))})"
    for key in ("limit", "codec_limit"):
        other = report[key]
        if other is None or report["work"]["decode"] < 0.01:  # all was decoded before, so no limit applies
            continue
        quicker = report["samples_per_s"] > other["samples_per_s"]
        if quicker and report["cpu_ms_per_sample"] > other["cpu_ms_per_sample"]:
            return "more samples per second than a decode limit, at more CPU time per sample: the rounds were disturbed"
    return ""


def busy_seconds() -> float | None:
    """CPU time of all processes on the cores of this one so far; None if the system does not provide it."""
    try:
        lines = STAT.read_text(encoding="utf-8").splitlines()
        allowed = {f"cpu{number}" for number in os.sched_getaffinity(0)}
        tick = os.sysconf("SC_CLK_TCK")
    except (OSError, AttributeError):
        return None
    times = [list(map(int, line.split()[1:9])) for line in lines if line.split(" ", 1)[0] in allowed]
    # user, nice, system, idle, waiting for a disk, interrupts (2), stolen by other virtual machines
    return sum(sum(cpu) - cpu[3] - cpu[4] for cpu in times) / tick if len(times) == available_cores() else None
