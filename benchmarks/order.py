"""Order benchmark: cost per index, time and memory to construct and seek, and other libraries.

    python benchmarks/order.py [--json] [--frames 27000000]

Rivals that are not installed are left out and named in `conditions`: `pip install grain`, `pip install --no-deps
mosaicml-streaming`. Times are CPU times (wall times on a quiet machine), medians of several runs.
"""

import argparse
import json
import os
import platform
import subprocess
import sys
from collections.abc import Callable
from dataclasses import dataclass
from datetime import UTC, datetime
from functools import partial
from pathlib import Path
from typing import Any

os.environ.setdefault("OMP_NUM_THREADS", "1")

import numpy as np

from order_rivals import RIVALS, cpu_seconds, peak_growth_mb
from understudy.cli.bench.measure import cpu_name
from understudy.order import Order
from understudy.order.random import make_key, permutation

FRAMES = 27_000_000
BULK = 65_536
# Frames and frames per episode: a thousand segments each, because only the number of segments grows.
SIZES = {"1e6": (10**6, 10**3), "1e9": (10**9, 10**6), "1e12": (10**12, 10**9)}
EPISODES = (3_300_000 * 300, 300)


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


def per_call(work: Callable[[], Any], calls: int = 50, runs: int = 9) -> float:
    """CPU seconds of one call, median of `runs` means over `calls`."""

    def many() -> None:
        for _ in range(calls):
            work()

    many()
    return cpu_seconds(many, runs) / calls


def cost_per_index() -> dict[str, float]:
    """Nanoseconds per index, in bulk and per batch of 256: the permutation alone, and to (source, episode, frame)."""
    source = table(FRAMES // 300, 300)
    shuffle = permutation(FRAMES, make_key(0, "clip", 0, 0))
    orders = {mode: Order.from_datasets([source], batch_size=256, mode=mode) for mode in ("clips", "uniform")}
    found = {}
    for label, n in (("bulk", BULK), ("256", 256)):
        positions = np.arange(FRAMES // 2, FRAMES // 2 + n, dtype=np.int64)
        work = {"permutation": partial(shuffle.forward, positions.view(np.uint64))}
        work |= {f"locate_{mode}": partial(order.locate, positions) for mode, order in orders.items()}
        for name, call in work.items():
            found[f"{name}_ns_{label}"] = per_call(call) / n * 1e9
    return found


def first_256(source: Table, frames: int) -> tuple[np.ndarray, ...]:
    """Construct the order, seek into the middle, make a batch."""
    middle = frames // 2
    return Order.from_datasets([source], batch_size=256).locate(np.arange(middle, middle + 256, dtype=np.int64))


def construct_and_seek(frames: int, length: int, runs: int) -> dict[str, float]:
    """Time and memory of an order over `frames` in episodes of `length`, beside its table of segments."""
    first_256(table(10, 300), 3000)  # one-time setup
    source = table(frames // length, length)
    work = partial(first_256, source, frames)
    peak = peak_growth_mb(work)  # first: later, reused free memory would hide growth
    return {"construct_seek_first256_ms": per_call(work, calls=1, runs=runs) * 1e3, "peak_mb": peak}


def with_table(frames: int, length: int) -> dict[str, float]:
    """Memory of the order and its table of segments together."""
    first_256(table(10, 300), 3000)
    return {"peak_mb": peak_growth_mb(lambda: first_256(table(frames // length, length), frames))}


def in_child(script: str, *arguments: str) -> dict[str, Any]:
    """Run a part of this benchmark in a process of its own, where its peak memory is its own."""
    command = [sys.executable, str(Path(__file__).parent / script), *arguments]
    try:
        done = subprocess.run(command, capture_output=True, text=True, timeout=300)
    except subprocess.TimeoutExpired:
        return {"missing": "not done within 300 s"}
    if done.returncode:
        return {"missing": done.stderr.strip().splitlines()[-1][:200]}
    return json.loads(done.stdout.strip().splitlines()[-1])


def measure(frames: int) -> dict[str, Any]:
    costs = cost_per_index()
    sizes = {name: in_child("order.py", "--part", name) for name in SIZES}
    episodes = in_child("order.py", "--part", "episodes")
    episodes["with_table_peak_mb"] = in_child("order.py", "--part", "with_table")["peak_mb"]
    rivals = {name: in_child("order_rivals.py", name, str(frames)) for name in RIVALS}
    missing = {name: found["missing"] for name, found in rivals.items() if "missing" in found}
    empty = dict.fromkeys(("ns_per_index", "construct_ms", "peak_mb"))
    return {
        "ns_per_index": costs["permutation_ns_bulk"],
        "construct_seek_first256_ms": sizes["1e12"]["construct_seek_first256_ms"],
        "episodes_3300000_peak_mb": episodes["peak_mb"],
        "versus": {name: empty if "missing" in found else found for name, found in rivals.items()},
        "costs": costs,
        "sizes": sizes,
        "episodes_3300000": episodes,
        "conditions": {
            "python": platform.python_version(),
            "numpy": np.__version__,
            "cpu": cpu_name(),
            "cores": os.cpu_count(),
            "date": datetime.now(UTC).strftime("%Y-%m-%d"),
            "times": "CPU time, medians",
            "ns_per_index": f"our permutation of {FRAMES} frames, {BULK} indices a call; locate_* includes the frame",
            "versus_frames": frames,
            "missing": missing,
        },
    }


def render(found: dict[str, Any]) -> str:
    costs, sizes, epoch = found["costs"], found["sizes"], found["conditions"]["versus_frames"]
    lines = [
        f"{'ns per index':<40}{'in bulk':>12}{'256 a call':>12}",
        *(
            f"{label:<40}{costs[f'{key}_ns_bulk']:>12.1f}{costs[f'{key}_ns_256']:>12.1f}"
            for key, label in (
                ("permutation", "permutation of 2.7e7"),
                ("locate_clips", "position -> frame, clips"),
                ("locate_uniform", "position -> frame, uniform"),
            )
        ),
        "",
        f"{'construct, seek to the middle, make 256':<40}{'ms':>12}{'peak MB':>12}",
        *(
            f"{name + ' frames':<40}{each['construct_seek_first256_ms']:>12.2f}{each['peak_mb']:>12.1f}"
            for name, each in (*sizes.items(), ("3.3e6 episodes, 9.9e8", found["episodes_3300000"]))
        ),
        "",
        f"{f'elsewhere, an epoch of {epoch:.1e} frames':<40}{'ns/index':>12}{'to first ms':>12}{'peak MB':>12}",
    ]
    for name, each in found["versus"].items():
        cells = [each[key] for key in ("ns_per_index", "construct_ms", "peak_mb")]
        lines.append(f"{name:<40}" + "".join(f"{'-' if cell is None else f'{cell:.1f}':>12}" for cell in cells))
    return "\n".join([*lines, "", json.dumps(found["conditions"])])


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.split("\n\n")[0])
    parser.add_argument("--json", action="store_true", help="print one JSON object")
    parser.add_argument("--frames", type=int, default=FRAMES, help="epoch of the other libraries")
    parser.add_argument("--part", choices=[*SIZES, "episodes", "with_table"], help=argparse.SUPPRESS)
    arguments = parser.parse_args()
    if arguments.part == "with_table":
        print(json.dumps(with_table(*EPISODES)))
    elif arguments.part:
        runs = 5 if arguments.part == "episodes" else 51
        print(json.dumps(construct_and_seek(*SIZES.get(arguments.part, EPISODES), runs)))
    else:
        found = measure(arguments.frames)
        print(json.dumps(found) if arguments.json else render(found))


if __name__ == "__main__":
    main()
