"""Cache of the results of operations on fake tensors: layers of a network repeat the same few operations.

Torch's own cache describes each argument anew in dozens of attributes. This one reads four, and its results have the
same shapes, strides, dtypes and storages. A result without memory of its own is a view of the first argument again.
Operations that write to an argument always run, as do those of which torch says that they depend on values.
"""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor
from torch._ops import OpOverload
from torch._subclasses.fake_tensor import FakeTensor, FakeTensorMode, in_kernel_invocation_manager

_VALUES = (torch.Tag.data_dependent_output, torch.Tag.dynamic_output_shape, torch.Tag.nondeterministic_seeded)
_DEVICE = torch.ops.prim.device.default
_FAKE = torch._C._TorchDispatchModeKey.FAKE


class _NotCachedError(Exception):
    """An argument or a result that is not described by shape, strides and dtype."""


@dataclass(frozen=True)
class _Output:
    shape: tuple[int, ...]
    stride: tuple[int, ...]
    dtype: torch.dtype
    device: torch.device
    view_at: int | None
    """Offset in the storage of the first argument, in elements; None: it has its own memory."""


class ShapeCache:
    """Runs operations of a fake tensor mode; repeated ones are answered from the first.

    Attributes:
        hits: operations that were answered so.
    """

    def __init__(self, mode: FakeTensorMode) -> None:
        """Start empty. mode: the mode that runs the others; it is active at each call."""
        self.hits = 0
        self._mode = mode
        self._known: dict[Any, tuple[_Output, ...] | None] = {}
        self._allowed: dict[Any, bool] = {}

    def __call__(self, func: Any, args: Sequence[Any], kwargs: Mapping[str, Any]) -> Any:
        """Return the result of an operation."""
        if torch._C._get_dispatch_mode(_FAKE) is not self._mode:  # in `host_values`: tensors have values there
            return func(*args, **kwargs)
        if func is _DEVICE and type(args[0]) is FakeTensor:
            return args[0].fake_device  # half of all operations: autograd asks for the device of each gradient
        allowed = self._allowed.get(func)
        if allowed is None:
            allowed = self._allowed[func] = _allowed(func)
        if not allowed:
            return func(*args, **kwargs)
        try:
            found: list[Any] = [func, torch.get_default_dtype()]
            self._describe(args, found)
            if kwargs:
                found.append(tuple(kwargs))
                self._describe(kwargs.values(), found)
            key = tuple(found)
            hash(key)
        except (_NotCachedError, TypeError):
            return func(*args, **kwargs)
        if key not in self._known:
            result = func(*args, **kwargs)
            self._known[key] = _outputs(result, args, kwargs)
            return result
        outputs = self._known[key]
        if outputs is None:
            return func(*args, **kwargs)
        self.hits += 1
        made = [self._make(output, args) for output in outputs]
        return made[0] if len(func._schema.returns) == 1 else tuple(made)

    def _describe(self, values: Any, found: list[Any]) -> None:
        for value in values:
            kind = type(value)
            found.append(kind)  # 1, 1.0 and True are equal
            if kind is FakeTensor:
                if value.fake_mode is not self._mode or value.constant is not None or value.dtype.is_complex:
                    raise _NotCachedError
                found += (value.shape, value.stride(), value.storage_offset(), value.dtype, value.fake_device)
            elif isinstance(value, Tensor):
                raise _NotCachedError
            elif kind is list or kind is tuple:
                found.append(len(value))
                self._describe(value, found)
            else:
                found.append(value)

    def _make(self, output: _Output, args: Sequence[Any]) -> FakeTensor:
        with in_kernel_invocation_manager(self._mode):
            if output.view_at is None:
                tensor = torch.empty_strided(output.shape, output.stride, dtype=output.dtype, device="meta")
            else:
                tensor = torch.as_strided(args[0], output.shape, output.stride, output.view_at)
        return FakeTensor(self._mode, tensor, output.device)


def _allowed(func: Any) -> bool:
    """Whether the result of an operation is a function of the shapes, strides and dtypes of its arguments."""
    return (
        isinstance(func, OpOverload)
        and func.namespace == "aten"
        and not func._schema.is_mutable
        and not any(tag in func.tags for tag in _VALUES)
        and all(str(value.type) == "Tensor" for value in func._schema.returns)
    )


def _outputs(result: Any, args: Sequence[Any], kwargs: Mapping[str, Any]) -> tuple[_Output, ...] | None:
    """Description of a result; None where it is more than shape, strides and dtype."""
    results = result if isinstance(result, tuple) else (result,)
    if not all(type(each) is FakeTensor for each in results):
        return None
    storages = {id(each): each.untyped_storage()._cdata for each in results}
    first = args[0] if args and type(args[0]) is FakeTensor else None
    others = {t.untyped_storage()._cdata for t in _tensors((*args[1:], *kwargs.values()))}
    found = []
    for each in results:
        storage, view_at = storages[id(each)], None
        if first is not None and storage == first.untyped_storage()._cdata:
            view_at = each.storage_offset()
            plain = len(results) == 1 and each is not first and each.dtype == first.dtype
        else:
            own = torch.empty_strided(each.shape, each.stride(), dtype=each.dtype, device="meta").untyped_storage()
            plain = storage not in others and each.untyped_storage().nbytes() == own.nbytes()
            plain = plain and each.storage_offset() == 0 and len(set(storages.values())) == len(results)
        if not plain or each.constant is not None or each.dtype.is_complex:
            return None
        found.append(_Output(tuple(each.shape), each.stride(), each.dtype, each.fake_device, view_at))
    return tuple(found)


def _tensors(values: Any) -> list[Tensor]:
    """All tensors of nested lists."""
    found: list[Tensor] = []
    for value in values:
        if isinstance(value, list | tuple):
            found += _tensors(value)
        elif isinstance(value, Tensor):
            found.append(value)
    return found
