"""Loaders of all ranks, read in step over one epoch after the other."""

from collections.abc import Iterator
from contextlib import suppress
from dataclasses import dataclass, field
from itertools import chain
from typing import Any

from understudy_conformance.requirement import Factory, Violation
from understudy_conformance.samples import Place, checksum, find_place, split_batch
from understudy_conformance.sets import DemoSet

GLOBAL_BATCH = 4
"""Samples of all ranks in a step."""
_END = object()


@dataclass(frozen=True)
class Batch:
    """One batch as it was read.

    Attributes:
        places: (episode, frame) of its samples.
        content: checksum of all values.
        samples: the samples.
    """

    places: tuple[Place, ...]
    content: int = field(repr=False)
    samples: tuple[Any, ...] = field(repr=False, compare=False)


Step = tuple[Batch | None, ...]
"""The batch of each rank; None for a rank that has ended."""


class Ranks:
    """Loaders of all ranks, which read one epoch after the other.

    A loader that ends is iterated again for the next epoch, after `set_epoch` if it has that. An
    endless loader continues, and an epoch is as many samples as the dataset has.

    Args:
        factory: makes a loader of each rank.
        demo: the dataset.
        world_size: number of ranks.
        arguments: of the factory; batch_size is that of one rank.
    """

    def __init__(
        self, factory: Factory, demo: DemoSet, world_size: int = 1, **arguments: Any
    ) -> None:
        self.demo = demo
        self.world_size = world_size
        self.epoch = 0
        shared = {"num_workers": 0, "seed": 0, "batch_size": GLOBAL_BATCH // world_size} | arguments
        self.loaders = [
            factory(rank=rank, world_size=world_size, **shared) for rank in range(world_size)
        ]
        self._iterators: list[Iterator[Any]] = []
        self._resumed = self.endless = False
        self._ahead: list[Step] = []

    def load(self, states: list[Any]) -> None:
        """Load the state of each rank; a loader may return another one in its place."""
        for rank, state in enumerate(states):
            replaced = self.loaders[rank].load_state_dict(state)
            if hasattr(replaced, "__iter__"):
                self.loaders[rank] = replaced
        self._resumed = True

    def save(self) -> list[Any]:
        """Return the state of each rank."""
        return [loader.state_dict() for loader in self.loaders]

    def steps(self) -> Iterator[Step]:
        """Read an epoch; of an endless loader, endlessly."""
        if not self._iterators:
            for loader in self.loaders:
                if hasattr(loader, "set_epoch") and not self._resumed:
                    loader.set_epoch(self.epoch)
            self._resumed = False
            self._iterators = [iter(loader) for loader in self.loaders]
        step = self._read_step()
        while any(batch is not None for batch in step):
            yield step
            step = self._read_step()
        self._iterators = []
        self.epoch += 1

    def _read_step(self) -> Step:
        batches = [next(iterator, _END) for iterator in self._iterators]
        return tuple(map(self._record_if_any, batches))

    def _record_if_any(self, batch: Any) -> Batch | None:
        return None if batch is _END else self._record(batch)

    def _record(self, batch: Any) -> Batch:
        samples = split_batch(batch)
        if not samples:
            raise Violation("a batch has no samples")
        places = tuple(find_place(sample, self.demo) for sample in samples)
        content = sum(31**i * checksum(sample) for i, sample in enumerate(samples)) & 0xFFFFFFFF
        return Batch(places, content, tuple(samples))

    def read_epoch(self) -> list[Step]:
        """Return the steps of an epoch. An endless loader ends with the step that completes it;
        `endless` is then set.

        The steps of endless loaders hold whole batches, so the last one may begin the next epoch.
        """
        steps: list[Step] = []
        total = 0
        largest = 1
        stream = self.steps()
        while self._ahead:
            steps.append(self._ahead.pop(0))
            total += count_samples(steps[-1:])
            if total >= len(self.demo.frames):
                return steps
        for step in stream:
            steps.append(step)
            total += count_samples([step])
            largest = max(largest, count_samples([step]))
            if self.endless and total >= len(self.demo.frames):
                return steps
            if total >= 2 * len(self.demo.frames) + 2 * largest:
                self.endless = True
                return self._cut(steps)
        return steps

    def _cut(self, steps: list[Step]) -> list[Step]:
        """Return the first epoch of a stream, and keep the rest of it."""
        total = 0
        for number, step in enumerate(steps, 1):
            total += count_samples([step])
            if total >= len(self.demo.frames):
                self._ahead = steps[number:]
                return steps[:number]
        return steps

    def close(self) -> None:
        """Close loaders that can be closed."""
        for loader in self.loaders:
            with suppress(Exception):
                getattr(loader, "close", lambda: None)()


def count_samples(steps: list[Step]) -> int:
    """Return the samples of all ranks in these steps."""
    return sum(len(batch.places) for batch in list_batches(steps))


def list_samples(steps: list[Step]) -> list[Place]:
    """Return the places of all samples, rank after rank in each step."""
    places: list[Place] = []
    for batch in list_batches(steps):
        places += batch.places
    return places


def list_batches(steps: list[Step]) -> list[Batch]:
    """Return all batches."""
    return [batch for batch in chain.from_iterable(steps) if batch is not None]
