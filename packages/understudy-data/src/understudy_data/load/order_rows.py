"""Samples of a range of steps, in blocks of the size of a row group: rows of an order file."""

from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from typing import Any, NamedTuple

import numpy as np

from understudy_base import __version__
from understudy_data.order import rank_slice
from understudy_data.order.spec import Spec
from understudy_data.order_file import GROUP, Samples


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


def rows_of(
    locate: Callable[[np.ndarray], Any], spans: Iterable[Span], world_size: int = 1
) -> Iterator[Samples]:
    """Yield the samples of spans.

    Args:
        locate: as `Order.locate`.
        spans: rising.
        world_size: number of the ranks among which each batch is divided.
    """
    for span in spans:
        sizes = [np.diff(rank_slice(span.batch, rank, world_size))[0] for rank in range(world_size)]
        ranks = np.repeat(np.arange(world_size, dtype=np.int32), sizes)
        count = max(1, GROUP // span.batch)
        for first in range(0, span.steps, count):
            steps = np.arange(first, min(first + count, span.steps))
            position = (
                span.position + steps[:, None] * span.batch + np.arange(span.batch)
            ).reshape(-1)
            step = span.step + np.repeat(steps, span.batch)
            source, episode, frame = locate(position)
            weight = np.ones(len(step), np.float32)
            yield Samples(
                step, position, np.tile(ranks, len(steps)), source, episode, frame, weight
            )


def order_facts(
    spec: Spec, spans: Sequence[Span], datasets: Mapping[str, Mapping[str, str]]
) -> dict[str, Any]:
    """Return the facts of an order file: the order, and those of each dataset by name
    (`order_file.dataset_facts`).
    """
    sizes = {span.batch for span in spans}
    batch_size = sizes.pop() if len(sizes) == 1 else None
    return {
        "order": spec.to_json(),
        "seed": spec.seed,
        "batch": batch_size,
        "start": spans[0].position,
        "datasets": [{"name": name, **facts} for name, facts in datasets.items()],
        "understudy": __version__,
    }
