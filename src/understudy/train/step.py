"""One optimizer step, and the draws that it needs: the same function is trained, tested and measured.

Every draw is keyed by (seed, purpose, position), so a sample gets the same noise, time, shift and text wherever and
whenever it is made. Nothing here waits for the host: losses and norms stay tensors until the run asks for them. Not
here: the loop (`run.py`), validation's draws (`validate.py`).
"""

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any, NamedTuple

import numpy as np
import torch
from torch import Tensor

from understudy.order import sample_normal, sample_uniform
from understudy.policies.augment import drop_texts, shift_pictures
from understudy.policies.flow import spread_times
from understudy.policies.flow_policy import TASK, FlowPolicy
from understudy.policies.losses import scalar
from understudy.train.config import AugmentConfig


class StepResult(NamedTuple):
    """Float32 scalars on the policy's device."""

    loss: Tensor
    """Of the batch before the step."""
    grad_norm: Tensor
    """Global norm before clipping."""
    skipped: Tensor
    """1 where the gradient was not finite and the weights stayed as they were, else 0."""


@dataclass(frozen=True)
class Draws:
    """Shapes of the draws of a run."""

    seed: int
    draws: int
    chunk: int
    action_dim: int

    def noise_and_time(self, positions: Tensor) -> tuple[Tensor, Tensor]:
        """int64 [B] -> noise float32 [B, D, T, A], standard normal, and flow time float32 [B, D] in [0, 1]."""
        at = positions.numpy()
        noise = sample_normal(self.seed, "flow noise", at, (self.draws, self.chunk, self.action_dim))
        uniform = sample_uniform(self.seed, "flow time", at, (self.draws,))
        return torch.from_numpy(noise), spread_times(torch.from_numpy(uniform))


def augmented(batch: Mapping[str, Any], cameras: tuple[str, ...], augment: AugmentConfig, seed: int) -> dict[str, Any]:
    """The batch with shifted pictures and some instructions dropped; `batch["position"]` keys the draws."""
    at: np.ndarray = batch["position"].numpy()
    changed = dict(batch)
    if augment.shift:
        for camera in cameras:
            draws = torch.from_numpy(sample_uniform(seed, f"shift {camera}", at, (2,)))
            changed[camera] = shift_pictures(batch[camera], draws, augment.shift)
    if augment.text_dropout:
        draws = torch.from_numpy(sample_uniform(seed, "text dropout", at))
        changed[TASK] = drop_texts(batch[TASK], draws, augment.text_dropout)
    return changed


def optimizer_step(
    policy: FlowPolicy,
    optimizer: torch.optim.Optimizer,
    batch: Mapping[str, Any],
    noise: Tensor,
    time: Tensor,
    *,
    lr: float,
    clip: float,
) -> StepResult:
    """Forward, backward, clip to global norm `clip`, step at learning rate `lr`.

    The loss is the sum over all valid elements divided by their number in the whole batch. A gradient that is not
    finite changes neither weights nor moments nor step counts, bit for bit: the fused kernel reads `found_inf`, the
    flag that a gradient scaler hands it, on the device.

    Args:
        batch: as `FlowPolicy.losses` wants it; noise float32 [B, D, T, A], time float32 [B, D].
    """
    optimizer.zero_grad()
    loss = scalar(policy.losses(batch, noise, time))
    loss.backward()
    parameters = [p for group in optimizer.param_groups for p in group["params"]]
    norm = torch.nn.utils.get_total_norm([p.grad for p in parameters if p.grad is not None])
    torch.nn.utils.clip_grads_with_norm_(parameters, clip, norm)
    skipped = (~torch.isfinite(norm)).float()
    for group in optimizer.param_groups:
        group["lr"] = lr
    assert optimizer.defaults["fused"], "only the fused kernel looks at found_inf"
    optimizer.found_inf = skipped  # type: ignore[attr-defined]
    optimizer.step()
    return StepResult(loss.detach(), norm.detach(), skipped)
