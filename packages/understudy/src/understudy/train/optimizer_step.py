"""One optimizer step: augment the batch, back-propagate, clip, update.

The loss of a step is, per term, the sum over all valid elements of the global batch divided by
their number. It does not depend on ranks and micro-batches: elements are counted over all ranks
once, before the backward pass, and gradients are summed, not averaged. A mean of per-rank means
would be another loss wherever padding differs between ranks. Where samples have the weights w
(`LOSS_WEIGHT`), a term is sum(w * loss) / sum(w * count), both over the global batch.

All random numbers are keyed by (seed, purpose, position), so a sample gets the same noise, time,
shift and text on any rank and in any micro-batch. Numbers that the policy draws for itself
(dropout) are keyed by the seed and the first position of the micro-batch: the same layout repeats
them, another one draws others. Nothing here waits for the device: losses and norms stay tensors
until the run reads them.
"""

import sys
from collections.abc import Iterator, Mapping, Sequence
from contextlib import AbstractContextManager, nullcontext
from types import MappingProxyType
from typing import NamedTuple, Protocol

import torch
from torch import Tensor

from understudy.distributed.entered_blocks import agreed_blocks
from understudy.distributed.mesh import Mesh, sync_gradients
from understudy.distributed.unused_parameters import check_unused_parameters, record_leaves
from understudy.optim.adamw import Float32AdamW
from understudy.optim.state import clip_factor, grad_dtype, local
from understudy.policies.batch import has_values, to_device
from understudy.policies.draws import keyed_generators
from understudy.policies.losses import Loss
from understudy.policies.policy import Policy
from understudy.train.micro_batches import IdleMicroBatch, MicroBatch
from understudy_base import LOSS_WEIGHT, Batch, ConfigError
from understudy_data import KeyedDraws


class Timer(Protocol):
    """Argument of a step, which names its phases: `with timer("backward"): ...`. Training passes
    `NULL`.
    """

    def __call__(self, phase: str) -> AbstractContextManager[object]:
        """Return the context of a phase of a step."""
        ...


_NOTHING = nullcontext()


def NULL(phase: str) -> AbstractContextManager[object]:
    """Measure nothing, wait for nothing and create no object."""
    return _NOTHING


NO_GROUPS: Mapping[str, int] = MappingProxyType({})


class StepResult(NamedTuple):
    """Result of a step on the policy's device: float32 scalars, equal on all ranks, and sums for
    metrics.
    """

    loss: Tensor
    """Loss of the global batch before the step."""
    grad_norm: Tensor
    """Global norm before clipping."""
    skipped: Tensor
    """1 where the gradient was not finite and the weights did not change, else 0."""
    terms: Tensor
    """Float64 [2, K]: sum and count of each loss term over the global batch."""
    groups: Tensor | None
    """Float64 [2, G, K]: the same per group, of this rank's share; None without groups."""


