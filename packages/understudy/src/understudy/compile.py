"""torch.compile, block by block: the blocks of a network are alike, so one compilation serves all.

Text, images of any size and the losses stay plain code, and the weights of a sharded block are
gathered outside of the compiled code. Compiled arithmetic rounds differently (a few units in the
last place), so turning it on or off changes the last digits of a run. It comes after
`activation_checkpoint.py` and before `mesh.shard`.
"""

import os
import shutil
import sys
from collections.abc import Callable, Iterable
from contextlib import AbstractContextManager, nullcontext
from typing import Any

import torch
from torch import nn
from torch.nn.attention import SDPBackend, sdpa_kernel

from understudy_base import ConfigError

VARIANTS = 64
"""Compiled variants of a block: one for each mask or none, fixed or varying lengths, training or
validation, and so on. Beyond torch's limit of 8 a block would silently run uncompiled for the rest
of the run. The limit holds while a block runs, and no longer: other code of the process keeps its
own.
"""


def compile_blocks(blocks: Iterable[nn.Module], device: torch.device) -> None:
    """Compile each of `blocks` in place at its first call; parameters and modules keep their names.

    Raises:
        ConfigError: this machine cannot compile, or there are no blocks.
        ValueError: a block is sharded already.
    """
    from torch.distributed.fsdp import FSDPModule

    if problem := missing_compiler(device):
        raise ConfigError(f"compile: {problem}; or leave compile off")
    chosen = list(blocks)
    if not chosen:
        raise ConfigError("compile: this policy has no blocks to compile; leave compile off")
    for block in chosen:
        if isinstance(block, FSDPModule):
            raise ValueError(
                f"{type(block).__name__} is sharded already: compile comes before shard"
            )
    for block in chosen:
        block.compile()
        assert block._compiled_call_impl is not None
        block._compiled_call_impl = _with_variants(block._compiled_call_impl)


def _with_variants(call: Callable[..., Any]) -> Callable[..., Any]:
    """Call a compiled function under torch's limit of `VARIANTS`."""

    def limited(*args: Any, **kwargs: Any) -> Any:
        config = torch._dynamo.config
        before = config.recompile_limit
        config.recompile_limit = max(VARIANTS, before)
        try:
            return call(*args, **kwargs)
        finally:
            config.recompile_limit = before

    return limited


def missing_compiler(device: torch.device) -> str | None:
    """Return the missing requirement of torch.compile for `device` with its remedy; None: it can
    compile.
    """
    if device.type == "cuda":
        from torch.utils._triton import has_triton

        return (
            None
            if has_triton()
            else "GPU code needs triton, which is not installed or too old for this GPU"
        )
    default = "clang++" if sys.platform == "darwin" else "g++"
    compiler = os.environ.get("CXX", default)
    if shutil.which(compiler.split()[0]) is None:
        return (
            f"CPU code needs a C++ compiler, and there is no {compiler}: install one, or name "
            "it in CXX"
        )
    return None


def is_compile_error(error: BaseException) -> bool:
    """Return whether torch.compile failed: among other causes, a signal to the process group ended
    its compiler.
    """
    modules = [kind.__module__ for kind in type(error).__mro__]
    return any(module.startswith(("torch._dynamo", "torch._inductor")) for module in modules)


def attention_kernels(setting: str) -> AbstractContextManager[None]:
    """Compute each `scaled_dot_product_attention` of this block with the kernels that a setting
    names.

    It holds for a backward pass inside the block, too, which may recompute attention.

    Args:
        setting: "sdpa": the fastest kernel that fits. "eager": two matrix products and a softmax.
    """
    return nullcontext() if setting == "sdpa" else sdpa_kernel(SDPBackend.MATH)
