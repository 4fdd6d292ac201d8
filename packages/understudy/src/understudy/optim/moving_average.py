"""Moving average (EMA) of the weights, in float32."""

import copy
from typing import TYPE_CHECKING, TypeVar

import torch
from torch import nn

from understudy.optim.adamw import Float32AdamW
from understudy.optim.state import local

if TYPE_CHECKING:
    from understudy.config.train import EmaConfig

Policy = TypeVar("Policy", bound=nn.Module)


def make_average(policy: Policy) -> Policy:
    """Copy a policy to hold the moving average of its weights, in float32; frozen parameters are
    shared, not copied.
    """
    shared = {id(p): p for p in policy.parameters() if not p.requires_grad}
    return copy.deepcopy(policy, dict(shared)).requires_grad_(False).eval()


def ema_decay(step: int, config: "EmaConfig") -> float:
    """Return the share of the average that optimizer step `step` (1, 2, ...) keeps.

    Both kinds start low, so that the first weights fade: `constant` with a ramp (as TensorFlow's
    ExponentialMovingAverage with `num_updates`), `power` throughout (as diffusers' EMAModel).
    """
    ramp = (
        (1 + step) / (10 + step) if config.kind == "constant" else 1 - (1 + step) ** -config.power
    )
    return min(config.decay, ramp)


@torch.no_grad()
def update_average(
    average: nn.Module, policy: nn.Module, optimizer: Float32AdamW, decay: float
) -> None:
    """Compute average += (1 - decay) * (weights - average) from the float32 weights, on each rank's
    shard.

    A skipped optimizer step counts as a step that did not change the weights.
    """
    pairs = [
        (a, p)
        for a, p in zip(average.parameters(), policy.parameters(), strict=True)
        if p.requires_grad
    ]
    # float32 values of bfloat16 weights are temporary, so in groups
    for low in range(0, len(pairs), 64):
        some = pairs[low : low + 64]
        averages = [local(a) for a, _ in some]
        masters = [optimizer.local_master(p) for _, p in some]
        torch._foreach_lerp_(averages, masters, 1 - decay)
