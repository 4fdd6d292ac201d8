"""Features that older releases of torch lack. Everything else works with torch 2.7."""

import ctypes
from typing import TYPE_CHECKING

import torch

if TYPE_CHECKING:
    from understudy.config.mesh import MeshSettings


def has_gradient_sum() -> bool:
    """Return whether FSDP2 can sum gradients over the ranks (torch 2.8); before, it only averages
    them.
    """
    from torch.distributed.fsdp import FSDPModule

    return hasattr(FSDPModule, "set_force_sum_reduction_for_comms")


def has_grad_dtype() -> bool:
    """Return whether a bfloat16 weight can have a float32 gradient (torch 2.10)."""
    return hasattr(torch.Tensor, "grad_dtype")


def leave_groups_alive() -> None:
    """Keep the process groups of this process alive, where freeing them may deadlock.

    Before torch 2.8 a group is freed with the interpreter's lock held and waits for a lock of its
    threads. A thread that holds that lock to free a tensor waits for the interpreter's. The few
    idle threads of a run stay instead.
    """
    if not has_gradient_sum():
        for group in torch.distributed.distributed_c10d._world.pg_map:
            ctypes.pythonapi.Py_IncRef(ctypes.py_object(group))


def missing_feature(settings: "MeshSettings", world: int) -> str | None:
    """Return one line about a feature that `settings` on `world` processes needs and this torch
    lacks; None: none.
    """
    release = f"this is torch {torch.__version__}"
    if world > 1 and not has_gradient_sum():
        return (
            f"parallel: {world} processes need torch 2.8, whose FSDP2 can sum gradients, and "
            f"{release}: run one process"
        )
    batching = settings.batching
    split = (
        settings.precision == "bf16-split"
        and batching.accumulates()
        and batching.micro_batch_size != batching.batch_size
    )
    if split and world == 1 and not has_grad_dtype():
        return (
            "micro_batch_size: precision bf16-split needs torch 2.10, which sums gradients in "
            f"float32, and {release}: use precision bf16, or leave out micro_batch_size, "
            "max_num_tokens and max_samples"
        )
    return None
