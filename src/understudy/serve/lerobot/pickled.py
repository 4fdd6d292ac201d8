"""Pickles as inert values: numbers, texts, bytes, lists, tuples, dicts, and `Built` in place of every object.

`pickle.loads` imports and calls names of its input. A restricted `find_class` still lets a message set attributes of
the allowed classes, and reserve memory for a memo of any size. So the few opcodes of plain data are executed here, on
a list. A class is only its name, which must be an allowed one. A call, a new object and its state only become fields
of `Built`.
"""

import io
import pickletools
from collections.abc import Callable, Collection
from dataclasses import dataclass
from typing import Any

from understudy.serve.coding import MessageError

MOST_OPERATIONS = 200_000
"""Most opcodes of a pickle: a bound on its time and its objects. An observation has a few hundred."""
_PUSHED = {
    "BININT",
    "BININT1",
    "BININT2",
    "LONG1",
    "LONG4",
    "BINFLOAT",
    "BINUNICODE",
    "SHORT_BINUNICODE",
    "BINUNICODE8",
}
_PUSHED |= {"BINBYTES", "SHORT_BINBYTES", "BINBYTES8", "BYTEARRAY8"}
_CONSTANTS = {"NONE": None, "NEWTRUE": True, "NEWFALSE": False}
_EMPTY: dict[str, Callable[[], Any]] = {"EMPTY_LIST": list, "EMPTY_TUPLE": tuple, "EMPTY_DICT": dict}
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
        name: of its class or its function, "module name".
        args: arguments of the call.
        state: set afterwards; None: there is none.
    """

    name: str
    args: tuple[Any, ...]
    state: Any = None


@dataclass(slots=True)
class Budget:
    """Bound on the work of a message. A part of it that is read again counts again.

    Attributes:
        operations: opcodes that are left, for pickles within pickles too.
        array_bytes: bytes of arrays that are left.
    """

    operations: int = MOST_OPERATIONS
    array_bytes: int = 0

    def use_operation(self) -> None:
        """Count an opcode. Raises MessageError: there are more than `MOST_OPERATIONS`."""
        self.operations -= 1
        if self.operations < 0:
            raise MessageError(f"the pickle has more than {MOST_OPERATIONS:,} operations, the most that it may have")

    def use_array(self, data: Any) -> None:
        """Count the bytes of an array. Raises MessageError: the arrays have more than the message."""
        self.array_bytes -= len(data) if isinstance(data, bytes) else 0
        if self.array_bytes < 0:
            raise MessageError("the arrays of the pickle have many times its bytes; send each array once")


PERSISTENT = "persistent id"
"""Name of an object by reference, as `torch.save` writes storages."""


def read_pickle(data: bytes | io.BytesIO, allowed: Collection[str], budget: Budget | None = None) -> Any:
    """Read a pickle of protocol 2 to 5. A stream is read up to the end of the pickle.

    Args:
        data: the pickle.
        allowed: names of classes and functions that it may have, "module name", and `PERSISTENT`.
        budget: of the whole message; None: the pickle is one.

    Raises:
        MessageError: it has another name or an opcode of no plain data, is too long, or is damaged.
    """
    try:
        return _Machine(allowed, budget or Budget()).run(data)
    except MessageError:
        raise
    except Exception as error:  # of pickletools, for damaged arguments
        raise MessageError(f"the pickle is damaged: {type(error).__name__}: {str(error)[:200]}") from error


class _Machine:
    def __init__(self, allowed: Collection[str], budget: Budget) -> None:
        self._allowed, self._budget = allowed, budget
        self._stack: list[Any] = []
        self._memo: dict[int, Any] = {}

    def run(self, data: bytes | io.BytesIO) -> Any:
        stack, memo = self._stack, self._memo
        argument: Any
        for opcode, argument, _ in pickletools.genops(data):
            name = opcode.name
            self._budget.use_operation()
            if name in _PUSHED:
                stack.append(bytes(argument) if isinstance(argument, bytearray) else argument)
            elif name == "MEMOIZE":
                memo[len(memo)] = self._top()
            elif name in ("BINPUT", "LONG_BINPUT"):
                memo[argument] = self._top()
            elif name in ("BINGET", "LONG_BINGET"):
                if argument not in memo:
                    raise MessageError(f"the pickle refers to its object {argument}, which it does not have")
                stack.append(memo[argument])
            elif name in _CONSTANTS:
                stack.append(_CONSTANTS[name])
            elif name in _EMPTY:
                stack.append(_EMPTY[name]())
            elif name == "MARK":
                stack.append(_MARK)
            elif name in _TUPLES:
                own = [self._pop() for _ in range(_TUPLES[name])]
                stack.append(tuple(reversed(own)))
            elif name == "TUPLE":
                stack.append(tuple(self._after_mark()))
            elif name in ("APPEND", "APPENDS"):
                added = [self._pop()] if name == "APPEND" else self._after_mark()
                self._top(list).extend(added)
            elif name in ("SETITEM", "SETITEMS"):
                pairs = [self._pop(), self._pop()][::-1] if name == "SETITEM" else self._after_mark()
                self._set_items(pairs)
            elif name == "GLOBAL":
                stack.append(self._name(argument))
            elif name == "STACK_GLOBAL":
                last, module = self._pop(str), self._pop(str)
                stack.append(self._name(f"{module} {last}"))
            elif name in ("REDUCE", "NEWOBJ"):
                args, called = self._pop(tuple), self._pop(Name)
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
                raise MessageError(f"the pickle has the operation {name}, which plain data does not need")
        raise MessageError("the pickle has no end")

    def _top(self, kind: type = object) -> Any:
        if not self._stack or self._stack[-1] is _MARK or not isinstance(self._stack[-1], kind):
            raise MessageError(f"the pickle is damaged: an operation needs a {kind.__name__}")
        return self._stack[-1]

    def _pop(self, kind: type = object) -> Any:
        self._top(kind)
        return self._stack.pop()

    def _after_mark(self) -> list[Any]:
        found: list[Any] = []
        while self._stack and self._stack[-1] is not _MARK:
            found.append(self._stack.pop())
        if not self._stack:
            raise MessageError("the pickle is damaged: an operation needs a mark")
        self._stack.pop()
        return found[::-1]

    def _set_items(self, pairs: list[Any]) -> None:
        keys, values = pairs[::2], pairs[1::2]
        if len(keys) != len(values) or not all(isinstance(key, str) for key in keys):
            raise MessageError("a dict of the pickle has a key that is no text")
        self._top(dict).update(zip(keys, values))

    def _build(self, state: Any) -> None:
        built = self._top(Built)
        if built.state is not None:
            raise MessageError(f"the pickle sets the state of a {built.name} twice")
        built.state = state

    def _name(self, name: str) -> Name:
        if name not in self._allowed:
            shown = name.replace(" ", ".")[:200]
            raise MessageError(f"the pickle has {shown!r}, which a message of a robot does not need; it is refused")
        return Name(name)
