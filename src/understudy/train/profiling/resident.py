"""Bytes that the state of a run takes between steps."""

from collections.abc import Sequence

from torch import Tensor

from understudy.optim.state import local
from understudy.train.state import TrainState


def resident_memory(state: TrainState) -> dict[str, int]:
    """Return the bytes on this rank just after a step: parameters, gradients, optimizer state, average."""

    def size(tensors: Sequence[Tensor | None]) -> int:
        parts = [local(tensor) for tensor in tensors if tensor is not None]
        return sum(part.numel() * part.element_size() for part in parts)

    parameters, average = list(state.policy.parameters()), state.average
    return {
        "parameters": size([*parameters, *state.policy.buffers()]),
        "gradients": size([parameter.grad for parameter in parameters]),
        "optimizer state": size([value for state in state.optimizer.state.values() for value in state.values()]),
        "average": size([*average.parameters(), *average.buffers()]) if average is not None else 0,
    }
