"""Observers of a validation: one pass over its samples feeds all of them, and each makes figures.

A new figure is a new observer, in a file of its own.
"""

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any, Protocol

import numpy as np
import torch
from torch import Tensor

from understudy.distributed.ranks import Ranks
from understudy.policies.common.settings import TaskMode
from understudy.policies.losses import Loss
from understudy.policies.policy import Policy
from understudy_base import Batch
from understudy_data import ValidationData


@dataclass(frozen=True)
class Evaluation:
    """A policy, the samples to evaluate it on, and the ranks that do."""

    policy: Policy
    """Its weights do not change."""
    held: ValidationData
    """N samples."""
    seed: int
    """Seed of the random numbers; they belong to the sample, not to the step."""
    mesh: Ranks
    weights: Mapping[str, float]
    """Weights of the loss terms, by name; 0 for the figures of `Policy.metrics`."""
    mode: str = TaskMode.POLICY
    """Task mode of all samples (`policies/common/settings.py`)."""

    def zeros(self, *shape: int) -> Tensor:
        """Return zeros, float64 on the device: figures into which each rank writes its samples."""
        return torch.zeros(shape, dtype=torch.float64, device=self.mesh.device)

    def gather(self, figures: Tensor) -> np.ndarray:
        """Return the figures of all ranks, float64; all ranks call this together."""
        return self.mesh.sum(figures).cpu().numpy()


@dataclass(frozen=True)
class Chunk:
    """Consecutive samples, with their losses."""

    part: slice
    """Their numbers among the N samples."""
    batch: Batch
    """On the device, besides texts."""
    losses: Mapping[str, Loss]
    """Losses of the samples by term, with details."""
    counts: bool
    """False: the samples belong to another chunk, too, and their figures come from there."""


class Observer(Protocol):
    """Figures of a validation."""

    def add(self, chunk: Chunk) -> None:
        """Observe a chunk of this rank, which changes no figure unless it `counts`.

        All ranks call this equally often, so forward passes may gather weights from all ranks. An
        observer with random numbers of its own follows the others: it moves the generators.
        """

    def result(self, readable: np.ndarray) -> dict[str, Any]:
        """Return figures for the record of the validation; all ranks call this together.

        Those in `sources`, by name, extend the figures of each source that has a loss.

        Args:
            readable: bool (N,): samples that count.
        """
