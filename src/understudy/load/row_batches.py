"""Rows of batches, read for several batches at once: numpy's calls cost the same for one batch as for sixteen."""

import threading
from collections.abc import Sequence
from typing import Any

import numpy as np
import torch
from torch import Tensor

from understudy.data.dataset import EpisodeDataset
from understudy.errors import DatasetError
from understudy.load.mixed_batches import Mixture


class RowBatches:
    """All entries of successive batches except images from video. Thread-safe.

    Args:
        positions, source, episode, frame: int64 (n, B), of n batches.
    """

    def __init__(
        self,
        datasets: Sequence[EpisodeDataset],
        mixture: Mixture,
        positions: np.ndarray,
        source: np.ndarray,
        episode: np.ndarray,
        frame: np.ndarray,
    ) -> None:
        self._datasets, self._mixture = datasets, mixture
        self._samples = positions, source, episode, frame
        self._lock = threading.Lock()
        self._read: list[dict[str, Any]] = []
        self._together = len(positions) > 1 and not mixture.black and not any(d.image_keys for d in datasets)

    def take(self, number: int) -> dict[str, Any]:
        """Entries of batch `number` of these, in memory of its own. Each batch can be taken once.

        Raises:
            DatasetError: a row of this batch cannot be read.
            ValueError: the rows of the sources do not make one batch.
        """
        with self._lock:
            if self._together and not self._read:
                try:
                    whole = read_rows(self._datasets, self._mixture, *(part.reshape(-1) for part in self._samples))
                    self._read = _split(whole, len(self._samples[0]))
                except DatasetError:
                    self._together = False  # read batch by batch from here on: only the bad one raises
            if self._read:
                batch, self._read[number] = self._read[number], {}
                return batch
        return read_rows(self._datasets, self._mixture, *(part[number].copy() for part in self._samples))


def _split(whole: dict[str, Any], count: int) -> list[dict[str, Any]]:
    """`count` equal batches of a long one.

    They are copies: a view would keep the whole tensor alive, and `torch.save` would save all of it.
    """
    batches: list[dict[str, Any]] = [{} for _ in range(count)]
    for key, value in whole.items():
        size = len(value) // count
        if isinstance(value, Tensor):  # copying by numpy takes half the time of torch
            parts = value.numpy().reshape(count, size, *value.shape[1:])
            for batch, part in zip(batches, parts, strict=True):
                batch[key] = torch.from_numpy(part.copy())
        else:
            for i, batch in enumerate(batches):
                batch[key] = value[i * size : (i + 1) * size]
    return batches


def read_rows(
    datasets: Sequence[EpisodeDataset],
    mixture: Mixture,
    positions: np.ndarray,
    source: np.ndarray,
    episode: np.ndarray,
    frame: np.ndarray,
) -> dict[str, Any]:
    """All entries of one batch except images from video; the arguments are int64 (B,).

    Raises:
        DatasetError: a row cannot be read.
        ValueError: the rows of the sources do not make one batch.
    """
    parts = {}
    for s in np.unique(source).tolist():
        of_source = source == s
        parts[s] = datasets[s].row_batch(episode[of_source], frame[of_source])
    batch = mixture.join(parts, source)
    batch["position"], batch["source"] = torch.from_numpy(positions), torch.from_numpy(source)
    return batch
