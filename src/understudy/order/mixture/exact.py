"""Exact: a mixture whose shares are no whole numbers of slots, and whose lanes keep their slots all the same.

A round of M slots repeats for ever. A source's share of it is a whole number of parts, `UNIT` to a slot: its whole
slots are its own in every round (placed as in `mixture.py`), and what is left over goes into shared slots, filled one
after the other, so that a source has a part of two of them at most (McNaughton's wrap-around rule, 1959). In a shared
slot rounds are dealt by a binary tree over its members: of the x times that come to a node, the left child has
floor((x a + b/2) / b), a of b being its share. So how often a source has had a slot, and when it has it for the n-th
time, are nested floors, exact for any position, and counts stay within a few samples of the shares for ever.

A source's lanes are its slots. Its stream is what it gets, in sequence, and epoch e its e-th N samples. In an epoch
lane l comes up n_l times (sum n_l = N): the line of N frames is cut into stretches as long, and each is read by its
lane. So a lane is one slot's, for the whole epoch, and every frame comes once.

Where the shares change in an epoch, what its lanes have not read is strung together, and cut anew among the new lanes.
"""

from bisect import bisect_right
from dataclasses import dataclass
from itertools import pairwise

import numpy as np

from understudy.order.lanes import Lanes
from understudy.order.mixture.rounds import make_round
from understudy.order.mixture.slots import group_by
from understudy.order.random.philox import Words
from understudy.order.search import Ints
from understudy.order.spec import Spec


@dataclass(frozen=True)
class Stretches:
    """One epoch of a source, cut among its lanes. `begin` int64 (V,): where each lane's stretch begins; `first` int64
    (V,): how often the lane came up before; `count` int64 (V,): how long its stretch is.

    Where lanes of other shares read a part of the epoch, this is of the rest, which has pieces of the epoch's line:
    piece k begins at `start[k]` and ends behind `ends[k]` frames of the rest. Else both are empty.
    """

    begin: Ints
    first: Ints
    count: Ints
    start: Ints
    ends: Ints

    def line(self, q: Ints) -> Ints:
        """Numbers of what is read here -> numbers in the epoch's line."""
        if not len(self.start):
            return q
        piece = np.searchsorted(self.ends, q, side="right")
        return self.start[piece] + q - (self.ends[piece] - self._sizes[piece])

    def back(self, line: int) -> int | None:
        """The inverse of `line`; None for what was read before."""
        if not len(self.start):
            return line
        inside = np.flatnonzero((self.start <= line) & (line < self.start + self._sizes))
        if not len(inside):
            return None
        piece = int(inside[0])
        return int(self.ends[piece] - self._sizes[piece] + line - self.start[piece])

    def to_end(self, lane: int, q: int) -> int:
        """How many numbers from q on are the lane's, and one after the other in the epoch's line."""
        left = int(self.begin[lane] + self.count[lane]) - q
        if len(self.start):
            left = min(left, int(self.ends[np.searchsorted(self.ends, q, side="right")]) - q)
        return left

    @property
    def _sizes(self) -> Ints:
        return np.diff(self.ends, prepend=0)


class Exact:
    """Positions of a run to samples of its sources and back, for a schedule of exact shares.

    A sample is (source, index): index // N is its epoch, index % N its number in the line of that epoch.
    """

    def __init__(self, spec: Spec) -> None:
        self._spec = spec
        # An epoch's line is cut among the lanes here; behind that it is read as if by one.
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

    def __reduce__(self) -> tuple[type["Exact"], tuple[Spec]]:
        return Exact, (self._spec,)

    def streams(self, positions: Words) -> tuple[Ints, Words]:
        """Positions uint64 (n,) -> (source int64, index uint64)."""
        source, index, _ = self._located(positions)
        return source, index.view(np.uint64)

    def lanes(self, positions: Words) -> tuple[Ints, Ints]:
        """Positions (n,) -> (source, lane of that source), int64 (n,) each."""
        source, _, lane = self._located(positions)
        return source, lane

    def lane(self, position: int) -> int:
        """The lane of one position."""
        return int(self._located(np.array([position], np.uint64))[2][0])

    def slots_of(self, d: int) -> Ints | None:
        """The slots of source d at the end of the schedule, each a lane; None: it is not read in lanes."""
        return self.rounds[-1].slots_of[d] if self._in_lanes[d] else None

    def rest_of_clip(self, position: int, most: int) -> tuple[int, Ints, Words]:
        """Of a position: (its source, the positions int64 (k,) from it on that share its clip in its lane, the numbers
        of their frames in the source's line uint64 (k,)), at most `most`."""
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
        for own in group_by(number):
            k = int(number[own[0]])
            source[own], index[own], lane[own] = self._in_entry(k, x[own] - self._begins[k])
        return source, index, lane

    def _in_entry(self, k: int, x: Ints) -> tuple[Ints, Ints, Ints]:
        source, lane, visit, index = self.rounds[k].locate(x)
        index += np.array(self._before[k], np.int64)[source]
        epoch = index // np.array(self._frames, np.int64)[source]
        lanes = np.where(self._in_lanes[source], lane, 0)
        rows = np.flatnonzero(self._in_lanes[source])
        by = rows[np.lexsort((epoch[rows], source[rows]))]
        changes = np.flatnonzero((np.diff(source[by]) != 0) | (np.diff(epoch[by]) != 0)) + 1
        for own in np.split(by, changes) if len(by) else []:
            d, e = int(source[own[0]]), int(epoch[own[0]])
            cut = self._cut(k, d, e)
            q = cut.begin[lane[own]] + visit[own] - cut.first[lane[own]]
            index[own] = e * self._frames[d] + cut.line(q)
        return source, index, lanes

    def position(self, d: int, index: int) -> int | None:
        """The position at which a sample of source d comes up; None if it never does."""
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
                found = begin + int(round_.positions(d, lane, visit)[0])
            else:
                found = begin + round_.find(d, index - before[d])
            if last or found < self._begins[k + 1]:
                return found
        return None

    def _cut(self, k: int, d: int, epoch: int) -> Stretches:
        """How an epoch of source d is cut among the lanes of entry k."""
        found = self._cuts.get((k, d, epoch))
        if found is None:
            if len(self._cuts) > 64 + 4 * len(self._frames):
                self._cuts.clear()
            found = self._cuts[k, d, epoch] = self._stretches(k, d, epoch)
        return found

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
        """What entries before k have left of an epoch that they began: where pieces start, and their running ends."""
        k -= 1
        while not len(self.rounds[k].slots_of[d]):
            k -= 1
        cut, passed = self._cut(k, d, epoch), self._begins[k + 1] - self._begins[k]
        read = np.clip(self.rounds[k].visits(d, passed) - cut.first, 0, cut.count)
        low, high = cut.begin + read, cut.begin + cut.count
        # Where this was itself a rest, its pieces cut the lanes' stretches further.
        edges = np.unique(np.concatenate([low, high, cut.ends]))
        lows, highs = edges[:-1], edges[1:]
        owner = np.searchsorted(high, lows, side="right")
        keep = (owner < len(low)) & (lows >= low[np.minimum(owner, len(low) - 1)])
        lows, highs = lows[keep], highs[keep]
        return cut.line(lows), np.cumsum(highs - lows)
