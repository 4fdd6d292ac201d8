"""Arrays of numpy and tensors of torch in pickles, as numpy arrays. Neither library reads any of the bytes."""

import io
import math
from typing import Any

import numpy as np

from understudy.serve.coding import MessageError, build_array
from understudy.serve.lerobot.pickled import PERSISTENT, Budget, Built, Name, read_pickle

_RECONSTRUCT = ("numpy._core.multiarray _reconstruct", "numpy.core.multiarray _reconstruct")
_FROM_BUFFER = ("numpy._core.numeric _frombuffer", "numpy.core.numeric _frombuffer")
_SCALAR = ("numpy._core.multiarray scalar", "numpy.core.multiarray scalar")
_NDARRAY, _DTYPE = "numpy ndarray", "numpy dtype"
_TENSOR, _STORAGE, _ORDERED = (
    "torch._utils _rebuild_tensor_v2",
    "torch.storage _load_from_bytes",
    "collections OrderedDict",
)
NAMES = frozenset((*_RECONSTRUCT, *_FROM_BUFFER, *_SCALAR, _NDARRAY, _DTYPE, _TENSOR, _STORAGE, _ORDERED))
"""Names that pickles of arrays have, of numpy 1 and 2 and of torch."""
STORAGES = {
    "torch FloatStorage": "<f4",
    "torch DoubleStorage": "<f8",
    "torch HalfStorage": "<f2",
    "torch ByteStorage": "|u1",
    "torch CharStorage": "|i1",
    "torch ShortStorage": "<i2",
    "torch IntStorage": "<i4",
    "torch LongStorage": "<i8",
    "torch BoolStorage": "|b1",
}
"""Storage of a tensor -> dtype of numpy."""


def read_array(built: Built, budget: Budget) -> np.ndarray:
    """Return an array, a number of numpy (as an array without dimensions), or a tensor.

    Args:
        built: the object.
        budget: of its message.

    Raises:
        MessageError: the object is none of them, or its parts do not fit.
    """
    try:
        if built.name in _RECONSTRUCT:
            _, shape, dtype, is_fortran, data = built.state
            budget.use_array(data)
            return _ordered(_dtype(dtype), shape, data, bool(is_fortran))
        if built.name in _FROM_BUFFER:
            data, dtype, shape, order, *axes = built.args
            budget.use_array(data)
            found = _ordered(_dtype(dtype), shape, data, order == "F")
            return found.transpose(_integers(axes[0])) if order == "K" else found  # numpy 2.3 and later
        if built.name in _SCALAR:
            dtype, data = built.args
            budget.use_array(data)
            return build_array(_dtype(dtype), (), data)
        if built.name == _TENSOR:
            storage, offset, shape, stride = built.args[:4]
            return _tensor(_storage(storage, budget), offset, shape, stride)
    except MessageError:
        raise
    except (TypeError, ValueError, OverflowError, AttributeError) as error:
        raise MessageError(f"an array of the pickle is damaged: {type(error).__name__}") from error
    raise MessageError(f"the pickle has a {built.name.replace(' ', '.')} in place of an array")


def _ordered(dtype: str, shape: Any, data: Any, is_fortran: bool) -> np.ndarray:
    sizes = _integers(shape)
    return build_array(dtype, sizes[::-1], data).transpose() if is_fortran else build_array(dtype, sizes, data)


def _dtype(value: Any) -> str:
    """Name of a dtype with its byte order."""
    if not isinstance(value, Built) or value.name != _DTYPE or not isinstance(value.args[0], str):
        raise MessageError("an array of the pickle has no dtype")
    order = value.state[1] if value.state is not None else "|"
    if order not in ("<", ">", "|", "="):
        raise MessageError("a dtype of the pickle has no byte order")
    return f"{order}{value.args[0].lstrip('<>|=')}"


def _integers(value: Any) -> tuple[int, ...]:
    if not isinstance(value, tuple) or len(value) > 32 or not all(type(n) is int and 0 <= n < 1 << 40 for n in value):
        raise MessageError("an array of the pickle has a shape that is no tuple of sizes")
    return value


def _storage(value: Any, budget: Budget) -> np.ndarray:
    """Numbers of a storage, as `torch.save` wrote them before it wrote archives: five pickles, then the numbers."""
    if not isinstance(value, Built) or value.name != _STORAGE or not isinstance(value.args[0], bytes):
        raise MessageError("a tensor of the pickle has no storage")
    budget.use_array(value.args[0])
    stream = io.BytesIO(value.args[0])
    names = {*STORAGES, PERSISTENT}
    _, _, system, found, _ = [read_pickle(stream, names, budget) for _ in range(5)]
    if not isinstance(system, dict) or not isinstance(found, Built) or found.name != PERSISTENT:
        raise MessageError("a storage of the pickle has another form")
    _, kind, _, _, count = found.args[0][:5]
    data = stream.read()
    if not isinstance(kind, Name) or system.get("little_endian") is not True or data[:8] != _count(count):
        raise MessageError("a storage of the pickle has no numbers of this machine's form")
    return build_array(STORAGES[kind.name], (count,), data[8:])


def _count(value: Any) -> bytes:
    return _integers((value,))[0].to_bytes(8, "little")


def _tensor(storage: np.ndarray, offset: Any, shape: Any, stride: Any) -> np.ndarray:
    """Copy a view of a storage."""
    (start,), sizes, steps = _integers((offset,)), _integers(shape), _integers(stride)
    last = start + sum((size - 1) * step for size, step in zip(sizes, steps, strict=True))
    if 0 in sizes or last >= len(storage) or math.prod(sizes) > len(storage):
        raise MessageError(f"a tensor of the pickle exceeds its storage of {len(storage)} numbers")
    own = storage[start:]
    return np.lib.stride_tricks.as_strided(own, sizes, [step * own.itemsize for step in steps], writeable=False).copy()
