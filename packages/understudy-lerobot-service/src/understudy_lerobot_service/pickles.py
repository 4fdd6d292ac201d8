"""Pickles as inert values: numbers, texts, bytes, lists, tuples, dicts, arrays, and `Built` in
place of every object.

`pickle.loads` imports and calls names of its input. A restricted `find_class` still lets a message
set attributes of the allowed classes, and reserve memory for a memo of any size. So the few opcodes
of plain data are executed here, on a list. A class is only its name, which must be an allowed one.
A call, a new object and its state only become fields of `Built`. Arrays of numpy and tensors of
torch are read from it; neither library reads any of the bytes.
"""

import io
import math
import pickletools
from collections.abc import Callable, Collection
from dataclasses import dataclass
from typing import Any

import numpy as np

from understudy_client import MessageError, build_array

MOST_OPERATIONS = 200_000
"""Most opcodes of a pickle: a bound on its time and its objects. An observation has a few hundred.
"""
_NUMBERS = ("BININT", "BININT1", "BININT2", "LONG1", "LONG4", "BINFLOAT")
_TEXTS = ("BINUNICODE", "SHORT_BINUNICODE", "BINUNICODE8")
_BYTES = ("BINBYTES", "SHORT_BINBYTES", "BINBYTES8", "BYTEARRAY8")
_PUSHED = frozenset((*_NUMBERS, *_TEXTS, *_BYTES))
_CONSTANTS = {"NONE": None, "NEWTRUE": True, "NEWFALSE": False}
_EMPTY: dict[str, Callable[[], Any]] = {
    "EMPTY_LIST": list,
    "EMPTY_TUPLE": tuple,
    "EMPTY_DICT": dict,
}
_TUPLES = {"TUPLE1": 1, "TUPLE2": 2, "TUPLE3": 3}
_MARK = object()


@dataclass(frozen=True, slots=True)
class Name:
    """A class or a function, which is not imported: "module name"."""

    name: str


@dataclass(eq=False, slots=True, repr=False)
class Built:
    """An object, which is not made.

    Attributes:
        name: class or function, "module name".
        args: arguments of the call.
        state: state that was set afterwards; None: there is none.
    """

    name: str
    args: tuple[Any, ...]
    state: Any = None


@dataclass(slots=True)
class Budget:
    """Bound on the work of a message. A part that is read again counts again.

    Attributes:
        operations: remaining opcodes, also for pickles within pickles.
        array_bytes: remaining bytes of arrays.
    """

    operations: int = MOST_OPERATIONS
    array_bytes: int = 0

    def use_operation(self) -> None:
        """Count an opcode. Raises MessageError: there are more than `MOST_OPERATIONS`."""
        self.operations -= 1
        if self.operations < 0:
            raise MessageError(
                f"the pickle has more than {MOST_OPERATIONS:,} operations, the most that it may "
                "have"
            )

    def use_array(self, data: Any) -> None:
        """Count the bytes of an array. Raises MessageError: the arrays have more than the
        message.
        """
        self.array_bytes -= len(data) if isinstance(data, bytes) else 0
        if self.array_bytes < 0:
            raise MessageError(
                "the arrays of the pickle have many times its bytes; send each array once"
            )


PERSISTENT = "persistent id"
"""Name of an object by reference, as `torch.save` writes storages."""


def read_pickle(
    data: bytes | io.BytesIO, allowed: Collection[str], budget: Budget | None = None
) -> Any:
    """Read a pickle of protocol 2 to 5. A stream is read up to the end of the pickle.

    Args:
        data: the pickle.
        allowed: names of classes and functions that it may have, "module name", and `PERSISTENT`.
        budget: bound of the whole message; None: the pickle is the message.

    Raises:
        MessageError: it has another name or an opcode that plain data does not need, is too long,
            or is damaged.
    """
    try:
        return _Machine(allowed, budget or Budget()).run(data)
    except MessageError:
        raise
    except Exception as error:  # of pickletools, for damaged arguments
        raise MessageError(
            f"the pickle is damaged: {type(error).__name__}: {str(error)[:200]}"
        ) from error


