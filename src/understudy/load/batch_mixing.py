"""Episodes in a batch: how many there are, and how many a uniform shuffle would have.

A batch of few episodes averages like few samples, whatever its size: its gradient norm is large and unstable. So a run
counts the episodes of each batch, and says before the first step if the order has less than half of what it could.
"""

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np

from understudy.order import Order
from understudy.order.design_effect import design_effect, distinct_episodes, expected_episodes

FEW_EPISODES = (
    "a batch has few episodes: its gradient is that of few samples; use data.shuffle clips (the default), or another "
    "order file"
)
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


def measure_mixing(order: Order, parts: Sequence[np.ndarray], position: int, spread: bool = False) -> BatchMixing:
    """Measure several batches, and compute the episodes of a uniform batch.

    Args:
        order: the sequence of samples.
        parts: of each of its sources int64 (K, 3), rows [episode, start, stop): the frames of an epoch.
        position: first position of the run or of its continuation.
        spread: whether the batches are spread evenly over the order; else they follow `position`.
    """
    last = max(position, order.stop - order.batch_size)
    step = max(1, (last - position) // order.batch_size // _BATCHES) if spread else 1
    firsts = range(position, min(position + _BATCHES * step * order.batch_size, last + 1), step * order.batch_size)
    figures = [batch_figures(order, first) for first in firsts]
    slots = order.spec.schedule[-1].slots if order.file is None else [_frames(segments) for segments in parts]
    uniform = 0.0
    for segments, count in zip(parts, slots):
        samples = order.batch_size * count / sum(slots)
        if samples:
            _, number = np.unique(segments[:, 0], return_inverse=True)
            lengths = np.bincount(number, segments[:, 2] - segments[:, 1])
            uniform += expected_episodes(lengths, samples)
    return BatchMixing(
        order.batch_size,
        float(np.mean([one["episodes"] for one in figures])),
        float(np.mean([one["design_effect"] for one in figures])),
        uniform,
    )


def _frames(segments: np.ndarray) -> int:
    return int((segments[:, 2] - segments[:, 1]).sum())
