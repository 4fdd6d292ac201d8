"""Rounds: one round of a mixture whose shares are no whole numbers of slots, and the visits of each slot.

`shared_slots.py` documents the scheme.
"""

from collections.abc import Sequence
from dataclasses import dataclass
from functools import lru_cache

import numpy as np

from understudy.order.mixture.shares import make_period
from understudy.order.prefix_sums import Ints
from understudy.order.spec import UNIT


def count_lanes(parts: Sequence[int]) -> tuple[int, ...]:
    """Count the slots, whole or shared, that each source has a part of."""
    counts, offset = [], 0
    for part in parts:
        rest = part % UNIT
        shared = -(-(offset + rest) // UNIT) - offset // UNIT if rest else 0
        counts.append(part // UNIT + shared)
        offset += rest
    return tuple(counts)


@dataclass(frozen=True)
class Round:
    """One round: M slots, divided as `parts`. A leaf is one source's part of a shared slot.

    - `owner` int64 (M,): source of a whole slot, -1 for a shared one. `number` int64 (M,): the lane of a whole slot in
      its source, or the number of the shared slot.
    - `whole` int64 (D,): whole slots of each source. `slots_of[d]` int64 (V_d,): slots of a source's lanes, the whole
      ones first. `leaves_of` int64 (D, 2): its leaves, -1 for none.
    - Of each leaf: `source`, `lane`, `slot`, `ahead` (its source's whole slots before it), and the path from the root
      of its tree, `a`, `b` and `left` (leaves, depth).
    - Of the nodes: `root` of each shared slot, and `share`, rows (a, b, left child, right child), where a child below 0
      is leaf -1 - child.
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
        source, lane, visit = self.owner[slot], self.number[slot], rounds.copy()
        ahead = lane.copy()
        if len(is_shared := np.flatnonzero(source < 0)):
            leaf, visit[is_shared] = self._descend(lane[is_shared], rounds[is_shared])
            source[is_shared], lane[is_shared], ahead[is_shared] = self.source[leaf], self.lane[leaf], self.ahead[leaf]
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
        near, step = index * UNIT // self.parts[d], 1 + 8 * UNIT // self.parts[d]
        low, high = max(0, near - step), near + step
        while self._in_rounds(d, high) <= index:
            high += step
        while self._in_rounds(d, low) > index:
            low = max(0, low - step)
        while high - low > 1:  # `low` rounds hold at most `index` samples, `high` rounds hold more
            middle = (low + high) // 2
            low, high = (middle, high) if self._in_rounds(d, middle) <= index else (low, middle)
        before, behind = self.visits(d, low * self.slots), self.visits(d, high * self.slots)
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
        return rounds * int(self.whole[d]) + int(self._count(leaves, np.full(len(leaves), rounds, np.int64)).sum())

    def _descend(self, shared: Ints, x: Ints) -> tuple[Ints, Ints]:
        node, x = self.root[shared], x.copy()
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
    sources, whole = len(parts), [part // UNIT for part in parts]
    members: list[list[tuple[int, int]]] = [[] for _ in range((sum(parts) - sum(whole) * UNIT) // UNIT)]
    offset = 0
    for d, part in enumerate(parts):
        rest = part % UNIT
        while rest:
            taken = min(rest, UNIT - offset % UNIT)
            members[offset // UNIT].append((d, taken))
            offset, rest = offset + taken, rest - taken
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
            leaves.append((d, len(slots_of[d]), slot, int(np.searchsorted(period.slots_of[d], slot))))
            slots_of[d].append(slot)
            paths.append(path)
            return -1 - leaf
        behind = np.cumsum([weight for _, weight in parted])
        b = int(behind[-1])
        cut = 1 + int(np.argmin(abs(2 * behind[:-1] - b)))  # as near to halves as possible
        a, node = int(behind[cut - 1]), len(share)
        share.append([a, b, 0, 0])
        share[node][2] = grow(parted[:cut], slot, [*path, (a, b, True)])
        share[node][3] = grow(parted[cut:], slot, [*path, (a, b, False)])
        return node

    root = [grow(places, int(slot), []) for places, slot in zip(members, period.slots_of[sources])]
    depth = max(map(len, paths), default=0)
    padded = np.ones((len(paths), depth, 3), np.int64)  # behind its leaf a path goes left, with the whole share
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