class _Machine:
    def __init__(self, allowed: Collection[str], budget: Budget) -> None:
        self._allowed = allowed
        self._budget = budget
        self._stack: list[Any] = []
        self._memo: dict[int, Any] = {}

    def run(self, data: bytes | io.BytesIO) -> Any:
        stack = self._stack
        memo = self._memo
        argument: Any
        for opcode, argument, _ in pickletools.genops(data):
            name = opcode.name
            self._budget.use_operation()
            if name in _PUSHED:
                if isinstance(argument, bytearray):
                    argument = bytes(argument)
                stack.append(argument)
            elif name == "MEMOIZE":
                memo[len(memo)] = self._top()
            elif name in ("BINPUT", "LONG_BINPUT"):
                memo[argument] = self._top()
            elif name in ("BINGET", "LONG_BINGET"):
                if argument not in memo:
                    raise MessageError(
                        f"the pickle refers to its object {argument}, which it does not have"
                    )
                stack.append(memo[argument])
            elif name in _CONSTANTS:
                stack.append(_CONSTANTS[name])
            elif name in _EMPTY:
                stack.append(_EMPTY[name]())
            elif name == "MARK":
                stack.append(_MARK)
            elif name in _TUPLES:
                reversed_items = [self._pop() for _ in range(_TUPLES[name])]
                stack.append(tuple(reversed_items[::-1]))
            elif name == "TUPLE":
                stack.append(tuple(self._after_mark()))
            elif name in ("APPEND", "APPENDS"):
                added = [self._pop()] if name == "APPEND" else self._after_mark()
                self._top(list).extend(added)
            elif name in ("SETITEM", "SETITEMS"):
                pairs = (
                    [self._pop(), self._pop()][::-1] if name == "SETITEM" else self._after_mark()
                )
                self._set_items(pairs)
            elif name == "GLOBAL":
                stack.append(self._name(argument))
            elif name == "STACK_GLOBAL":
                last = self._pop(str)
                module = self._pop(str)
                stack.append(self._name(f"{module} {last}"))
            elif name in ("REDUCE", "NEWOBJ"):
                args = self._pop(tuple)
                called = self._pop(Name)
                stack.append(Built(called.name, args))
            elif name == "BUILD":
                state = self._pop()
                self._build(state)
            elif name == "BINPERSID":
                stack.append(Built(self._name(PERSISTENT).name, (self._pop(),)))
            elif name == "STOP":
                value = self._pop()
                if stack:
                    raise MessageError("the pickle ends with several values; it must have one")
                return value
            elif name not in ("PROTO", "FRAME"):
                raise MessageError(
                    f"the pickle has the operation {name}, which plain data does not need"
                )
        raise MessageError("the pickle has no end")

    def _top(self, kind: type = object) -> Any:
        if not self._stack or self._stack[-1] is _MARK or not isinstance(self._stack[-1], kind):
            raise MessageError(f"the pickle is damaged: an operation needs a {kind.__name__}")
        return self._stack[-1]

    def _pop(self, kind: type = object) -> Any:
        self._top(kind)
        return self._stack.pop()

    def _after_mark(self) -> list[Any]:
        reversed_items: list[Any] = []
        while self._stack and self._stack[-1] is not _MARK:
            reversed_items.append(self._stack.pop())
        if not self._stack:
            raise MessageError("the pickle is damaged: an operation needs a mark")
        self._stack.pop()
        return reversed_items[::-1]

    def _set_items(self, pairs: list[Any]) -> None:
        keys = pairs[::2]
        values = pairs[1::2]
        if len(keys) != len(values) or not all(isinstance(key, str) for key in keys):
            raise MessageError("a dict of the pickle has a key that is not a text")
        self._top(dict).update(zip(keys, values))

    def _build(self, state: Any) -> None:
        built = self._top(Built)
        if built.state is not None:
            raise MessageError(f"the pickle sets the state of a {built.name} twice")
        built.state = state

    def _name(self, name: str) -> Name:
        if name not in self._allowed:
            shown = name.replace(" ", ".")[:200]
            raise MessageError(
                f"the pickle has {shown!r}, which a message of a robot does not need; it is refused"
            )
        return Name(name)


