"""Batches of all ranks in step, up to a limit, recorded as sample numbers and checksums."""

from collections.abc import Callable, Iterator
from dataclasses import dataclass, field
from functools import partial
from typing import Any

import numpy as np

from understudy_conformance.batch_values import Adapt, SampleNumbers, as_arrays, digest
from understudy_conformance.foreign_calls import ForeignCalls, LoaderStalled

WORKER = "__understudy_worker__"
"""Key of a batch with the number of its worker (`workers.py`)."""

Visit = Callable[[dict[str, np.ndarray], np.ndarray, np.ndarray], None]


_END = object()


@dataclass
class Stretch:
    """Batches read from the loaders of all ranks, one of each rank in turn.

    Attributes:
        samples: int64 (b,) sample numbers per batch.
        digests: checksum of each batch.
        ranks: rank of each batch.
        workers: worker of each batch, None where it is unknown.
        end: "end" of the loader, "limit" of samples or batches of an endless loader, "cut" by the caller's limit, or
            "error".
        error: of the loader, one line.
        lasts: the batch read last, of each rank.
        last: the batch read last.
    """

    samples: list[np.ndarray] = field(default_factory=list)
    digests: list[int] = field(default_factory=list)
    ranks: list[int] = field(default_factory=list)
    workers: list[int | None] = field(default_factory=list)
    end: str = "end"
    error: str = ""
    lasts: dict[int, Any] = field(default_factory=dict)
    last: Any = None

    @property
    def numbers(self) -> np.ndarray:
        """int64 (n,): all sample numbers."""
        return np.concatenate([np.zeros(0, np.int64), *self.samples])

    @property
    def steps(self) -> int:
        """Batches of the first rank."""
        return self.ranks.count(0)


class Reader:
    """Reads batches and counts them.

    Args:
        numbers: samples of the dataset.
        adapt: makes a mapping of a loader's batch.
        update: called with the samples of each batch.
        calls: runs the loader's code.
    """

    def __init__(
        self, numbers: SampleNumbers, adapt: Adapt | None, update: Callable[[int], None], calls: ForeignCalls
    ) -> None:
        self.numbers, self._adapt, self._update, self.calls = numbers, adapt, update, calls
        self.batches = 0

    def read(
        self,
        start: Callable[[], list[Iterator[Any]]],
        *,
        limit: int | None = None,
        max_steps: int | None = None,
        visit: Visit | None = None,
    ) -> Stretch:
        """Read until all ranks end, or up to a limit.

        Args:
            start: returns the iterators of the ranks; its errors count as those of a loader.
            limit: samples after which an endless loader has given an epoch; one global batch more is read.
            max_steps: batches of each rank.
            visit: called with the values, episodes and frames of each batch.

        Raises:
            ConfigError: the samples of a batch cannot be identified.
        """
        out = Stretch()
        total = step = largest = 0
        try:
            alive = dict(enumerate(self.calls.call(start)))
        except Exception as error:  # any error of foreign code is a result
            return _fail(out, error)
        while alive:
            if max_steps is not None and step >= max_steps:
                out.end = "cut"
                break
            if limit is not None and largest and total >= limit + largest:
                out.end = "limit"
                break
            size = 0
            for rank in list(alive):
                try:
                    batch = self.calls.call(partial(next, alive[rank], _END))
                except Exception as error:
                    return _fail(out, error)
                if batch is _END:
                    del alive[rank]
                    continue
                count = self._record(out, rank, batch, visit)
                if not count:
                    return _fail(out, ValueError(f"batch {len(out.samples)} has no samples"))
                size += count
            total, step, largest = total + size, step + 1, max(largest, size)
        return out

    def _record(self, out: Stretch, rank: int, batch: Any, visit: Visit | None) -> int:
        worker = batch.pop(WORKER, None) if isinstance(batch, dict) else None
        values = as_arrays(batch if self._adapt is None else self._adapt(batch))
        episode, frame = self.numbers.locate(values)
        if not len(episode):
            return 0
        out.samples.append(self.numbers.number(episode, frame))
        out.digests.append(digest(values))
        out.ranks.append(rank)
        out.workers.append(worker)
        out.last = out.lasts[rank] = batch
        self.batches += 1
        self._update(len(episode))
        if visit is not None:
            visit(values, episode, frame)
        return len(episode)


def _fail(out: Stretch, error: Exception) -> Stretch:
    words = " ".join(str(error).split())[:300]
    out.end, out.error = "error", words if isinstance(error, LoaderStalled) else f"{type(error).__name__}: {words}"
    return out
