"""Files of sqlite3 (ROS 2) and of ROS 1, and the files of a bag's folder by its metadata.yaml."""

import sqlite3
import struct
import tempfile
from collections.abc import Collection, Iterator
from contextlib import suppress
from functools import partial
from pathlib import Path, PurePath
from typing import Any

import numpy as np

from understudy_base import optional_imports
from understudy_kit import read_file
from understudy_tools.imports.bag_file import BagFile, Days, Message, Stretch, Topic, clip
from understudy_tools.imports.bounds import decompress, require_size, zstd_decoder
from understudy_tools.imports.inside import require_inside
from understudy_tools.imports.limits import MAX_MESSAGES
from understudy_tools.imports.mcap import McapFile
from understudy_tools.imports.recording import RecordingError

_BACKWARDS = """SELECT name, before, time FROM (SELECT topic_id, timestamp AS time,
LAG(timestamp) OVER (PARTITION BY topic_id ORDER BY id) AS before FROM messages)
JOIN topics ON topics.id = topic_id
WHERE time < before - 1000000000"""
_FORMATS = {"ros2msg": "msg", "ros2idl": "idl"}
_UNPACKED = 64  # times the size of a compressed file that it may have
_LEAST_UNPACKED = 1 << 30


class SqliteFile:
    """An open sqlite3 file of ROS 2, which is read without its journal.

    Args:
        path: its path, for messages.
        file: the file to read, another one where `path` is compressed.

    Raises:
        RecordingError: it is no such file, or cut.
    """

    def __init__(self, path: Path, file: Path) -> None:
        self.path = path
        self.days = Days()
        self.faults = list[str]()
        self._base = sqlite3.connect(f"{file.absolute().as_uri()}?mode=ro&immutable=1", uri=True)
        self._base.setlimit(sqlite3.SQLITE_LIMIT_LENGTH, MAX_MESSAGES)
        try:
            self._base.execute("PRAGMA trusted_schema = OFF")
            self._open()
        except sqlite3.Error as error:
            self._base.close()
            fix = "`sqlite3 FILE .recover` writes what can be read of a cut file into a new one"
            raise RecordingError(
                "unreadable", f"{path.name} is no bag, cut or damaged: {error}", fix=fix
            ) from error

    def _open(self) -> None:
        tables = {
            name
            for (name,) in self._base.execute("SELECT name FROM sqlite_master WHERE type = 'table'")
        }
        if missing := {"messages", "topics"} - tables:
            raise RecordingError(
                "unreadable", f"{self.path.name} has no table {', '.join(sorted(missing))}"
            )
        columns = {row[1] for row in self._base.execute("PRAGMA table_info(topics)")}
        digest = "type_description_hash" if "type_description_hash" in columns else "''"
        definitions = dict[str, tuple[str, str]]()
        if "message_definitions" in tables:
            query = (
                "SELECT topic_type, encoding, encoded_message_definition FROM "
                "message_definitions ORDER BY id DESC"
            )
            definitions = {
                kind: (_FORMATS.get(form, ""), text)
                for kind, form, text in self._base.execute(query)
            }
        self.topics = list[Topic]()
        self._names = dict[int, str]()
        query = f"SELECT id, name, type, serialization_format, {digest} FROM topics ORDER BY id"
        for number, name, kind, encoding, hashed in self._base.execute(query):
            form, text = definitions.get(kind, ("", ""))
            self._names[number] = name
            strange = "" if encoding in ("cdr", "", None) else str(encoding)
            self.topics.append(Topic(name, kind, form, text, hashed or "", strange))
        query = """SELECT topic_id, COUNT(*), MIN(timestamp), MAX(timestamp) FROM messages
            GROUP BY topic_id, timestamp / 86400000000000"""
        for number, count, first, last in self._base.execute(query):
            if number in self._names:
                self.days.add(self._names[number], count, clip(first), clip(last))

    def resets(self) -> Iterator[tuple[str, int, int]]:
        """Yield topic and both times where the recorder's clock goes back by more than a second."""
        yield from self._base.execute(_BACKWARDS)

    def recorded(self, topics: Collection[str]) -> Iterator[Message]:
        """Yield the messages of topics by time."""
        numbers = [number for number, name in self._names.items() if name in topics]
        marks = ", ".join("?" * len(numbers))
        query = (
            f"SELECT topic_id, timestamp, data FROM messages WHERE topic_id IN ({marks}) ORDER "
            "BY timestamp, id"
        )
        try:
            for number, time, data in self._base.execute(query, numbers):
                yield self._names[number], clip(time), bytes(data)
        except sqlite3.DataError as error:
            problem = (
                f"a message of {self.path.name} has more than {MAX_MESSAGES:,} bytes, the limit"
            )
            raise RecordingError("size", problem) from error

    def stretches(self, topics: Collection[str]) -> list[Stretch]:
        """Return the messages of topics as one stretch."""
        firsts = self.days.first_times(topics)
        return [Stretch(min(firsts), partial(self.recorded, topics))] if firsts else []

    def close(self) -> None:
        """Close the file."""
        self._base.close()


