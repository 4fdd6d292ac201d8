"""Check before a run that its state fits: in the memory of its machine, and in that of its GPU."""

import torch

from understudy.config.limits import available_memory
from understudy.config.train import TrainConfig
from understudy.distributed.mesh import Mesh
from understudy.errors import ConfigError
from understudy.policies.policy import Policy


def check_memory(policy: Policy, mesh: Mesh) -> None:
    """Raise ConfigError where the state of a run exceeds the memory of its machine or of its GPU.

    A policy that is built whole also needs its float32 weights once per process in the memory of the machine.
    """
    count = sum(weight.numel() for weight in policy.parameters())
    held = 1 if not policy.fills_weights else 0 if mesh.device.type == "cuda" else 1 / mesh.shape[1]
    needed, here = int(4 * count * held * mesh.local_world_size), available_memory()
    if needed > here:
        raise ConfigError(
            f"policy: {count:,} parameters take {needed / 1e9:,.0f} GB in {mesh.local_world_size} processes, and this "
            f"machine has {here / 1e9:,.0f} GB: choose a smaller network (policy.*)"
        )


def free_memory(device: torch.device) -> int | None:
    """Free bytes of a GPU; None on a CPU."""
    return torch.cuda.mem_get_info(device)[0] if device.type == "cuda" else None


def check_gpu_memory(policy: Policy, config: TrainConfig, mesh: Mesh, free: int | None) -> None:
    """Raise ConfigError where weights, gradients, moments and average alone exceed the `free` bytes of a GPU."""
    if free is None:
        return
    trained = 14 if config.precision == "bf16-split" else 16
    kept = 4 if config.optim.ema.decay else 0
    needed = sum(p.numel() * (trained + kept if p.requires_grad else p.element_size()) for p in policy.parameters())
    needed //= mesh.shape[1]
    if needed > free:
        raise ConfigError(
            f"policy: weights, gradients and optimizer state take {needed / 1e9:,.1f} GB on each GPU, and "
            f"{free / 1e9:,.1f} GB are free: set parallel.dp_shard, lora.rank or optim.freeze; `understudy plan` shows "
            f"the memory of other settings"
        )