def optimizer_step(
    policy: Policy,
    optimizer: Float32AdamW,
    parts: Sequence[MicroBatch],
    mesh: Mesh,
    *,
    lr: float,
    clip: float,
    weights: Mapping[str, float],
    groups: Mapping[str, int] = NO_GROUPS,
    seed: int = 0,
    timer: Timer = NULL,
    check: bool = False,
) -> StepResult:
    """Run forward and backward per micro-batch, clip the gradient to norm `clip`, update at rate
    `lr`.

    A gradient that is not finite on any rank changes neither weights nor moments nor step counts on
    any rank, bit for bit. The host does not wait for that: the kernel reads the flag on the device.

    Args:
        policy: the weights to train.
        optimizer: optimizer of the policy's parameters.
        parts: this rank's micro-batches, the first of them not idle; all ranks have equally many.
        mesh: the ranks.
        lr: learning rate before the factors of groups.
        clip: largest global norm of the gradient.
        weights: weights of the loss terms to compute, by name.
        groups: keys of the batch with a number per sample -> how many numbers there are, for
            `StepResult.groups`.
        seed: seed of the numbers that the policy draws for itself.
        timer: measures the phases.
        check: report parameters that the loss does not reach (`distributed/unused_parameters.py`),
            and generators that the policy draws from.

    Raises:
        ConfigError: the ranks enter different blocks. With `check`: the losses of the ranks do not
            reach the same parameters. Samples have weights, and the policy counts elements per
            batch only.
    """
    optimizer.zero_grad()
    terms = list(weights)
    factors = list(weights.values())
    of_groups = list[Tensor]()
    with timer("communication"):
        # [K]
        elements = sum_counts(
            policy, [p for p in parts if not isinstance(p, IdleMicroBatch)], terms, mesh
        )
        counts = elements.masked_fill(elements == 0, 1)
    accumulator = Float64GradAccumulator(optimizer, mesh, len(parts))
    sums = torch.zeros(len(terms), dtype=torch.float64, device=mesh.device)
    for number, part in enumerate(parts):
        is_checked = check and number == 0
        sync_gradients(policy, mesh, last=number == len(parts) - 1)
        # Around the backward pass, too: a block that is recomputed there returns to the numbers of
        # its forward pass.
        with keyed_generators(_part_key(seed, part), mesh.device) as moved:
            with (
                timer("forward"),
                record_leaves(policy, mesh, noted=is_checked) as leaves,
                agreed_blocks(policy, mesh),
            ):
                losses = policy.sample_losses(*part, terms=terms)
                totals = _sum_losses(losses, terms, part)
                loss = torch.stack(
                    [factor * total for factor, total in zip(factors, totals / counts)]
                ).sum()
            if is_checked:
                check_unused_parameters(policy, leaves, loss, mesh)
                _report_own_draws(policy, moved(), mesh)
            with timer("backward"):
                loss.backward()
                accumulator.add()
        sums += totals.detach()
        if groups and not isinstance(part, IdleMicroBatch):
            of_groups.append(group_sums(losses, terms, part.batch, groups))
    accumulator.finish()
    reduced, norm, skipped = _clip_and_update(optimizer, sums, mesh, lr, clip, timer)
    mean = torch.stack(
        [factor * total for factor, total in zip(factors, reduced[:-1] / counts)]
    ).sum()
    sums = torch.stack([reduced[:-1], elements.double()])
    sums_of_groups = torch.stack(of_groups).sum(dim=0) if of_groups else None
    return StepResult(mean.float(), norm, skipped, sums, sums_of_groups)


def _part_key(seed: int, part: MicroBatch) -> int:
    """Key of the numbers that a policy draws for itself in a micro-batch: of the seed and its first
    position.
    """
    positions = part.batch.get("position")
    first = int(positions.numpy()[0]) if positions is not None and has_values(positions) else 0
    return KeyedDraws(seed).key("losses", first)


def _report_own_draws(policy: Policy, generators: Sequence[str], mesh: Mesh) -> None:
    """Print that the losses of the policy draw from global generators, if they do."""
    if generators and mesh.rank == 0:
        print(
            f"{type(policy).__name__}.losses draws numbers of its own ({', '.join(generators)}), "
            "keyed by the seed and the first position of each forward pass: the same processes "
            "and micro-batches repeat them to the bit, also after a resume; others draw other "
            "numbers (dropout masks) for the same samples",
            file=sys.stderr,
        )


def _sum_losses(losses: Mapping[str, Loss], terms: Sequence[str], part: MicroBatch) -> Tensor:
    """Sum of each term over a micro-batch, [K]; 0 for an idle one, which takes part in the
    collectives of weights.
    """
    totals = torch.stack([weighted(losses[term].sum, part.batch).sum() for term in terms])
    return 0 * totals if isinstance(part, IdleMicroBatch) else totals


def _clip_and_update(
    optimizer: Float32AdamW, sums: Tensor, mesh: Mesh, lr: float, clip: float, timer: Timer
) -> tuple[Tensor, Tensor, Tensor]:
    """Sum losses and squared norms over the ranks, clip and update: the sums, the norm, and whether
    it was skipped.
    """
    with timer("clip"):
        squares = squared_norm(optimizer)[None] / mesh.shape[0]
    with timer("communication"):
        reduced = mesh.sum(torch.cat([sums, squares]))
    with timer("clip"):
        norm = reduced[-1].sqrt().float()
        skipped = (~torch.isfinite(norm)).float()
        scale = clip_factor(norm, clip)
    with timer("optimizer"):
        for group in optimizer.param_groups:
            group["lr"] = lr * group["lr_scale"]
        optimizer.step(scale=scale, skip=skipped)
    return reduced, norm, skipped


def weighted(values: Tensor, batch: Batch) -> Tensor:
    """Multiply per-sample values [B] by the weights of the samples, if they have any, in the
    values' dtype.
    """
    weight = batch.get(LOSS_WEIGHT)
    return values if weight is None else values * weight.to(values.dtype)


