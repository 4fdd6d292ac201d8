"""ROS bags: MCAP and sqlite3 of ROS 2, .bag of ROS 1. One message, or one chunk of a file, is in
memory at a time.
"""

import re
import struct
from array import array
from collections.abc import Collection, Iterator
from functools import partial
from itertools import pairwise
from pathlib import Path
from typing import Any

import numpy as np

from understudy_tools.imports.bag_file import (
    DAY,
    FAR,
    BagFile,
    Days,
    Message,
    Stretch,
    Topic,
    merge,
)
from understudy_tools.imports.bag_files import SqliteFile, open_bag
from understudy_tools.imports.bounds import decompress
from understudy_tools.imports.limits import MAX_MESSAGES
from understudy_tools.imports.message_types import MessageTypes
from understudy_tools.imports.recording import (
    NANO,
    Recording,
    RecordingError,
    Sample,
    Times,
    reading,
)

SUFFIXES = (".mcap", ".db3", ".bag")
_STAMP = 4  # byte at which the stamp of a leading header begins, in CDR and in ROS 1
_SHORTEST = NANO // 100  # a span from which messages per second mean something


class Bag(Recording):
    """A bag.

    Args:
        path: file, or folder with metadata.yaml.
        distro: release of ROS 2 for a bag without message types, or "".
    """

    def __init__(self, path: Path, distro: str = "") -> None:
        files = [file for file in path.iterdir() if file.is_file()] if path.is_dir() else [path]
        super().__init__(str(path), sum(file.stat().st_size for file in files))
        self._path = path
        self._distro = distro
        self._listing = files

    def open(self) -> None:
        """Open the bag, and read its topics."""
        for file in self._listing:
            for journal in (file.with_name(file.name + end) for end in ("-wal", "-journal")):
                if file.suffix == ".db3" and journal.exists() and journal.stat().st_size:
                    fix = (
                        f"end the recording, or in a copy: sqlite3 {file.name} 'PRAGMA "
                        "journal_mode=delete'"
                    )
                    raise RecordingError(
                        "unreadable", f"has messages in {journal.name}, which are not read", fix=fix
                    )
        with reading():
            self._types = MessageTypes(self._distro, self._path.suffix == ".bag")
            self._files, self._compression, self.findings = open_bag(self._path)
        self._topics = dict[str, Topic]()
        for opened in self._files:
            self._topics |= {topic.name: topic for topic in opened.topics}
            self.findings += [RecordingError("unreadable", fault) for fault in opened.faults]
        self.kinds = {topic.name: topic.kind for topic in self._topics.values()}
        self._days = Days()
        for opened in self._files:
            for name, days in opened.days.topics.items():
                for count, first, last in days.values():
                    self._days.add(name, count, first, last)
        self._middle = self._days.middle()
        for name in self._topics:
            count, first = self._days.far(name, self._middle)
            if count:
                problem = (
                    f"{count} of its messages are stamped more than {FAR} days from the "
                    "middle of the recording"
                )
                self.findings.append(RecordingError("time", problem, name, first / NANO))

    def close(self) -> None:
        """Close the bag."""
        for file in self._files:
            file.close()

    def rates(self) -> dict[str, float]:
        """Return topic -> messages per second; 0 where they are too few, or too close, to have a
        rate.
        """
        rates = dict[str, float]()
        for name in self._topics:
            count, first, last = self._days.near(name, self._middle)
            rates[name] = (count - 1) * NANO / (last - first) if last - first >= _SHORTEST else 0.0
        return rates

    def _readable(self, streams: Collection[str]) -> set[str]:
        """Return the streams, whose types are read before a message is."""
        for stream in streams:
            if stream in self._topics:
                self._types.store(self._topics[stream])
        return set(streams)

    def _messages(self, streams: Collection[str]) -> Iterator[Message]:
        wanted = self._readable(streams)
        stretches = list[Stretch]()
        for file in self._files:
            stretches += file.stretches(wanted)
        with reading():
            yield from map(self._plain, merge(stretches))

    def _plain(self, message: Message) -> Message:
        if not self._compression:
            return message
        stream, time, raw = message
        return (
            stream,
            time,
            decompress(self._compression, raw, MAX_MESSAGES, f"a message of {stream}"),
        )

    def scan(self, streams: Collection[str]) -> dict[str, Times]:
        """Read the log time of each message, and the stamp of its header.

        Raises:
            RecordingError: the recorder's clock was set back: messages sorted by it would mix two
                times.
        """
        wanted = self._readable(streams)
        tables: dict[str, list[tuple[BagFile, np.ndarray]]] = {stream: [] for stream in streams}
        with reading():
            for file in self._files:
                for stream, table in self._scan_file(file, wanted).items():
                    if len(table):
                        tables[stream].append((file, table))
        self._check_sequence(tables)
        clocks = dict[str, Times]()
        for stream, parts in tables.items():
            table = np.concatenate([np.zeros((0, 2), np.int64), *(part for _, part in parts)])
            log, stamps = table[np.argsort(table[:, 0], kind="stable")].T
            header = stamps if stamps.any() else None
            clocks[stream] = Times(log, header)
        return clocks

    def _scan_file(self, file: BagFile, wanted: set[str]) -> dict[str, np.ndarray]:
        """Return stream -> log times and stamps of a file's messages, by log time, int64 (N, 2)."""
        if isinstance(file, SqliteFile):
            for stream, previous, time in file.resets():
                if stream in wanted and not self._is_far(previous) and not self._is_far(time):
                    _refuse_reset(stream, previous, time)
        # time, stamp, time, stamp, ...
        flat = {stream: array("q") for stream in wanted}
        latest = dict[str, int]()
        for stream, time, raw in map(self._plain, file.recorded(wanted)):
            if not self._is_far(time):
                if time < latest.get(stream, time) - NANO:
                    _refuse_reset(stream, latest[stream], time)
                latest[stream] = time
            flat[stream].extend((time, self._stamp(self._topics[stream], raw)))
        tables = dict[str, np.ndarray]()
        for stream, rows in flat.items():
            table = np.array(rows, np.int64).reshape(-1, 2)
            tables[stream] = table[np.argsort(table[:, 0], kind="stable")]
        return tables

    def _is_far(self, time: int) -> bool:
        return abs(time // DAY - self._middle) > FAR

    def _stamp(self, topic: Topic, raw: bytes) -> int:
        fields: Any = self._types.store(topic).fielddefs[topic.kind][1]
        if not fields or fields[0][0] != "header":
            return 0
        if len(raw) < _STAMP + 8:
            raise RecordingError(
                "unreadable", f"has a message of {len(raw)} bytes, too few for a header", topic.name
            )
        is_big = self._path.suffix != ".bag" and not raw[1] & 1
        form = ">iI" if is_big else "<iI"
        seconds, nanoseconds = struct.unpack_from(form, raw, _STAMP)
        return int(seconds * NANO + nanoseconds)

    def _check_sequence(self, tables: dict[str, list[tuple[BagFile, np.ndarray]]]) -> None:
        """Compare the times of a stream in several files with each other, and with the list of the
        files.
        """
        wrong = dict[tuple[str, str], None]()
        for stream, all_parts in tables.items():
            near = [
                (file, table[np.abs(table[:, 0] // DAY - self._middle) <= FAR])
                for file, table in all_parts
            ]
            parts = [(file, table) for file, table in near if len(table)]
            for (before, early), (after, late) in pairwise(parts):
                if late[0, 0] >= early[-1, 0] - NANO:
                    continue
                names = before.path.name, after.path.name
                overlap = min(early[-1, 0], late[-1, 0]) - max(early[0, 0], late[0, 0])
                if overlap > NANO:
                    problem = (
                        f"{names[0]} and {names[1]} have {overlap / NANO:.3f} s in common: "
                        "one is a copy of the "
                    )
                    problem += "other, or the recorder's clock was set back between them"
                    fix = (
                        "import each file alone, as a recording of its own, or list a copy once "
                        "in metadata.yaml"
                    )
                    raise RecordingError("reset", problem, stream, int(late[0, 0]) / NANO, fix)
                if by_number(names[0]) < by_number(names[1]):
                    back = (int(early[-1, 0]) - int(late[0, 0])) / NANO
                    problem = (
                        f"the recorder's clock goes back by {back:.3f} s from {names[0]} to "
                        f"{names[1]}"
                    )
                    fix = "import each file alone, as a recording of its own"
                    raise RecordingError("reset", problem, stream, int(early[-1, 0]) / NANO, fix)
                wrong[names] = None
        for first, second in wrong:
            problem = (
                f"metadata.yaml lists {second} after {first}, which begins later; they are "
                "read by time"
            )
            if problem not in [finding.what for finding in self.findings]:
                self.findings.append(RecordingError("layout", problem))

    def samples(self, streams: Collection[str]) -> Iterator[Sample]:
        """Yield the messages of streams by log time."""
        counts = dict.fromkeys(streams, -1)
        for stream, _, raw in self._messages(streams):
            counts[stream] += 1
            yield stream, counts[stream], partial(self._deserialize, stream, raw)

    def _deserialize(self, stream: str, raw: bytes) -> Any:
        topic = self._topics[stream]
        store = self._types.store(topic)
        with reading(stream):
            if self._path.suffix == ".bag":
                return store.deserialize_ros1(raw, topic.kind)
            return store.deserialize_cdr(raw, topic.kind)


def by_number(name: str) -> list[int | str]:
    """Return the key of a name by which 2 is before 10."""
    return [_as_number(word) for word in re.split(r"(\d+)", name)]


def _as_number(word: str) -> int | str:
    return int(word) if word.isdecimal() else word


def _refuse_reset(stream: str, previous: int, time: int) -> None:
    problem = f"the recorder's clock goes back by {(previous - time) / NANO:.3f} s"
    fix = "cut the bag there, and import both parts as recordings of their own"
    raise RecordingError("reset", problem, stream, previous / NANO, fix)
