"""Precision of any training loop: dtypes of weights, masters and moments by group, and the share of
the weights that a step moves.

AdamW changes a weight by about the learning rate. A bfloat16 weight has 8 bits, so a change of less
than half of its last one is lost, in every step again. The shares are computed weight by weight,
with the rounding of the dtype.
"""

import math
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass
from itertools import chain
from typing import Any

import torch
from torch import Tensor, nn
from torch.optim import Optimizer

from understudy.optim.state import local
from understudy.train.precision import align, storage, words

MOST = 2**16
"""Weights of a parameter that are looked at, evenly spread over it."""
MOMENTS = ("exp_avg", "exp_avg_sq")
MOST_NAMES = 3


@dataclass(frozen=True)
class GroupPrecision:
    """Precision of a group of parameters of an optimizer, or of those that it does not step."""

    name: str
    """`group 0`, `frozen`, or `in no group` for parameters with gradients that no group has."""
    parameters: int
    """Numbers of the whole parameters."""
    weights: tuple[str, ...]
    """Dtypes of the weights, as `bfloat16`."""
    masters: tuple[str, ...]
    """Dtypes of the masters that the optimizer steps in their place; empty without masters."""
    gradients: tuple[str, ...]
    """Dtypes of the gradients that a backward pass will give."""
    moments: tuple[str, ...]
    """Dtypes of the optimizer's tensors; empty before the first step of most optimizers."""
    size: int
    """Bytes on this rank: weights, gradients, masters and optimizer's tensors."""
    lr: float | None
    """Learning rate of the estimate; None for parameters that are not stepped."""
    moves: float | None
    """Share of the weights, 0 to 1, that a step changes in the dtype that the optimizer steps: of
    masters, where there are some. None: not known.
    """
    moves_in_bf16: float | None
    """The same share if the weights were bfloat16 without masters."""


@dataclass(frozen=True)
class PrecisionReport:
    """Result of `check_precision`; `str` of it is a table as at the start of a run."""

    groups: tuple[GroupPrecision, ...]
    """Groups of the optimizer, then parameters that it does not step."""
    estimate: str
    """The source of the shares: moments, gradients, or the size of a first step."""
    notes: tuple[str, ...]
    """Faults, each with its remedy; empty for a sound setup."""

    def __str__(self) -> str:
        """Format the table, the estimate and the notes."""
        head = ("", "parameters", "kept in", "masters", "gradients", "optimizer state")
        rows: list[tuple[str, ...]] = [(*head, "lr", "moves", "in bfloat16", "MiB")]
        for group in self.groups:
            row = (
                group.name,
                f"{group.parameters:,}",
                *(" + ".join(dtypes) or "-" for dtypes in _dtypes(group)),
                "-" if group.lr is None else f"{group.lr:.3g}",
                _percent(group.moves),
                _percent(group.moves_in_bf16),
                f"{group.size / 2**20:.2f}",
            )
            rows.append(row)
        return "\n".join([*align(rows), self.estimate, *self.notes])


