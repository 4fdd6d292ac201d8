"""Work of each worker process of torch's DataLoader: batches carry the number of the worker that made them."""

from collections import Counter
from collections.abc import Callable
from typing import Any

import torch

from understudy_conformance.reading import WORKER, Stretch
from understudy_conformance.results import LoaderCheck

LEAST_SHARE = 0.25
"""Smallest accepted part of an equal share of the samples."""


class _Marked:
    """A `collate_fn` that adds the worker's number to batches that are dictionaries."""

    def __init__(self, collate: Callable[[Any], Any]) -> None:
        self.collate = collate

    def __call__(self, samples: Any) -> Any:
        batch, worker = self.collate(samples), torch.utils.data.get_worker_info()
        return {**batch, WORKER: worker.id} if type(batch) is dict and worker is not None else batch


def mark_workers(loader: Any) -> None:
    """Have a DataLoader mark its batches until `unmark_workers`; other loaders stay as they are."""
    if isinstance(loader, torch.utils.data.DataLoader) and not isinstance(loader.collate_fn, _Marked):
        loader.collate_fn = _Marked(loader.collate_fn)


def unmark_workers(loader: Any) -> None:
    """Undo `mark_workers`."""
    if isinstance(loader, torch.utils.data.DataLoader) and isinstance(loader.collate_fn, _Marked):
        loader.collate_fn = loader.collate_fn.collate


def check_busy(epoch: Stretch, num_workers: int) -> LoaderCheck:
    """Check that each worker makes at least a quarter of an equal share of the samples, where there are enough batches.

    Args:
        epoch: batches of an epoch, read with several workers.
        num_workers: number of workers.
    """
    name = "workers.busy"
    if not epoch.workers or None in epoch.workers:
        return LoaderCheck(name, "not applicable", "the loader is no DataLoader with dictionaries as batches")
    if len(epoch.samples) < 2 * num_workers:
        return LoaderCheck(name, "not checked", f"{len(epoch.samples)} batches are too few for {num_workers} workers")
    made: Counter[int | None] = Counter()
    for worker, samples in zip(epoch.workers, epoch.samples):
        made[worker] += len(samples)
    counts = [made[worker] for worker in range(num_workers)]
    idle = sum(count < LEAST_SHARE * sum(counts) / num_workers for count in counts)
    detail = f"samples per worker: {', '.join(map(str, counts))}" + (f"; {idle} of {num_workers} idle" if idle else "")
    return LoaderCheck(name, "failed" if idle else "passed", detail, {"samples": counts})
