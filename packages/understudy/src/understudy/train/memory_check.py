"""Memory of the state of a run, against that of its machine and its GPU, before anything is
allocated.
"""

import os
from pathlib import Path

import torch

from understudy.config.train import EmaConfig
from understudy.distributed.mesh import Mesh
from understudy.policies.policy import Policy
from understudy_base import ConfigError


def check_whole_weights(policy: Policy, mesh: Mesh, free: int | None = None) -> None:
    """Raise ConfigError where a network that each process builds whole, in float32, exceeds the
    memory of the machine.

    Args:
        policy: the policy on the meta device.
        mesh: the processes.
        free: bytes of the machine for all of them; None: as measured.
    """
    size = 4 * sum(weight.numel() for weight in policy.parameters())
    _check_host(policy, mesh, size, free)


def check_filled_weights(policy: Policy, mesh: Mesh, free: int | None = None) -> None:
    """Raise ConfigError where the weights that each process fills, in their dtypes, exceed the
    memory of the machine.

    On a GPU they are filled there, and the machine needs no memory for them.

    Args:
        policy: the policy on the meta device, with its adapters, the frozen base in its dtype.
        mesh: the processes.
        free: bytes of the machine for all of them; None: as measured.
    """
    if mesh.device.type != "cuda":
        size = sum(weight.numel() * weight.element_size() for weight in policy.parameters())
        _check_host(policy, mesh, size // mesh.shape[1], free)


def _check_host(policy: Policy, mesh: Mesh, size: int, free: int | None) -> None:
    needed = size * mesh.local_world_size
    available = available_memory() if free is None else free
    if needed > available:
        count = sum(weight.numel() for weight in policy.parameters())
        raise ConfigError(
            f"policy: {count:,} parameters take {needed / 1e9:,.1f} GB in {mesh.local_world_size} "
            f"processes, and this machine has {available / 1e9:,.1f} GB: choose a smaller network "
            "(policy.*)"
        )


def available_memory() -> int:
    """Return the bytes of memory for all processes here: the machine's, or less where a container
    has less.
    """
    limits = [os.sysconf("SC_PAGE_SIZE") * os.sysconf("SC_PHYS_PAGES")]
    for path in ("/sys/fs/cgroup/memory.max", "/sys/fs/cgroup/memory/memory.limit_in_bytes"):
        try:
            limits.append(int(Path(path).read_text(encoding="utf-8")))
        except (OSError, ValueError):  # another version of cgroups, or "max"
            continue
    return min(limits)


def free_memory(device: torch.device) -> int | None:
    """Return the free bytes of a GPU; None on a CPU."""
    return torch.cuda.mem_get_info(device)[0] if device.type == "cuda" else None


def check_gpu_memory(
    policy: Policy, precision: str, ema: EmaConfig, mesh: Mesh, free: int | None
) -> None:
    """Raise ConfigError where weights, gradients, moments and average alone exceed the `free` bytes
    of a GPU.
    """
    if free is None:
        return
    trained = 14 if precision == "bf16-split" else 16
    averaged = 4 if ema.decay else 0
    needed = 0
    for parameter in policy.parameters():
        size = trained + averaged if parameter.requires_grad else parameter.element_size()
        needed += parameter.numel() * size
    needed //= mesh.shape[1]
    if needed > free:
        raise ConfigError(
            f"policy: weights, gradients and optimizer state take {needed / 1e9:,.1f} GB on each "
            f"GPU, and {free / 1e9:,.1f} GB are free: set parallel.dp_shard, lora.rank or "
            "optim.freeze; `understudy plan` shows the memory of other settings"
        )
