"""Resident memory of this process, and its peak."""

import resource
import sys
from pathlib import Path


def resident_bytes() -> int:
    """Resident memory of this process, now."""
    return int(Path("/proc/self/statm").read_text().split()[1]) * 4096


def start_peak() -> int:
    """Reset the peak of `peak_bytes`; returns the peak, which is then the resident memory.

    Linux keeps this peak at no cost (proc(5): 5 into /proc/self/clear_refs). On other systems, or
    without permission to write that file, the peak is that of the process since its start.
    """
    try:
        with open("/proc/self/clear_refs", "w") as file:
            file.write("5")
    except OSError:
        pass
    return peak_bytes()


def peak_bytes() -> int:
    """Largest resident memory of this process since `start_peak`."""
    try:
        with open("/proc/self/status") as file:
            return next(int(line.split()[1]) << 10 for line in file if line.startswith("VmHWM:"))
    except (OSError, StopIteration):
        return _peak_ever()


def _peak_ever() -> int:
    unit = 1 if sys.platform == "darwin" else 1024
    return resource.getrusage(resource.RUSAGE_SELF).ru_maxrss * unit
