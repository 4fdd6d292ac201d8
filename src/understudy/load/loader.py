"""Loader: ready batches in the order's sequence, made ahead of time by threads. Its whole state is one position.

Which samples a batch holds is the order's decision alone; threads and memory change when the work is done, never what
comes out. Not here: what stays decoded in memory (`residency.py`), and a planner that knows which pictures come next.
"""

import os
import time
from collections import deque
from collections.abc import Iterator, Mapping, Sequence
from concurrent.futures import Future, ThreadPoolExecutor
from types import TracebackType
from typing import Any, Literal

import numpy as np
import torch
from torch import Tensor

from understudy.data.samples import EpisodeDataset
from understudy.load.residency import resident
from understudy.load.sizes import parse_bytes
from understudy.order import Order
from understudy.order.placement import batch_positions, rank_slice

Batch = dict[str, Any]


class Loader:
    """Iterates batches without end: dicts of stacked tensors [B / world, ...], strings as lists.

    Besides the datasets' own keys a batch has `position` int64 and `source` int64 (which dataset). Pictures are uint8.

    Args:
        datasets: as given to `Order.of`, in the same sequence; all must deliver the same keys and shapes.
        rank, world: this process makes its share of every global batch (`placement.py`).
        threads: how many make batches; "auto" is one per available core, at most 8.
        memory: bytes, or text such as "4GB", for decoded pictures and for batches made ahead. A dataset
            whose pictures all fit (the first ones first) keeps them decoded, another one has them decoded when needed.
        start: the position to begin with: `position` of the loader that is carried on.

    Raises:
        ValueError: a size that is not understood, a negative start, a rank outside the world, datasets that are not
            those of the order.
    """

    def __init__(
        self,
        datasets: Sequence[EpisodeDataset],
        *,
        order: Order,
        rank: int = 0,
        world: int = 1,
        threads: int | Literal["auto"] = "auto",
        memory: int | str = "4GB",
        start: int = 0,
    ) -> None:
        rank_slice(order.batch, rank, world)  # refuses a rank outside the world
        Order.from_json(order.spec, datasets)  # refuses other datasets, or a selection other than the order's
        if start < 0:
            raise ValueError(f"start {start}: positions start at 0")
        self._order, self._rank, self._world = order, rank, world
        budget = parse_bytes(memory)
        self._sources = []
        for dataset in datasets:
            view, kept = resident(dataset, budget)
            budget -= kept
            self._sources.append(view)
        self.spare = budget
        """Bytes of `memory` that kept pictures do not take."""
        self._threads = min(8, _cores()) if threads == "auto" else threads
        if self._threads < 1:
            raise ValueError(f"threads {threads}: at least 1")
        self._pool = ThreadPoolExecutor(self._threads, thread_name_prefix="understudy-loader")
        self._ahead: deque[Future[Batch]] = deque()
        self._depth = 1  # until the first batch tells its size
        self.position = start
        """The next position to be handed out, in whole global batches; what was made ahead is not counted."""
        self.waited = 0.0
        """Seconds that the consumer has spent waiting for batches so far."""

    def __iter__(self) -> Iterator[Batch]:
        return self

    def __next__(self) -> Batch:
        """The batch at `position`. An error in making it is raised here, and the next call tries again."""
        asked = time.perf_counter()
        while len(self._ahead) < self._depth:
            position = self.position + len(self._ahead) * self._order.batch
            self._ahead.append(self._pool.submit(self._make, position))
        try:
            batch = self._ahead[0].result()
        except BaseException:
            self._drop()
            raise
        self._ahead.popleft()
        self.position += self._order.batch
        self._depth = max(1, min(self._threads + 1, self.spare // max(1, _size(batch))))
        self.waited += time.perf_counter() - asked
        return batch

    def close(self) -> None:
        """Stop the threads and wait for them; the loader is then of no more use."""
        self._drop()
        self._pool.shutdown(wait=True, cancel_futures=True)

    def __enter__(self) -> "Loader":
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.close()

    def _drop(self) -> None:
        for future in self._ahead:
            future.cancel()
        self._ahead.clear()

    def _make(self, position: int) -> Batch:
        positions = batch_positions(position, self._order.batch, self._rank, self._world)
        source, episode, frame = self._order.locate(positions)
        batch = join(
            {int(s): self._sources[s].batch(episode[source == s], frame[source == s]) for s in np.unique(source)},
            source,
        )
        batch["position"] = torch.from_numpy(positions)
        batch["source"] = torch.from_numpy(source)
        return batch


def join(parts: Mapping[int, Batch], source: np.ndarray) -> Batch:
    """One batch from one per source: row i is the next row of part `source[i]`.

    Raises:
        ValueError: the sources differ in a key, a shape or a dtype; names both.
    """
    first, *others = parts
    if not others:
        return dict(parts[first])
    batch: Batch = {}
    for other in others:
        if parts[other].keys() != parts[first].keys():
            odd = sorted(parts[other].keys() ^ parts[first].keys())
            raise ValueError(f"sources {first} and {other} deliver different keys: {odd} only in one; select the same")
    for key, sample in parts[first].items():
        if not isinstance(sample, Tensor):
            rows = {s: iter(part[key]) for s, part in parts.items()}
            batch[key] = [next(rows[int(s)]) for s in source]
            continue
        for other in others:
            one, two = sample, parts[other][key]
            if one.shape[1:] != two.shape[1:] or one.dtype != two.dtype:
                raise ValueError(
                    f"{key!r} is {one.dtype} {tuple(one.shape[1:])} in source {first} "
                    f"and {two.dtype} {tuple(two.shape[1:])} in source {other}: one batch needs one shape"
                )
        joined = sample.new_empty((len(source), *sample.shape[1:]))
        for s, part in parts.items():
            joined[torch.from_numpy(source == s)] = part[key]
        batch[key] = joined
    return batch


def _size(batch: Batch) -> int:
    return sum(t.numel() * t.element_size() for t in batch.values() if isinstance(t, Tensor))


def _cores() -> int:
    """Cores this process may use, where the system tells."""
    return len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else os.cpu_count() or 1
