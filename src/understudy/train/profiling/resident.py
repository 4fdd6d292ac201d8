"""Bytes that the state of a run takes between steps."""

from collections.abc import Sequence

from torch import Tensor

from understudy.optim.state import local
from understudy.train.state import TrainState


def resident_memory(state: TrainState) -> dict[str, int]:
    """Return the bytes on this rank just after a step: parameters, gradients, optimizer state, average.

    Frozen parameters that the average shares with the policy count as parameters alone.
    """

    def size(tensors: Sequence[Tensor | None]) -> int:
        parts = [local(tensor) for tensor in tensors if tensor is not None]
        return sum(part.numel() * part.element_size() for part in parts)

    parameters = list(state.policy.parameters())
    held = {_storage(parameter) for parameter in parameters}
    average = [] if state.average is None else [*state.average.parameters(), *state.average.buffers()]
    return {
        "parameters": size([*parameters, *state.policy.buffers()]),
        "gradients": size([parameter.grad for parameter in parameters]),
        "optimizer state": size([value for state in state.optimizer.state.values() for value in state.values()]),
        "average": size([tensor for tensor in average if _storage(tensor) not in held]),
    }


def resident_tensors(state: TrainState) -> list[Tensor]:
    """Return the tensors of `resident_memory` on this rank."""
    modules = [state.policy] if state.average is None else [state.policy, state.average]
    tensors: list[Tensor] = [tensor for module in modules for tensor in (*module.parameters(), *module.buffers())]
    tensors += [parameter.grad for parameter in state.policy.parameters() if parameter.grad is not None]
    tensors += [value for values in state.optimizer.state.values() for value in values.values()]
    return [local(tensor) for tensor in tensors]


def _storage(tensor: Tensor) -> int:
    """Identity of the memory of a tensor, also of one without values."""
    return local(tensor).untyped_storage()._cdata
