"""Whole slots: positions of a run to samples of its sources and back.

A sample is (source, index): its number in the endless stream of that source, which `order/lanes.py` maps to frames.
"""

from bisect import bisect_right
from itertools import pairwise

import numpy as np

from understudy.order.lanes import Lanes
from understudy.order.mixture.shares import make_period
from understudy.order.prefix_sums import Ints
from understudy.order.random.philox import Words
from understudy.order.spec import Spec


class WholeSlots:
    """Mixture of a spec of version 1. `lines` is the order of each source's frames, by its stream."""

    def __init__(self, spec: Spec) -> None:
        self._spec = spec
        self.lines = tuple(
            Lanes(spec.seed, d, s.frames, s.clip, s.lanes, s.shuffle, s.inside) for d, s in enumerate(spec.sources)
        )
        self._starts = np.array([entry.position for entry in spec.schedule], np.uint64)
        self._periods = tuple(make_period(entry.slots) for entry in spec.schedule)
        self._before = self._streams_before()

    def streams(self, positions: Words) -> tuple[Ints, Words]:
        """Source (int64) of positions uint64 (n,), and index (uint64) in the endless stream of that source."""
        if len(self._starts) == 1:
            return self._in_entry(0, positions)
        source, index = np.empty(positions.shape, np.int64), np.empty_like(positions)
        entry = np.searchsorted(self._starts, positions, side="right") - 1
        for group in group_by(entry):
            source[group], index[group] = self._in_entry(int(entry[group[0]]), positions[group])
        return source, index

    def lanes(self, positions: Words) -> tuple[Ints, Ints]:
        """Source and lane of that source, int64 (n,) each, of positions (n,)."""
        source, index = self.streams(positions)
        lane = np.empty_like(source)
        for group in group_by(source):
            lane[group] = self.lines[int(source[group[0]])].lane(index[group]).view(np.int64)
        return source, lane

    def lane(self, position: int) -> int:
        """Lane of one position; faster than `lanes`."""
        d, index = self._stream(position)
        return index % self._spec.sources[d].frames % self._spec.sources[d].lanes

    def rest_of_clip(self, position: int, most: int) -> tuple[int, Ints, Words]:
        """Samples from a position on in its clip and lane, at most `most`.

        Returns:
            (source, positions int64 (k,), line numbers of their frames uint64 (k,)).
        """
        d, first = self._stream(position)
        index, line = self.lines[d].rest_of_clip(first, most)
        positions = self._positions(d, position, index)
        return d, positions, line[: len(positions)]

    def slots_of(self, d: int) -> Ints | None:
        """Fixed slots of the lanes of source d: none, lanes go by counts here."""
        return None

    def _positions(self, d: int, position: int, index: Words) -> Ints:
        """Positions of rising stream indices of source d, the first of them at `position`: int64.

        Indices behind the end of the source are left out.
        """
        number = int(np.searchsorted(self._starts, np.uint64(position), side="right")) - 1
        entry, period = self._spec.schedule[number], self._periods[number]
        rounds, slot = np.divmod(index.view(np.int64) - self._before[number][d], entry.slots[d])
        positions = entry.position + rounds * len(period.source) + period.slots_of[d][slot]
        if number + 1 == len(self._spec.schedule) or positions[-1] < self._spec.schedule[number + 1].position:
            return positions
        valid = [self.position(d, i) for i in index.tolist()]
        return np.array([p for p in valid if p is not None], np.int64)

    def position(self, d: int, index: int) -> int | None:
        """Position of stream index `index` of source d; None if it never comes up."""
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
        """`streams` of one position, in plain integers: numpy's calls would cost ten times as much."""
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
