"""MCAP files: records in sequence, chunks that are decoded one at a time, and the checksums that a
file has.

Only the data section has to be there. A summary spares the look into chunks for schemas and
channels, where it repeats them; message indexes spare it for times. The specification makes both
optional. The reader of `rosbags` registers the types of all topics at once, decodes chunks of any
size, and leaves the checksum of the data section.
"""

import struct
import zlib
from array import array
from collections.abc import Callable, Collection, Iterator
from dataclasses import dataclass, field
from functools import partial
from pathlib import Path
from typing import BinaryIO

import numpy as np

from understudy_tools.imports.bag_file import Days, Message, Stretch, Topic, clip
from understudy_tools.imports.bounds import decompress, require_size
from understudy_tools.imports.limits import MAX_MESSAGES, MAX_METADATA
from understudy_tools.imports.recording import RecordingError

_MAGIC = b"\x89MCAP0\r\n"
_FOOTER = 9 + 20 + len(_MAGIC)  # bytes of the footer record and the magic
_SCHEMA = 3
_CHANNEL = 4
_MESSAGE = 5
_CHUNK = 6
_INDEX = 7
_ATTACHMENT = 9
_END = 15
_FORMATS = {"ros2msg": "msg", "ros2idl": "idl", "omgidl": "idl", "": ""}
_HEAD = struct.Struct("<BQ")  # operation and length of a record
_OF_MESSAGE = struct.Struct("<HIQQ")  # channel, sequence, log time, publish time
_OF_CHUNK = struct.Struct("<QQQI")  # first and last time, decoded size, checksum
RECOVER = "`mcap recover` writes the messages that can be read into a new file"
"""Remedy for a cut or damaged file."""


@dataclass
class _Chunk:
    """A chunk of a file, not read.

    Attributes:
        offset: of its record's content.
        size: of its record's content.
        start: first time that its header states.
        ids: channels of its messages; None where the file has no index of it.
    """

    offset: int
    size: int
    start: int
    ids: set[int] | None = None


@dataclass
class _Loose:
    """Messages outside of chunks: channel, log time, and place and size of the data."""

    ids: "array[int]" = field(default_factory=lambda: array("H"))
    times: "array[int]" = field(default_factory=lambda: array("q"))
    offsets: "array[int]" = field(default_factory=lambda: array("q"))
    sizes: "array[int]" = field(default_factory=lambda: array("q"))