def check_precision(
    model: nn.Module, optimizer: Optimizer, lr: float | None = None
) -> PrecisionReport:
    """Report the precision of a training loop, ours or not, before or between its steps.

        print(us.check_precision(model, torch.optim.AdamW(model.parameters(), lr=2.5e-5)))

    Nothing is changed: neither weights, gradients, moments nor random generators.

    The shares of weights that move are estimates for one step. With moments (`exp_avg`,
    `exp_avg_sq`) its size follows from them. Without, an optimizer with betas (Adam, Lion) moves
    every weight by the learning rate, as its first step does, in a direction that is not known:
    both are averaged. Others move it by the learning rate times the gradient, where there is one.
    At most 65,536 weights of a parameter are looked at, evenly spread over it.

    Args:
        model: the network, on any device, also wrapped (DistributedDataParallel) or sharded
            (FSDP2: the shards of this rank count).
        optimizer: an optimizer of torch over its parameters, `MasterWeights`, or a wrapper with
            `optimizer` or `param_groups` and `state`.
        lr: learning rate of the estimate for all groups, times their `lr_scale` if they have one;
            None: that of each group now, which is 0 at the start of some warm-ups.

    Returns:
        The groups, and notes on bfloat16 weights without masters, moments of fewer than 32 bits,
        and parameters that no group steps.

    Raises:
        TypeError: `model` is no module, or `optimizer` has no groups of parameters.
        ValueError: `lr` is not a finite number of at least 0.
    """
    if not isinstance(model, nn.Module):
        raise TypeError(f"model is a {type(model).__name__}; give a torch.nn.Module")
    if not isinstance(getattr(optimizer, "param_groups", None), list):
        raise TypeError(f"optimizer is a {type(optimizer).__name__}; give an optimizer of torch")
    if lr is not None and (isinstance(lr, bool) or not 0 <= lr < math.inf):
        raise ValueError(f"lr is {lr}; give a finite number of at least 0")
    steps = _unwrapped(optimizer)
    names = {parameter: name for name, parameter in model.named_parameters()}
    groups = []
    sources = set[str]()
    notes: list[str] = []
    for number, group in enumerate(steps.param_groups):
        rate = float(group.get("lr", 0.0)) if lr is None else lr * group.get("lr_scale", 1.0)
        moving = _Moving(steps, group, rate)
        entry = _group(f"group {number}", group["params"], steps, rate, moving)
        sources |= moving.sources
        notes += _faults(entry, group["params"], names)
        groups.append(entry)
    stepped = set(chain.from_iterable(group["params"] for group in steps.param_groups))
    idle = [p for p in names if p not in stepped]
    frozen = [p for p in idle if not p.requires_grad]
    lost = [p for p in idle if p.requires_grad]
    for name, members in (("frozen", frozen), ("in no group", lost)):
        if members:
            groups.append(_group(name, members, steps, None, None))
    if lost:
        notes.append(
            f"in no group: {_some([names[p] for p in lost])} has gradients and no group of the "
            "optimizer: add it, or freeze it"
        )
    estimate = f"estimate of moves: {' and '.join(sorted(sources)) or 'no weight is stepped'}"
    return PrecisionReport(tuple(groups), estimate, tuple(notes))


class _Moving:
    """Share of weights that a step moves, over the parameters of a group."""

    def __init__(self, optimizer: Any, group: dict[str, Any], rate: float) -> None:
        self._optimizer = optimizer
        self._group = group
        self._rate = rate
        self.sources = set[str]()

    def share(self, params: Sequence[Tensor], bf16: bool) -> float | None:
        """Mean over the weights; None without a weight, or where a parameter is not known."""
        moved = 0.0
        total = 0
        for p in params:
            of_parameter = self._share(p, bf16) if local(p).numel() else 0.0
            if of_parameter is None:
                return None
            moved += of_parameter * local(p).numel()
            total += local(p).numel()
        return moved / total if total else None

    def _share(self, parameter: Tensor, bf16: bool) -> float | None:
        if parameter.is_meta or not parameter.is_floating_point():
            return None
        if not parameter.requires_grad:
            return 0.0
        steps = self._steps(parameter)
        if steps is None:
            return None
        weight = _spread(_master(self._optimizer, parameter))
        if bf16:
            weight = weight.bfloat16()
        wide = weight.double()
        changed = [((wide + step).to(weight.dtype) != weight).double().mean() for step in steps]
        return float(torch.stack(changed).mean())

    def _steps(self, parameter: Tensor) -> list[Tensor] | None:
        """Changes of the weights, float64; two where their sign is not known."""
        group = self._group
        state = self._optimizer.state.get(parameter, {})
        decay = 0.0
        if "betas" in group and not _is_coupled(self._optimizer, group):
            decay = self._rate * float(group.get("weight_decay") or 0.0)
        shrunk = -decay * _spread(parameter).double()
        count = float(state.get("step", 0))
        if count and all(name in state for name in MOMENTS):
            self.sources.add("moments of the optimizer")
            first, second = (_spread(state[name]).double() for name in MOMENTS)
            low, high = (1 - float(beta) ** count for beta in group["betas"])
            size = (second / high).sqrt() + float(group.get("eps", 0.0))
            return [shrunk - self._rate * (first / low) / size.clamp(min=1e-300)]
        if "betas" in group:
            self.sources.add("a first step of size lr, in either direction")
            return [shrunk + self._rate, shrunk - self._rate]
        if parameter.grad is None:
            self.sources.add("not known without gradients for this optimizer")
            return None
        self.sources.add("lr times the present gradients")
        return [-self._rate * _spread(parameter.grad).double()]