class Ros1File:
    """An open .bag file of ROS 1, read by `rosbags`; its chunks decode to the sizes that they
    state.

    Raises:
        RecordingError: it is cut.
    """

    def __init__(self, path: Path) -> None:
        with optional_imports():
            from rosbags.rosbag1 import Reader

        self.path = path
        self.days = Days()
        self.faults = list[str]()
        self._reader = Reader(path)
        try:
            self._reader.open()
        except Exception as error:
            fix = "`rosbag reindex` mends a bag that was not closed"
            raise RecordingError(
                "unreadable", f"{path.name} is cut or damaged: {error}", fix=fix
            ) from error
        for place, chunk in self._reader.chunks.items():
            bounded = partial(
                _decode_chunk, chunk.decompressor, self._stated_size(place), path.name
            )
            self._reader.chunks[place] = chunk._replace(decompressor=bounded)
        self.topics = [
            Topic(of.topic, of.msgtype, "msg", str(of.msgdef.data), of.digest)
            for of in self._reader.connections
        ]
        for of in self._reader.connections:
            self.days.add_times(
                of.topic, np.array([entry.time for entry in self._reader.indexes[of.id]], np.int64)
            )

    def _stated_size(self, place: int) -> int:
        with self.path.open("rb") as file:
            file.seek(place)
            (length,) = struct.unpack("<I", file.read(4))
            header = file.read(min(length, 1 << 16))
        _, field, remaining = header.partition(b"size=")
        size = MAX_MESSAGES
        if field and len(remaining) >= 4:
            (size,) = struct.unpack_from("<I", remaining)
        require_size(size, MAX_MESSAGES, f"a chunk of {self.path.name}")
        return int(size)

    def recorded(self, topics: Collection[str]) -> Iterator[Message]:
        """Yield the messages of topics by time."""
        connections = [of for of in self._reader.connections if of.topic in topics]
        if not connections:
            return
        for of, time, data in self._reader.messages(connections):
            yield of.topic, time, data

    def stretches(self, topics: Collection[str]) -> list[Stretch]:
        """Return the messages of topics as one stretch."""
        firsts = self.days.first_times(topics)
        return [Stretch(min(firsts), partial(self.recorded, topics))] if firsts else []

    def close(self) -> None:
        """Close the file."""
        self._reader.close()


def _decode_chunk(original: Any, size: int, name: str, data: bytes) -> bytes:
    """Decode a chunk of ROS 1 by its first bytes, which are a length where it is not compressed."""
    for kind, magic in (("bz2", b"BZh"), ("lz4", b"\x04\x22\x4d\x18")):
        if data.startswith(magic):
            return decompress(kind, data, size, f"a chunk of {name}")
    return bytes(original(data))


