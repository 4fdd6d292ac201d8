"""Report of parameters that the loss does not reach, before the first backward pass.

A parameter that no rank's loss reaches would silently stay untrained. One that only some ranks'
losses reach would make the other ranks wait for a gradient that never comes. So the first step of a
process walks the graph once, and the ranks compare.
"""

import fnmatch
import sys
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from fnmatch import fnmatchcase
from typing import Any

import torch
from torch import Tensor, nn

from understudy.distributed.mesh import Mesh
from understudy_base import ConfigError

Leaves = dict[Tensor, str]
SHOWN = 8


@contextmanager
def record_leaves(policy: nn.Module, mesh: Mesh, noted: bool = True) -> Iterator[Leaves]:
    """Record the names of the weights that a forward pass within this context uses; with `noted`
    False nothing.

    A sharded module has its gathered weights only during its forward pass, and the policy's own
    group only during that of the policy. So the weights of each sharded module are recorded when it
    is called, and those of the policy itself when the first of these modules is called.
    """
    leaves: Leaves = {}
    if not noted:
        yield leaves
        return
    prefixes: dict[nn.Module, str] = {}
    for name, module in policy.named_modules():
        prefixes[module] = f"{name}." if name else ""

    def note(module: nn.Module, _: Any = None) -> None:
        if not leaves and module is not policy:
            note(policy)
        leaves.update((p, prefixes[module] + name) for name, p in module.named_parameters())

    hooks = [
        part.register_forward_pre_hook(torch.compiler.disable(note))
        for part in _gathered_alone(policy, mesh)
    ]
    try:
        yield leaves
    finally:
        for hook in hooks:
            hook.remove()
    for name, parameter in policy.named_parameters():
        leaves.setdefault(parameter, name)


def _gathered_alone(policy: nn.Module, mesh: Mesh) -> list[nn.Module]:
    """Modules inside a policy whose weights are gathered at their call."""
    if mesh.world_size == 1:
        return []
    from torch.distributed.fsdp import FSDPModule

    return [
        module
        for name, module in policy.named_modules()
        if name and issubclass(type(module), FSDPModule)
    ]


def check_unused_parameters(policy: nn.Module, leaves: Leaves, loss: Tensor, mesh: Mesh) -> None:
    """Print the trained parameters that `loss` does not reach; all ranks call this together.

    Raises:
        ConfigError: on all ranks, where the ranks differ; names parameters and ranks.
    """
    reached = {leaves[leaf] for leaf in _leaves_below(loss) if leaf in leaves}
    trained = [name for name, parameter in policy.named_parameters() if parameter.requires_grad]
    unused = mesh.gather([name for name in trained if name not in reached])
    everywhere = set(unused[0]).intersection(*unused)
    for rank, names in enumerate(unused):
        if odd := [name for name in names if name not in everywhere]:
            raise ConfigError(
                f"the loss of rank {rank} does not reach {_listed(odd)}, and that of another rank "
                "does: all ranks must use the same parameters in each step, or they wait for each "
                "other; give every sample a (zero) share in them, or name them in optim.freeze"
            )
    if everywhere and mesh.rank == 0:
        unread = [name for name in trained if name in everywhere]
        patterns = " ".join(f"'{pattern}'" for pattern in freeze_patterns(unread, trained)[:SHOWN])
        print(
            f"no gradient reaches {_listed(unread)}: they stay untrained; "
            f"--optim.freeze {patterns} saves their moments",
            file=sys.stderr,
        )


def freeze_patterns(unread: Sequence[str], trained: Sequence[str]) -> list[str]:
    """Return short patterns that fit the names `unread`, and no other name in `trained`."""
    patterns: list[str] = []
    for name in unread:
        if any(fnmatchcase(name, pattern) for pattern in patterns):
            continue
        parts = name.split(".")
        prefixes = [".".join(parts[:count]) + ".*" for count in range(1, len(parts))]
        fitting = (
            prefix for prefix in prefixes if set(fnmatch.filter(trained, prefix)) <= set(unread)
        )
        patterns.append(next(fitting, name))
    return patterns


def _leaves_below(loss: Tensor) -> Iterator[Tensor]:
    """Yield the tensors that autograd gives a gradient to."""
    nodes = [loss.grad_fn] if loss.grad_fn is not None else []
    seen = set(nodes)
    while nodes:
        node = nodes.pop()
        if (leaf := getattr(node, "variable", None)) is not None:
            yield leaf
        for below, _ in node.next_functions:
            if below is not None and below not in seen:
                seen.add(below)
                nodes.append(below)


def _listed(names: list[str]) -> str:
    more = f" and {len(names) - SHOWN} more" if len(names) > SHOWN else ""
    return ", ".join(names[:SHOWN]) + more
