"""Loss of each action dimension, per source."""

import math
from collections.abc import Sequence
from typing import Any

import numpy as np

from understudy.train.validation.observer import Chunk, Evaluation


class PerDimension:
    """Observes the losses of the actions by dimension."""

    def __init__(self, evaluation: Evaluation) -> None:
        self._evaluation = evaluation
        self._term = evaluation.policy.loss_terms[0]
        width = evaluation.policy.config.action_dim
        self._figures = evaluation.zeros(2, width, len(evaluation.held))

    @staticmethod
    def applies(evaluation: Evaluation) -> bool:
        """Return whether the policy returns losses of actions by dimension."""
        policy = evaluation.policy
        return policy.loss_terms[0] in evaluation.weights and not policy.scalar_losses

    def add(self, chunk: Chunk) -> None:
        """Write sums and counts of each dimension."""
        loss = chunk.losses.get(self._term)
        if not chunk.counts or loss is None or loss.detail is None:
            return
        rows = self._figures[:, :, chunk.part]
        rows[0] = loss.detail.sum.double().sum(dim=1).T
        rows[1] = (loss.detail.count * loss.detail.sum.shape[1]).T

    def result(self, readable: np.ndarray) -> dict[str, Any]:
        """Return "dims" of each source: mean loss by name of the dimension."""
        samples = self._evaluation.held.select(readable)
        weights = 1.0 if samples.weight is None else samples.weight
        losses, counts = self._evaluation.gather(self._figures)[:, :, readable] * weights
        sources = {}
        for number, name in enumerate(samples.names):
            of_source = np.flatnonzero(samples.source == number)
            dims = loss_by_dimension(losses, counts, of_source, samples.action_names(number))
            sources[name] = {"dims": dims}
        return {"sources": sources}


def loss_by_dimension(
    sums: np.ndarray, counts: np.ndarray, numbers: np.ndarray, names: Sequence[str]
) -> dict[str, float]:
    """Return the mean loss of each action dimension by name.

    Dimensions beyond the named ones, and dimensions without an element, are absent.

    Args:
        sums: float64 (A, N).
        counts: float64 (A, N).
        numbers: samples to include.
        names: names of the dimensions.
    """
    means = {}
    for name, of_sum, of_count in zip(names, sums[:, numbers], counts[:, numbers]):
        if count := math.fsum(of_count):
            means[name] = math.fsum(of_sum) / count
    return means
