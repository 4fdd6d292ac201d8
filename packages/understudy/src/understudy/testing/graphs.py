"""Recorders of graphs without a GPU: a tape with the rules of CUDA graphs, and plain calls."""

from collections.abc import Callable, Iterable, Iterator, Sequence
from contextlib import contextmanager
from typing import Any

import torch
from torch import Tensor
from torch.overrides import TorchFunctionMode
from torch.utils._python_dispatch import TorchDispatchMode
from torch.utils._pytree import tree_leaves, tree_map

from understudy.policies.graphs import RECORDERS, Recording

HOST = {"item", "tolist", "numpy", "cpu", "pin_memory", "__bool__", "__int__", "__float__"}
HOST |= {"__index__", "tensor", "as_tensor", "from_numpy"}
"""Functions that read a value on the host, or copy one from it."""
RESIZING = {"resize_", "resize_as_", "set_"}


class CaptureError(RuntimeError):
    """A function does what no CUDA graph can hold."""


class Tape:
    """A recorder of operations, not of Python: a replay runs them again on the same storages.

    It refuses what a capture on a GPU refuses or gets wrong: values read on the host, shapes that
    depend on values, random numbers, new sizes of a tensor, and tensors that nobody keeps. Outputs
    are NaN before the first replay.
    """

    def __init__(self, device: torch.device | None = None) -> None:
        self.nbytes = 0

    def record(
        self, function: Callable[[], Sequence[Tensor]], reads: Iterable[Tensor]
    ) -> Recording:
        """See `Recorder`."""
        for _ in range(2):  # a warm-up may fill caches, which the capture must then not read
            function()
        operations = _Operations(reads)
        with _NoHost(), operations:
            outputs = tuple(each.detach() for each in function())
        for _, _, _, made in operations.rows:
            for tensor in made:
                if tensor is not None:
                    self.nbytes += tensor.nbytes
                    tensor.fill_(float("nan") if tensor.is_floating_point() else 0)
        return Recording(operations.replay, outputs)


class Uncaptured:
    """A recorder whose replay calls the function: the reference of all others."""

    def __init__(self, device: torch.device | None = None) -> None:
        self.nbytes = 0

    def record(
        self, function: Callable[[], Sequence[Tensor]], reads: Iterable[Tensor]
    ) -> Recording:
        """See `Recorder`."""
        outputs = tuple(each.detach().clone() for each in function())

        def replay() -> None:
            for output, value in zip(outputs, function(), strict=True):
                output.copy_(value.detach())

        return Recording(replay, outputs)


@contextmanager
def recorder(make: Callable[[torch.device], Any], device: str = "cpu") -> Iterator[None]:
    """Let devices of a type capture by another recorder within this context."""
    usual = RECORDERS.get(device)
    RECORDERS[device] = make
    try:
        yield
    finally:
        del RECORDERS[device]
        if usual is not None:
            RECORDERS[device] = usual


class _NoHost(TorchFunctionMode):
    def __torch_function__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        if (name := getattr(func, "__name__", "")) in HOST:
            raise CaptureError(f"{name} reads or copies a value on the host")
        return func(*args, **(kwargs or {}))


class _Operations(TorchDispatchMode):
    """Operations of a function, as (operation, arguments, options, results that are not views)."""

    def __init__(self, reads: Iterable[Tensor]) -> None:
        super().__init__()
        self.rows: list[tuple[Any, Any, Any, list[Tensor | None]]] = []
        self._known = {_storage(tensor) for tensor in reads}

    def __torch_dispatch__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        options = kwargs or {}
        given = _tensors((args, options))
        _refuse(func, given)
        for tensor in given:
            if tensor.numel() and _storage(tensor) not in self._known:
                raise CaptureError(f"{func} reads a tensor that is no input, weight or result")
        result = func(*args, **options)
        made: list[Tensor | None] = []
        for tensor in _tensors(result):
            is_new = _storage(tensor) not in self._known
            made.append(tensor.detach() if is_new else None)
        self._known |= {_storage(tensor) for tensor in _tensors(result)}
        if any(tensor is not None for tensor in made) or func._schema.is_mutable:
            self.rows.append((func, _detached(args), _detached(options), made))
        return result

    def replay(self) -> None:
        """Run the operations again on the same storages."""
        with torch.no_grad():
            for func, args, options, made in self.rows:
                result = _tensors(func(*args, **options))
                for tensor, value in zip(made, result, strict=True):
                    if tensor is not None:
                        tensor.copy_(value)


def _refuse(func: Any, given: Sequence[Tensor]) -> None:
    """Raise CaptureError for an operation that no graph can hold."""
    name = func._schema.name.partition("::")[2]
    tags = set(func.tags)
    sized = torch.Tag.dynamic_output_shape in tags
    if name in ("index", "index_put", "index_put_"):  # by numbers the shape is known
        sized = any(tensor.dtype in (torch.bool, torch.uint8) for tensor in given[1:])
    if sized or torch.Tag.data_dependent_output in tags:
        raise CaptureError(f"{name}: a shape or a decision depends on values")
    # attention has the tag for its dropout, which acting has not
    if torch.Tag.nondeterministic_seeded in tags and "dot_product" not in name:
        raise CaptureError(f"{name} draws random numbers; give them as an input")
    if name in RESIZING:
        raise CaptureError(f"{name} changes the size of a buffer")


def _tensors(tree: Any) -> list[Tensor]:
    return [leaf for leaf in tree_leaves(tree) if isinstance(leaf, Tensor)]


def _detached(tree: Any) -> Any:
    return tree_map(lambda leaf: leaf.detach() if isinstance(leaf, Tensor) else leaf, tree)


def _storage(tensor: Tensor) -> int:
    return tensor.untyped_storage().data_ptr()
