"""Whether a measurement can be relied on: what others did on the same cores meanwhile, and figures that cannot be.

Rates are wall time, which a busy machine stretches for one side more than for the other: a decode limit measured while
others had the cores is too low, and a loader then seems to reach more than all of it. CPU time per sample is disturbed
far less.
"""

import os
import time
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from pathlib import Path
from typing import Any

from understudy.cli.bench.measure import cores

MOST = 0.1
"""Share of the cores that others may use in a measurement that is quoted."""
STAT = Path("/proc/stat")


class Others:
    """CPU time that other processes use on the cores of this one while it measures."""

    def __init__(self) -> None:
        self._load = os.getloadavg()[0] if hasattr(os, "getloadavg") else None  # before we add to it
        self._theirs, self._seconds = 0.0, 0.0

    @contextmanager
    def watched(self) -> Iterator[None]:
        """A round of this process."""
        busy, own, start = _busy_seconds(), time.process_time(), time.perf_counter()
        yield
        if busy is not None and (later := _busy_seconds()) is not None:
            self._theirs += max(0.0, later - busy - (time.process_time() - own))
            self._seconds += time.perf_counter() - start

    def found(self) -> dict[str, Any]:
        """{"load": the load average before the first round, "others": cores that others used in the rounds}; None each
        where the system does not tell."""
        return {"load": self._load, "others": self._theirs / self._seconds if self._seconds else None}


def doubt(found: Mapping[str, Any]) -> str:
    """Why the ratios of a measurement are not to be quoted, in words; "" where nothing speaks against it."""
    at = found["conditions"]
    used = at["others"] if at["others"] is not None else at["load"]  # a load average has others' past in it, too
    limit = MOST if at["others"] is not None else 0.5
    if used is not None and used > limit * at["cores"]:
        load = "" if at["load"] is None else f"load {at['load']:.1f} on {at['cores']} cores"
        others = "" if at["others"] is None else f"others used {at['others']:.1f} of them"
        return f"the machine is busy ({', '.join(filter(None, (load, others)))})"
    for key in ("limit", "codec_limit"):
        other = found[key]
        if other is None or found["work"]["decode"] < 0.01:  # decoded before: there is no limit
            continue
        quicker = found["samples_per_s"] > other["samples_per_s"]
        if quicker and found["cpu_ms_per_sample"] > other["cpu_ms_per_sample"]:
            return "more samples per second than a decode limit, at more CPU time per sample: the rounds were disturbed"
    return ""


def _busy_seconds() -> float | None:
    """CPU time that all processes have used on the cores of this one; None where the system does not tell."""
    try:
        lines = STAT.read_text().splitlines()
        allowed = {f"cpu{number}" for number in os.sched_getaffinity(0)}
        tick = os.sysconf("SC_CLK_TCK")
    except (OSError, AttributeError):
        return None
    times = [list(map(int, line.split()[1:9])) for line in lines if line.split(" ", 1)[0] in allowed]
    # user, nice, system, idle, waiting for a disk, interrupts (2), taken by other machines on the same host
    return sum(sum(each) - each[3] - each[4] for each in times) / tick if len(times) == cores() else None
