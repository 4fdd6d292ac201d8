"""Episodes in a batch: how many there are, and how many a uniform shuffle would have.

A batch of few episodes averages like few samples, whatever its size: its gradient norm is large and
unstable. So a run counts the episodes of each batch, and says before the first step if the order
has less than half of what it could.
"""

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np

from understudy_data.datasets.episode_arrays import EpisodeArrays
from understudy_data.order import Order
from understudy_data.order.design_effect import design_effect, expected_episodes

_FEW_EPISODES = (
    "a batch has few episodes: its gradient is that of few samples; use data.shuffle clips (the "
    "default), or another order file"
)
_PLACES = 1 << 16  # samples of an order file whose episodes are counted
_BATCHES = 8  # looked at before the first step
_FEW = 0.5  # share of the episodes of a uniform batch below which a run says so


@dataclass(frozen=True)
class BatchMixing:
    """Figures of the first batches, and those of a uniform shuffle of the same sources in the same
    shares.
    """

    samples: int
    """In a batch of all ranks."""
    episodes: float
    """Distinct episodes in a batch, mean of several."""
    effect: float
    """Design effect of a batch, mean of several."""
    uniform: float
    """Expected distinct episodes in a uniform batch."""

    @classmethod
    def measure(
        cls, order: Order, parts: Sequence[EpisodeArrays], position: int, spread: bool = False
    ) -> "BatchMixing":
        """Measure several batches, and compute the episodes of a uniform batch.

        Args:
            order: the sequence of samples. That of a file is compared with a uniform shuffle of its
                own samples.
            parts: its datasets; of an order from a file they are not needed.
            position: first position of the run or of its continuation.
            spread: whether the batches are spread evenly over the order; else they follow
                `position`.
        """
        last = max(position, order.stop - order.batch_size)
        step = max(1, (last - position) // order.batch_size // _BATCHES) if spread else 1
        firsts = range(
            position,
            min(position + _BATCHES * step * order.batch_size, last + 1),
            step * order.batch_size,
        )
        figures = [cls.of_batch(order, first) for first in firsts]
        if order.file is not None:
            uniform = _uniform_of_file(order)
        else:
            uniform = _uniform_of_datasets(order, parts)
        return cls(
            order.batch_size,
            float(np.mean([one["episodes"] for one in figures])),
            float(np.mean([one["design_effect"] for one in figures])),
            uniform,
        )

    @staticmethod
    def of_batch(order: Order, first: int) -> dict[str, float]:
        """Count the distinct `episodes` of the global batch at position `first`, and estimate its
        `design_effect`.
        """
        source, episode, frame = order.locate(
            np.arange(first, min(first + order.batch_size, order.stop))
        )
        number, counts = _episodes(source, episode)
        return {
            "episodes": len(counts),
            "design_effect": float(design_effect(number[None], frame[None])[0]),
        }

    @property
    def advice(self) -> str:
        """A line where a batch has less than half of the episodes of a uniform one; else ""."""
        return _FEW_EPISODES if self.episodes < _FEW * self.uniform else ""

    def __str__(self) -> str:
        return (
            f"a batch of {self.samples:,} samples has frames of {self.episodes:,.4g} episodes, a "
            f"uniform one of {self.uniform:,.4g}; design effect {self.effect:.3g} (an estimate)"
        )


def _uniform_of_datasets(order: Order, parts: Sequence[EpisodeArrays]) -> float:
    """Expected episodes of a batch whose samples are drawn from each source in its share."""
    last = order.spec.schedule[-1]
    episodes = 0.0
    for part, count in zip(parts, last.slots):
        segments = part.epoch_segments
        place = np.searchsorted(part.episodes, segments[:, 0])
        lengths = np.bincount(place, segments[:, 2] - segments[:, 1])
        episodes += expected_episodes(lengths, order.batch_size * count / last.total)
    return episodes


def _uniform_of_file(order: Order) -> float:
    """The same for the samples of an order file: those at 65,536 places at most, spread evenly."""
    count = order.stop - order.start
    step = max(1, count // _PLACES)
    source, episode, _ = order.locate(np.arange(order.start, order.stop, step))
    _, counts = _episodes(source, episode)
    return expected_episodes(counts, min(order.batch_size, count))


def _episodes(source: np.ndarray, episode: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
    """Number the distinct episodes of samples (n,): the number of each sample (n,), and the samples
    of each episode.
    """
    order = np.lexsort((episode, source))
    begins = np.ones(len(order), bool)
    begins[1:] = (np.diff(source[order]) != 0) | (np.diff(episode[order]) != 0)
    number = np.empty(len(order), np.int64)
    number[order] = np.cumsum(begins) - 1
    return number, np.bincount(number)
