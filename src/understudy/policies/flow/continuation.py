"""Chunks of the flow policy that continue the one in execution (`common/chunking.py`)."""

from collections.abc import Callable, Mapping
from typing import Any

import torch
from torch import Tensor, nn

from understudy.batch_keys import ACTION
from understudy.policies.common.chunking import Field, check_delay, sample_given, sample_guided
from understudy.policies.common.normalizer import Normalizer
from understudy.policies.flow.config import FlowPolicyConfig

Integrate = Callable[[Field, Tensor, int], Tensor]
"""(velocity field, noise [B, T, dim], steps) -> [B, T, dim]."""


def make_integration(
    config: FlowPolicyConfig,
    normalizer: Normalizer,
    batch: Mapping[str, Any],
    executing: Tensor,
    delay: int,
    horizon: int | None,
) -> Integrate:
    """Return the integration that continues the actions in execution; arguments of `Policy.continue_chunk`.

    Raises:
        ValueError: a policy with a future, numbers beyond `executing`, or a `delay` above `max_delay` without a
            horizon.
    """
    known = executing.shape[1]
    if config.future:
        raise ValueError("a flow policy with a future cannot continue a chunk; call act without previous")
    check_delay(delay, horizon, known, config.max_delay)
    rest = nn.functional.pad(executing.float(), (0, 0, 0, config.chunk - known))
    chunk = normalizer.actions({**batch, ACTION: rest})
    padded = normalizer.dim_is_pad(ACTION, batch)

    def integrate(field: Field, noise: Tensor, steps: int) -> Tensor:
        with torch.no_grad():
            if horizon is None:
                # The field has one time per sample. The last action is never given, so its time is that of the sample.
                return sample_given(lambda x, time: field(x, time[:, -1]), noise, chunk, delay, steps)
            dims = None if padded is None else ~padded[:, None]
            return sample_guided(field, noise, chunk, delay, horizon, steps, dims=dims)

    return integrate
