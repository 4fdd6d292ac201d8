"""What the readers of bag files share: topics, days of messages, and stretches that are sorted by
time.
"""

from collections.abc import Callable, Collection, Iterable, Iterator
from dataclasses import dataclass, field
from pathlib import Path
from typing import Protocol

import numpy as np

from understudy_tools.imports.recording import NANO

Message = tuple[str, int, bytes]
"""Topic, log time in nanoseconds, and bytes of a message."""
DAY = 86_400 * NANO
"""Nanoseconds of a day."""
FAR = 30
"""Days from the middle of a recording from which a message is of another time."""


def clip(time: int) -> int:
    """Return a log time within 146 years of 1970, so that sums of times fit; others are far from
    any recording.
    """
    return max(-(1 << 62), min(1 << 62, time))


@dataclass(frozen=True)
class Topic:
    """A topic of a file.

    Attributes:
        name: its name.
        kind: its message type, as in `sensor_msgs/msg/Image`.
        format: of its definition: msg, idl, or "" for none.
        definition: text of the definition, or "".
        digest: hash of the definition, or "".
        encoding: "" where its messages can be read; otherwise the encoding that they have.
    """

    name: str
    kind: str
    format: str = ""
    definition: str = ""
    digest: str = ""
    encoding: str = ""


@dataclass
class Days:
    """Messages of each topic by day: count, first and last time of each, in nanoseconds."""

    topics: dict[str, dict[int, tuple[int, int, int]]] = field(default_factory=dict)

    def add(self, topic: str, count: int, first: int, last: int) -> None:
        """Count messages of one day."""
        days = self.topics.setdefault(topic, {})
        old_count, old_first, old_last = days.get(first // DAY, (0, first, last))
        days[first // DAY] = old_count + count, min(old_first, first), max(old_last, last)

    def add_times(self, topic: str, times: np.ndarray) -> None:
        """Count messages at times, int64 (N,)."""
        for day in np.unique(times // DAY).tolist():
            of_day = times[times // DAY == day]
            self.add(topic, len(of_day), int(of_day.min()), int(of_day.max()))

    def first_times(self, topics: Iterable[str]) -> list[int]:
        """Return the first time of each day of some topics."""
        firsts: list[int] = []
        for topic in topics:
            firsts += [first for _, first, _ in self.topics.get(topic, {}).values()]
        return firsts

    def middle(self) -> int:
        """Return the day that half of the messages are before."""
        counts = dict[int, int]()
        for days in self.topics.values():
            for day, (count, _, _) in days.items():
                counts[day] = counts.get(day, 0) + count
        total = sum(counts.values())
        so_far = 0
        for day in sorted(counts):
            so_far += counts[day]
            if 2 * so_far >= total:
                return day
        return 0

    def near(self, topic: str, middle: int) -> tuple[int, int, int]:
        """Return count, first and last time of a topic's messages near a day; count 0 where it has
        none.
        """
        days = [of for day, of in self.topics.get(topic, {}).items() if abs(day - middle) <= FAR]
        if not days:
            return 0, 0, 0
        return sum(of[0] for of in days), min(of[1] for of in days), max(of[2] for of in days)

    def far(self, topic: str, middle: int) -> tuple[int, int]:
        """Return the number of a topic's messages far from a day, and the first time of them."""
        days = [of for day, of in self.topics.get(topic, {}).items() if abs(day - middle) > FAR]
        return sum(of[0] for of in days), min((of[1] for of in days), default=0)


@dataclass
class Stretch:
    """Messages of a file that are read at once.

    Attributes:
        start: a time that is not after any of them.
        load: returns them by time, of equal times as they were written.
    """

    start: int
    load: Callable[[], Iterator[Message]]


class BagFile(Protocol):
    """One file of a bag."""

    path: Path
    topics: list[Topic]
    days: Days
    faults: list[str]
    """Damage of parts that are not read."""

    def stretches(self, topics: Collection[str]) -> list[Stretch]:
        """Return the messages of topics, as they were written."""
        ...

    def recorded(self, topics: Collection[str]) -> Iterator[Message]:
        """Yield the messages of topics as they were written; those of sqlite3 and ROS 1 by log
        time.
        """
        ...

    def close(self) -> None:
        """Close the file."""
        ...


def merge(stretches: Collection[Stretch]) -> Iterator[Message]:
    """Yield the messages of stretches by time; of equal times in the sequence of the stretches."""
    waiting = sorted(enumerate(stretches), key=lambda item: (item[1].start, item[0]), reverse=True)
    running = list[tuple[int, int, Message, Iterator[Message]]]()
    while waiting or running:
        running.sort(key=lambda entry: entry[:2])
        while waiting and (not running or waiting[-1][1].start <= running[0][0]):
            number, stretch = waiting.pop()
            messages = stretch.load()
            if (first := next(messages, None)) is not None:
                running.append((first[1], number, first, messages))
                running.sort(key=lambda entry: entry[:2])
        if not running:
            continue
        _, number, message, messages = running.pop(0)
        while True:
            yield message
            following = next(messages, None)
            if following is None:
                break
            is_next = not running or (following[1], number) <= running[0][:2]
            if not is_next or (waiting and waiting[-1][1].start <= following[1]):
                running.append((following[1], number, following, messages))
                break
            message = following
