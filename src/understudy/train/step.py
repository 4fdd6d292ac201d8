"""One optimizer step, and the draws that it needs: the same function is trained, profiled and tested.

The loss of a step is, per term, the sum over all valid elements of the global batch divided by their number, whatever
ranks and micro-batches it is made on: the numbers are counted and added up over the ranks once, before anything is
back-propagated, and gradients are summed, not averaged. A mean of per-rank means would be another loss wherever padding
differs between ranks.

Every draw is keyed by (seed, purpose, position), so a sample gets the same noise, time, shift and text wherever and
whenever it is made. Nothing here waits for the device: losses and norms stay tensors until the run asks for them. Not
here: the loop (`loop.py`), the state of a run (`state.py`), the arithmetic of the optimizer (`optim/adamw.py`).
"""

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, NamedTuple

import numpy as np
import torch
from torch import Tensor

from understudy.batch_keys import TASK
from understudy.distributed.mesh import Mesh, grad_sum_dtype, sync_gradients
from understudy.distributed.unused_parameters import check_unused_parameters, record_leaves
from understudy.optim.adamw import Float32AdamW
from understudy.optim.state import clip_factor, local
from understudy.order import sample_normal, sample_uniform
from understudy.order.placement import rank_slice
from understudy.policies.common.augment import drop_texts, shift_pictures
from understudy.policies.common.flow_matching import spread_times
from understudy.policies.flow.model import FlowPolicy
from understudy.train.profiling.timer import NULL, Timer

if TYPE_CHECKING:
    from understudy.config.train import AugmentConfig


class StepResult(NamedTuple):
    """Float32 scalars on the policy's device, equal on all ranks."""

    loss: Tensor
    """Of the global batch before the step."""
    grad_norm: Tensor
    """Global norm before clipping."""
    skipped: Tensor
    """1 where the gradient was not finite and the weights stayed as they were, else 0."""


class MicroBatch(NamedTuple):
    """A micro-batch, on the policy's device. noise and time as `Draws` makes them."""

    batch: Mapping[str, Any]
    noise: Tensor
    time: Tensor


@dataclass(frozen=True)
class Draws:
    """Shapes of the draws of a run."""

    seed: int
    draws: int
    chunk: int
    action_dim: int
    future_dim: int = 0
    """Width of the states that a policy learns to foresee; 0: it does not."""

    def noise_and_time(self, positions: Tensor) -> tuple[Tensor, Tensor]:
        """int64 [B] -> noise float32 [B, D, T, A], standard normal, and flow time float32 [B, D] in [0, 1].

        With a future [B, D, T, A + S] and [B, D, 2]: what is drawn for the actions stays, and the states get noise and
        times of their own, which know nothing of the actions'.
        """
        at = positions.numpy()
        noise = sample_normal(self.seed, "flow noise", at, (self.draws, self.chunk, self.action_dim))
        time = spread_times(torch.from_numpy(sample_uniform(self.seed, "flow time", at, (self.draws,))))
        if not self.future_dim:
            return torch.from_numpy(noise), time
        future = sample_normal(self.seed, "future noise", at, (self.draws, self.chunk, self.future_dim))
        then = spread_times(torch.from_numpy(sample_uniform(self.seed, "future time", at, (self.draws,))))
        # Both have one time per stratum: which goes with which is drawn, too.
        place = torch.from_numpy(sample_uniform(self.seed, "future stratum", at, (self.draws,))).argsort(dim=1)
        both = torch.stack([time, then.gather(1, place)], dim=2)
        return torch.from_numpy(np.concatenate([noise, future], axis=3)), both


def apply_augmentation(
    batch: Mapping[str, Any], cameras: tuple[str, ...], augment: "AugmentConfig", seed: int
) -> dict[str, Any]:
    """The batch with shifted pictures and some instructions dropped; `batch["position"]` keys the draws."""
    at: np.ndarray = batch["position"].numpy()
    changed = dict(batch)
    if augment.shift:
        for camera in cameras:
            draws = torch.from_numpy(sample_uniform(seed, f"shift {camera}", at, (2,)))
            changed[camera] = shift_pictures(batch[camera], to_device(draws, batch[camera].device), augment.shift)
    if augment.text_dropout:
        draws = torch.from_numpy(sample_uniform(seed, "text dropout", at))
        changed[TASK] = drop_texts(batch[TASK], draws, augment.text_dropout)
    return changed


def to_device(tensor: Tensor, device: torch.device) -> Tensor:
    """The tensor on `device`, copied without waiting for what the device still has to do."""
    if device.type == "cuda" and tensor.device.type == "cpu":
        return tensor.pin_memory().to(device, non_blocking=True)  # from pageable memory the copy would wait
    return tensor.to(device)


def batch_to_device(batch: Mapping[str, Any], device: torch.device) -> dict[str, Any]:
    """The batch on `device`; `position` and `source`, which the host reads, and texts stay where they are."""
    at_host = ("position", "source")
    return {
        key: to_device(value, device) if isinstance(value, Tensor) and key not in at_host else value
        for key, value in batch.items()
    }


