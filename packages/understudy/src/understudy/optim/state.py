"""Helpers of both optimizers with float32 masters: names, dtypes, norms, and checks of the
parameters.
"""

from collections.abc import Iterator, Mapping, Sequence
from typing import Any

import torch
from torch import Tensor
from torch.optim import Optimizer

from understudy_base import Record

Groups = Sequence[Record]


def named_parameters(groups: Groups) -> Iterator[tuple[str, Tensor]]:
    """Yield (name, parameter) in group order; unnamed ones are "parameter 3 of group 0"."""
    for number, group in enumerate(groups):
        names = group.get("param_names") or [
            f"parameter {i} of group {number}" for i in range(len(group["params"]))
        ]
        yield from zip(names, group["params"], strict=True)


def grad_dtype(parameter: Tensor) -> torch.dtype:
    """Return the dtype of a parameter's gradient: that of the parameter, or the one set instead
    (torch 2.10).
    """
    return getattr(parameter, "grad_dtype", None) or parameter.dtype


def local(tensor: Tensor) -> Tensor:
    """Return this rank's shard of a DTensor, and any other tensor unchanged."""
    return tensor.to_local() if hasattr(tensor, "to_local") else tensor


def plain_names(names: Sequence[str]) -> list[str]:
    """Return names without the prefixes of wrappers, or the names as given where two would
    coincide.

    Prefixes: DistributedDataParallel's `module.`, torch.compile's `_orig_mod.`, activation
    checkpointing's `_checkpoint_wrapped_module.`.
    """
    plain = [name.removeprefix("module.") for name in names]
    for wrapper in ("_orig_mod.", "_checkpoint_wrapped_module."):
        plain = [name.replace(wrapper, "") for name in plain]
    return plain if len(set(plain)) == len(plain) else list(names)


def check_moments(optimizer: Optimizer) -> None:
    """Raise ValueError where a moment, or any other floating state, has fewer than 32 bits.

    Adam's moments take the dtype of the weights that the optimizer steps. In bfloat16 the second
    moment stops moving (0.999 rounds to 1) and most updates fall below half a unit in the last
    place of the weight.
    """
    bad = []
    for name, parameter in named_parameters(optimizer.param_groups):
        for kind, value in optimizer.state.get(parameter, {}).items():
            if isinstance(value, Tensor) and value.is_floating_point() and value.element_size() < 4:
                bad.append(f"{name}: {kind} is {value.dtype}")
    if bad:
        more = f" (and {len(bad) - 1} more)" if len(bad) > 1 else ""
        raise ValueError(
            f"{bad[0]}{more}, and must be float32: keep float32 weights, or wrap the optimizer in "
            f"understudy.MasterWeights before its first step"
        )


def refuse_sharded(name: str, parameter: Tensor) -> None:
    """Raise TypeError for a parameter of FSDP (1 or 2) or DeepSpeed: those keep float32 masters
    themselves.
    """
    if hasattr(parameter, "placements"):  # DTensor, without importing torch.distributed.tensor
        raise TypeError(
            f"{name} is a DTensor (FSDP2 or tensor parallel): shard float32 weights and compute in "
            "bfloat16 with MixedPrecisionPolicy(param_dtype=torch.bfloat16, "
            "reduce_dtype=torch.float32); the shard is the master"
        )
    refuse_foreign(name, parameter)


def refuse_foreign(name: str, parameter: Tensor) -> None:
    """Raise TypeError for a parameter of FSDP1 or DeepSpeed."""
    if getattr(parameter, "_is_flat_param", False) or getattr(parameter, "_fsdp_flattened", False):
        raise TypeError(
            f"{name} belongs to FullyShardedDataParallel: keep float32 weights and give it "
            "MixedPrecision(param_dtype=torch.bfloat16, reduce_dtype=torch.float32); the shard is "
            "the master"
        )
    if hasattr(parameter, "ds_id"):
        raise TypeError(
            f"{name} belongs to DeepSpeed, whose engine keeps float32 masters: give it the bare "
            "optimizer"
        )


def grad_norm(parameters: Sequence[Tensor]) -> Tensor:
    """Compute the global 2-norm of the existing gradients in float32, 0-d, from any dtype.

    `torch.nn.utils.clip_grad_norm_` works in the gradients' dtype: bfloat16 gradients give a norm
    of 8 bits.
    """
    grads = [p.grad for p in parameters if p.grad is not None]
    if not grads:
        return torch.zeros(())
    norms = torch._foreach_norm(grads, 2.0, dtype=torch.float32)
    return torch.linalg.vector_norm(torch.stack([norm.to(grads[0].device) for norm in norms]), 2.0)


