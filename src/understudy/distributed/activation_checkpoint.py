"""Activation checkpointing: what a block of the network computes is forgotten, and computed again in the backward pass.

Memory for time, and nothing else: losses and gradients are the same bits. `selective` keeps what is dear, the results
of matrix products, convolutions and attention, and computes again what is cheap between them; `full` keeps a block's
inputs alone. Goes with every mesh, every precision and `compile`. It is the first thing done to a policy: then comes
`compile.py`, then `parallel.shard`, which must gather a block's weights around its second computation too.
"""

from collections.abc import Iterable, Iterator
from contextlib import AbstractContextManager, contextmanager
from typing import Any, Literal

import torch
from torch import nn
from torch.utils.checkpoint import checkpoint, create_selective_checkpoint_contexts

from understudy.errors import ConfigError

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
"""What `selective` keeps: nearly all of a network's arithmetic and about half of its activations."""


def apply_activation_checkpointing(blocks: Iterable[nn.Module], kept: CheckpointMode) -> None:
    """Let each of `blocks` forget its activations, in place; parameters and modules keep their names.

    Args:
        kept: "none" changes nothing.
    Raises:
        ConfigError: the policy names no blocks.
        ValueError: a block has been compiled or sharded already, or is inside another block.
    """
    if kept == "none":
        return
    chosen = list(blocks)
    if not chosen:
        raise ConfigError(f"activation_checkpoint: {kept}: this policy has no blocks to do it with; use none")
    for block in chosen:
        name = type(block).__name__
        if block._compiled_call_impl is not None or isinstance(block, _fully_sharded()):
            raise ValueError(
                f"{name} is compiled or sharded already: apply activation checkpointing, compile, shard in this order"
            )
        if any(isinstance(module, _Checkpointed) for module in block.modules()):
            raise ValueError(f"{name} forgets its activations already, or a block inside it does: name a module once")
    for block in chosen:
        # Of another class rather than inside a wrapper or with a `forward` of its own: names stay, and a copy of the
        # block computes with the copy's weights. (fully_shard does the same.)
        block.__class__ = _forgetful(type(block), kept)


@contextmanager
def without_checkpointing(policy: nn.Module) -> Iterator[None]:
    """While this lasts the blocks of `policy` keep their activations: to count what a step must compute."""
    blocks = [module for module in policy.modules() if isinstance(module, _Checkpointed)]
    for block in blocks:
        block.forgets = False
    try:
        yield
    finally:
        for block in blocks:
            block.forgets = True


class _Checkpointed(nn.Module):
    """Stands before a block's own class."""

    kept: CheckpointMode = "full"
    forgets: bool = True

    def forward(self, *args: Any, **kwargs: Any) -> Any:
        if not (self.forgets and torch.is_grad_enabled()):
            return super().forward(*args, **kwargs)
        more: dict[str, Any] = {"context_fn": _selective} if self.kept == "selective" else {}
        return checkpoint(super().forward, *args, use_reentrant=False, **more, **kwargs)


_CLASSES: dict[tuple[type, CheckpointMode], type[nn.Module]] = {}


def _forgetful(plain: type[nn.Module], kept: CheckpointMode) -> type[nn.Module]:
    """One class for all blocks of a class, or each of them would be compiled by itself."""
    if (plain, kept) not in _CLASSES:
        _CLASSES[plain, kept] = type(f"Forgetful{plain.__name__}", (_Checkpointed, plain), {"kept": kept})
    return _CLASSES[plain, kept]


def _selective() -> tuple[AbstractContextManager[Any], AbstractContextManager[Any]]:
    return create_selective_checkpoint_contexts(SAVED)


def _fully_sharded() -> type:
    from torch.distributed.fsdp import FSDPModule

    return FSDPModule
