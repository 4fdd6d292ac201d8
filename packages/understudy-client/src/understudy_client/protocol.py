"""Messages of the policy server: msgpack with numpy arrays, and errors as values.

The server speaks openpi's protocol: its first message is the metadata, then each message of the
robot is an observation and each answer a dict with `actions`. `prompt` is another name of `task`.
Our client adds one key, `CONTROL`, to the observation: a dict with the fields of
`requests.Request`. It gets errors as a dict under `ERROR`; others get them as text, on which
openpi's client raises.

Arrays have the form of openpi's `msgpack_numpy`, or another one that clients use (`dialects.py`).
Nothing in a message can run code: dtypes of objects are refused.
"""

import math
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any, Literal

import msgpack
import numpy as np

from understudy_base import Record, UnderstudyError
from understudy_client.contract.mismatch import ContractError, Mismatch
from understudy_client.dialects import (
    OPENPI,
    Dialect,
    FormError,
    pack_array,
    pack_number,
    read_form,
)

CONTROL = "understudy"
ERROR = "error"
PROTOCOL_VERSION = 1
Fault = Literal["contract", "value", "message", "busy", "deadline", "closing", "server"]
"""Kinds of errors: the inputs differ from those of training; a wrong value; a wrong message; the
queue is full; the deadline has passed; the server ends; a fault of the server.
"""
KINDS = "biufSU"
"""Kinds of dtypes that a message may have: booleans, numbers and strings."""
_MOST_VALUES = 200_000
_LONGEST_LIST = 4096
"""Bounds on the objects of a message, each of which takes far more memory and time than its byte.
"""
_LONGEST_NAME = 1024
"""Most letters of a key."""


class MessageError(UnderstudyError, ValueError):
    """A message is not in the form of the protocol."""


class RemoteError(UnderstudyError, OSError):
    """The server did not answer, or failed.

    Attributes:
        fault: one of `Fault`; "lost" where the connection ended, "refused" or "token" where the
            server refuses it.
    """

    def __init__(self, message: str, fault: str = "server") -> None:
        self.fault = fault
        super().__init__(message)


class DeadlineError(RemoteError, TimeoutError):
    """No answer came within the deadline."""


@dataclass(frozen=True)
class Noise:
    """Key of a chunk's random numbers (`policies.draws.make_draws`)."""

    seed: int
    position: int
    purpose: str = "rollout"


# -- encoding --------------------------------------------------------------------------------------


def encode(message: Any, dialect: Dialect = OPENPI) -> bytes:
    """Encode plain values, numpy arrays and numpy numbers.

    Args:
        message: the values.
        dialect: form of the arrays.

    Raises:
        MessageError: another type, or an array of objects.
    """
    try:
        return bytes(msgpack.packb(message, default=lambda value: _pack(value, dialect)))
    except (TypeError, ValueError, OverflowError, RecursionError) as error:
        raise MessageError(f"a value cannot be sent: {error}") from error


def decode(data: bytes) -> Any:
    """Decode a message; see `decode_message`."""
    return decode_message(data)[0]


def decode_message(data: bytes) -> tuple[Any, Dialect]:
    """Decode a message. Its arrays cannot be written to: they are the bytes of the message.

    Returns:
        The message, and the form of its first array; openpi's where it has none.

    Raises:
        MessageError: the bytes are not such a message, it has more values than `_MOST_VALUES`, or
            an array has another form.
    """
    left = _MOST_VALUES
    dialects: list[Dialect] = []

    def unpack(pairs: Any) -> Any:
        items = count(list(pairs))  # msgpack without its compiled module gives a generator
        for key, _ in items:
            if len(key) > _LONGEST_NAME:
                raise MessageError(f"a key has {len(key):,} letters; it may have {_LONGEST_NAME:,}")
        return _unpack(dict(items), dialects)

    def count(values: Any) -> Any:
        nonlocal left
        left -= 1 + len(values)
        if left < 0:
            raise MessageError(
                f"the message has more than {_MOST_VALUES:,} values in lists and dicts; send arrays"
            )
        return values

    try:
        message = msgpack.unpackb(
            data,
            object_pairs_hook=unpack,  # a key may come again and again
            list_hook=count,
            max_array_len=_LONGEST_LIST,
            max_map_len=_LONGEST_LIST,
        )
    except MessageError:
        raise
    # ValueError is the base of msgpack's errors of form, Exception that of its errors of depth
    except Exception as error:
        raise MessageError(
            f"{len(data)} bytes are not a message of msgpack: {error or type(error).__name__}"
        ) from error
    dialect = dialects[0] if dialects else OPENPI
    return message, dialect


