"""Slots: positions of a run to samples of its sources and back, for a schedule of whole slots.

A sample is (source, index): its number in that source's own endless stream, which `order/lanes.py` makes a frame.
"""

from bisect import bisect_right
from itertools import pairwise

import numpy as np

from understudy.order.lanes import Lanes
from understudy.order.mixture.mixture import make_period
from understudy.order.random.philox import Words
from understudy.order.search import Ints
from understudy.order.spec import Spec


class Slots:
    """The mixture of a spec of version 1. `lines`: the order of each source's frames, by its stream."""

    def __init__(self, spec: Spec) -> None:
        self._spec = spec
        self.lines = tuple(
            Lanes(spec.seed, d, s.frames, s.clip, s.lanes, s.shuffle, s.inside) for d, s in enumerate(spec.sources)
        )
        self._starts = np.array([entry.position for entry in spec.schedule], np.uint64)
        self._periods = tuple(make_period(entry.slots) for entry in spec.schedule)
        self._before = self._streams_before()

    def streams(self, positions: Words) -> tuple[Ints, Words]:
        """Positions uint64 (n,) -> (source int64, index uint64 in that source's own endless stream)."""
        if len(self._starts) == 1:
            return self._in_entry(0, positions)
        source, index = np.empty(positions.shape, np.int64), np.empty_like(positions)
        entry = np.searchsorted(self._starts, positions, side="right") - 1
        for own in group_by(entry):
            source[own], index[own] = self._in_entry(int(entry[own[0]]), positions[own])
        return source, index

    def lanes(self, positions: Words) -> tuple[Ints, Ints]:
        """Positions (n,) -> (source, lane of that source), int64 (n,) each."""
        source, index = self.streams(positions)
        lane = np.empty_like(source)
        for own in group_by(source):
            lane[own] = self.lines[int(source[own[0]])].lane(index[own]).view(np.int64)
        return source, lane

    def lane(self, position: int) -> int:
        """The lane of one position; quicker."""
        d, index = self._stream(position)
        return index % self._spec.sources[d].frames % self._spec.sources[d].lanes

    def rest_of_clip(self, position: int, most: int) -> tuple[int, Ints, Words]:
        """Of a position: (its source, the positions int64 (k,) from it on that share its clip in its lane, the numbers
        of their frames in the source's line uint64 (k,)), at most `most`."""
        d, first = self._stream(position)
        index, line = self.lines[d].rest_of_clip(first, most)
        positions = self._positions(d, position, index)
        return d, positions, line[: len(positions)]

    def slots_of(self, d: int) -> Ints | None:
        """The slots of source d at the end of the schedule, if each is a lane for good: here lanes go by counts."""
        return None

    def _positions(self, d: int, position: int, index: Words) -> Ints:
        """Where the stream indices (rising) of source d come up, the first of them at `position`: int64, and as many
        as come up before the source leaves."""
        number = int(np.searchsorted(self._starts, np.uint64(position), side="right")) - 1
        entry, period = self._spec.schedule[number], self._periods[number]
        rounds, slot = np.divmod(index.view(np.int64) - self._before[number][d], entry.slots[d])
        found = entry.position + rounds * len(period.source) + period.slots_of[d][slot]
        if number + 1 == len(self._spec.schedule) or found[-1] < self._spec.schedule[number + 1].position:
            return found
        each = [self.position(d, i) for i in index.tolist()]
        return np.array([p for p in each if p is not None], np.int64)

    def position(self, d: int, index: int) -> int | None:
        """The position at which stream index `index` of source d comes up; None if it never does."""
        for number in reversed(range(len(self._spec.schedule))):
            entry, before = self._spec.schedule[number], self._before[number][d]
            if d >= len(entry.slots) or not entry.slots[d] or index < before:
                continue
            rounds, slot = divmod(index - before, entry.slots[d])
            relative = rounds * sum(entry.slots) + int(self._periods[number].slots_of[d][slot])
            position = entry.position + relative
            later = self._spec.schedule[number + 1].position if number + 1 < len(self._spec.schedule) else None
            return position if later is None or position < later else None
        return None

    def _streams_before(self) -> list[list[int]]:
        """Per schedule entry: how far each source's stream had come when the entry began."""
        before = [[0] * len(self.lines)]
        for (entry, following), period in zip(pairwise(self._spec.schedule), self._periods):
            rounds, rest = divmod(following.position - entry.position, len(period.source))
            reached = list(before[-1])
            for d, count in enumerate(entry.slots):
                reached[d] += rounds * count + int(np.searchsorted(period.slots_of[d], rest))
            before.append(reached)
        return before

    def _stream(self, position: int) -> tuple[int, int]:
        """`streams` of one position: numpy's calls cost ten times as much as the few numbers."""
        number = bisect_right(self._spec.schedule, position, key=lambda entry: entry.position) - 1
        entry, period = self._spec.schedule[number], self._periods[number]
        rounds, slot = divmod(position - entry.position, len(period.source))
        d = int(period.source[slot])
        return d, self._before[number][d] + rounds * entry.slots[d] + int(period.before[slot])

    def _in_entry(self, number: int, positions: Words) -> tuple[Ints, Words]:
        entry, period, before = self._spec.schedule[number], self._periods[number], self._before[number]
        total = len(period.source)
        relative = positions - np.uint64(entry.position) if entry.position else positions
        if total == 1:
            d = entry.slots.index(1)
            return np.full(positions.shape, d, np.int64), relative + np.uint64(before[d])
        rounds = relative // np.uint64(total)
        slot = (relative - rounds * np.uint64(total)).view(np.int64)
        source = period.source[slot]
        index = rounds * period.counts[source]
        index += period.before[slot]
        if number:
            index += np.array(before, np.uint64)[source]
        return source, index


def group_by(labels: Ints) -> list[Ints]:
    """Index arrays of equal labels, one for each label that occurs."""
    by_label = np.argsort(labels, kind="stable")
    return np.split(by_label, np.flatnonzero(np.diff(labels[by_label])) + 1) if len(labels) else []
