"""Rounds: one round of a mixture whose shares are no whole numbers of slots, and the visits of each
slot.

`shared_slots.py` documents the scheme.

Shared slots: a mixture whose shares are no whole numbers of slots, while lanes still keep their
slots.

A round of M slots repeats forever. A source's share of it is a whole number of parts, `UNIT` to a
slot. Its whole slots are its own in every round (placed as in `shares.py`). The remaining parts go
into shared slots, filled one after the other, so that a source has a part of two of them at most
(McNaughton's wrap-around rule, 1959). A binary tree over the members of a shared slot divides its
rounds: of the first x visits of a node, the left child has floor((x a + b/2) / b), where its share
is a of b. So the visits of a source before a position, and the position of its n-th visit, are
nested floors, exact for any position.

After any number of positions the count of a source differs from its parts by less than `MOST_OFF` =
7 samples:

- Whole slots: less than 1, by the placement (`shares.py`).
- A slot has had less than one visit more or less than its part of the positions. With the parts of
  a source in shared slots, less than one slot together, that is less than 1 sample.
- Each of at most two leaves: less than 5/2. A node rounds the visits of both children by 1/2 at
  most. The error of a node at a leaf is its rounding times (leaf / child). So a leaf of weight t is
  off by at most 1/2 the sum of t / c over the nodes c from the leaf up to a child of the root. That
  sum is below 5. For let L be the larger child of a node b, cut as near to halves as possible. Its
  member m at the cut has m >= 2 L - b. If L > 2 b / 3, then m > L / 2, so the next cut makes m a
  leaf, and the rest of L is below b / 3. So on the way up nodes grow by 3/2 at each step, or by 3
  at two, except that a leaf m may be nearly its parent L, and L nearly its parent b. The terms are
  at most 1 for the leaf, 1 for L, and 1 + 2/3 + 4/9 + ... = 3 from b on.

Parts are those of the weights, rounded to whole ones: by less than one in M * `UNIT`.

The lanes of a source are its slots. Its stream is the sequence of its samples, and epoch e the e-th
N of them. In an epoch lane l has n_l visits (sum n_l = N). The line of N frames is cut into
stretches of these lengths, and each lane reads its own. So a lane keeps its slot for the whole
epoch, and every frame comes once.

Where shares change within an epoch, the unread rests of its lanes are joined, and cut anew among
the new lanes.
"""

from bisect import bisect_right
from collections.abc import Sequence
from dataclasses import dataclass
from functools import lru_cache
from itertools import pairwise

import numpy as np

from understudy_data.order.frame_numbering import Ints
from understudy_data.order.lanes import Lanes
from understudy_data.order.random import Words
from understudy_data.order.shares import group_by, make_period
from understudy_data.order.spec import UNIT, Spec

MOST_OFF = 7
"""Samples by which the count of a source differs from its parts, less than this after any number of
positions.
"""


