"""Statement of the parameters that a run trains, printed before the first step."""

from collections.abc import Iterable, Mapping

import torch
from torch import Tensor

from understudy.config.train import TrainConfig
from understudy.optim.lora import adapted_layers
from understudy.optim.param_groups import part_of
from understudy.optim.state import local
from understudy.train.state import TrainState

HEADER = ("part", "parameters", "trained", "share", "adapters")


def describe_trainable(state: TrainState) -> list[str]:
    """Return the share of the parameters that are trained, and with frozen ones a table of the policy's parts.

    The bytes are exact, of the optimizer's state on this rank. With adapters on fresh weights a last line warns.
    """
    policy, config = state.policy, state.config
    named, layers = dict(policy.named_parameters()), adapted_layers(policy)
    total, trained = _count(named.values()), _count(p for p in named.values() if p.requires_grad)
    held = [t for s in state.optimizer.state.values() for t in s.values()]
    size = sum(local(t).numel() * t.element_size() for t in held)
    adapters = f"; adapters of rank {config.lora.rank} on {len(layers)} linear layers" if layers else ""
    share = "all" if trained == total else f"{trained:,} of"
    lines = [
        f"trains {share} {total:,} parameters ({_percent(trained, total)}){adapters}; optimizer state {size:,} bytes"
        + (" on this process" if state.mesh.world_size > 1 else "")
    ]
    lines += policy.describe_losses(state.weights)
    if policy.scalar_losses:
        lines.append(
            "the policy returns one loss per batch: training and validation have no losses per source, mode, task or "
            "episode"
        )
    if trained < total:
        lines += _table(named, list(layers), policy.config.PARTS)
    if narrow := _count(p for p in named.values() if p.dtype == torch.bfloat16 and not p.requires_grad):
        how = f"; {state.rounded:,} of them were rounded from float32, once" if state.rounded else ""
        lines.append(f"lora.base: {narrow:,} frozen weights are kept in bfloat16{how}")
    if layers and not _has_first_weights(config):
        lines.append(
            "lora.rank: the frozen weights below the adapters are fresh random numbers; start from a trained policy "
            "(init_from)"
        )
    return lines


def _table(named: Mapping[str, Tensor], layers: list[str], parts: Mapping[str, str]) -> list[str]:
    """Format one line per part of the policy, in the sequence of its parameters."""
    groups: dict[str, list[Tensor]] = {}
    for name, parameter in named.items():
        groups.setdefault(part_of(name, parts), []).append(parameter)
    adapted = [part_of(f"{name}.weight", parts) for name in layers]
    rows = [HEADER]
    for part, members in groups.items():
        total, trained = _count(members), _count(p for p in members if p.requires_grad)
        share = _percent(trained, total) if trained else "frozen"
        rows.append((part, f"{total:,}", f"{trained:,}", share, str(adapted.count(part) or "-")))
    widths = [max(map(len, column)) for column in zip(*rows)]
    return ["  ".join(cell.ljust(width) for cell, width in zip(row, widths)).rstrip() for row in rows]


def _count(parameters: Iterable[Tensor]) -> int:
    return sum(parameter.numel() for parameter in parameters)


def _percent(part: int, whole: int) -> str:
    return f"{100 * part / whole:.3g} %"


def _has_first_weights(config: TrainConfig) -> bool:
    """Whether the run starts from trained weights."""
    return bool(config.init_from or getattr(config.policy, "weights", ""))