def split_micro_batches(batch: Mapping[str, Any], noise: Tensor, time: Tensor, count: int) -> list[MicroBatch]:
    """A rank's share of a batch as `count` micro-batches of consecutive samples, equally large up to one sample."""

    def cut(value: Any, low: int, high: int) -> Any:
        # A copy, not a view: where a tensor begins in memory may decide how a matrix product is rounded.
        part = value[low:high]
        return part.clone() if count > 1 and isinstance(part, Tensor) else part

    slices = [rank_slice(len(noise), number, count) for number in range(count)]
    return [MicroBatch({k: cut(v, *at) for k, v in batch.items()}, cut(noise, *at), cut(time, *at)) for at in slices]


def optimizer_step(
    policy: FlowPolicy,
    optimizer: Float32AdamW,
    parts: Sequence[MicroBatch],
    mesh: Mesh,
    *,
    lr: float,
    clip: float,
    weights: Mapping[str, float],
    timer: Timer = NULL,
    check: bool = False,
) -> StepResult:
    """Forward and backward per micro-batch, clip to global norm `clip`, step at learning rate `lr` times the group's.

    A gradient that is not finite on any rank changes neither weights nor moments nor step counts on any, bit for bit,
    and no host is asked: the kernel reads the flag on the device.

    Args:
        parts: this rank's micro-batches; all ranks have equally many.
        weights: of the loss terms to compute, by name.
        check: tell which parameters the loss does not reach (`distributed/unused_parameters.py`).
    Raises:
        ConfigError: with `check`: the ranks' losses do not reach the same ones.
    """
    optimizer.zero_grad()
    terms, factors = list(weights), list(weights.values())
    with timer("communication"):
        counted = [policy.counts(part.batch, part.noise.shape[1]) for part in parts]
        counts = torch.stack([torch.stack([each[term] for each in counted]).sum() for term in terms])
        mesh.sum(counts).clamp_(min=1)  # int64 [K]
    wide = Float64GradAccumulator(optimizer, mesh, len(parts))
    sums = torch.zeros(len(terms), dtype=torch.float64, device=mesh.device)
    for number, part in enumerate(parts):
        sync_gradients(policy, mesh, last=number == len(parts) - 1)
        with timer("forward"), record_leaves(policy, mesh, noted=check and number == 0) as leaves:
            losses = policy.losses(*part, terms=terms)
            each = torch.stack([losses[term].sum.sum() for term in terms])  # [K]
            loss = torch.stack([factor * total for factor, total in zip(factors, each / counts)]).sum()
        if check and number == 0:
            check_unused_parameters(policy, leaves, loss, mesh)
        with timer("backward"):
            loss.backward()
            wide.add()
        sums += each.detach()
    wide.finish()
    with timer("clip"):
        squares = squared_norm(optimizer)[None] / mesh.shape[0]
    with timer("communication"):
        told = mesh.sum(torch.cat([sums, squares]))
    with timer("clip"):
        norm = told[-1].sqrt().float()
        skipped = (~torch.isfinite(norm)).float()
        scale = clip_factor(norm, clip)
    with timer("optimizer"):
        for group in optimizer.param_groups:
            group["lr"] = lr * group["lr_scale"]
        optimizer.step(scale=scale, skip=skipped)
    mean = torch.stack([factor * total for factor, total in zip(factors, told[:-1] / counts)]).sum()
    return StepResult(mean.float(), norm, skipped)


class Float64GradAccumulator:
    """Gradients of one process's micro-batches, added up as those of several ranks are (`parallel.grad_sum_dtype`).

    On a mesh of several processes fully_shard does this by itself, and autograd's own sums are in float32; so this has
    something to do for float32 weights in one process on a CPU, and for one micro-batch never.
    """

    def __init__(self, optimizer: Float32AdamW, mesh: Mesh, parts: int) -> None:
        self._dtype = grad_sum_dtype(mesh.device)
        needed = parts > 1 and mesh.world_size == 1
        self._parameters = [
            p for p in trainable_params(optimizer) if needed and p.dtype == torch.float32 != self._dtype
        ]
        self._sums: dict[Tensor, Tensor] = {}

    def add(self) -> None:
        """After a backward pass: take its gradients away and keep them."""
        for p in self._parameters:
            if p.grad is not None:
                if p in self._sums:
                    self._sums[p] += p.grad
                else:
                    self._sums[p] = p.grad.to(self._dtype)
                p.grad = None

    def finish(self) -> None:
        """After the last one: the sums become the gradients, rounded once."""
        for p, total in self._sums.items():
            p.grad = total.to(p.dtype)


@torch.no_grad()
def squared_norm(optimizer: Float32AdamW) -> Tensor:
    """Sum of the squares of this rank's parts of the gradients, float64 [].

    In float64, so that it is the same number in whatever parts the gradient lies: the norm decides about clipping, and
    clipping about every bit of the weights.
    """
    grads = [local(p.grad) for p in trainable_params(optimizer) if p.grad is not None]
    norms = torch._foreach_norm(grads, 2.0, dtype=torch.float64)
    return torch.stack(norms).square().sum()


def trainable_params(optimizer: torch.optim.Optimizer) -> Iterator[Tensor]:
    """The parameters that the optimizer steps."""
    for group in optimizer.param_groups:
        yield from group["params"]