def _group(
    name: str, params: Sequence[Tensor], optimizer: Any, rate: float | None, moving: _Moving | None
) -> GroupPrecision:
    stored = storage(params, optimizer, gradients=name != "frozen")
    masters: list[Tensor] = []
    if moving is not None:
        stepped = [_master(optimizer, p) for p in params]
        masters = [master for master, p in zip(stepped, params) if master is not p]
    # low bits are in the optimizer's state, whole masters are not
    extra = 0 if _keeps_low_bits(optimizer, params) else sum(m.nbytes for m in masters)
    return GroupPrecision(
        name,
        stored.parameters,
        _named(stored.weights),
        _named({master.dtype for master in masters}),
        _named(stored.gradients),
        _named(stored.state),
        stored.size + extra,
        rate,
        None if moving is None else moving.share(params, bf16=False),
        None if moving is None else moving.share(params, bf16=True),
    )


def _faults(
    entry: GroupPrecision, params: Sequence[Tensor], names: dict[Any, str]
) -> Iterator[str]:
    """Yield faults of a group, each with its remedy."""
    narrow = {"bfloat16", "float16"} & set(entry.weights)
    if narrow and not entry.masters and any(p.requires_grad for p in params):
        share = ""
        if entry.moves is not None:
            share = f": a step at lr {entry.lr:.3g} changes {_percent(entry.moves)} of them"
        yield (
            f"{entry.name}: {narrow.pop()} weights without float32 masters{share}; keep float32 "
            "weights, or wrap the optimizer in understudy.MasterWeights"
        )
    if short := {"bfloat16", "float16"} & set(entry.moments):
        yield (
            f"{entry.name}: moments in {short.pop()}: the second one stops moving; they must be "
            "float32"
        )
    if strangers := [p for p in params if p not in names]:
        yield (
            f"{entry.name}: {len(strangers)} of its parameters are not in the model: build the "
            "optimizer after the model is moved, wrapped or replaced"
        )
    if still := [names.get(p, "?") for p in params if not p.requires_grad]:
        yield f"{entry.name}: {_some(still)} is frozen and in the optimizer: no step moves it"


def _unwrapped(optimizer: Any) -> Any:
    """The optimizer below wrappers such as Accelerate's, which hand on its groups."""
    while not hasattr(optimizer, "master"):
        below = getattr(optimizer, "optimizer", None)
        if not isinstance(below, Optimizer):
            break
        optimizer = below
    return optimizer


def _master(optimizer: Any, parameter: Tensor) -> Tensor:
    """The tensor that a step changes: a master of another dtype, or the parameter itself."""
    find = getattr(optimizer, "master", None)
    if find is None:
        return parameter
    master: Tensor = find(parameter)
    return parameter if master.dtype == parameter.dtype else master


def _keeps_low_bits(optimizer: Any, params: Iterable[Tensor]) -> bool:
    return any("lo" in optimizer.state.get(p, {}) for p in params)


def _is_coupled(optimizer: Any, group: dict[str, Any]) -> bool:
    """Whether weight decay is added to the gradient, as in Adam, and not to the step."""
    plain = type(getattr(optimizer, "optimizer", optimizer)).__name__ in ("Adam", "NAdam", "RAdam")
    return plain and not group.get("decoupled_weight_decay", False)


def _spread(tensor: Tensor) -> Tensor:
    """At most `MOST` numbers of this rank's shard, evenly spread over it."""
    flat = local(tensor.detach()).reshape(-1)
    return flat[:: max(1, -(-flat.numel() // MOST))]


def _named(dtypes: set[torch.dtype]) -> tuple[str, ...]:
    return tuple(words([dtype]) for dtype in sorted(dtypes, key=str))


def _dtypes(group: GroupPrecision) -> list[tuple[str, ...]]:
    return [group.weights, group.masters, group.gradients, group.moments]


def _percent(share: float | None) -> str:
    return "-" if share is None else f"{100 * share:.3g} %"


def _some(names: Sequence[str]) -> str:
    more = f" and {len(names) - MOST_NAMES} more" if len(names) > MOST_NAMES else ""
    return f"{', '.join(names[:MOST_NAMES])}{more}"
