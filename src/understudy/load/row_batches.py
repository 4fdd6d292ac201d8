"""Rows of batches, made for several batches at once: numpy's calls cost the same for one batch as for sixteen."""

import threading
from collections.abc import Sequence
from typing import Any

import numpy as np
import torch
from torch import Tensor

from understudy.data.dataset import EpisodeDataset
from understudy.errors import DatasetError
from understudy.load.mixture import Mixture


class Tables:
    """Everything of batches that follow each other, but their pictures from video. For any thread.

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
        self._asked = positions, source, episode, frame
        self._lock = threading.Lock()
        self._made: list[dict[str, Any]] = []
        self._together = len(positions) > 1 and not mixture.black and not any(d.stored for d in datasets)

    def take(self, at: int) -> dict[str, Any]:
        """Those of batch number `at` of these, once; in memory of its own. Raises what `rows` raises."""
        with self._lock:
            if self._together and not self._made:
                try:
                    whole = rows(self._datasets, self._mixture, *(part.reshape(-1) for part in self._asked))
                    self._made = _apart(whole, len(self._asked[0]))
                except DatasetError:
                    self._together = False  # one of these batches cannot be made: each by itself shows which
            if self._made:
                made, self._made[at] = self._made[at], {}
                return made
        return rows(self._datasets, self._mixture, *(part[at].copy() for part in self._asked))


def _apart(whole: dict[str, Any], count: int) -> list[dict[str, Any]]:
    """`count` batches of one that is as long as all. Copies: a part of a tensor would keep all of it alive, and be
    saved whole by `torch.save`."""
    made: list[dict[str, Any]] = [{} for _ in range(count)]
    for key, value in whole.items():
        size = len(value) // count
        if isinstance(value, Tensor):  # numpy's copies take half the time of torch's
            parts = value.numpy().reshape(count, size, *value.shape[1:])
            for batch, part in zip(made, parts, strict=True):
                batch[key] = torch.from_numpy(part.copy())
        else:
            for i, batch in enumerate(made):
                batch[key] = value[i * size : (i + 1) * size]
    return made


def rows(
    datasets: Sequence[EpisodeDataset],
    mixture: Mixture,
    positions: np.ndarray,
    source: np.ndarray,
    episode: np.ndarray,
    frame: np.ndarray,
) -> dict[str, Any]:
    """Everything of a batch but its pictures from video; int64 (B,) each.

    Raises:
        DatasetError: a row cannot be read.
        ValueError: the sources' rows do not make one batch.
    """
    parts = {}
    for s in np.unique(source).tolist():
        own = source == s
        parts[s] = datasets[s].tables(episode[own], frame[own])
    batch = mixture.join(parts, source)
    batch["position"], batch["source"] = torch.from_numpy(positions), torch.from_numpy(source)
    return batch
