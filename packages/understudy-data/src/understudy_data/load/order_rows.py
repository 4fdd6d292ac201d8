"""Samples of a range of steps, in blocks of the size of a row group: rows of an order file."""

from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np

from understudy_base import __version__
from understudy_data.order import Spec, rank_slice
from understudy_data.order_file import GROUP, Samples, dataset_facts, write_order_file


class Span(NamedTuple):
    """Steps of one batch size: the first one, its first position, samples of each, and their
    number.
    """

    step: int
    position: int
    batch: int
    steps: int

    @property
    def stop(self) -> int:
        """Position behind the last one."""
        return self.position + self.steps * self.batch

    def samples(
        self, locate: Callable[[np.ndarray], Any], world_size: int = 1
    ) -> Iterator[Samples]:
        """Yield the samples of the steps, in blocks.

        Args:
            locate: as `Order.locate`.
            world_size: number of the ranks among which each batch is divided.
        """
        sizes = [np.diff(rank_slice(self.batch, rank, world_size))[0] for rank in range(world_size)]
        ranks = np.repeat(np.arange(world_size, dtype=np.int32), sizes)
        count = max(1, GROUP // self.batch)
        for first in range(0, self.steps, count):
            steps = np.arange(first, min(first + count, self.steps))
            position = (
                self.position + steps[:, None] * self.batch + np.arange(self.batch)
            ).reshape(-1)
            step = self.step + np.repeat(steps, self.batch)
            source, episode, frame = locate(position)
            weight = np.ones(len(step), np.float32)
            yield Samples(
                step, position, np.tile(ranks, len(steps)), source, episode, frame, weight
            )


@dataclass(frozen=True)
class OrderExport:
    """Samples of some steps, for an order file."""

    spec: Spec
    """Spec of the order."""
    spans: Sequence[Span]
    """Rising."""
    datasets: Mapping[str, Mapping[str, str]]
    """Facts of each dataset (`facts_of`), by name."""
    has_formula: bool = True
    """Whether the file states the spec, by which the order can be made again."""

    @staticmethod
    def facts_of(dataset: Any) -> dict[str, str]:
        """Return what an order file states of a dataset: digest of the lengths of its episodes,
        `version` and `address` of what was read.
        """
        return dataset_facts(dataset)

    def write(self, path: str | Path, blocks: Iterable[Samples]) -> None:
        """Write the file in one step: a kill leaves no file at `path`.

        Args:
            path: a new file.
            blocks: the samples, at consecutive positions.

        Raises:
            ConfigError: something is at `path`. FileExistsError: something appeared there
                meanwhile.
        """
        sizes = {span.batch for span in self.spans}
        batch_size = sizes.pop() if len(sizes) == 1 else None
        facts = {
            "order": self.spec.to_json() if self.has_formula else None,
            "seed": self.spec.seed,
            "batch": batch_size,
            "start": self.spans[0].position,
            "datasets": [{"name": name, **stated} for name, stated in self.datasets.items()],
            "understudy": __version__,
        }
        write_order_file(path, blocks, facts)
