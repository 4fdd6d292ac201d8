"""Messages in the encoding of protobuf. The service has four, too few for generated code.

Observation  1: state of the transfer (a number), 2: bytes
PolicySetup  1: bytes
Actions      1: bytes
Empty
"""

from understudy.serve.coding import MessageError

BEGIN, MIDDLE, END = 1, 2, 3
"""States of a transfer: its first part, a further one, the last one."""
_VARINT, _FIXED64, _BYTES, _FIXED32 = 0, 1, 2, 5


def read_fields(message: bytes) -> dict[int, int | bytes]:
    """Return the numbers and bytes of a message by field.

    Raises:
        MessageError: the bytes are no such message.
    """
    found: dict[int, int | bytes] = {}
    place = 0
    while place < len(message):
        key, place = _varint(message, place)
        field, kind = key >> 3, key & 7
        if kind == _VARINT:
            found[field], place = _varint(message, place)
            continue
        if kind == _BYTES:
            size, place = _varint(message, place)
        elif kind in (_FIXED32, _FIXED64):
            size = 4 if kind == _FIXED32 else 8
        else:
            raise MessageError(f"a field of the message has the type {kind}, which protobuf does not have")
        if size > len(message) - place:
            raise MessageError(f"a field of the message ends {size - len(message) + place} bytes after the message")
        if kind == _BYTES:
            found[field] = message[place : place + size]
        place += size
    return found


def read_bytes(message: bytes, field: int) -> bytes:
    """Return the bytes of a field, none where it is absent. Raises MessageError: see `read_fields`."""
    value = read_fields(message).get(field, b"")
    if not isinstance(value, bytes):
        raise MessageError(f"field {field} of the message is a number; it must be bytes")
    return value


def read_part(message: bytes) -> tuple[int, bytes]:
    """Return (state of the transfer, bytes) of an Observation. Raises MessageError: see `read_fields`."""
    fields = read_fields(message)
    state, data = fields.get(1, 0), fields.get(2, b"")
    if state not in (BEGIN, MIDDLE, END) or not isinstance(state, int) or not isinstance(data, bytes):
        raise MessageError(
            f"a part of an observation has the state {str(state)[:20]}; it must be 1, 2 or 3, with bytes"
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
    found = bytearray()
    while value > 0x7F:
        found.append(value & 0x7F | 0x80)
        value >>= 7
    found.append(value)
    return bytes(found)