def sum_counts(
    policy: Policy, parts: Sequence[MicroBatch], terms: Sequence[str], mesh: Mesh
) -> Tensor:
    """Sum the valid elements of each loss term over all ranks, which call this together.

    Returns:
        int64 [K]; with weights of samples float64 [K].
    """
    counted = [policy.counts(part.batch, part.draws) for part in parts]
    if LOSS_WEIGHT not in parts[0].batch:
        counts = []
        for term in terms:
            counts_of_parts = torch.stack([part_counts[term].sum() for part_counts in counted])
            counts.append(counts_of_parts.sum())
        return mesh.sum(torch.stack(counts))
    totals = torch.zeros(len(terms), dtype=torch.float64, device=mesh.device)
    for part, part_counts in zip(parts, counted, strict=True):
        for term in terms:
            if part_counts[term].ndim != 1:
                raise ConfigError(
                    f"frame_weights_in: the policy {type(policy).__name__} counts the elements of "
                    f"{term!r} per batch: its `counts` must be per sample, int64 [B]; or set "
                    "frame_weights_in to order"
                )
        totals += torch.stack(
            [weighted(part_counts[term].double(), part.batch).sum() for term in terms]
        )
    return mesh.sum(totals)


@torch.no_grad()
def group_sums(
    losses: Mapping[str, Loss], terms: Sequence[str], batch: Batch, groups: Mapping[str, int]
) -> Tensor:
    """Sum losses and counts of a micro-batch per group: float64 [2, G, K], without waiting for the
    device.

    A sample whose loss is not finite affects its own groups alone.

    Args:
        losses: per sample.
        terms: names of the K loss terms.
        batch: the samples, with their weights where they have some.
        groups: see `optimizer_step`; the numbers of its keys, one after the other, are the G
            groups.
    """
    sums = torch.stack([weighted(losses[term].sum, batch).double() for term in terms])
    counts = torch.stack([weighted(losses[term].count.double(), batch) for term in terms])
    labels = [(to_device(batch[key], sums.device), count) for key, count in groups.items()]
    members = torch.cat(
        [label == torch.arange(count, device=sums.device)[:, None] for label, count in labels]
    )
    values = torch.stack([sums, counts])[:, None]  # [2, 1, K, B]
    return torch.where(members[:, None], values, torch.zeros_like(values)).sum(dim=-1)


class Float64GradAccumulator:
    """Sums of the gradients of micro-batches in one process, in the dtype of sums over ranks
    (`mesh.grad_sum_dtype`).

    On a mesh of several processes fully_shard does this itself. Autograd sums in float32. So this
    class acts only for float32 gradients in one process on a CPU, with two micro-batches or more.
    """

    def __init__(self, optimizer: Float32AdamW, mesh: Mesh, parts: int) -> None:
        self._dtype = mesh.grad_sum_dtype
        needed = parts > 1 and mesh.world_size == 1
        self._parameters = [
            p
            for p in trainable_params(optimizer)
            if needed and grad_dtype(p) == torch.float32 != self._dtype
        ]
        self._sums: dict[Tensor, Tensor] = {}

    def add(self) -> None:
        """Add the gradients of a backward pass to the sums, and clear them."""
        for p in self._parameters:
            if p.grad is not None:
                if p in self._sums:
                    self._sums[p] += p.grad
                else:
                    self._sums[p] = p.grad.to(self._dtype)
                p.grad = None

    def finish(self) -> None:
        """Set the gradients to the sums, rounded once; call it after the last backward pass."""
        for p, total in self._sums.items():
            p.grad = total.to(grad_dtype(p))


@torch.no_grad()
def squared_norm(optimizer: Float32AdamW) -> Tensor:
    """Sum of the squares of this rank's shards of the gradients, float64 [].

    In float64 the result does not depend on the shards. The norm decides about clipping, and
    clipping about every bit of the weights.
    """
    grads = [local(p.grad) for p in trainable_params(optimizer) if p.grad is not None]
    norms = torch._foreach_norm(grads, 2.0, dtype=torch.float64)
    return torch.stack(norms).square().sum()


def trainable_params(optimizer: torch.optim.Optimizer) -> Iterator[Tensor]:
    """Yield the parameters of the optimizer."""
    for group in optimizer.param_groups:
        yield from group["params"]