def count_lanes(parts: Sequence[int]) -> tuple[int, ...]:
    """Count the slots, whole or shared, that each source has a part of."""
    counts = []
    offset = 0
    for part in parts:
        rest = part % UNIT
        shared = -(-(offset + rest) // UNIT) - offset // UNIT if rest else 0
        counts.append(part // UNIT + shared)
        offset += rest
    return tuple(counts)


def count_lanes_within(parts: Sequence[int], low: int, high: int, batch_size: int) -> list[int]:
    """Count the slots of each source, whole or shared, that come at the offsets [low, high) of a
    batch.

    The slots of a round are whole batches.
    """
    whole, rest = np.divmod(np.array(parts, np.int64), UNIT)
    ends = np.cumsum(rest)
    shared = int(ends[-1]) // UNIT
    period = make_period((*whole.tolist(), shared))
    offset = np.arange(len(period.source)) % batch_size
    is_within = (offset >= low) & (offset < high)
    of_sources = np.bincount(period.source[is_within], minlength=len(parts) + 1)[:-1]
    before = np.cumsum((0, *is_within[period.slots_of[len(parts)]]))
    shared_within = before[-(-ends // UNIT)] - before[(ends - rest) // UNIT]
    counts: list[int] = (of_sources + np.where(rest > 0, shared_within, 0)).tolist()
    return counts


@dataclass(frozen=True)
class Round:
    """One round: M slots, divided as `parts`. A leaf is one source's part of a shared slot.

    - `owner` int64 (M,): source of a whole slot, -1 for a shared one. `number` int64 (M,): the lane
      of a whole slot in its source, or the number of the shared slot.
    - `whole` int64 (D,): whole slots of each source. `slots_of[d]` int64 (V_d,): slots of a
      source's lanes, the whole ones first. `leaves_of` int64 (D, 2): its leaves, -1 for none.
    - Of each leaf: `source`, `lane`, `slot`, `ahead` (its source's whole slots before it), and the
      path from the root of its tree, `a`, `b` and `left` (leaves, depth).
    - Of the nodes: `root` of each shared slot, and `share`, rows (a, b, left child, right child),
      where a child below 0 is leaf -1 - child.
    """

    slots: int
    parts: tuple[int, ...]
    owner: Ints
    number: Ints
    whole: Ints
    slots_of: tuple[Ints, ...]
    leaves_of: Ints
    source: Ints
    lane: Ints
    slot: Ints
    ahead: Ints
    a: Ints
    b: Ints
    left: np.ndarray
    root: Ints
    share: Ints

    def locate(self, x: Ints) -> tuple[Ints, Ints, Ints, Ints]:
        """Samples at positions int64 (n,), counted from the first round.

        Returns:
            (source, lane, earlier visits of the lane, earlier samples of the source).
        """
        rounds, slot = np.divmod(x, self.slots)
        source = self.owner[slot]
        lane = self.number[slot]
        visit = rounds.copy()
        ahead = lane.copy()
        if len(is_shared := np.flatnonzero(source < 0)):
            leaf, visit[is_shared] = self._descend(lane[is_shared], rounds[is_shared])
            source[is_shared] = self.source[leaf]
            lane[is_shared] = self.lane[leaf]
            ahead[is_shared] = self.ahead[leaf]
        index = rounds * self.whole[source] + ahead
        for leaf in self.leaves_of[source].T:
            has = np.flatnonzero(leaf >= 0)
            leaves = leaf[has]
            index[has] += self._count(leaves, rounds[has] + (self.slot[leaves] < slot[has]))
        return source, lane, visit, index

    def visits(self, d: int, x: int) -> Ints:
        """Visits of each lane of source d before position x: int64 (V_d,)."""
        rounds, slot = divmod(x, self.slots)
        visits = rounds + (self.slots_of[d] < slot).astype(np.int64)
        whole = int(self.whole[d])
        leaves = self.leaves_of[d][self.leaves_of[d] >= 0]
        visits[whole:] = self._count(leaves, visits[whole:])
        return visits

    def find(self, d: int, index: int) -> int:
        """Position of sample number `index` of source d."""
        near = index * UNIT // self.parts[d]
        step = 1 + 8 * UNIT // self.parts[d]
        low = max(0, near - step)
        high = near + step
        while self._in_rounds(d, high) <= index:
            high += step
        while self._in_rounds(d, low) > index:
            low = max(0, low - step)
        while high - low > 1:  # `low` rounds hold at most `index` samples, `high` rounds hold more
            middle = (low + high) // 2
            low, high = (middle, high) if self._in_rounds(d, middle) <= index else (low, middle)
        before = self.visits(d, low * self.slots)
        behind = self.visits(d, high * self.slots)
        slots = np.sort(self.slots_of[d][behind > before])
        return low * self.slots + int(slots[index - int(before.sum())])

    def positions(self, d: int, lane: int, visit: Ints) -> Ints:
        """Positions of the (visit + 1)-th visits of a lane of source d."""
        if lane >= self.whole[d]:
            leaf = int(self.leaves_of[d][lane - self.whole[d]])
            for a, b, left in zip(*(of[leaf][::-1].tolist() for of in (self.a, self.b, self.left))):
                visit = _nth_left(visit, a, b) if left else _nth_right(visit, a, b)
        return visit * self.slots + self.slots_of[d][lane]

    def _in_rounds(self, d: int, rounds: int) -> int:
        """Samples of source d in the first `rounds` rounds."""
        leaves = self.leaves_of[d][self.leaves_of[d] >= 0]
        return rounds * int(self.whole[d]) + int(
            self._count(leaves, np.full(len(leaves), rounds, np.int64)).sum()
        )

    def _descend(self, shared: Ints, x: Ints) -> tuple[Ints, Ints]:
        node = self.root[shared]
        x = x.copy()
        while len(inner := np.flatnonzero(node >= 0)):
            a, b, to_left, to_right = self.share[node[inner]].T
            before = _lefts(x[inner], a, b)
            left = _lefts(x[inner] + 1, a, b) > before
            x[inner] = np.where(left, before, x[inner] - before)
            node[inner] = np.where(left, to_left, to_right)
        return -1 - node, x

    def _count(self, leaf: Ints, x: Ints) -> Ints:
        """Visits of each leaf in the first x rounds."""
        for step in range(self.a.shape[1]):
            before = _lefts(x, self.a[leaf, step], self.b[leaf, step])
            x = np.where(self.left[leaf, step], before, x - before)
        return x


def _lefts(x: Ints, a: Ints, b: Ints) -> Ints:
    """Visits of a left child among the first x: floor((x a + b // 2) / b), without overflow."""
    q = x // b
    return q * a + ((x - q * b) * a + b // 2) // b


def _nth_left(n: Ints, a: int, b: int) -> Ints:
    """Least x with _lefts(x + 1) = n + 1: ceil(((n + 1) b - b // 2) / a) - 1."""
    q = (n + 1) // a
    return q * b - ((b // 2 - (n + 1 - q * a) * b) // a) - 1


def _nth_right(n: Ints, a: int, b: int) -> Ints:
    """Least x with x + 1 - _lefts(x + 1) = n + 1: floor((n b + b // 2) / (b - a))."""
    q = n // (b - a)
    return q * b + ((n - q * (b - a)) * b + b // 2) // (b - a)


@lru_cache(maxsize=16)
def make_round(parts: tuple[int, ...]) -> Round:
    """Make the round in which source d has `parts[d]` of sum(parts) = M * UNIT parts."""
    sources = len(parts)
    whole = [part // UNIT for part in parts]
    members: list[list[tuple[int, int]]] = [
        [] for _ in range((sum(parts) - sum(whole) * UNIT) // UNIT)
    ]
    offset = 0
    for d, part in enumerate(parts):
        rest = part % UNIT
        while rest:
            taken = min(rest, UNIT - offset % UNIT)
            members[offset // UNIT].append((d, taken))
            offset = offset + taken
            rest = rest - taken
    period = make_period((*whole, len(members)))
    slots_of = [places.tolist() for places in period.slots_of[:sources]]
    leaves: list[tuple[int, int, int, int]] = []
    paths: list[list[tuple[int, int, bool]]] = []
    share: list[list[int]] = []
    leaves_of = np.full((sources, 2), -1, np.int64)

    def grow(parted: list[tuple[int, int]], slot: int, path: list[tuple[int, int, bool]]) -> int:
        if len(parted) == 1:
            d, _ = parted[0]
            leaf = len(leaves)
            leaves_of[d, len(slots_of[d]) - whole[d]] = leaf
            leaves.append(
                (d, len(slots_of[d]), slot, int(np.searchsorted(period.slots_of[d], slot)))
            )
            slots_of[d].append(slot)
            paths.append(path)
            return -1 - leaf
        behind = np.cumsum([weight for _, weight in parted])
        b = int(behind[-1])
        cut = 1 + int(np.argmin(abs(2 * behind[:-1] - b)))  # as near to halves as possible
        a = int(behind[cut - 1])
        node = len(share)
        share.append([a, b, 0, 0])
        share[node][2] = grow(parted[:cut], slot, [*path, (a, b, True)])
        share[node][3] = grow(parted[cut:], slot, [*path, (a, b, False)])
        return node

    root = [grow(places, int(slot), []) for places, slot in zip(members, period.slots_of[sources])]
    depth = max(map(len, paths), default=0)
    # behind its leaf a path goes left, with the whole share
    padded = np.ones((len(paths), depth, 3), np.int64)
    for leaf, path in enumerate(paths):
        padded[leaf, : len(path)] = np.array(path, np.int64).reshape(-1, 3)
    source, lane, slot, ahead = np.array(leaves, np.int64).reshape(-1, 4).T
    return Round(
        slots=len(period.source),
        parts=parts,
        owner=np.where(period.source == sources, -1, period.source),
        number=period.before.view(np.int64),
        whole=np.array(whole, np.int64),
        slots_of=tuple(np.array(places, np.int64) for places in slots_of),
        leaves_of=leaves_of,
        source=source,
        lane=lane,
        slot=slot,
        ahead=ahead,
        a=padded[..., 0],
        b=padded[..., 1],
        left=padded[..., 2].astype(bool),
        root=np.array(root, np.int64),
        share=np.array(share, np.int64).reshape(-1, 4),
    )


@dataclass(frozen=True)
class Stretches:
    """One epoch of a source, cut among its lanes.

    `begin` int64 (V,) is the begin of each lane's stretch, `count` int64 (V,) its length, and
    `first` int64 (V,) the earlier visits of the lane. Where lanes of other shares have read a part
    of the epoch, these are of the rest, which consists of pieces of the epoch's line: piece k
    begins at `start[k]` and ends behind `ends[k]` frames of the rest. Otherwise both are empty.
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
        """Number in the rest of a line number: the inverse of `line`. None for frames read
        before.
        """
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

    A sample is (source, index): index // N is its epoch, index % N its number in the line of that
    epoch.
    """

    def __init__(self, spec: Spec) -> None:
        self._spec = spec
        # The cut among lanes is made here; `Lanes` then reads the line as if by one.
        self.lines = tuple(
            Lanes(spec.seed, d, s.frames, s.clip, 1, s.shuffle, s.inside)
            for d, s in enumerate(spec.sources)
        )
        self._frames = [s.frames for s in spec.sources]
        self._in_lanes = np.array([s.shuffle and s.clip > 1 for s in spec.sources])
        self._begins = [entry.position for entry in spec.schedule]
        sources = len(spec.sources)
        self.rounds = [
            make_round((*e.slots, *[0] * (sources - len(e.slots)))) for e in spec.schedule
        ]
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
        """Fixed slots of the lanes of source d at the end of the schedule; None where it is not
        read in lanes.
        """
        return self.rounds[-1].slots_of[d] if self._in_lanes[d] else None

    def rest_of_clip(self, position: int, most: int) -> tuple[int, Ints, Words]:
        """Samples from a position on in its clip and lane, at most `most`.

        Returns:
            (source, positions int64 (k,), line numbers of their frames uint64 (k,)).
        """
        k = bisect_right(self._begins, position) - 1
        begin = self._begins[k]
        round_ = self.rounds[k]
        d, lane, visit, stream = (int(of[0]) for of in round_.locate(np.array([position - begin])))
        frames = self._frames[d]
        index = stream + self._before[k][d]
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
        source = np.empty_like(x)
        index = np.empty_like(x)
        lane = np.empty_like(x)
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
        groups = np.split(by, changes) if len(by) else []
        for group in groups:
            d = int(source[group[0]])
            e = int(epoch[group[0]])
            cut = self._cut(k, d, e)
            q = cut.begin[lane[group]] + visit[group] - cut.first[lane[group]]
            index[group] = e * self._frames[d] + cut.line(q)
        return source, index, lanes

    def position(self, d: int, index: int) -> int | None:
        """Position of a sample of source d; None if it never comes up."""
        epoch, line = divmod(index, self._frames[d])
        for k, (begin, round_, before) in enumerate(zip(self._begins, self.rounds, self._before)):
            last = k + 1 == len(self._begins)
            if not len(round_.slots_of[d]) or (
                not last and self._before[k + 1][d] <= epoch * self._frames[d]
            ):
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
        round_ = self.rounds[k]
        before = self._before[k][d]
        frames = self._frames[d]
        none = np.empty(0, np.int64)
        start = none
        ends = none
        begin = epoch * frames - before
        first = np.zeros(len(round_.slots_of[d]), np.int64)
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
        cut = self._cut(k, d, epoch)
        passed = self._begins[k + 1] - self._begins[k]
        read = np.clip(self.rounds[k].visits(d, passed) - cut.first, 0, cut.count)
        low = cut.begin + read
        high = cut.begin + cut.count
        # If that was itself a rest, its pieces cut the lanes' stretches further.
        edges = np.unique(np.concatenate([low, high, cut.ends]))
        lows = edges[:-1]
        highs = edges[1:]
        owner = np.searchsorted(high, lows, side="right")
        keep = (owner < len(low)) & (lows >= low[np.minimum(owner, len(low) - 1)])
        lows = lows[keep]
        highs = highs[keep]
        return cut.line(lows), np.cumsum(highs - lows)
