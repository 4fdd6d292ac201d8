"""Episodes in a batch: how many there are, and how many a uniform shuffle would have.

A batch of few episodes averages like few samples, whatever its size: its gradient norm is large and unstable. So a run
counts the episodes of each batch, and says before the first step if the order has less than half of what it could.
"""

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np

from understudy.data.dataset import EpisodeDataset
from understudy.order import Order
from understudy.order.design_effect import design_effect, distinct_episodes, expected_episodes

_BATCHES = 8  # looked at before the first step
_FEW = 0.5  # share of the episodes of a uniform batch below which a run says so


@dataclass(frozen=True)
class BatchMixing:
    """Figures of the first batches, and those of a uniform shuffle of the same sources in the same shares."""

    samples: int
    """In a batch of all ranks."""
    episodes: float
    """Distinct episodes in a batch, mean of several."""
    effect: float
    """Design effect of a batch, mean of several."""
    uniform: float
    """Expected distinct episodes in a uniform batch."""

    @property
    def is_poor(self) -> bool:
        """Whether a batch has less than half of the episodes of a uniform one."""
        return self.episodes < _FEW * self.uniform

    def __str__(self) -> str:
        return (
            f"a batch of {self.samples:,} samples has frames of {self.episodes:,.4g} episodes, a uniform one of "
            f"{self.uniform:,.4g}; design effect {self.effect:.3g} (an estimate)"
        )


def batch_figures(order: Order, first: int) -> dict[str, float]:
    """Count the distinct episodes of the global batch at position `first`, and estimate its design effect."""
    positions = np.arange(first, min(first + order.batch_size, order.stop))
    source, episode, frame = order.locate(positions)
    number = source.astype(np.int64) << 40 | episode  # distinguishes episodes of several sources
    effect = float(design_effect(number[None], frame[None])[0])
    return {"episodes": distinct_episodes(source, episode), "design_effect": effect}


def measure_mixing(order: Order, parts: Sequence[EpisodeDataset], position: int) -> BatchMixing:
    """Measure the batches from a position on, and compute the episodes of a uniform batch.

    Args:
        order: the sequence of samples.
        parts: its datasets.
        position: first position of the run or of its continuation.
    """
    stop = min(position + _BATCHES * order.batch_size, order.stop - order.batch_size + 1)
    firsts = range(position, max(position + 1, stop), order.batch_size)
    figures = [batch_figures(order, first) for first in firsts]
    slots = order.spec.schedule[-1].slots
    uniform = 0.0
    for part, count in zip(parts, slots):
        samples = order.batch_size * count / sum(slots)
        if samples:
            segments = part.epoch_segments
            _, number = np.unique(segments[:, 0], return_inverse=True)
            uniform += expected_episodes(np.bincount(number, segments[:, 2] - segments[:, 1]), samples)
    return BatchMixing(
        order.batch_size,
        float(np.mean([one["episodes"] for one in figures])),
        float(np.mean([one["design_effect"] for one in figures])),
        uniform,
    )
