"""Bytes of live tensors over time, counted at each operation: of real tensors, and of fake ones
without values.
"""

import weakref
from collections.abc import Iterable, Iterator
from contextlib import contextmanager
from typing import Any

import torch
from torch import Tensor, nn
from torch._subclasses.fake_tensor import FakeTensor
from torch.utils._python_dispatch import TorchDispatchMode
from torch.utils._pytree import tree_iter
from torch.utils.flop_counter import flop_registry

_DEVICE_OF = torch.ops.prim.device.default


class _PhaseBytes:
    """Timer of a step that notes the bytes which its forward pass leaves."""

    now: int
    activations = 0
    """Largest increase of `now` over a phase `forward`."""

    @contextmanager
    def __call__(self, phase: str) -> Iterator[None]:
        """Return the context of a phase of a step."""
        before = self.now
        yield
        if phase == "forward":
            self.activations = max(self.activations, self.now - before)


class LiveBytes(_PhaseBytes, TorchDispatchMode):
    """Context that counts the storages made in it, from their first operation until their last
    tensor is gone.

    Memory that a kernel takes and frees inside an operation is not counted.

    Attributes:
        now: bytes of live storages.
        peak: largest `now` since the last `reset`.
        flops: floating-point operations since the last `reset`, as torch's `FlopCounterMode` counts
            them: a multiply-add is two.
    """

    def __init__(self, sums_copies: bool = False) -> None:
        """Start at 0.

        Args:
            sums_copies: whether to count a copy of the input during each reduce-scatter. Gloo sums
                a copy; in a group of absent ranks, which sums nothing, there is none.
        """
        TorchDispatchMode.__init__(self)
        self.now = self.peak = 0
        self.flops = 0
        self._sums_copies = sums_copies
        self._sizes: dict[int, int] = {}
        self._gathered = weakref.WeakValueDictionary[int, torch.UntypedStorage]()

    def reset(self) -> None:
        """Restart `peak`, `activations` and `flops` from the present level."""
        self.peak = self.now
        self.activations = 0
        self.flops = 0

    def watch(self, tensors: Iterable[Any]) -> None:
        """Count tensors that exist already; other values are left out."""
        for tensor in tensors:
            # The local tensor of a DTensor is counted by itself.
            if not isinstance(tensor, Tensor) or hasattr(tensor, "placements"):
                continue
            storage = tensor.untyped_storage()
            if storage._cdata not in self._sizes:
                self._sizes[storage._cdata] = 0
                weakref.finalize(storage, self._forget, storage._cdata)
                self._measure(storage)

    def __torch_dispatch__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        """Run an operation and count its results."""
        if func is _DEVICE_OF and isinstance(args[0], FakeTensor):
            # Autograd asks for the device of each gradient: three of five operations, which make no
            # tensor.
            return args[0].fake_device
        out = func(*args, **(kwargs or {}))
        if (count := flop_registry.get(func._overloadpacket)) is not None:
            self.flops += count(*args, **(kwargs or {}), out_val=out)
        # FSDP2 frees a gathered weight by resizing its storage
        for storage in list(self._gathered.values()):
            self._measure(storage)
            if not storage.nbytes():  # the next operation of FSDP2 that fills it finds it again
                self._gathered.pop(storage._cdata, None)
        self.watch(tree_iter(out))
        if func.namespace == "fsdp":
            for tensor in tree_iter((kwargs or {}).get("out", ())):
                storage = tensor.untyped_storage()
                self._gathered[storage._cdata] = storage
                self._measure(storage)
        if self._sums_copies and func.namespace == "c10d" and "reduce_scatter" in func.__name__:
            copies = sum(
                tensor.nbytes for tensor in tree_iter(args[1]) if isinstance(tensor, Tensor)
            )
            self.peak = max(self.peak, self.now + copies)
        return out

    @classmethod
    def _should_skip_dynamo(cls) -> bool:
        """Leave out torch's guard against compilation: it takes longer than the counting, and
        nothing is compiled.
        """
        return False

    def _measure(self, storage: torch.UntypedStorage) -> None:
        """Count the present size of a storage that was seen."""
        if (before := self._sizes.get(storage._cdata)) is not None and before != storage.nbytes():
            self.now += storage.nbytes() - before
            self._sizes[storage._cdata] = storage.nbytes()
            self.peak = max(self.peak, self.now)

    def _forget(self, key: int) -> None:
        self.now -= self._sizes.pop(key, 0)


class CudaBytes(_PhaseBytes):
    """Timer of a step that reads torch's allocator of the current GPU, with the attributes of
    `LiveBytes`.

    The allocator counts the work of all threads, libraries such as cuBLAS included, at the call of
    each kernel.
    """

    def __init__(self) -> None:
        """Start `peak` at the present level."""
        torch.cuda.reset_peak_memory_stats()

    @property
    def now(self) -> int:  # type: ignore[override]
        """Bytes of live tensors."""
        return torch.cuda.memory_allocated()

    @property
    def peak(self) -> int:
        """Largest `now` since the start."""
        return torch.cuda.max_memory_allocated()


def without_values(value: Any) -> Any:
    """Return a tensor of the same shape, dtype and no values, made in the current mode on the CPU;
    others unchanged.
    """
    if not isinstance(value, Tensor):
        return value
    return torch.empty(value.shape, dtype=value.dtype, device="cpu")


def forget_values(module: nn.Module) -> None:
    """Replace parameters and buffers by tensors `without_values`, in place."""
    for part in module.modules():
        for name, parameter in part.named_parameters(recurse=False):
            fresh = nn.Parameter(
                without_values(parameter.data), requires_grad=parameter.requires_grad
            )
            part.register_parameter(name, fresh)
        for name, buffer in part.named_buffers(recurse=False):
            part._buffers[name] = without_values(buffer)
