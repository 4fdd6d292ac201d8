"""Orders of other libraries, each in a process of its own: `python benchmarks/order_rivals.py NAME FRAMES`.

`construct_ms` is the time to the first index of a shuffled epoch. `ns_per_index` is the cost of each further index; a
library that makes the whole order at once has its cost divided by the number of indices. `peak_mb` is the growth of
resident memory. Times are CPU times, medians of several runs. `order.py` measures our order, and `order_compare.py` the
quality of all.
"""

import importlib.util
import json
import sys
import time
import types
from bisect import bisect_right
from collections.abc import Callable, Iterator
from itertools import accumulate, islice
from pathlib import Path
from statistics import median
from typing import Any

import numpy as np

sys.path.insert(0, str(Path(__file__).parents[1] / "tests"))

from support.peak_memory import peak_bytes, start_peak


def peak_growth_mb(work: Callable[[], Any]) -> float:
    """Largest growth of resident memory while `work` ran, in MB (off Linux: growth of the peak so far).

    Holds the result of `work` to the end, so that it counts.
    """
    before = start_peak()
    kept = work()
    grown = peak_bytes() - before
    del kept
    return max(grown, 0) / 1e6


def cpu_seconds(work: Callable[[], Any], runs: int) -> float:
    """Median CPU seconds of `work`. On a quiet machine this is the wall time; a busy one changes it little."""
    times = []
    for _ in range(runs):
        start = time.process_time()
        work()
        times.append(time.process_time() - start)
    return median(times)


def whole(make: Callable[[], Any], frames: int, runs: int = 3) -> dict[str, float]:
    """Figures of a library that makes the whole epoch's order at once."""
    peak = peak_growth_mb(make)
    seconds = cpu_seconds(make, runs)
    return {"ns_per_index": seconds / frames * 1e9, "construct_ms": seconds * 1e3, "peak_mb": peak}


def torch_randperm(frames: int) -> dict[str, float]:
    """torch.randperm, the shuffle of torch's RandomSampler and DistributedSampler."""
    import torch

    torch.set_num_threads(1)
    return whole(lambda: torch.randperm(frames, generator=torch.Generator().manual_seed(0)), frames)


class PlainEpisodeSampler:
    """LeRobot's sampler in our own words: episode boundaries, `torch.randperm` over all frames, and then for each index
    a search for its episode. A generator in Python, walked by every rank."""

    def __init__(self, starts: list[int], lengths: list[int], seed: int = 0) -> None:
        self.starts, self.ends, self.seed = starts, list(accumulate(lengths)), seed

    def __iter__(self) -> Iterator[int]:
        import torch

        order = torch.randperm(self.ends[-1], generator=torch.Generator().manual_seed(self.seed))
        for k in range(len(order)):
            p = int(order[k])
            episode = bisect_right(self.ends, p)
            yield self.starts[episode] + p - (self.ends[episode - 1] if episode else 0)


def lerobot_sampler(frames: int) -> dict[str, float]:
    import torch

    torch.set_num_threads(1)
    episodes, drawn = frames // 300, 200_000
    lengths = [300] * (episodes - 1) + [frames - 300 * (episodes - 1)]
    sampler = PlainEpisodeSampler(list(range(0, 300 * episodes, 300)), lengths)
    peak = peak_growth_mb(lambda: next(iter(sampler)))
    first = cpu_seconds(lambda: next(iter(sampler)), 3)
    stream = iter(sampler)
    next(stream)
    each = cpu_seconds(lambda: list(islice(stream, drawn)), 3) / drawn
    return {"ns_per_index": each * 1e9, "construct_ms": first * 1e3, "peak_mb": peak}


def grain_index_shuffle(frames: int) -> dict[str, float]:
    """Grain's index shuffle as its `MapDataset.shuffle` calls it: one call per index, four rounds."""
    from grain._src.python.experimental.index_shuffle.python.index_shuffle_module import index_shuffle

    calls = range(0, frames, max(1, frames // 100_000))

    def shuffle() -> list[int]:
        return [index_shuffle(index=i, max_index=frames - 1, seed=1, rounds=4) for i in calls]

    peak = peak_growth_mb(lambda: index_shuffle(index=1, max_index=frames - 1, seed=1, rounds=4))
    first = cpu_seconds(lambda: index_shuffle(index=1, max_index=frames - 1, seed=2, rounds=4), 101)
    return {"ns_per_index": cpu_seconds(shuffle, 5) / len(calls) * 1e9, "construct_ms": first * 1e3, "peak_mb": peak}


def _mosaic(name: str, frames: int) -> dict[str, float]:
    """MosaicML Streaming's shuffle of a whole epoch: shards of 3,000 samples, 8 canonical nodes, its default block."""
    found = importlib.util.find_spec("streaming")
    if found is None or found.origin is None:
        raise ImportError("No module named 'streaming'")
    # Only the shuffles are needed; importing the package itself would import its storage clients.
    root = Path(found.origin).parent
    for package in ("streaming", "streaming.base", "streaming.base.shuffle"):
        module = types.ModuleType(package)
        module.__path__ = [str(root.joinpath(*package.split(".")[1:]))]
        sys.modules[package] = module
    shuffle = getattr(importlib.import_module(f"streaming.base.shuffle.{name}"), f"get_shuffle_{name}")
    shards = np.full(-(-frames // 3000), 3000, np.int64)
    shards[-1] -= shards.sum() - frames
    return whole(lambda: shuffle(shards, 8, 0, 0), frames)


RIVALS: dict[str, Callable[[int], dict[str, float]]] = {
    "torch_randperm": torch_randperm,
    "lerobot_sampler": lerobot_sampler,
    "grain_index_shuffle": grain_index_shuffle,
    "mosaic_py1e": lambda frames: _mosaic("py1e", frames),
    "mosaic_py1br": lambda frames: _mosaic("py1br", frames),
}


if __name__ == "__main__":
    try:
        print(json.dumps(RIVALS[sys.argv[1]](int(sys.argv[2]))))
    except ImportError as missing:
        print(json.dumps({"missing": f"not installed: {missing}"}))
