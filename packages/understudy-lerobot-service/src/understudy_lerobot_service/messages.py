"""Messages of LeRobot's client and server: observations, policy instructions, and chunks of
actions.

They are pickles inside four messages in the encoding of protobuf, too few for generated code:

    Observation  1: state of the transfer (a number), 2: bytes
    PolicySetup  1: bytes
    Actions      1: bytes
    Empty
"""

import struct
from dataclasses import dataclass, field
from pickle import (
    APPENDS,
    BINBYTES,
    BINFLOAT,
    BINGET,
    BINPERSID,
    BINPUT,
    BINUNICODE,
    BUILD,
    EMPTY_DICT,
    EMPTY_LIST,
    EMPTY_TUPLE,
    GLOBAL,
    LONG1,
    MARK,
    NEWFALSE,
    NEWOBJ,
    NONE,
    PROTO,
    REDUCE,
    SETITEMS,
    STOP,
    TUPLE,
    TUPLE1,
    dumps,
)
from typing import Any

import numpy as np

from understudy_client import MessageError
from understudy_lerobot_service.pickles import NAMES, Budget, Built, read_array, read_pickle

MODULES = ("lerobot.async_inference.helpers", "lerobot.scripts.server.helpers")
"""Modules of the messages: since LeRobot 0.4, and before."""
_MAGIC = 0x1950A86A20F9469CFC6C
_FORMAT = 1001
"""First values of a file of `torch.save`."""
_MOST_COPIES = 4
"""Times that the arrays of a message may have its bytes: a pickle may name the same array again and
again.
"""
_SMALL_ARRAYS = 1 << 20
"""Bytes of arrays that every message may have: views of one small tensor are read one by one."""
_OBSERVATIONS = {f"{module} TimedObservation": module for module in MODULES}
_INSTRUCTIONS = {f"{module} RemotePolicyConfig" for module in MODULES}


@dataclass(frozen=True)
class Observation:
    """`TimedObservation`: the values of a robot at a moment.

    Attributes:
        timestamp: seconds since 1970 of the robot's clock.
        timestep: number of the latest executed action, 0 before the first.
        must_go: whether the robot has no action left, so that the observation must not be skipped.
        values: numbers by joint, images uint8 [H, W, 3] by camera, and `task`.
        module: Python module of the robot's messages.
    """

    timestamp: float
    timestep: int
    must_go: bool
    values: dict[str, float | np.ndarray | str]
    module: str = MODULES[0]


@dataclass(frozen=True)
class Instructions:
    """`RemotePolicyConfig`: the policy that a robot expects, and the features of its observations.

    Attributes:
        policy_type: type of the policy.
        name: its folder or its name on the hub.
        features: by key of a dataset, dicts of `dtype`, `shape` and `names`; not checked yet.
        actions_per_chunk: most actions of an answer.
        rename_map: key of an observation -> key of the policy.
    """

    policy_type: str
    name: str
    features: dict[str, Any]
    actions_per_chunk: int
    rename_map: dict[str, str] = field(default_factory=dict)


def read_observation(data: bytes) -> Observation:
    """Read a pickled `TimedObservation`.

    Raises:
        MessageError: it is another object, a value is not a number, array or text, or the same
            array comes many times.
    """
    budget = Budget(array_bytes=_MOST_COPIES * len(data) + _SMALL_ARRAYS)
    built = read_pickle(data, NAMES | _OBSERVATIONS.keys(), budget)
    fields = _fields(built, _OBSERVATIONS)
    timestamp = fields.get("timestamp")
    timestep = fields.get("timestep")
    values = fields.get("observation")
    if not isinstance(timestamp, int | float) or not abs(timestamp) < 1 << 53:  # NaN is not, either
        raise MessageError("the observation has no timestamp in seconds")
    if type(timestep) is not int or abs(timestep) >= 1 << 53:
        raise MessageError("the observation has no timestep that is an integer")
    if not isinstance(values, dict):
        raise MessageError("the observation has no dict of values by name")
    plain = {key: _plain(key, value, budget) for key, value in values.items()}
    return Observation(
        float(timestamp), timestep, fields.get("must_go") is True, plain, _OBSERVATIONS[built.name]
    )


