"""torch.compile, block by block: the blocks of a network are alike, so one of them is compiled for all.

Blocks and not the whole policy: text, pictures of any size and the losses stay plain code, and the weights of a sharded
block are gathered outside of what is compiled. Compiled arithmetic rounds differently from plain one (a few units in
the last place), so a run changes its last digits when this is turned on or off. Comes after `activation_checkpoint.py`
and before `parallel.shard`.
"""

import os
import shutil
import sys
from collections.abc import Iterable

import torch
from torch import nn

from understudy.errors import ConfigError


def compile_blocks(blocks: Iterable[nn.Module], device: torch.device) -> None:
    """Compile each of `blocks` in place, when it is first called; parameters and modules keep their names.

    Raises:
        ConfigError: this machine lacks what compiling needs, or the policy names no blocks.
        ValueError: a block has been sharded already.
    """
    from torch.distributed.fsdp import FSDPModule

    if problem := missing_compiler(device):
        raise ConfigError(f"compile: {problem}; or leave compile off")
    chosen = list(blocks)
    if not chosen:
        raise ConfigError("compile: this policy has no blocks to compile; leave compile off")
    for block in chosen:
        if isinstance(block, FSDPModule):
            raise ValueError(f"{type(block).__name__} is sharded already: compile comes before shard")
    for block in chosen:
        block.compile()


def missing_compiler(device: torch.device) -> str | None:
    """What torch.compile would need for `device` and does not find here, and how to get it."""
    if device.type == "cuda":
        from torch.utils._triton import has_triton

        return None if has_triton() else "GPU code is made by triton, which is not installed or too old for this GPU"
    compiler = os.environ.get("CXX", "clang++" if sys.platform == "darwin" else "g++")
    if shutil.which(compiler.split()[0]) is None:
        return f"CPU code is made by a C++ compiler, and there is no {compiler}: install one, or name it in CXX"
    return None