# -- arrays

_RECONSTRUCT = ("numpy._core.multiarray _reconstruct", "numpy.core.multiarray _reconstruct")
_FROM_BUFFER = ("numpy._core.numeric _frombuffer", "numpy.core.numeric _frombuffer")
_SCALAR = ("numpy._core.multiarray scalar", "numpy.core.multiarray scalar")
_NDARRAY = "numpy ndarray"
_DTYPE = "numpy dtype"
_TENSOR = "torch._utils _rebuild_tensor_v2"
_STORAGE = "torch.storage _load_from_bytes"
_ORDERED = "collections OrderedDict"
NAMES = frozenset(
    (*_RECONSTRUCT, *_FROM_BUFFER, *_SCALAR, _NDARRAY, _DTYPE, _TENSOR, _STORAGE, _ORDERED)
)
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
            array = _ordered(_dtype(dtype), shape, data, order == "F")
            # numpy 2.3 and later
            return array.transpose(_integers(axes[0])) if order == "K" else array
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
    return (
        build_array(dtype, sizes[::-1], data).transpose()
        if is_fortran
        else build_array(dtype, sizes, data)
    )


def _dtype(value: Any) -> str:
    """Name of a dtype with its byte order."""
    if not isinstance(value, Built) or value.name != _DTYPE or not isinstance(value.args[0], str):
        raise MessageError("an array of the pickle has no dtype")
    order = value.state[1] if value.state is not None else "|"
    if order not in ("<", ">", "|", "="):
        raise MessageError("a dtype of the pickle has no byte order")
    return f"{order}{value.args[0].lstrip('<>|=')}"


def _integers(value: Any) -> tuple[int, ...]:
    if (
        not isinstance(value, tuple)
        or len(value) > 32
        or not all(type(n) is int and 0 <= n < 1 << 40 for n in value)
    ):
        raise MessageError("an array of the pickle has a shape that is not a tuple of sizes")
    return value


def _storage(value: Any, budget: Budget) -> np.ndarray:
    """Numbers of a storage, as `torch.save` wrote them before it wrote archives: five pickles, then
    the numbers.
    """
    if (
        not isinstance(value, Built)
        or value.name != _STORAGE
        or not isinstance(value.args[0], bytes)
    ):
        raise MessageError("a tensor of the pickle has no storage")
    budget.use_array(value.args[0])
    stream = io.BytesIO(value.args[0])
    names = {*STORAGES, PERSISTENT}
    _, _, system, storage, _ = [read_pickle(stream, names, budget) for _ in range(5)]
    if not isinstance(system, dict) or not isinstance(storage, Built) or storage.name != PERSISTENT:
        raise MessageError("a storage of the pickle has another form")
    _, kind, _, _, count = storage.args[0][:5]
    data = stream.read()
    if (
        not isinstance(kind, Name)
        or system.get("little_endian") is not True
        or data[:8] != _count(count)
    ):
        raise MessageError("a storage of the pickle has no numbers of this machine's form")
    return build_array(STORAGES[kind.name], (count,), data[8:])


def _count(value: Any) -> bytes:
    return _integers((value,))[0].to_bytes(8, "little")


def _tensor(storage: np.ndarray, offset: Any, shape: Any, stride: Any) -> np.ndarray:
    """Copy a view of a storage."""
    (start,) = _integers((offset,))
    sizes = _integers(shape)
    steps = _integers(stride)
    last = start + sum((size - 1) * step for size, step in zip(sizes, steps, strict=True))
    if 0 in sizes or last >= len(storage) or math.prod(sizes) > len(storage):
        raise MessageError(f"a tensor of the pickle exceeds its storage of {len(storage)} numbers")
    strides = [step * storage.itemsize for step in steps]
    return np.lib.stride_tricks.as_strided(storage[start:], sizes, strides, writeable=False).copy()