class McapFile:
    """An open MCAP file.

    Args:
        path: its path, for messages.
        file: its bytes; `close` closes it.

    Raises:
        RecordingError: it is cut or damaged, or a checksum differs.
    """

    def __init__(self, path: Path, file: BinaryIO) -> None:
        self.path = path
        self._file = file
        self.days = Days()
        self.faults = list[str]()
        self._schemas = dict[int, tuple[str, str, str]]()
        self._channels = dict[int, Topic]()
        self._parts = list[_Chunk | _Loose]()
        self._size = file.seek(0, 2)
        file.seek(0)
        if file.read(len(_MAGIC)) != _MAGIC:
            problem = "no MCAP file" if self._size else "empty"
            raise RecordingError("unreadable", f"{path.name} is {problem}")
        try:
            self._open()
        except struct.error as error:
            raise self._damaged(
                f"has a record that is shorter than its fields ({error})"
            ) from error
        self.topics = list(self._channels.values())

    def _open(self) -> None:
        file = self._file
        file.seek(max(0, self._size - _FOOTER))
        footer = file.read()
        operation, length, start, _, checksum = struct.unpack_from("<BQQQI", footer)
        if not footer.endswith(_MAGIC) or (operation, length) != (2, 20):
            raise self._damaged("is cut: it has no footer")
        end = self._size - _FOOTER
        if start:
            if not len(_MAGIC) <= start <= end:
                raise self._damaged(f"has its summary at byte {start}, outside of its {self._size}")
            if checksum and self._checksum(start, end + 9 + 16) != checksum:
                raise self._damaged("has a summary that does not match its checksum")
            self._read_summary(start, end)
        self._walk(start or end)
        for chunk in self._parts:
            if isinstance(chunk, _Chunk) and (
                chunk.ids is None or not chunk.ids <= self._channels.keys()
            ):
                self._look_into(chunk)
        for part in self._parts:
            if isinstance(part, _Loose):
                ids = np.asarray(part.ids)
                times = np.asarray(part.times)
                for number in np.unique(ids).tolist():
                    self._count(number, [times[ids == number]])
        for number, parts in self._indexed.items():
            self._count(number, parts)

    def _count(self, number: int, times: list[np.ndarray]) -> None:
        if (topic := self._channels.get(number)) is not None:
            for part in times:
                self.days.add_times(topic.name, part)

    def _damaged(self, problem: str) -> RecordingError:
        return RecordingError("unreadable", f"{self.path.name} {problem}", fix=RECOVER)

    def _checksum(self, start: int, end: int) -> int:
        self._file.seek(start)
        checksum = 0
        while start < end:
            block = self._file.read(min(1 << 20, end - start))
            checksum = zlib.crc32(block, checksum)
            start = start + max(1, len(block))
        return checksum

    def _read_summary(self, start: int, end: int) -> None:
        for operation, offset, size in self._records(start, end):
            if operation in (_SCHEMA, _CHANNEL):
                self._define(
                    operation, self._read(offset, size, MAX_METADATA, "a schema or channel")
                )

    def _records(self, start: int, end: int) -> Iterator[tuple[int, int, int]]:
        """Yield operation, place and size of the content of records."""
        while start < end:
            self._file.seek(start)
            operation, size = _HEAD.unpack(self._file.read(_HEAD.size))
            start += _HEAD.size
            if start + size > end:
                raise self._damaged(
                    f"is cut or damaged: a record of {size} bytes at byte {start} reaches over its "
                    "end"
                )
            yield operation, start, size
            start += size

    def _read(self, offset: int, size: int, limit: int, what: str) -> bytes:
        require_size(size, limit, f"{what} of {self.path.name}")
        self._file.seek(offset)
        return self._file.read(size)

    def _walk(self, end: int) -> None:
        """List the chunks and loose messages of the data section, and check its checksums."""
        self._indexed = dict[int, list[np.ndarray]]()
        operation = 0
        for operation, offset, size in self._records(len(_MAGIC), end):
            if operation == _MESSAGE:
                if not self._parts or not isinstance(self._parts[-1], _Loose):
                    self._parts.append(_Loose())
                loose = self._parts[-1]
                assert isinstance(loose, _Loose)
                number, _, time, _ = _OF_MESSAGE.unpack(self._file.read(_OF_MESSAGE.size))
                loose.ids.append(number)
                loose.times.append(clip(time))
                loose.offsets.append(offset + _OF_MESSAGE.size)
                loose.sizes.append(size - _OF_MESSAGE.size)
            elif operation == _CHUNK:
                first, _, decoded, _ = _OF_CHUNK.unpack(self._file.read(_OF_CHUNK.size))
                require_size(decoded, MAX_MESSAGES, f"a chunk of {self.path.name}")
                self._parts.append(_Chunk(offset, size, first))
            elif operation == _INDEX and self._parts and isinstance(self._parts[-1], _Chunk):
                self._read_index(self._parts[-1], self._file.read(size))
            elif operation in (_SCHEMA, _CHANNEL):
                self._define(
                    operation, self._read(offset, size, MAX_METADATA, "a schema or channel")
                )
            elif operation == _ATTACHMENT:
                self._check_attachment(offset, size)
            elif operation == _END:
                (checksum,) = struct.unpack("<I", self._file.read(4))
                if checksum and self._checksum(0, offset - _HEAD.size) != checksum:
                    raise self._damaged("has a data section that does not match its checksum")
                return
        if operation and operation != _END:
            self.faults.append(
                f"{self.path.name} has no end of its data section, and so no checksum of it"
            )

    def _read_index(self, chunk: _Chunk, content: bytes) -> None:
        number, length = struct.unpack_from("<HI", content)
        if length % 16 or length > len(content) - 6:
            raise self._damaged(f"has a message index of {length} bytes in {len(content)}")
        chunk.ids = chunk.ids or set()
        if length:
            stated = np.frombuffer(content, "<u8", length // 8, 6)[::2]
            times = np.minimum(stated, 1 << 62).astype(np.int64)
            chunk.ids.add(number)
            self._indexed.setdefault(number, []).append(times)
            chunk.start = min(chunk.start, int(times.min()))

    def _check_attachment(self, offset: int, size: int) -> None:
        self._file.seek(offset + size - 4)
        (checksum,) = struct.unpack("<I", self._file.read(4))
        if checksum and self._checksum(offset, offset + size - 4) != checksum:
            self.faults.append(
                f"an attachment of {self.path.name}, which is not imported, does not match its "
                "checksum"
            )

    def _define(self, operation: int, content: bytes | memoryview) -> None:
        """Remember a schema or channel; the first of an id counts."""
        (number,) = struct.unpack_from("<H", content)
        content = bytes(content)
        if operation == _SCHEMA:
            name, place = _text(content, 2)
            encoding, place = _text(content, place)
            definition, _ = _text(content, place)
            self._schemas.setdefault(number, (name, encoding, definition))
            return
        (schema,) = struct.unpack_from("<H", content, 2)
        topic, place = _text(content, 4)
        messages, _ = _text(content, place)
        if schema and schema not in self._schemas:
            return  # the summary repeats channels alone
        kind, encoding, definition = self._schemas.get(schema, ("", "", ""))
        strange = ""
        if messages not in ("cdr", "") or encoding not in _FORMATS:
            strange = f"{messages} with a schema of {encoding}"
        of = Topic(
            topic, kind or strange or "no type", _FORMATS.get(encoding, ""), definition, "", strange
        )
        self._channels.setdefault(number, of)

    def _look_into(self, chunk: _Chunk) -> None:
        """Read the schemas and channels of a chunk, and its times where it has no index."""
        times = dict[int, list[int]]()
        for operation, content in self._decoded(chunk):
            if operation in (_SCHEMA, _CHANNEL):
                self._define(operation, content)
            elif operation == _MESSAGE:
                number, _, time, _ = _OF_MESSAGE.unpack_from(content)
                times.setdefault(number, []).append(clip(time))
        if chunk.ids is None:
            chunk.ids = set(times)
            for number, of_channel in times.items():
                self._indexed.setdefault(number, []).append(np.array(of_channel, np.int64))
                chunk.start = min(chunk.start, min(of_channel))

    def _decoded(self, chunk: _Chunk) -> Iterator[tuple[int, memoryview]]:
        """Yield operation and content of the records of a chunk."""
        content = self._read(chunk.offset, chunk.size, chunk.size, "a chunk")
        _, _, size, checksum = _OF_CHUNK.unpack_from(content)
        kind, place = _text(content, _OF_CHUNK.size)
        (length,) = struct.unpack_from("<Q", content, place)
        data = memoryview(content)[place + 8 :]
        if length > len(data):
            raise self._damaged(f"has a chunk with {length} bytes of records in {len(data)}")
        what = f"a chunk of {self.path.name} at byte {chunk.offset}"
        if kind not in ("", "zstd", "lz4"):
            raise RecordingError(
                "unreadable", f"{what} has compression {kind!r}", fix="read are none, zstd and lz4"
            )
        try:
            decoded = decompress(kind, data[:length], size, what) if kind else bytes(data[:length])
        except RecordingError:
            raise
        except Exception as error:  # each library has its own
            raise self._damaged(
                f"has a chunk at byte {chunk.offset} that {kind} cannot decode: {error}"
            ) from error
        if len(decoded) != size:
            raise self._damaged(
                f"has a chunk of {len(decoded)} bytes at byte {chunk.offset}, and states {size}"
            )
        if checksum and zlib.crc32(decoded) != checksum:
            raise self._damaged(
                f"has a chunk at byte {chunk.offset} that does not match its checksum"
            )
        view = memoryview(decoded)
        place = 0
        while place < size:
            if place + _HEAD.size > size:
                raise self._damaged(f"has a chunk at byte {chunk.offset} that ends within a record")
            operation, length = _HEAD.unpack_from(view, place)
            place += _HEAD.size
            if place + length > size:
                raise self._damaged(f"has a chunk at byte {chunk.offset} that ends within a record")
            yield operation, view[place : place + length]
            place += length

    def _wanted(self, topics: Collection[str]) -> dict[int, str]:
        return {
            number: topic.name for number, topic in self._channels.items() if topic.name in topics
        }

    def _of_chunk(self, chunk: _Chunk, wanted: dict[int, str]) -> Iterator[Message]:
        for operation, content in self._decoded(chunk):
            if operation == _MESSAGE:
                number, _, time, _ = _OF_MESSAGE.unpack_from(content)
                if chunk.ids is not None and number not in chunk.ids:
                    raise self._damaged(
                        f"has messages of channel {number} at byte {chunk.offset} in no index of "
                        "them"
                    )
                if number in wanted:
                    if time < chunk.start:
                        raise self._damaged(
                            f"has a message at {time} ns, before its chunk at {chunk.start}"
                        )
                    yield wanted[number], clip(time), bytes(content[_OF_MESSAGE.size :])

    def _of_loose(
        self, loose: _Loose, wanted: dict[int, str], is_sorted: bool
    ) -> Iterator[Message]:
        times = np.asarray(loose.times)
        rows = np.argsort(times, kind="stable") if is_sorted else np.arange(len(times))
        for row in rows[np.isin(np.asarray(loose.ids)[rows], list(wanted))].tolist():
            content = self._read(
                loose.offsets[row], loose.sizes[row], loose.sizes[row], "a message"
            )
            yield wanted[loose.ids[row]], loose.times[row], content

    def stretches(self, topics: Collection[str]) -> list[Stretch]:
        """Return the messages of topics: a chunk each, and those outside of chunks."""
        wanted = self._wanted(topics)
        all_stretches = list[Stretch]()
        for part in self._parts:
            if isinstance(part, _Loose):
                all_stretches.append(
                    Stretch(min(part.times), partial(self._of_loose, part, wanted, True))
                )
            elif part.ids and not part.ids.isdisjoint(wanted):
                all_stretches.append(
                    Stretch(part.start, _sorted(partial(self._of_chunk, part, wanted)))
                )
        return all_stretches

    def recorded(self, topics: Collection[str]) -> Iterator[Message]:
        """Yield the messages of topics as they were written."""
        wanted = self._wanted(topics)
        for part in self._parts:
            if isinstance(part, _Loose):
                yield from self._of_loose(part, wanted, False)
            elif part.ids and not part.ids.isdisjoint(wanted):
                yield from self._of_chunk(part, wanted)

    def close(self) -> None:
        """Close the file."""
        self._file.close()


def _text(content: bytes, place: int) -> tuple[str, int]:
    """Return a text at a place, and the place after it. Bytes that are no UTF-8 are replaced."""
    (length,) = struct.unpack_from("<I", content, place)
    end = place + 4 + length
    if end > len(content):
        raise struct.error(f"a text of {length} bytes in {len(content) - place - 4}")
    return content[place + 4 : end].decode(errors="replace"), end


def _sorted(messages: Callable[[], Iterator[Message]]) -> Callable[[], Iterator[Message]]:
    return lambda: iter(sorted(messages(), key=lambda message: message[1]))
