"""A span of a file as the cache names and counts it: bytes [start, end), their checksum, and what covers what."""

from __future__ import annotations

import bisect
from collections.abc import Iterable
from dataclasses import dataclass
from itertools import accumulate


@dataclass
class Span:
    """Bytes [start, end) in the file `name`. `verified`: this process has checked them against `crc`; `used`: when it
    last marked them as used, in seconds since 1970."""

    start: int
    end: int
    name: str
    crc: int
    verified: bool = False
    used: float = 0.0


class Spans:
    """Spans of one file, which may overlap. Not safe in threads.

    Attributes:
        by_name: all of them.
    """

    def __init__(self) -> None:
        self.by_name: dict[str, Span] = {}
        self._spans: list[Span] = []  # by start
        self._starts: list[int] = []
        self._reach: list[int] = []  # where the furthest of the spans so far ends

    def add(self, span: Span) -> None:
        """Put down a span, unless it is there."""
        if span.name in self.by_name:
            return
        self.by_name[span.name] = span
        at = bisect.bisect_right(self._starts, span.start)
        self._spans.insert(at, span)
        self._starts.insert(at, span.start)
        self._reach.insert(at, max(span.end, self._reach[at - 1] if at else 0))
        for i in range(at + 1, len(self._reach)):
            if self._reach[i] >= span.end:
                break
            self._reach[i] = span.end

    def remove(self, names: Iterable[str]) -> None:
        """Strike out spans."""
        for name in names:
            self.by_name.pop(name, None)
        self._spans = [span for span in self._spans if span.name in self.by_name]
        self._starts = [span.start for span in self._spans]
        self._reach = list(accumulate((span.end for span in self._spans), max))

    def overlapping(self, start: int, end: int) -> list[Span]:
        """Those that overlap [start, end), by start."""
        low, high = bisect.bisect_right(self._reach, start), bisect.bisect_left(self._starts, end)
        return [span for span in self._spans[low:high] if span.end > start]


def parse_span(name: str) -> Span | None:
    """The span of a file name, None where it is not the name of one."""
    try:
        start, end, crc = (int(part, 16) for part in name.split("-"))
    except ValueError:
        return None
    return Span(start, end, name, crc)


def parse_claim(name: str) -> tuple[int, int] | None:
    """What is being fetched, by the name of its claim; None where it is not the name of one."""
    try:
        start, end = (int(part, 16) for part in name.removesuffix(".claim").split("-"))
    except ValueError:
        return None
    return start, end


def cover(spans: list[Span], start: int, end: int) -> list[tuple[Span, int, int]] | None:
    """Which span gives which part of [start, end), or None where some part is in none. `spans` are sorted by start."""
    found = []
    while start < end:
        at = bisect.bisect_right(spans, start, key=lambda span: span.start)
        before = (spans[i] for i in range(at - 1, -1, -1))  # nearly always the first of these
        span = next((span for span in before if span.end > start), None)
        if span is None:
            return None
        stop = min(span.end, end)
        found.append((span, start, stop))
        start = stop
    return found


def subtract(gaps: list[tuple[int, int]], there: list[tuple[int, int]]) -> list[tuple[int, int]]:
    """The intervals `gaps` less those of `there`."""
    for begin, end in there:
        left = []
        for start, stop in gaps:
            if end <= start or stop <= begin:
                left.append((start, stop))
                continue
            if start < begin:
                left.append((start, begin))
            if end < stop:
                left.append((end, stop))
        gaps = left
    return gaps