def open_bag(path: Path) -> tuple[list[BagFile], str, list[RecordingError]]:
    """Open the files of a bag.

    Args:
        path: file, or folder with metadata.yaml.

    Returns:
        The files, the compression of their messages, and findings about their list.

    Raises:
        RecordingError: a file is missing, not listed, outside of the folder, cut or damaged.
    """
    if not path.is_dir():
        return [_open_file(path, False)], "", []
    require_inside(path / "metadata.yaml", path)
    try:
        content: Any = read_file(str(path / "metadata.yaml")).get("rosbag2_bagfile_information")
    except ValueError as error:
        raise RecordingError("unreadable", f"metadata.yaml cannot be read: {error}") from error
    if not isinstance(content, dict) or not isinstance(content.get("relative_file_paths"), list):
        raise RecordingError("layout", "metadata.yaml lists no relative_file_paths", fix=_REINDEX)
    findings = list[RecordingError]()
    mode = str(content.get("compression_mode") or "").lower()
    form = str(content.get("compression_format") or "")
    if mode not in ("", "none", "file", "message") or (
        mode in ("file", "message") and form != "zstd"
    ):
        raise RecordingError(
            "unreadable", f"has compression {form!r} by {mode!r}; zstd by file or message is read"
        )
    listed = [str(entry) for entry in content["relative_file_paths"]]
    paths = list(dict.fromkeys(_listed(path, entry) for entry in listed))
    if len(paths) < len(listed):
        twice = (
            ", ".join(sorted({PurePath(entry).name for entry in listed if listed.count(entry) > 1}))
            or "a file"
        )
        findings.append(
            RecordingError("layout", f"metadata.yaml lists {twice} twice; it is read once")
        )
    ends = {".".join(entry.name.split(".")[1:]) for entry in paths}
    beside = [
        entry for entry in path.iterdir() if not entry.name.startswith(".") and entry not in paths
    ]
    if lost := [entry.name for entry in beside if ".".join(entry.name.split(".")[1:]) in ends]:
        problem = (
            f"metadata.yaml does not list {', '.join(sorted(lost))}, which lies beside the "
            "listed files"
        )
        raise RecordingError(
            "layout", problem, fix=f"{_REINDEX}; move a file that is of no use elsewhere"
        )
    files = list[BagFile]()
    try:
        for file in paths:
            files.append(_open_file(file, mode == "file"))
    except BaseException:
        for opened in files:
            opened.close()
        raise
    compression = "zstd" if mode == "message" else ""
    return files, compression, findings


_REINDEX = (
    "`ros2 bag reindex` writes metadata.yaml anew from the files that are there; keep a "
    "copy of the old one"
)


def _listed(folder: Path, entry: str) -> Path:
    """Return a listed file of a bag's folder; early versions list it with the name of the
    folder.
    """
    pure = PurePath(entry)
    file = folder / PurePath(entry).name
    is_of_folder = not pure.is_absolute() and ".." not in pure.parts
    if not file.exists():
        if not is_of_folder:
            problem = f"metadata.yaml names {entry}, outside of the folder, which is not read"
            raise RecordingError(
                "link", problem, fix="move the file into the folder, and list its name"
            )
        fix = "restore it; an import without it would lack its messages"
        raise RecordingError("missing", f"metadata.yaml lists {entry}, which is not there", fix=fix)
    require_inside(file, folder)
    return file


def _open_file(path: Path, is_compressed: bool) -> BagFile:
    """Open one file of a bag. A compressed one is decoded into a file that has no name any more."""
    kind = next((end for end in reversed(path.suffixes) if end in (".mcap", ".db3", ".bag")), "")
    if kind == ".bag":
        return Ros1File(path)
    if kind == ".db3":
        if not is_compressed:
            return SqliteFile(path, path)
        with tempfile.NamedTemporaryFile(prefix="understudy-import-", suffix=".db3") as unpacked:
            _unpack(path, unpacked)
            return SqliteFile(path, Path(unpacked.name))
    if kind != ".mcap":
        raise RecordingError("layout", f"{path.name} is neither MCAP nor sqlite3")
    # McapFile closes it
    file: Any = tempfile.TemporaryFile() if is_compressed else path.open("rb")  # noqa: SIM115
    try:
        if is_compressed:
            _unpack(path, file)
        return McapFile(path, file)
    except BaseException:
        with suppress(OSError):
            file.close()
        raise


def _unpack(path: Path, target: Any) -> None:
    """Decode a zstd file, of at most 64 times its size or 1 GiB."""
    limit = max(_LEAST_UNPACKED, _UNPACKED * path.stat().st_size)
    size = 0
    with path.open("rb") as file:
        decoder = zstd_decoder()
        data = file.read(1 << 20)
        while data or not decoder.needs_input:
            piece = decoder.decompress(data, max_length=1 << 20)
            size += len(piece)
            if size > limit:
                stored_size = path.stat().st_size
                problem = (
                    f"{path.name} of {stored_size:,} bytes decodes to more than {limit:,} bytes, "
                    "its limit"
                )
                raise RecordingError(
                    "size", problem, fix="decode it by hand: `zstd -d`, and list the decoded file"
                )
            target.write(piece)
            data = b""
            if decoder.eof:
                data = decoder.unused_data or file.read(1 << 20)
                decoder = zstd_decoder()
                if not data:
                    break
            elif decoder.needs_input:
                data = file.read(1 << 20)
                if not data:
                    raise RecordingError(
                        "unreadable", f"{path.name} is cut: its zstd data ends early"
                    )
    target.flush()
