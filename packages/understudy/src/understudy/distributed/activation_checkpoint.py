"""Activation checkpointing: discard the activations of a block and recompute them in the backward
pass.

It trades time for memory; losses and gradients are the same bits, also of blocks that draw random
numbers. `selective` keeps the expensive results, those of matrix products, convolutions and
attention, and recomputes the cheap ones between them. `full` keeps a block's inputs only. Both work
with every mesh, every precision and `compile`. Activation checkpointing comes first, then
`compile.py`, then `mesh.shard`, which must also gather a block's weights for the recomputation.
"""

import functools
import pickle
import random
from collections.abc import Callable, Iterable, Iterator, Sequence
from contextlib import contextmanager
from fnmatch import fnmatchcase
from typing import Any, Literal

import numpy as np
import torch
from torch import nn
from torch.utils.checkpoint import checkpoint, create_selective_checkpoint_contexts

from understudy_base import ConfigError

CheckpointMode = Literal["none", "selective", "full"]

aten = torch.ops.aten
SAVED = [
    aten.mm.default,
    aten.addmm.default,
    aten.bmm.default,
    aten.baddbmm.default,
    aten.convolution.default,
    aten._scaled_dot_product_flash_attention.default,
    aten._scaled_dot_product_flash_attention_for_cpu.default,
    aten._scaled_dot_product_efficient_attention.default,
    aten._scaled_dot_product_cudnn_attention.default,
]
"""Operations whose results `selective` keeps: nearly all of a network's arithmetic, about half of
its activations.
"""
SELECTIVE = functools.partial(create_selective_checkpoint_contexts, SAVED)


def select_blocks(
    policy: nn.Module, blocks: Iterable[nn.Module], chosen: Sequence[str]
) -> list[nn.Module]:
    """Return the blocks that are checkpointed.

    Args:
        policy: the module around the blocks.
        blocks: all of them, in their sequence.
        chosen: one number N for every N-th block, or patterns of names in `policy`; empty: all
            blocks.

    Raises:
        ConfigError: N is 0 or above the number of blocks, or a pattern fits no block.
    """
    every = list(blocks)
    setting = "activation_checkpoint_blocks"
    if not chosen:
        return every
    if len(chosen) == 1 and chosen[0].isdecimal():
        step = int(chosen[0])
        if not 1 <= step <= len(every):
            raise ConfigError(
                f"{setting}: {step}: must be from 1 to {len(every)}, the number of blocks"
            )
        return every[step - 1 :: step]
    names = {id(module): name for name, module in policy.named_modules()}
    named = {names[id(block)]: block for block in every}
    for pattern in chosen:
        if not any(fnmatchcase(name, pattern) for name in named):
            raise ConfigError(
                f"{setting}: {pattern!r} fits no block; there are {', '.join(list(named)[:5])}, …"
            )
    fitting = []
    for name, block in named.items():
        if any(fnmatchcase(name, pattern) for pattern in chosen):
            fitting.append(block)
    return fitting


def apply_activation_checkpointing(blocks: Iterable[nn.Module], mode: CheckpointMode) -> None:
    """Make each of `blocks` recompute its activations, in place; parameters and modules keep their
    names.

    Args:
        blocks: modules that are not nested.
        mode: "none" changes nothing.

    Raises:
        ConfigError: there are no blocks.
        ValueError: a block is compiled or sharded already, or is inside another block.
    """
    from torch.distributed.fsdp import FSDPModule

    if mode == "none":
        return
    chosen = list(blocks)
    if not chosen:
        raise ConfigError(f"activation_checkpoint: {mode}: this policy has no blocks; use none")
    for block in chosen:
        name = type(block).__name__
        if block._compiled_call_impl is not None or isinstance(block, FSDPModule):
            raise ValueError(
                f"{name} is compiled or sharded already: apply activation checkpointing, compile, "
                "shard in this order"
            )
        if any(isinstance(module, _Checkpointed) for module in block.modules()):
            raise ValueError(
                f"{name} or a block inside it is checkpointed already: name each module once"
            )
    for block in chosen:
        # Another class, instead of a wrapper or a new `forward`, keeps the names, and a copy of the
        # block computes with the copy's weights. (fully_shard does the same.) A class is hashable.
        block.__class__ = _checkpointed(type(block), mode)  # type: ignore[arg-type]


@contextmanager
def without_checkpointing(policy: nn.Module) -> Iterator[None]:
    """Keep all activations of `policy` within this context, to count the operations that a step
    needs.
    """
    blocks = [module for module in policy.modules() if isinstance(module, _Checkpointed)]
    for block in blocks:
        block.recomputes = False
    try:
        yield
    finally:
        for block in blocks:
            block.recomputes = True


class _Checkpointed(nn.Module):
    """Mixin in front of a block's own class."""

    mode: CheckpointMode = "full"
    recomputes: bool = True
    draws: bool | None = None
    """Whether the first forward pass drew from numpy or `random`; None: there was none. Their
    states take 0.1 ms.
    """

    def forward(self, *args: Any, **kwargs: Any) -> Any:
        if not (self.recomputes and torch.is_grad_enabled()):
            return super().forward(*args, **kwargs)
        more: dict[str, Any] = {"context_fn": SELECTIVE} if self.mode == "selective" else {}
        # compiled code draws no such numbers
        if self.draws is False or torch.compiler.is_compiling():
            return checkpoint(super().forward, *args, use_reentrant=False, **more, **kwargs)
        before = _get_states()
        compute = _Repeating(super().forward, before)
        result = checkpoint(compute, *args, use_reentrant=False, **more, **kwargs)
        if self.draws is None:
            self.draws = not _are_equal(before, _get_states())
        return result


class _Repeating:
    """A function whose later calls draw the numbers of its first from numpy and `random`, and move
    neither.

    torch restores its own generators alone.
    """

    def __init__(self, compute: Callable[..., Any], before: "_States") -> None:
        self.compute = compute
        self.before = before
        self.is_first = True

    def __call__(self, *args: Any, **kwargs: Any) -> Any:
        if self.is_first:
            self.is_first = False
            return self.compute(*args, **kwargs)
        now = _get_states()
        _set_states(self.before)
        try:
            return self.compute(*args, **kwargs)
        finally:
            _set_states(now)


_States = tuple[Any, Any]
"""State of the global generators of numpy and of `random`."""


def _get_states() -> _States:
    # a block draws from them
    return np.random.get_state(legacy=False), random.getstate()  # noqa: NPY002


def _are_equal(one: _States, two: _States) -> bool:
    of_numpy, of_python = one
    other_numpy, other_python = two
    return pickle.dumps(of_numpy) == pickle.dumps(other_numpy) and of_python == other_python


def _set_states(states: _States) -> None:
    of_numpy, of_python = states
    np.random.set_state(of_numpy)  # noqa: NPY002
    random.setstate(of_python)


@functools.cache
def _checkpointed(plain: type[nn.Module], mode: CheckpointMode) -> type[nn.Module]:
    """One class for all blocks of a class; with several, each would be compiled separately."""
    return type(f"Checkpointed{plain.__name__}", (_Checkpointed, plain), {"mode": mode})
