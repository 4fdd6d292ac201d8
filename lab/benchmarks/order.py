"""Order benchmark: cost per index, time and memory to construct and seek.

    python lab/benchmarks/order.py [--json]

Times are CPU times (wall times on a quiet machine), medians of several runs.
"""

import argparse
import json
import os
import subprocess
import sys
import time
from collections.abc import Callable
from dataclasses import dataclass
from functools import partial
from statistics import median
from typing import Any

os.environ.setdefault("OMP_NUM_THREADS", "1")

import numpy as np

from common import conditions
from understudy_data.order import Order
from understudy_data.order.random import make_key, permutation
from understudy_data.testing.peak_memory import peak_bytes, start_peak

FRAMES = 27_000_000
BULK = 65_536
SIZES = {
    "1e6 frames": (10**6, 10**3),
    "1e9 frames": (10**9, 10**6),
    "1e12 frames": (10**12, 10**9),
    "3.3e6 episodes": (3_300_000 * 300, 300),
}
"""Frames, and frames per episode: a thousand segments each but for the last, because only their
number matters.
"""


@dataclass(frozen=True)
class Table:
    """A source of an order: episodes of equal length."""

    segments: np.ndarray
    name: str = "table"
    gop: int = 2
    reach: tuple[int, int] = (0, 0)


def table(episodes: int, length: int) -> Table:
    segments = np.zeros((episodes, 3), np.int64)
    segments[:, 0] = np.arange(episodes)
    segments[:, 2] = length
    return Table(segments)


def per_call(work: Callable[[], Any], calls: int, runs: int) -> float:
    """CPU seconds of one call, median of `runs` means over `calls`."""
    times = []
    for _ in range(runs + 1):  # the first one warms up
        start = time.process_time()
        for _ in range(calls):
            work()
        times.append((time.process_time() - start) / calls)
    return median(times[1:])


def peak_growth_mb(work: Callable[[], Any]) -> float:
    """Largest growth of resident memory while `work` ran, in MB; its result counts."""
    before = start_peak()
    result = work()
    grown = peak_bytes() - before
    del result
    return max(grown, 0) / 1e6


def cost_per_index() -> dict[str, list[float]]:
    """Nanoseconds per index, in bulk and per batch of 256: the permutation alone, and to (source,
    episode, frame).
    """
    source = table(FRAMES // 300, 300)
    shuffle = permutation(FRAMES, make_key(0, "clip", 0, 0))
    clips, uniform = (
        Order.from_datasets([source], batch_size=256, mode=mode) for mode in ("clips", "uniform")
    )
    costs: dict[str, list[float]] = {"permutation": [], "locate clips": [], "locate uniform": []}
    for count in (BULK, 256):
        positions = np.arange(FRAMES // 2, FRAMES // 2 + count, dtype=np.int64)
        calls = (
            partial(shuffle.forward, positions.view(np.uint64)),
            *(partial(o.locate, positions) for o in (clips, uniform)),
        )
        for name, call in zip(costs, calls, strict=True):
            costs[name].append(per_call(call, 50, 9) / count * 1e9)
    return costs


def first_256(source: Table, frames: int) -> tuple[np.ndarray, ...]:
    """Construct the order, seek into the middle, make a batch."""
    middle = frames // 2
    return Order.from_datasets([source], batch_size=256).locate(
        np.arange(middle, middle + 256, dtype=np.int64)
    )


def construct_and_seek(name: str) -> dict[str, float]:
    """Time of an order, and its memory with its table of segments."""
    frames, length = SIZES[name]
    first_256(table(10, 300), 3000)  # one-time setup
    peak = peak_growth_mb(lambda: first_256(table(frames // length, length), frames))
    source = table(frames // length, length)
    return {
        "ms": per_call(partial(first_256, source, frames), 1, 5 if length == 300 else 51) * 1e3,
        "peak_mb": peak,
    }


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.split("\n\n")[0])
    parser.add_argument("--json", action="store_true", help="print one JSON object")
    parser.add_argument("--part", choices=SIZES, help=argparse.SUPPRESS)
    arguments = parser.parse_args()
    if arguments.part:
        print(json.dumps(construct_and_seek(arguments.part)))
        return
    results: dict[str, Any] = {
        "ns_per_index": cost_per_index(),
        "construct_seek_first256": {},
        "conditions": conditions(),
    }
    for name in SIZES:  # each in a process of its own, where its peak memory is its own
        output = subprocess.check_output([sys.executable, __file__, "--part", name])
        results["construct_seek_first256"][name] = json.loads(output)
    print(json.dumps(results, indent=None if arguments.json else 1))


if __name__ == "__main__":
    main()
