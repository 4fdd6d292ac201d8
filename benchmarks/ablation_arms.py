"""The precisions that `ablation.py` compares, each as the `TrainState` of a run: same step, same draws, other storage.

    bf16-weights    trained matrices and their moments in bfloat16, torch.optim.AdamW on them; no float32 value exists
    bf16-rope       float32 weights; rotary positions and features of the flow time computed in bfloat16
    fp32-truth      float32 weights, arithmetic in bfloat16 (the trainer's `precision=bf16`)
    fp32            float32 weights and arithmetic

The first is openpi's PyTorch training, which keeps the parameters of `KEPT_FLOAT32` in float32. The trainer refuses it,
so its optimizer is here. The second is more than the ports' mistake: they round the frequencies of the rotation, and
compute the angles and the time in float32.
"""

from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from dataclasses import replace
from fnmatch import fnmatchcase
from typing import Any
from unittest.mock import patch

import torch
from torch import Tensor

from understudy.config.train import TrainConfig
from understudy.distributed.mesh import Mesh
from understudy.optim.loss_weights import loss_weights
from understudy.optim.moving_average import make_average
from understudy.optim.param_groups import parameter_groups
from understudy.policies.common.flow_matching import MAX_PERIOD, MIN_PERIOD
from understudy.policies.common.towers import attention, gemma
from understudy.policies.common.towers.attention import THETA, Rotary
from understudy.policies.pi05 import network
from understudy.policies.pi05.policy import Pi05Policy
from understudy.train.state import TrainState, assemble

ARMS = ("bf16-weights", "bf16-rope", "fp32-truth", "fp32")
KEPT_FLOAT32 = (
    "vision.patch.*",
    "vision.position.*",
    "*.input_layernorm.*",
    "*.post_attention_layernorm.*",
    "vlm_norm.*",
    "expert_norm.*",
    "action_*",
    "time_*",
)
"""Parameters that openpi's PyTorch training leaves in float32, by our names."""


class PlainAdamW(torch.optim.AdamW):
    """torch's AdamW in the dtype of each parameter, with the interface of the trainer's optimizer."""

    def master(self, parameter: Tensor) -> Tensor:
        return parameter.detach().float()

    local_master = master

    def step(self, closure: Any = None, *, scale: Tensor | None = None, skip: Tensor | None = None) -> Any:
        if skip is not None and skip.item():
            return None
        for parameter in (p for group in self.param_groups for p in group["params"] if p.grad is not None):
            if scale is not None:
                parameter.grad *= scale.to(parameter.dtype)
        return super().step(closure)


def start(arm: str, base: Pi05Policy, config: TrainConfig, mesh: Mesh) -> TrainState:
    """Make the state of a run of `arm` from the weights of `base`, which does not change."""
    compute = "float32" if arm == "fp32" else "bfloat16"
    with torch.random.fork_rng(devices=[]):
        policy = Pi05Policy(replace(base.config, compute=compute), base.normalizer.arrays())
    policy.load_weights(base.state_dict())
    config = replace(config, precision="fp32" if arm == "fp32" else "bf16")
    if arm != "bf16-weights":
        return assemble(config, policy, mesh)
    average = make_average(policy)  # in float32
    for name, parameter in policy.named_parameters():
        if not is_kept(name):
            parameter.data = parameter.data.bfloat16()
    c = config.optim
    optimizer: Any = PlainAdamW(
        parameter_groups(policy.named_parameters(), c), lr=c.lr, betas=(c.beta1, c.beta2), eps=c.eps
    )
    return TrainState(config, mesh, policy, optimizer, average, loss_weights(policy.loss_terms, c.loss_weights))


def is_kept(name: str) -> bool:
    """Whether openpi's PyTorch training leaves a parameter in float32."""
    return any(fnmatchcase(name, pattern) for pattern in KEPT_FLOAT32)


def matrices(state: TrainState) -> dict[str, Tensor]:
    """Copies of the weights that `bf16-weights` stores in bfloat16, by name, in float32."""
    return {n: state.optimizer.master(p).clone() for n, p in state.policy.named_parameters() if not is_kept(n)}


def trained(state: TrainState) -> dict[str, Tensor]:
    """Marks of the elements of `matrices` that ever had a gradient. (Rows of absent tokens have none.)"""
    seen = {n: state.optimizer.state[p].get("exp_avg_sq") for n, p in state.policy.named_parameters() if not is_kept(n)}
    return {name: moment != 0 for name, moment in seen.items() if moment is not None}


def changed(before: Mapping[str, Tensor], after: Mapping[str, Tensor], marks: Mapping[str, Tensor]) -> float:
    """Share of the marked elements that differ."""
    moved = sum(int((after[name] != before[name])[mark].sum()) for name, mark in marks.items())
    return moved / sum(int(mark.sum()) for mark in marks.values())


def distance(before: Mapping[str, Tensor], after: Mapping[str, Tensor], marks: Mapping[str, Tensor]) -> float:
    """Length of the difference over the length of `before`, over the marked elements."""
    apart = sum(float((after[name] - before[name])[mark].double().square().sum()) for name, mark in marks.items())
    return (apart / sum(float(before[name][mark].double().square().sum()) for name, mark in marks.items())) ** 0.5


# -- positions and times in bfloat16


@contextmanager
def positions_of(arm: str) -> Iterator[None]:
    """Compute positions and times inside the block as `arm` does."""
    if arm != "bf16-rope":
        yield
        return
    with (
        patch.object(attention, "rotary", rotary_bf16),
        patch.object(gemma, "rotate", rotate_bf16),
        patch.object(network, "time_features", time_features_bf16),
    ):
        yield


def rotary_bf16(positions: Tensor, head_dim: int) -> Rotary:
    """`attention.rotary` with frequencies, positions, angles, cosines and sines in bfloat16."""
    exponents = torch.arange(0, head_dim, 2).float() / head_dim
    angles = positions.bfloat16()[:, None, :, None] * (1.0 / THETA**exponents).bfloat16()
    return Rotary(angles.cos(), angles.sin())


def rotate_bf16(x: Tensor, at: Rotary) -> Tensor:
    """`attention.rotate` with products and sums in bfloat16."""
    one, two = x.bfloat16().chunk(2, dim=-1)
    return torch.cat([one * at.cos - two * at.sin, two * at.cos + one * at.sin], dim=-1).to(x.dtype)


def time_features_bf16(time: Tensor, width: int) -> Tensor:
    """`network.time_features` with times, frequencies, angles, sines and cosines in bfloat16."""
    share = torch.linspace(0.0, 1.0, width // 2)
    periods = MIN_PERIOD * (MAX_PERIOD / MIN_PERIOD) ** share
    angles = time.bfloat16()[..., None] * (2 * torch.pi / periods).bfloat16()
    return torch.cat([angles.sin(), angles.cos()], dim=-1).float()
