"""Chunks of the flow policy that continue the one in execution (`common/chunking.py`)."""

from collections.abc import Callable, Mapping
from typing import Any

import torch
from torch import Tensor, nn

from understudy.batch_keys import ACTION
from understudy.policies.common.chunking import Field, sample_guided
from understudy.policies.common.normalizer import Normalizer
from understudy.policies.flow.config import FlowPolicyConfig

Integrate = Callable[[Field, Tensor, int], Tensor]
"""(velocity field, noise [B, T, dim], steps) -> [B, T, dim]."""


def guide(
    config: FlowPolicyConfig,
    normalizer: Normalizer,
    batch: Mapping[str, Any],
    executing: Tensor,
    delay: int,
    horizon: int | None,
) -> Integrate:
    """Return the integration that actions in execution guide; arguments of `Policy.continue_chunk`.

    Raises:
        ValueError: no horizon, a policy with a future, or numbers beyond `executing`.
    """
    known = executing.shape[1]
    if config.future or horizon is None:
        reason = "a flow policy with a future cannot continue a chunk" if config.future else "horizon is None"
        raise ValueError(f"{reason}; a flow policy is guided by the actions up to a horizon alone")
    if not 0 <= delay <= horizon <= known:
        raise ValueError(
            f"delay is {delay}, horizon {horizon}; give 0 <= delay <= horizon <= {known}, the actions in execution"
        )
    rest = nn.functional.pad(executing.float(), (0, 0, 0, config.chunk - known))
    chunk = normalizer.actions({**batch, ACTION: rest})
    padded = normalizer.dim_is_pad(ACTION, batch)
    dims = None if padded is None else ~padded[:, None]

    def integrate(field: Field, noise: Tensor, steps: int) -> Tensor:
        with torch.no_grad():
            return sample_guided(field, noise, chunk, delay, horizon, steps, dims=dims)

    return integrate
