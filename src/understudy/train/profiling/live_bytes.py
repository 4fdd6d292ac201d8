"""Bytes of live tensors over time, counted at each operation: of real tensors, and of fake ones without values."""

import weakref
from collections.abc import Callable, Iterable, Mapping, Sequence
from contextlib import AbstractContextManager
from typing import Any, Self

import torch
from torch import Tensor, nn
from torch.utils._python_dispatch import TorchDispatchMode
from torch.utils._pytree import tree_iter

Run = Callable[[Any, Sequence[Any], Mapping[str, Any]], Any]


class LiveBytes(TorchDispatchMode):
    """Context that counts the storages made in it, from their first operation until their last tensor is gone.

    Memory that a kernel takes and frees inside an operation is not counted.

    Attributes:
        now: bytes of live storages.
        peak: largest `now` since the last `reset`.
        activations: largest increase of `now` over a phase `forward` (`__call__`) since the last `reset`.
    """

    def __init__(self, sums_copies: bool = False, run: Run = lambda func, args, kwargs: func(*args, **kwargs)) -> None:
        """Start at 0.

        Args:
            sums_copies: whether to count a copy of the input during each reduce-scatter. Gloo sums a copy; in a group
                of absent ranks, which sums nothing, there is none.
            run: runs each operation (function, arguments, named arguments), such as a `ShapeCache`.
        """
        super().__init__()  # type: ignore[no-untyped-call]
        self.now = self.peak = self.activations = 0
        self._sums_copies = sums_copies
        self._run = run
        self._sizes: dict[int, int] = {}

    def reset(self) -> None:
        """Restart `peak` and `activations` from the present level."""
        self.peak, self.activations = self.now, 0

    def __call__(self, phase: str) -> AbstractContextManager[object]:
        """Return the context of a phase of a step: this object is the step's timer."""
        return _Phase(self, phase)

    def watch(self, tensors: Iterable[Tensor]) -> None:
        """Count tensors that exist already."""
        for tensor in tensors:
            self._count(tensor)

    def __enter__(self) -> Self:
        """Start counting, also where FSDP2 frees a gathered weight by resizing its storage."""
        resize = self._resize = torch.UntypedStorage.resize_

        def counted(storage: torch.UntypedStorage, size: int) -> Any:
            found = resize(storage, size)
            self._set(storage)
            return found

        torch.UntypedStorage.resize_ = counted  # type: ignore[method-assign,assignment]
        super().__enter__()  # type: ignore[no-untyped-call]
        return self

    def __exit__(self, *error: Any) -> None:
        """Stop counting; storages that go later are still subtracted."""
        torch.UntypedStorage.resize_ = self._resize  # type: ignore[method-assign]
        super().__exit__(*error)  # type: ignore[no-untyped-call]

    def __torch_dispatch__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        """Run an operation and count its results."""
        out = self._run(func, args, kwargs or {})
        for tensor in tree_iter(out):
            if isinstance(tensor, Tensor):
                self._count(tensor)
        if self._sums_copies and func.namespace == "c10d" and "reduce_scatter" in func.__name__:
            copies = sum(tensor.nbytes for tensor in tree_iter(args[1]) if isinstance(tensor, Tensor))
            self.peak = max(self.peak, self.now + copies)
        return out

    @classmethod
    def _should_skip_dynamo(cls) -> bool:
        """Leave out torch's guard against compilation: it takes longer than the counting, and nothing is compiled."""
        return False

    def _count(self, tensor: Tensor) -> None:
        if hasattr(tensor, "placements"):
            return  # its local tensor was counted
        storage = tensor.untyped_storage()
        if storage._cdata not in self._sizes:
            self._sizes[storage._cdata] = 0
            weakref.finalize(storage, self._forget, storage._cdata)
            self._set(storage)

    def _set(self, storage: torch.UntypedStorage) -> None:
        """Count the present size of a storage that was seen."""
        key = storage._cdata
        if key in self._sizes:
            self.now += storage.nbytes() - self._sizes[key]
            self._sizes[key] = storage.nbytes()
            self.peak = max(self.peak, self.now)

    def _forget(self, key: int) -> None:
        self.now -= self._sizes.pop(key, 0)


class CudaBytes:
    """Timer of a step that reads torch's allocator of the current GPU, with the attributes of `LiveBytes`.

    The allocator counts the work of all threads, libraries such as cuBLAS included, at the call of each kernel.
    """

    def __init__(self) -> None:
        """Start `peak` at the present level."""
        torch.cuda.reset_peak_memory_stats()
        self.activations = 0

    @property
    def now(self) -> int:
        """Bytes of live tensors."""
        return torch.cuda.memory_allocated()

    @property
    def peak(self) -> int:
        """Largest `now` since the start."""
        return torch.cuda.max_memory_allocated()

    def __call__(self, phase: str) -> AbstractContextManager[object]:
        """Return the context of a phase of a step."""
        return _Phase(self, phase)


class _Phase(AbstractContextManager[None]):
    def __init__(self, live: LiveBytes | CudaBytes, phase: str) -> None:
        self._live, self._phase = live, phase

    def __enter__(self) -> None:
        self._before = self._live.now

    def __exit__(self, *_: object) -> None:
        if self._phase == "forward":
            self._live.activations = max(self._live.activations, self._live.now - self._before)


def without_values(value: Any) -> Any:
    """Return a tensor of the same shape, dtype and no values, made in the current mode on the CPU; others unchanged."""
    if not isinstance(value, Tensor):
        return value
    return torch.empty(value.shape, dtype=value.dtype, device="cpu")


def forget_values(module: nn.Module) -> None:
    """Replace parameters and buffers by tensors `without_values`, in place."""
    for part in module.modules():
        for name, parameter in part.named_parameters(recurse=False):
            fresh = nn.Parameter(without_values(parameter.data), requires_grad=parameter.requires_grad)
            part.register_parameter(name, fresh)
        for name, buffer in part.named_buffers(recurse=False):
            part._buffers[name] = without_values(buffer)
