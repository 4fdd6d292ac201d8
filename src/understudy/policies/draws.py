"""Random numbers of a policy, keyed by (seed, purpose, position), independent of rank, batch and restarts."""

from collections.abc import Callable, Mapping
from typing import Any, Literal, NamedTuple

import numpy as np
import torch
from torch import Tensor

from understudy.order import sample_normal, sample_uniform

Draws = Mapping[str, Tensor]
"""Random numbers of a batch by name, each [B, *shape of its spec]."""

Use = Literal["train", "validation", "act"]
"""Purpose of a set of draws."""


class RandomSpec(NamedTuple):
    """Random numbers of one name that a policy needs for each sample."""

    kind: Literal["normal", "uniform"]
    """Standard normal, or uniform in [0, 1); float32."""
    shape: tuple[int, ...]
    """Shape per sample."""
    transform: Callable[[Tensor], Tensor] | None = None
    """Applied to [B, *shape] on the CPU, sample by sample; None keeps the numbers."""


def make_draws(spec: Mapping[str, RandomSpec], seed: int, positions: Any, purpose: str = "") -> dict[str, Tensor]:
    """Draw the numbers of a batch on the CPU.

    Args:
        spec: names and shapes (`Policy.random_spec`).
        seed: seed of the run.
        positions: int64 [B], the number that identifies each sample.
        purpose: prefix of the names in the key. A spec of one name is keyed by the purpose alone.
    """
    numbers = positions.numpy() if isinstance(positions, Tensor) else np.asarray(positions)
    made = {}
    for name, (kind, shape, transform) in spec.items():
        key = purpose if purpose and len(spec) == 1 else f"{purpose} {name}".strip()
        sample = sample_normal if kind == "normal" else sample_uniform
        values = torch.from_numpy(sample(seed, key, numbers, shape))
        made[name] = values if transform is None else transform(values)
    return made


def generate_draws(
    spec: Mapping[str, RandomSpec], count: int, generator: torch.Generator | None = None
) -> dict[str, Tensor]:
    """Draw the numbers of `count` samples on the CPU from a torch generator; None is torch's default one."""
    made = {}
    for name, (kind, shape, transform) in spec.items():
        sample = torch.randn if kind == "normal" else torch.rand
        values = sample((count, *shape), generator=generator)
        made[name] = values if transform is None else transform(values)
    return made
