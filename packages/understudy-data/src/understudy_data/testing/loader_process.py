"""A loader in a process of its own: `python loader_process.py measure DATASET ...` or
`... forever DATASET MEMORY`.
"""

import json
import sys
import threading
import time

import pyarrow as pa
import torch

from understudy_data.datasets.dataset import EpisodeDataset
from understudy_data.datasets.read import row_tables, rows
from understudy_data.load.loader import Loader
from understudy_data.order import Order
from understudy_data.testing.peak_memory import peak_bytes, resident_bytes, start_peak


def measure(root: str, memory: int, lanes: int, clip: int, batches: int, permuted: int = 0) -> None:
    """Print the bytes of the plan and the largest growth of this process, as JSON."""
    data = EpisodeDataset(root, frame_cache_bytes=0)
    inside = "permuted" if permuted else "sequential"
    order = Order.from_datasets(
        [data], batch_size=16, seed=1, clip=clip, lanes=lanes, inside=inside
    )
    with Loader([data], order=order, memory=memory, num_threads=2) as loader:
        data.batch(*data.locate([0]))  # code and codecs are loaded
        before = resident_bytes()
        peak = 0
        made = 0
        while made < batches * order.batch_size:
            # which is held until the next one is there, as a training loop does
            batch = next(loader)
            made += len(batch["position"])
            peak = max(peak, resident_bytes())
        print(
            json.dumps(
                {"planned": loader.plan.bytes, "grown": peak - before, "plan": str(loader.plan)}
            )
        )


def measure_rows(root: str) -> None:
    """Print the bytes of the plan and the largest growth while a loader of rows alone starts, as
    JSON.
    """
    warm = EpisodeDataset(root)
    warm.batch(*warm.locate([0]))  # code is loaded
    del warm
    pa.default_memory_pool().release_unused()
    data = EpisodeDataset(root)
    order = Order.from_datasets([data], batch_size=16, seed=1, clip=1, lanes=1)
    before = start_peak()
    with Loader([data], order=order, memory=10**9) as loader:
        for _ in range(4):
            next(loader)
        print(
            json.dumps(
                {
                    "planned": loader.plan.bytes,
                    "grown": peak_bytes() - before,
                    "plan": str(loader.plan),
                }
            )
        )


def measure_parts(root: str, memory: int) -> None:
    """Print the bytes of the plan and the largest growth while rows of single episodes are read, as
    JSON.

    The columns of every data file are mapped, of however small a dataset, and no whole file is
    decoded.
    """
    row_tables.LEAST_DATASET = row_tables.LEAST_FILE = rows._WHOLE = 0
    warm = EpisodeDataset(root)
    warm.batch(*warm.locate([0]))  # code is loaded
    warm.catalog.files.close()
    before = start_peak()
    with Loader(root, batch_size=256, seed=0, memory=memory, rank=0, world_size=1) as loader:
        next(loader)
        print(
            json.dumps(
                {
                    "planned": loader.plan.bytes,
                    "grown": peak_bytes() - before,
                    "plan": str(loader.plan),
                }
            )
        )


def forever(root: str, memory: int) -> None:
    """Make batches until interrupted; print each arrival, and the number of threads left at the
    end.
    """
    data = EpisodeDataset(root, frame_cache_bytes=0)
    loader = Loader(
        [data],
        order=Order.from_datasets([data], batch_size=64, seed=1, clip=3, lanes=64),
        memory=memory,
        num_threads=2,
    )
    try:
        print("begun", flush=True)
        for _ in loader:
            print("made", flush=True)
    except KeyboardInterrupt:
        loader.close()
        # a thread whose start was interrupted begins and ends a moment later
        patience = time.monotonic() + 60
        while threading.active_count() > 1 and time.monotonic() < patience:
            time.sleep(0.01)
        print(f"threads {threading.active_count()}", flush=True)
        raise


if __name__ == "__main__":
    torch.set_num_threads(1)
    name, root_, *numbers = sys.argv[1:]
    {"measure": measure, "rows": measure_rows, "parts": measure_parts, "forever": forever}[name](
        root_, *map(int, numbers)
    )