def read_instructions(data: bytes) -> Instructions:
    """Read a pickled `RemotePolicyConfig`.

    Raises:
        MessageError: it is another object, or a field has another type.
    """
    fields = _fields(read_pickle(data, _INSTRUCTIONS), _INSTRUCTIONS)
    types = {
        "policy_type": str,
        "pretrained_name_or_path": str,
        "lerobot_features": dict,
        "actions_per_chunk": int,
    }
    for key, kind in types.items():
        if type(fields.get(key)) is not kind:
            raise MessageError(
                f"{key} is a {type(fields.get(key)).__name__}; it must be a {kind.__name__}"
            )
    renamed = fields.get("rename_map", {})
    if not isinstance(renamed, dict) or not all(isinstance(key, str) for key in renamed.values()):
        raise MessageError("rename_map must be a dict of keys by key")
    if not 1 <= fields["actions_per_chunk"] < 1 << 31:
        raise MessageError("actions_per_chunk must be a positive number")
    names = fields["policy_type"], fields["pretrained_name_or_path"]
    return Instructions(*names, fields["lerobot_features"], fields["actions_per_chunk"], renamed)


def _fields(built: Any, names: Any) -> dict[str, Any]:
    """State of an object of one of the classes."""
    if (
        not isinstance(built, Built)
        or built.name not in names
        or built.args
        or not isinstance(built.state, dict)
    ):
        raise MessageError(f"the pickle is not a {next(iter(names)).rpartition(' ')[2]}")
    return built.state


def _plain(key: str, value: Any, budget: Budget) -> float | np.ndarray | str:
    if isinstance(value, Built):
        value = read_array(value, budget)
        return float(value) if value.ndim == 0 and value.dtype.kind in "biuf" else value
    if isinstance(value, str):
        return value
    if isinstance(value, bool | int | float):
        try:
            return float(value)
        except OverflowError:
            raise MessageError(f"{key[:80]} is a number beyond all floats") from None
    raise MessageError(
        f"{key[:80]} is a {type(value).__name__}; a robot sends numbers, arrays and texts"
    )


def write_actions(
    actions: np.ndarray, timestamp: float, timestep: int, seconds: float, module: str
) -> bytes:
    """Return the pickle of a list of `TimedAction`, whose tensors share a storage. It is written
    without LeRobot.

    Args:
        actions: float32 [T, A], at least one.
        timestamp: time of the first one in seconds.
        timestep: number of the first one.
        seconds: time between two actions.
        module: Python module of `TimedAction` on the robot.
    """
    rows, width = actions.shape
    storage = _call("torch.storage _load_from_bytes", BINBYTES + _sized(_storage(actions)) + TUPLE1)
    parts = [PROTO + b"\x03" + EMPTY_LIST + MARK]
    for row in range(rows):
        first = storage + BINPUT + b"\0" if row == 0 else BINGET + b"\0"
        hooks = _call("collections OrderedDict", EMPTY_TUPLE)
        view = (
            _integer(row * width)
            + _integer(width)
            + TUPLE1
            + _integer(1)
            + TUPLE1
            + NEWFALSE
            + hooks
        )
        tensor = _call("torch._utils _rebuild_tensor_v2", MARK + first + view + TUPLE)
        fields = _text("timestamp") + BINFLOAT + struct.pack(">d", timestamp + row * seconds)
        fields += _text("timestep") + _integer(timestep + row) + _text("action") + tensor
        parts.append(_global(f"{module} TimedAction") + EMPTY_TUPLE + NEWOBJ)
        parts.append(EMPTY_DICT + MARK + fields + SETITEMS + BUILD)
    return b"".join([*parts, APPENDS + STOP])