def _pack(value: Any, dialect: Dialect) -> Any:
    if isinstance(value, np.ndarray | np.generic):
        if value.dtype.kind not in KINDS:
            raise ValueError(f"the dtype {value.dtype}; send booleans, numbers or strings")
        if isinstance(value, np.ndarray):
            return pack_array(value, dialect)
        return pack_number(value, dialect)
    raise TypeError(
        f"a {type(value).__name__}; send numpy arrays, numbers, strings, lists and dicts"
    )


def _unpack(value: dict[Any, Any], dialects: list[Dialect]) -> Any:
    try:
        form = read_form(value)
    except FormError as error:
        raise MessageError(str(error)) from error
    if form is None:
        return value
    dialects.append(form.dialect)
    if form.is_array:
        if not isinstance(form.shape, list):
            raise MessageError(
                f"an array has the shape {str(form.shape)[:80]}; it must be a list of sizes"
            )
        return build_array(form.dtype, form.shape, form.data)
    if form.dialect.tool == "msgpack-numpy":
        return build_array(form.dtype, (), form.data)[()]
    data = form.data
    dtype = _dtype(form.dtype)
    if not isinstance(data, bool | int | float | str | bytes):
        raise MessageError(f"a number has a {type(data).__name__} as its value")
    try:
        return dtype.newbyteorder("=").type(data)
    except (ValueError, TypeError, OverflowError) as error:
        raise MessageError(f"a number of dtype {dtype} is {str(data)[:80]!r}") from error


def build_array(name: Any, shape: Sequence[Any], data: Any) -> np.ndarray:
    """Return the array of a message, in the byte order of this machine; it cannot be written to.

    Args:
        name: dtype of the array.
        shape: sizes of the array.
        data: bytes in row-major order.

    Raises:
        MessageError: `name` is not a dtype of `KINDS`, or sizes and bytes do not fit.
    """
    dtype = _dtype(name)
    if len(shape) > 32 or not all(type(n) is int and 0 <= n < 1 << 40 for n in shape):
        raise MessageError(
            f"an array has a shape of {len(shape)} sizes; it must have at most 32, from 0 to 2^40"
        )
    if not isinstance(data, bytes) or math.prod(shape) * dtype.itemsize != len(data):
        size = len(data) if isinstance(data, bytes) else type(data).__name__
        raise MessageError(
            f"an array {dtype} {str(tuple(shape))[:80]} has {size} bytes of data; they must fit"
        )
    if not data:
        return np.empty(shape, dtype.newbyteorder("="))
    array = np.frombuffer(data, dtype).reshape(shape)
    return array if dtype.isnative else array.astype(dtype.newbyteorder("="))


def _dtype(name: Any) -> np.dtype[Any]:
    try:
        dtype = np.dtype(name) if isinstance(name, str) else None
    except (TypeError, ValueError):
        dtype = None
    if dtype is None or dtype.kind not in KINDS or dtype.shape or not dtype.itemsize:
        raise MessageError(
            f"an array has the dtype {str(name)[:80]!r}; send booleans, numbers or strings"
        )
    return dtype


# -- errors as values ------------------------------------------------------------------------------


def describe_error(error: Exception) -> dict[str, Any]:
    """Return an error as plain values, for a reply."""
    described: dict[str, Any] = {"message": str(error) or type(error).__name__}
    if isinstance(error, ContractError):
        mismatches = [mismatch.to_json() for mismatch in error.mismatches]
        return described | {"fault": "contract", "mismatches": mismatches}
    if isinstance(error, MessageError):
        return described | {"fault": "message"}
    if isinstance(error, RemoteError):
        return described | {"fault": error.fault}
    fault = "value" if isinstance(error, ValueError) else "server"
    return described | {"fault": fault}


def read_mismatches(values: Any) -> list[Mismatch]:
    """Read the differences in a reply."""
    return [Mismatch(**value) for value in values or ()]


def rebuild_error(stored: Record) -> Exception:
    """Return the error of a reply, of the type that the policy itself raises for it."""
    fault = str(stored.get("fault", "server"))
    message = str(stored.get("message", ""))
    if fault == "contract":
        return ContractError(read_mismatches(stored.get("mismatches")))
    if fault == "value":
        return ValueError(message)
    if fault == "message":
        return MessageError(message)
    if fault == "deadline":
        return DeadlineError(message, fault)
    return RemoteError(message, fault)
