"""ROS bags by `rosbags`: MCAP and sqlite3 of ROS 2, .bag of ROS 1. One message is in memory at a time."""

import struct
from array import array
from collections.abc import Collection, Iterator
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np

from understudy.imports.recording import NANO, Recording, RecordingError, Sample, Times, reading
from understudy.optional_packages import optional_imports

Message = tuple[str, str, int, bytes]
"""Topic, type, log time and bytes of a message."""
SUFFIXES = (".mcap", ".db3", ".bag")
_STAMP = 4  # byte at which the stamp of a leading header begins, in CDR and in ROS 1
_BACKWARDS = """SELECT name, before, time FROM (SELECT topic_id, timestamp AS time,
LAG(timestamp) OVER (PARTITION BY topic_id ORDER BY id) AS before FROM messages) JOIN topics ON topics.id = topic_id
WHERE time < before - 1000000000 LIMIT 1"""


class Bag(Recording):
    """A bag.

    Args:
        path: file, or folder with metadata.yaml.
        distro: release of ROS 2 for a bag without message types, or "".
    """

    def __init__(self, path: Path, distro: str = "") -> None:
        files = list(path.iterdir()) if path.is_dir() else [path]
        super().__init__(str(path), sum(file.stat().st_size for file in files))
        self._path, self._distro, self._files = path, distro, files

    def open(self) -> None:
        """Open the bag, and read its topics."""
        with optional_imports():
            from rosbags.highlevel import AnyReader
            from rosbags.typesys import Stores, get_typestore
        for file in self._files:
            for journal in (file.with_name(file.name + end) for end in ("-wal", "-journal")):
                if file.suffix == ".db3" and journal.exists() and journal.stat().st_size:
                    fix = f"end the recording, or in a copy: sqlite3 {file.name} 'PRAGMA journal_mode=delete'"
                    raise RecordingError("unreadable", f"has messages in {journal.name}, which are not read", fix=fix)
        fix = "mend a cut file with `mcap recover`; `ros_distro` names the release of a bag without message types"
        with reading(fix=fix):
            store = get_typestore(Stores(f"ros2_{self._distro}")) if self._distro else None
            self._reader = AnyReader([self._path], default_typestore=store)
            self._reader.open()
        self.kinds = {connection.topic: connection.msgtype for connection in self._reader.connections}

    def close(self) -> None:
        """Close the bag."""
        self._reader.close()

    def rates(self) -> dict[str, float]:
        """Return topic -> messages per second."""
        seconds = max(1, self._reader.duration) / NANO
        return {connection.topic: connection.msgcount / seconds for connection in self._reader.connections}

    def _messages(self, streams: Collection[str]) -> Iterator[Message]:
        connections = [connection for connection in self._reader.connections if connection.topic in streams]
        with reading():
            for connection, time, raw in self._reader.messages(connections) if connections else ():
                yield connection.topic, connection.msgtype, time, raw

    def _recorded(self, streams: Collection[str]) -> Iterator[Iterator[Message]]:
        """Yield the messages of each file as they were written; those of sqlite3 and ROS 1 are sorted by log time."""
        storage = getattr(self._reader.readers[0], "storage", None)
        files = getattr(storage, "storages", [storage])
        for file in files:
            for stream, before, time in file.dbconn.execute(_BACKWARDS) if hasattr(file, "dbconn") else ():
                _refuse_reset(stream, before, time)
        if not hasattr(files[0], "messages_scan") or self._reader.readers[0].compression_mode == "message":
            yield self._messages(streams)
            return
        for file in files:
            connections = [connection for connection in file.connections if connection.topic in streams]
            yield ((of.topic, of.msgtype, time, raw) for of, time, raw in file.messages_scan(connections))

    def scan(self, streams: Collection[str]) -> dict[str, Times]:
        """Read the log time of each message, and the stamp of its header.

        Raises:
            RecordingError: the recorder's clock was set back: messages sorted by it would mix two times.
        """
        tables = {stream: [np.zeros((0, 2), np.int64)] for stream in streams}
        with reading():
            for messages in self._recorded(streams):
                flat = {stream: array("q") for stream in streams}  # time, stamp, time, stamp, ...
                for stream, kind, time, raw in messages:
                    rows, stamp = flat[stream], 0
                    if rows and time < rows[-2] - NANO:
                        _refuse_reset(stream, rows[-2], time)
                    fields: Any = self._reader.typestore.fielddefs[kind][1]
                    if fields and fields[0][0] == "header":
                        is_big = self._reader.is2 and not raw[1] & 1
                        seconds, rest = struct.unpack_from(">iI" if is_big else "<iI", raw, _STAMP)
                        stamp = seconds * NANO + rest
                    rows.extend((time, stamp))
                for stream, rows in flat.items():
                    table = np.array(rows, np.int64).reshape(-1, 2)
                    tables[stream].append(table[np.argsort(table[:, 0], kind="stable")])
        joined = {stream: np.concatenate(parts).T for stream, parts in tables.items()}
        return {stream: Times(log, stamps if stamps.any() else None) for stream, (log, stamps) in joined.items()}

    def samples(self, streams: Collection[str]) -> Iterator[Sample]:
        """Yield the messages of streams by log time."""
        counts = dict.fromkeys(streams, -1)
        for stream, kind, _, raw in self._messages(streams):
            counts[stream] += 1
            yield stream, counts[stream], partial(self._deserialize, stream, raw, kind)

    def _deserialize(self, stream: str, raw: bytes, kind: str) -> Any:
        with reading(stream):
            return self._reader.deserialize(raw, kind)


def _refuse_reset(stream: str, before: int, time: int) -> None:
    problem = f"the recorder's clock goes back by {(before - time) / NANO:.3f} s"
    raise RecordingError("reset", problem, stream, before / NANO, fix="cut the bag there")
