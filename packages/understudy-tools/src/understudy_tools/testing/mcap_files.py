"""MCAP files written record by record, so that each part can be left out, repeated or damaged."""

import struct
import zlib
from collections.abc import Callable, Iterable
from pathlib import Path

START = 1_700_000_000 * 10**9
"""Log time of the first message."""
MAGIC = b"\x89MCAP0\r\n"
HEAD = b"\0\1\0\0"
"""First bytes of a message in CDR."""


def text(value: str | bytes) -> bytes:
    data = value.encode() if isinstance(value, str) else value
    return struct.pack("<I", len(data)) + data


def record(operation: int, body: bytes) -> bytes:
    return bytes([operation]) + struct.pack("<Q", len(body)) + body


def schema(number: int, name: str, definition: str | bytes, encoding: str = "ros2msg") -> bytes:
    return record(3, struct.pack("<H", number) + text(name) + text(encoding) + text(definition))


def channel(number: int, of_schema: int, topic: str, encoding: str = "cdr") -> bytes:
    return record(
        4, struct.pack("<HH", number, of_schema) + text(topic) + text(encoding) + text(b"")
    )


def message(number: int, time: int, data: bytes) -> bytes:
    return record(5, struct.pack("<HIQQ", number, 0, time, time) + data)


def chunk(
    body: bytes,
    first: int,
    last: int,
    kind: str = "",
    size: int | None = None,
    crc: int | None = None,
) -> bytes:
    packed = compress(kind)(body)
    size = len(body) if size is None else size
    crc = zlib.crc32(body) if crc is None else crc
    head = struct.pack("<QQQI", first, last, size, crc)
    return record(6, head + text(kind) + struct.pack("<Q", len(packed)) + packed)


def index(number: int, entries: Iterable[tuple[int, int]]) -> bytes:
    return record(
        7,
        struct.pack("<H", number) + text(b"".join(struct.pack("<QQ", *entry) for entry in entries)),
    )


def compress(kind: str) -> Callable[[bytes], bytes]:
    if kind == "zstd":
        from backports import zstd

        return lambda data: bytes(zstd.compress(data))
    if kind == "lz4":
        import lz4.frame

        return lambda data: bytes(lz4.frame.compress(data))
    return lambda data: data


def write(
    path: Path,
    data: bytes,
    summary: bytes = b"",
    data_crc: bool = False,
    summary_crc: bool = False,
    profile: str = "ros2",
    end: bool = True,
) -> Path:
    """Write a file: header, `data`, the end of the data section, `summary` and the footer."""
    content = MAGIC + record(1, text(profile) + text("test")) + data
    if end:
        content_crc = zlib.crc32(content) if data_crc else 0
        content += record(15, struct.pack("<I", content_crc))
    start = len(content) if summary else 0
    head = bytes([2]) + struct.pack("<QQQ", 20, start, 0)
    crc = zlib.crc32(summary + head) if summary_crc else 0
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_bytes(content + summary + head + struct.pack("<I", crc) + MAGIC)
    return path