def _storage(actions: np.ndarray) -> bytes:
    """A storage of float32, as `torch.save` wrote it before it wrote archives: five pickles, then
    the numbers.
    """
    sizes = {"short": 2, "int": 4, "long": 4}
    system = {"protocol_version": _FORMAT, "little_endian": True, "type_sizes": sizes}
    name = (
        MARK
        + _text("storage")
        + _global("torch FloatStorage")
        + _text("0")
        + _text("cpu")
        + _integer(actions.size)
    )
    reference = PROTO + b"\x02" + name + NONE + TUPLE + BINPERSID + STOP
    pickles = [
        *(dumps(value, 2) for value in (_MAGIC, _FORMAT, system)),
        reference,
        dumps(["0"], 2),
    ]
    return b"".join([*pickles, struct.pack("<q", actions.size), actions.astype("<f4").tobytes()])


def _global(name: str) -> bytes:
    return GLOBAL + name.replace(" ", "\n").encode() + b"\n"


def _call(name: str, args: bytes) -> bytes:
    return _global(name) + args + REDUCE


def _sized(data: bytes) -> bytes:
    return struct.pack("<I", len(data)) + data


def _text(value: str) -> bytes:
    return BINUNICODE + _sized(value.encode())


def _integer(value: int) -> bytes:
    data = value.to_bytes(value.bit_length() // 8 + 1, "little", signed=True)
    return LONG1 + bytes([len(data)]) + data


# -- protobuf

BEGIN = 1
MIDDLE = 2
END = 3
"""States of a transfer: its first part, a further one, the last one."""
_VARINT = 0
_FIXED64 = 1
_BYTES = 2
_FIXED32 = 5


def read_fields(message: bytes) -> dict[int, int | bytes]:
    """Return the numbers and bytes of a message by field.

    Raises:
        MessageError: the bytes are not such a message.
    """
    fields: dict[int, int | bytes] = {}
    place = 0
    while place < len(message):
        key, place = _varint(message, place)
        field = key >> 3
        kind = key & 7
        if kind == _VARINT:
            fields[field], place = _varint(message, place)
            continue
        if kind == _BYTES:
            size, place = _varint(message, place)
        elif kind in (_FIXED32, _FIXED64):
            size = 4 if kind == _FIXED32 else 8
        else:
            raise MessageError(
                f"a field of the message has the type {kind}, which protobuf does not have"
            )
        if size > len(message) - place:
            raise MessageError(
                f"a field of the message ends {size - len(message) + place} bytes after the message"
            )
        if kind == _BYTES:
            fields[field] = message[place : place + size]
        place += size
    return fields


def read_bytes(message: bytes, field: int) -> bytes:
    """Return the bytes of a field, none where it is absent. Raises MessageError: see
    `read_fields`.
    """
    value = read_fields(message).get(field, b"")
    if not isinstance(value, bytes):
        raise MessageError(f"field {field} of the message is a number; it must be bytes")
    return value


def read_part(message: bytes) -> tuple[int, bytes]:
    """Return (state of the transfer, bytes) of an Observation. Raises MessageError: see
    `read_fields`.
    """
    fields = read_fields(message)
    state = fields.get(1, 0)
    data = fields.get(2, b"")
    if (
        state not in (BEGIN, MIDDLE, END)
        or not isinstance(state, int)
        or not isinstance(data, bytes)
    ):
        raise MessageError(
            f"a part of an observation has the state {str(state)[:20]}; it must be 1, 2 or 3, with "
            "bytes"
        )
    return state, data


def write_bytes(data: bytes) -> bytes:
    """Return a message with bytes as its first field; without bytes it is Empty."""
    return b"" if not data else b"\x0a" + _write_varint(len(data)) + data


def _varint(message: bytes, place: int) -> tuple[int, int]:
    value = 0
    for shift in range(0, 70, 7):
        if place >= len(message):
            raise MessageError("the message ends within a number")
        byte = message[place]
        value |= (byte & 0x7F) << shift
        place += 1
        if byte < 0x80:
            return value, place
    raise MessageError("a number of the message has more than ten bytes")


def _write_varint(value: int) -> bytes:
    varint = bytearray()
    while value > 0x7F:
        varint.append(value & 0x7F | 0x80)
        value >>= 7
    varint.append(value)
    return bytes(varint)