def clip_factor(norm: Tensor, max_norm: float) -> Tensor:
    """Return the factor, at most 1, that scales gradients of global norm `norm` down to
    `max_norm`.
    """
    return (max_norm / (norm + 1e-6)).clamp(max=1.0)


def in_order_of(groups: Groups, state_dict: Record) -> dict[str, Any]:
    """Reorder the groups and parameters of a state dict as in this optimizer: torch itself loads by
    order alone.

    Groups are matched by the set of their parameters' plain names, so a state saved under
    DistributedDataParallel loads without it. Where the optimizer or the file has no names, the
    order counts, and the numbers of groups and parameters must agree.

    Raises:
        ValueError: the names or the groups of the two differ.
    """
    saved: list[dict[str, Any]] = list(state_dict["param_groups"])
    named = all("param_names" in group for group in [*groups, *saved])
    if not named:
        theirs = [len(g["params"]) for g in saved]
        ours = [len(g["params"]) for g in groups]
        if theirs != ours:
            raise ValueError(
                f"the saved optimizer has groups of {theirs} parameters, this one has {ours}"
            )
        return dict(state_dict)
    theirs_names = _plain_by_group(saved)
    our_names = _plain_by_group(groups)
    theirs_all, our_all = (set().union(*names) for names in (theirs_names, our_names))
    if theirs_all != our_all:
        raise ValueError(
            f"the saved optimizer and this one have different parameters: only saved "
            f"{sorted(theirs_all - our_all)[:5]}, only here {sorted(our_all - theirs_all)[:5]}"
        )
    by_names = {frozenset(names): (names, group) for names, group in zip(theirs_names, saved)}
    ordered = []
    for number, (names, group) in enumerate(zip(our_names, groups)):
        if frozenset(names) not in by_names:
            raise ValueError(f"no saved group has the parameters of group {number}, {names[:5]} …")
        their_order, match = by_names[frozenset(names)]
        ids = dict(zip(their_order, match["params"], strict=True))
        ordered.append(
            {
                **match,
                "param_names": list(group["param_names"]),
                "params": [ids[name] for name in names],
            }
        )
    return {**state_dict, "param_groups": ordered}


def _plain_by_group(groups: Groups) -> list[list[str]]:
    """Plain names of each group's parameters; plain or not is decided over all of them."""
    names: list[str] = []
    for group in groups:
        names += group["param_names"]
    plain = iter(plain_names(names))
    by_group = []
    for group in groups:
        by_group.append([next(plain) for _ in group["param_names"]])
    return by_group


def given_masters(groups: Groups, masters: Mapping[str, Tensor]) -> dict[Tensor, Tensor]:
    """Return the given float32 tensors by parameter, for the bfloat16 parameters of `groups`.

    Names without a parameter here (buffers, frozen weights) are ignored, so a whole model's dict
    can be given.

    Raises:
        ValueError: the optimizer has no names, a bfloat16 parameter has no master, or one has
            another dtype or shape.
    """
    if not all("param_names" in group for group in groups):
        raise ValueError(
            "masters are given by name: build the optimizer from model.named_parameters()"
        )
    by_parameter = {}
    by_name = dict(zip(plain_names(list(masters)), masters.values()))
    named = list(named_parameters(groups))
    for plain, (name, parameter) in zip(plain_names([name for name, _ in named]), named):
        if parameter.dtype != torch.bfloat16:
            continue
        master = by_name.get(plain)
        if master is None:
            raise ValueError(f"{name} is bfloat16 and no float32 master was given for it")
        check_master(name, parameter, master)
        by_parameter[parameter] = master
    return by_parameter


def check_master(name: str, parameter: Tensor, master: Any) -> None:
    """Raise ValueError unless `master` is float32 and of the parameter's shape."""
    if not isinstance(master, Tensor) or master.dtype != torch.float32:
        kind = master.dtype if isinstance(master, Tensor) else type(master).__name__
        raise ValueError(
            f"the master of {name} is {kind}, and must be float32: take it before the weights are "
            "cast"
        )
    if master.shape != parameter.shape:
        raise ValueError(
            f"the master of {name} is {tuple(master.shape)}, the weight {tuple(parameter.shape)}"
        )
