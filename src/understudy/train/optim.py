"""The optimizer: AdamW in float32 with its whole state there from the start, an average of the weights, and names.

Not here: the step itself (`step.py`), the learning rate over time (`schedule.py`), other storages of the float32 truth.
"""

import copy
from typing import TypeVar

import torch
from torch import Tensor, nn

from understudy.train.config import OptimConfig

Policy = TypeVar("Policy", bound=nn.Module)


def adamw(policy: nn.Module, config: OptimConfig) -> torch.optim.AdamW:
    """AdamW over the policy's parameters; matrices decay, vectors (biases, gains) do not.

    The moments are made here, not in the first step, so that a fresh run and a resumed one are the same thing and a
    checkpoint can be loaded in place. Fused, because that kernel alone can skip a step without asking the host
    (`step.py`).
    """
    named = [(name, p) for name, p in policy.named_parameters() if p.requires_grad]
    for name, parameter in named:
        if parameter.dtype != torch.float32:
            raise ValueError(f"{name} is {parameter.dtype}: weights and moments are kept in float32")
    optimizer = torch.optim.AdamW(
        [
            {"params": [p for _, p in named if p.ndim >= 2], "weight_decay": config.weight_decay},
            {"params": [p for _, p in named if p.ndim < 2], "weight_decay": 0.0},
        ],
        lr=config.lr,
        betas=(config.beta1, config.beta2),
        eps=config.eps,
        fused=True,
    )
    for _, parameter in named:
        optimizer.state[parameter] = {
            "step": torch.zeros((), dtype=torch.float32, device=parameter.device),
            "exp_avg": torch.zeros_like(parameter, memory_format=torch.preserve_format),
            "exp_avg_sq": torch.zeros_like(parameter, memory_format=torch.preserve_format),
        }
    return optimizer


def average_of(policy: Policy) -> Policy:
    """A second policy that holds the moving average of the weights; it starts as a copy."""
    return copy.deepcopy(policy).requires_grad_(False).eval()


@torch.no_grad()
def update_average(average: nn.Module, policy: nn.Module, decay: float, step: int) -> None:
    """average += (1 - d) * (policy - average), in float32, with d = min(decay, (1 + step) / (10 + step)).

    The ramp (as in TensorFlow's ExponentialMovingAverage with `num_updates`) lets the first weights be forgotten; it
    depends on the step alone. A skipped optimizer step counts like one that did not move the weights.
    """
    weight = 1 - min(decay, (1 + step) / (10 + step))
    torch._foreach_lerp_(list(average.parameters()), list(policy.parameters()), weight)


def named_tensors(policy: nn.Module, optimizer: torch.optim.Optimizer, average: nn.Module | None) -> dict[str, Tensor]:
    """All that a checkpoint must hold, as live tensors by name: filling these in place restores the training."""
    tensors = {f"weights/{name}": tensor for name, tensor in policy.state_dict().items()}
    for name, parameter in policy.named_parameters():
        for kind, tensor in optimizer.state.get(parameter, {}).items():
            tensors[f"{kind}/{name}"] = tensor
    if average is not None:
        tensors.update({f"average/{name}": tensor for name, tensor in average.state_dict().items()})
    return tensors


def table(policy: nn.Module, optimizer: torch.optim.Optimizer, average: nn.Module | None, compute: str) -> str:
    """What is kept in which precision, and its bytes: one line per kind, for the eye at the start of a run."""
    parameters = list(policy.parameters())
    moments = [t for state in optimizer.state.values() for t in state.values()]
    kinds = {
        "parameters": parameters,
        "gradients": [p for p in parameters if p.requires_grad],
        "optimizer state": moments,
        "average": list(average.parameters()) if average is not None else [],
    }
    lines = [f"{sum(p.numel() for p in parameters):,} parameters, arithmetic in {compute}"]
    for kind, tensors in kinds.items():
        if tensors:
            dtypes = ", ".join(sorted({str(t.dtype).removeprefix("torch.") for t in tensors}))
            size = sum(t.numel() * t.element_size() for t in tensors)
            lines.append(f"  {kind:<16} {dtypes:<10} {size / 2**20:10.2f} MiB")
    return "\n".join(lines)
