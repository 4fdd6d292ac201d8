"""Shared slots: a mixture whose shares are no whole numbers of slots, while lanes still keep their slots.

A round of M slots repeats forever. A source's share of it is a whole number of parts, `UNIT` to a slot. Its whole slots
are its own in every round (placed as in `shares.py`). The remaining parts go into shared slots, filled one after the
other, so that a source has a part of two of them at most (McNaughton's wrap-around rule, 1959). A binary tree over the
members of a shared slot divides its rounds: of the first x visits of a node, the left child has floor((x a + b/2) / b),
where its share is a of b. So the visits of a source before a position, and the position of its n-th visit, are nested
floors, exact for any position. Counts stay within a few samples of the shares forever.

The lanes of a source are its slots. Its stream is the sequence of its samples, and epoch e the e-th N of them. In an
epoch lane l has n_l visits (sum n_l = N). The line of N frames is cut into stretches of these lengths, and each lane
reads its own. So a lane keeps its slot for the whole epoch, and every frame comes once.

Where shares change within an epoch, the unread rests of its lanes are joined, and cut anew among the new lanes.
"""

from bisect import bisect_right
from dataclasses import dataclass
from itertools import pairwise

import numpy as np

from understudy.order.lanes import Lanes
from understudy.order.mixture.rounds import make_round
from understudy.order.mixture.whole_slots import group_by
from understudy.order.prefix_sums import Ints
from understudy.order.random.philox import Words
from understudy.order.spec import Spec


@dataclass(frozen=True)
class Stretches:
    """One epoch of a source, cut among its lanes.

    `begin` int64 (V,) is the begin of each lane's stretch, `count` int64 (V,) its length, and `first` int64 (V,) the
    earlier visits of the lane. Where lanes of other shares have read a part of the epoch, these are of the rest, which
    consists of pieces of the epoch's line: piece k begins at `start[k]` and ends behind `ends[k]` frames of the rest.
    Otherwise both are empty.
    """

    begin: Ints
    first: Ints
    count: Ints
    start: Ints
    ends: Ints

    def line(self, q: Ints) -> Ints:
        """Line numbers of numbers in the rest."""
        if not len(self.start):
            return q
        piece = np.searchsorted(self.ends, q, side="right")
        return self.start[piece] + q - (self.ends[piece] - self._sizes[piece])

    def back(self, line: int) -> int | None:
        """Number in the rest of a line number: the inverse of `line`. None for frames read before."""
        if not len(self.start):
            return line
        inside = np.flatnonzero((self.start <= line) & (line < self.start + self._sizes))
        if not len(inside):
            return None
        piece = int(inside[0])
        return int(self.ends[piece] - self._sizes[piece] + line - self.start[piece])

    def to_end(self, lane: int, q: int) -> int:
        """Numbers from q on that are the lane's, and consecutive in the epoch's line."""
        left = int(self.begin[lane] + self.count[lane]) - q
        if len(self.start):
            left = min(left, int(self.ends[np.searchsorted(self.ends, q, side="right")]) - q)
        return left

    @property
    def _sizes(self) -> Ints:
        return np.diff(self.ends, prepend=0)


