"""Spans of a file as the cache names and indexes them: bytes [start, end) and their checksum."""

from __future__ import annotations

import bisect
from collections.abc import Iterable
from dataclasses import dataclass
from itertools import accumulate


@dataclass
class Span:
    """Bytes [start, end) of a file, cached under `name`.

    Attributes:
        start: First byte.
        end: Byte after the last one.
        name: File name in the cache.
        crc: CRC-32 of the bytes.
        verified: Whether this process has checked the bytes against `crc`.
        used: When this process last updated the modification time, in seconds since 1970.
    """

    start: int
    end: int
    name: str
    crc: int
    verified: bool = False
    used: float = 0.0


class Spans:
    """Index of the spans of one file, which may overlap. Not safe in threads.

    Attributes:
        by_name: All spans by file name.
    """

    def __init__(self) -> None:
        self.by_name: dict[str, Span] = {}
        self._spans: list[Span] = []  # by start
        self._starts: list[int] = []
        self._reach: list[int] = []  # furthest end of this span and all before it

    def add(self, span: Span) -> None:
        """Add a span, unless one of its name is there."""
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
        """Remove the spans of these names; unknown names are ignored."""
        for name in names:
            self.by_name.pop(name, None)
        self._spans = [span for span in self._spans if span.name in self.by_name]
        self._starts = [span.start for span in self._spans]
        self._reach = list(accumulate((span.end for span in self._spans), max))

    def overlapping(self, start: int, end: int) -> list[Span]:
        """Return the spans that overlap [start, end), sorted by start."""
        low, high = bisect.bisect_right(self._reach, start), bisect.bisect_left(self._starts, end)
        return [span for span in self._spans[low:high] if span.end > start]


def parse_span(name: str) -> Span | None:
    """Return the span that a cached file's name describes; None for a foreign name."""
    try:
        start, end, crc = (int(part, 16) for part in name.split("-"))
    except ValueError:
        return None
    return Span(start, end, name, crc)


def parse_claim(name: str) -> tuple[int, int] | None:
    """Return (start, end) from the file name of a claim; None for a foreign name."""
    try:
        start, end = (int(part, 16) for part in name.removesuffix(".claim").split("-"))
    except ValueError:
        return None
    return start, end


def cover(spans: list[Span], start: int, end: int) -> list[tuple[Span, int, int]] | None:
    """Return (span, start, end) pieces that make up [start, end); None if some byte is in no span.

    `spans` must be sorted by start.
    """
    pieces = []
    while start < end:
        at = bisect.bisect_right(spans, start, key=lambda span: span.start)
        before = (spans[i] for i in range(at - 1, -1, -1))  # nearly always the first of these
        span = next((span for span in before if span.end > start), None)
        if span is None:
            return None
        stop = min(span.end, end)
        pieces.append((span, start, stop))
        start = stop
    return pieces


def subtract(intervals: list[tuple[int, int]], removed: list[tuple[int, int]]) -> list[tuple[int, int]]:
    """Return the parts of `intervals` outside all intervals of `removed`."""
    for begin, end in removed:
        left = []
        for start, stop in intervals:
            if end <= start or stop <= begin:
                left.append((start, stop))
                continue
            if start < begin:
                left.append((start, begin))
            if end < stop:
                left.append((end, stop))
        intervals = left
    return intervals