class SharedSlots:
    """Positions of a run to samples of its sources and back, for a schedule of exact shares.

    A sample is (source, index): index // N is its epoch, index % N its number in the line of that epoch.
    """

    def __init__(self, spec: Spec) -> None:
        self._spec = spec
        # The cut among lanes is made here; `Lanes` then reads the line as if by one.
        self.lines = tuple(
            Lanes(spec.seed, d, s.frames, s.clip, 1, s.shuffle, s.inside) for d, s in enumerate(spec.sources)
        )
        self._frames = [s.frames for s in spec.sources]
        self._in_lanes = np.array([s.shuffle and s.clip > 1 for s in spec.sources])
        self._begins = [entry.position for entry in spec.schedule]
        sources = len(spec.sources)
        self.rounds = [make_round((*e.slots, *[0] * (sources - len(e.slots)))) for e in spec.schedule]
        self._before = [[0] * sources]
        for round_, (begin, end) in zip(self.rounds, pairwise(self._begins)):
            counts = [int(round_.visits(d, end - begin).sum()) for d in range(sources)]
            self._before.append([before + count for before, count in zip(self._before[-1], counts)])
        self._cuts: dict[tuple[int, int, int], Stretches] = {}

    def __reduce__(self) -> tuple[type["SharedSlots"], tuple[Spec]]:
        return SharedSlots, (self._spec,)

    def streams(self, positions: Words) -> tuple[Ints, Words]:
        """Source (int64) and index (uint64) of positions uint64 (n,)."""
        source, index, _ = self._located(positions)
        return source, index.view(np.uint64)

    def lanes(self, positions: Words) -> tuple[Ints, Ints]:
        """Source and lane of that source, int64 (n,) each, of positions (n,)."""
        source, _, lane = self._located(positions)
        return source, lane

    def lane(self, position: int) -> int:
        """Lane of one position."""
        return int(self._located(np.array([position], np.uint64))[2][0])

    def slots_of(self, d: int) -> Ints | None:
        """Fixed slots of the lanes of source d at the end of the schedule; None where it is not read in lanes."""
        return self.rounds[-1].slots_of[d] if self._in_lanes[d] else None

    def rest_of_clip(self, position: int, most: int) -> tuple[int, Ints, Words]:
        """Samples from a position on in its clip and lane, at most `most`.

        Returns:
            (source, positions int64 (k,), line numbers of their frames uint64 (k,)).
        """
        k = bisect_right(self._begins, position) - 1
        begin, round_ = self._begins[k], self.rounds[k]
        d, lane, visit, stream = (int(of[0]) for of in round_.locate(np.array([position - begin])))
        frames, index = self._frames[d], stream + self._before[k][d]
        if self._in_lanes[d]:
            cut = self._cut(k, d, index // frames)
            q = int(cut.begin[lane]) + visit - int(cut.first[lane])
            most = min(most, cut.to_end(lane, q))
            index = index // frames * frames + int(cut.line(np.array([q]))[0])
        _, line = self.lines[d].rest_of_clip(index, most)
        if self._in_lanes[d]:
            positions = round_.positions(d, lane, visit + np.arange(len(line)))
        else:
            positions = np.array([round_.find(d, stream + i) for i in range(len(line))], np.int64)
        positions += begin
        if k + 1 < len(self._begins):
            positions = positions[positions < self._begins[k + 1]]
        return d, positions, line[: len(positions)]

    def _located(self, positions: Words) -> tuple[Ints, Ints, Ints]:
        x = positions.view(np.int64)
        number = np.searchsorted(np.array(self._begins), x, side="right") - 1
        source, index, lane = np.empty_like(x), np.empty_like(x), np.empty_like(x)
        for group in group_by(number):
            k = int(number[group[0]])
            source[group], index[group], lane[group] = self._in_entry(k, x[group] - self._begins[k])
        return source, index, lane

    def _in_entry(self, k: int, x: Ints) -> tuple[Ints, Ints, Ints]:
        source, lane, visit, index = self.rounds[k].locate(x)
        index += np.array(self._before[k], np.int64)[source]
        epoch = index // np.array(self._frames, np.int64)[source]
        lanes = np.where(self._in_lanes[source], lane, 0)
        rows = np.flatnonzero(self._in_lanes[source])
        by = rows[np.lexsort((epoch[rows], source[rows]))]
        changes = np.flatnonzero((np.diff(source[by]) != 0) | (np.diff(epoch[by]) != 0)) + 1
        for group in np.split(by, changes) if len(by) else []:
            d, e = int(source[group[0]]), int(epoch[group[0]])
            cut = self._cut(k, d, e)
            q = cut.begin[lane[group]] + visit[group] - cut.first[lane[group]]
            index[group] = e * self._frames[d] + cut.line(q)
        return source, index, lanes

    def position(self, d: int, index: int) -> int | None:
        """Position of a sample of source d; None if it never comes up."""
        epoch, line = divmod(index, self._frames[d])
        for k, (begin, round_, before) in enumerate(zip(self._begins, self.rounds, self._before)):
            last = k + 1 == len(self._begins)
            if not len(round_.slots_of[d]) or (not last and self._before[k + 1][d] <= epoch * self._frames[d]):
                continue
            if self._in_lanes[d]:
                cut = self._cut(k, d, epoch)
                q = cut.back(line)
                if q is None:
                    return None
                lane = int(np.flatnonzero((cut.begin <= q) & (q < cut.begin + cut.count))[0])
                visit = np.array([q - cut.begin[lane] + cut.first[lane]])
                position = begin + int(round_.positions(d, lane, visit)[0])
            else:
                position = begin + round_.find(d, index - before[d])
            if last or position < self._begins[k + 1]:
                return position
        return None

    def _cut(self, k: int, d: int, epoch: int) -> Stretches:
        """Cut of an epoch of source d among the lanes of entry k."""
        stretches = self._cuts.get((k, d, epoch))
        if stretches is None:
            if len(self._cuts) > 64 + 4 * len(self._frames):
                self._cuts.clear()
            stretches = self._cuts[k, d, epoch] = self._stretches(k, d, epoch)
        return stretches

    def _stretches(self, k: int, d: int, epoch: int) -> Stretches:
        round_, before, frames = self.rounds[k], self._before[k][d], self._frames[d]
        none = np.empty(0, np.int64)
        start, ends = none, none
        begin, first = epoch * frames - before, np.zeros(len(round_.slots_of[d]), np.int64)
        if begin > 0:
            first = round_.visits(d, round_.find(d, begin))
        elif begin < 0:
            start, ends = self._rest(k, d, epoch)
        count = round_.visits(d, round_.find(d, begin + frames)) - first
        return Stretches(np.cumsum(count) - count, first, count, start, ends)

    def _rest(self, k: int, d: int, epoch: int) -> tuple[Ints, Ints]:
        """Starts and running ends of the pieces that entries before k have left of an epoch."""
        k -= 1
        while not len(self.rounds[k].slots_of[d]):
            k -= 1
        cut, passed = self._cut(k, d, epoch), self._begins[k + 1] - self._begins[k]
        read = np.clip(self.rounds[k].visits(d, passed) - cut.first, 0, cut.count)
        low, high = cut.begin + read, cut.begin + cut.count
        # If that was itself a rest, its pieces cut the lanes' stretches further.
        edges = np.unique(np.concatenate([low, high, cut.ends]))
        lows, highs = edges[:-1], edges[1:]
        owner = np.searchsorted(high, lows, side="right")
        keep = (owner < len(low)) & (lows >= low[np.minimum(owner, len(low) - 1)])
        lows, highs = lows[keep], highs[keep]
        return cut.line(lows), np.cumsum(highs - lows)
