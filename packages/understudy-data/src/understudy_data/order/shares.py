"""Mixture: the source of each position, placed exactly instead of drawn.

A period of M slots repeats forever. Source d owns m_d of them (largest remainder of its weight
times M), placed by earliest deadline: its k-th sample (k = 1, 2, ...) may come from slot
floor((k-1) M / m_d) on and must come before slot ceil(k M / m_d). For unit jobs with whole-numbered
releases and deadlines, earliest-deadline-first finds such a placement whenever one exists, and for
shares that sum to one it exists (Baruah, Cohen, Plaxton, Varvel: "Proportionate progress",
Algorithmica 1996; Tijdeman's chairman assignment, 1980). Hence after any number x of positions
every source has had its exact share x m_d / M to within less than one sample.

A source never runs out: its stream has its own epochs (`order/lanes.py`).

Whole slots: positions of a run to samples of its sources and back.

A sample is (source, index): its number in the endless stream of that source, which `order/lanes.py`
maps to frames.
"""

import heapq
import math
from bisect import bisect_right
from collections.abc import Sequence
from dataclasses import dataclass
from fractions import Fraction
from functools import lru_cache
from itertools import pairwise

import numpy as np

from understudy_data.order.frame_numbering import Ints
from understudy_data.order.lanes import Lanes
from understudy_data.order.random import Words
from understudy_data.order.spec import Spec


def check_weights(weights: Sequence[float], names: Sequence[str]) -> list[float]:
    """Weights as floats.

    Raises:
        ValueError: a weight that is no finite number above 0; names its source.
    """
    if len(weights) != len(names):
        raise ValueError(f"{len(weights)} weights for {len(names)} sources: give one each")
    for weight, name in zip(weights, names):
        number = isinstance(weight, (int, float, np.integer, np.floating)) and not isinstance(
            weight, bool
        )
        if not (number and math.isfinite(weight) and weight > 0):
            raise ValueError(
                f"weight {weight} of source {name!r}: weights are finite numbers above 0; leave a "
                "source out to skip it"
            )
    if not math.isfinite(sum(map(float, weights))):
        raise ValueError(
            f"weights {list(weights)} add up to infinity: only their ratios count, give smaller "
            "numbers"
        )
    return [float(weight) for weight in weights]


def share_slots(weights: Sequence[float], slots: int) -> tuple[int, ...]:
    """Divide `slots` among sources: the floor of each exact quota, the rest to the largest
    remainders.

    Ties go to the earlier source. The sums are exact (fractions), so the result is the same on
    every platform.
    """
    whole, number_of, total = _whole_numbers(tuple(weights))
    shares = [divmod(weight * slots, total) for weight in whole]
    counts = [shares[number][0] for number in number_of]
    remainders = [shares[number][1] for number in number_of]
    # stable, so ties stay in order
    by_remainder = sorted(range(len(counts)), key=remainders.__getitem__, reverse=True)
    for d in by_remainder[: slots - sum(counts)]:
        counts[d] += 1
    return tuple(counts)


@lru_cache(maxsize=16)
def _whole_numbers(weights: tuple[float, ...]) -> tuple[list[int], list[int], int]:
    """Weights as whole numbers in the same ratios: the distinct ones, the number of that of each
    source, the sum.
    """
    distinct = list(dict.fromkeys(weights))
    number = {weight: n for n, weight in enumerate(distinct)}
    exact = [Fraction(weight) for weight in distinct]
    # floats: powers of two, so this stays small
    common = math.lcm(*(weight.denominator for weight in exact))
    whole = [weight.numerator * (common // weight.denominator) for weight in exact]
    number_of = [number[weight] for weight in weights]
    return whole, number_of, sum(whole[n] for n in number_of)


def share_errors(
    slots: Sequence[int], weights: Sequence[float], tolerance: float = 0.01
) -> list[tuple[int, float, float]]:
    """Sources whose share has a relative error above `tolerance`.

    Returns:
        (source, its share, the share of its weight), the largest error first.
    """
    total = sum(slots)
    whole = sum(weights)
    shares = [
        (d, count / total, weight / whole) for d, (count, weight) in enumerate(zip(slots, weights))
    ]
    off = [(abs(share / target - 1), d, share, target) for d, share, target in shares]
    return [
        (d, share, target)
        for error, d, share, target in sorted(off, reverse=True)
        if error > tolerance
    ]


def are_met(slots: Sequence[int], weights: Sequence[float], tolerance: float) -> bool:
    """Whether no share has a relative error above `tolerance`: `share_errors` is empty."""
    total = sum(slots)
    whole = sum(weights)
    return all(
        abs((count / total) / (weight / whole) - 1) <= tolerance
        for count, weight in set(zip(slots, weights))
    )


@dataclass(frozen=True)
class Period:
    """One period of M slots: `source` int64 (M,) of each slot, and `before` uint64 (M,), its
    source's earlier slots.

    `counts` uint64 (D,) are the m_d, `slots_of[d]` int64 (m_d,) the slots of source d in order.
    """

    counts: Words
    source: Ints
    before: Words
    slots_of: tuple[Ints, ...]

    def streams(self, positions: Words) -> tuple[Ints, Words]:
        """Source (int64) of positions uint64 (n,), counted from the first period, and its earlier
        samples (uint64).
        """
        total = np.uint64(len(self.source))
        rounds = positions // total
        slot = (positions - rounds * total).view(np.int64)
        source = self.source[slot]
        index = rounds * self.counts[source]
        index += self.before[slot]
        return source, index


@lru_cache(maxsize=16)
def make_period(counts: tuple[int, ...]) -> Period:
    """Place counts[d] slots of each source in a period of sum(counts), by earliest deadline."""
    total = sum(counts)
    placed = np.empty(total, np.int64)
    used = [d for d, count in enumerate(counts) if count]
    if len(used) == 1:
        placed[:] = used[0]
    else:
        by_release: list[list[int]] = [[] for _ in range(total)]
        for d in used:
            by_release[0].append(d)
        done = [0] * len(counts)
        ready: list[tuple[int, int]] = []
        for slot in range(total):
            for d in by_release[slot]:
                heapq.heappush(ready, (-(-(done[d] + 1) * total // counts[d]), d))
            _, d = heapq.heappop(ready)
            placed[slot] = d
            done[d] += 1
            if done[d] < counts[d]:
                by_release[max(done[d] * total // counts[d], slot + 1)].append(d)
    grouped = np.argsort(placed, kind="stable")
    starts = np.cumsum((0, *counts))
    before = np.empty(total, np.uint64)
    before[grouped] = np.arange(total) - np.repeat(starts[:-1], counts)
    return Period(
        np.array(counts, np.uint64), placed, before, tuple(np.split(grouped, starts[1:-1]))
    )


class WholeSlots:
    """Mixture of a spec of version 1. `lines` is the order of each source's frames, by its
    stream.
    """

    def __init__(self, spec: Spec) -> None:
        self._spec = spec
        self.lines = tuple(
            Lanes(spec.seed, d, s.frames, s.clip, s.lanes, s.shuffle, s.inside)
            for d, s in enumerate(spec.sources)
        )
        self._starts = np.array([entry.position for entry in spec.schedule], np.uint64)
        self._periods = tuple(make_period(entry.slots) for entry in spec.schedule)
        self._before = self._streams_before()

    def streams(self, positions: Words) -> tuple[Ints, Words]:
        """Source (int64) of positions uint64 (n,), and index (uint64) in the endless stream of that
        source.
        """
        if len(self._starts) == 1:
            return self._in_entry(0, positions)
        source = np.empty(positions.shape, np.int64)
        index = np.empty_like(positions)
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
        entry = self._spec.schedule[number]
        period = self._periods[number]
        rounds, slot = np.divmod(index.view(np.int64) - self._before[number][d], entry.slots[d])
        positions = entry.position + rounds * len(period.source) + period.slots_of[d][slot]
        if (
            number + 1 == len(self._spec.schedule)
            or positions[-1] < self._spec.schedule[number + 1].position
        ):
            return positions
        valid = [self.position(d, i) for i in index.tolist()]
        return np.array([p for p in valid if p is not None], np.int64)

    def position(self, d: int, index: int) -> int | None:
        """Position of stream index `index` of source d; None if it never comes up."""
        for number in reversed(range(len(self._spec.schedule))):
            entry = self._spec.schedule[number]
            before = self._before[number][d]
            if d >= len(entry.slots) or not entry.slots[d] or index < before:
                continue
            rounds, slot = divmod(index - before, entry.slots[d])
            relative = rounds * sum(entry.slots) + int(self._periods[number].slots_of[d][slot])
            position = entry.position + relative
            following = number + 1
            has_following = following < len(self._spec.schedule)
            if has_following and position >= self._spec.schedule[following].position:
                return None
            return position
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
        """`streams` of one position, in plain integers: numpy's calls would cost ten times as
        much.
        """
        number = bisect_right(self._spec.schedule, position, key=lambda entry: entry.position) - 1
        entry = self._spec.schedule[number]
        period = self._periods[number]
        rounds, slot = divmod(position - entry.position, len(period.source))
        d = int(period.source[slot])
        return d, self._before[number][d] + rounds * entry.slots[d] + int(period.before[slot])

    def _in_entry(self, number: int, positions: Words) -> tuple[Ints, Words]:
        entry = self._spec.schedule[number]
        period = self._periods[number]
        before = self._before[number]
        total = len(period.source)
        relative = positions - np.uint64(entry.position) if entry.position else positions
        if total == 1:
            d = entry.slots.index(1)
            return np.full(positions.shape, d, np.int64), relative + np.uint64(before[d])
        source, index = period.streams(relative)
        if number:
            index += np.array(before, np.uint64)[source]
        return source, index


def group_by(labels: Ints) -> list[Ints]:
    """Index arrays of equal labels, one for each label that occurs."""
    by_label = np.argsort(labels, kind="stable")
    return np.split(by_label, np.flatnonzero(np.diff(labels[by_label])) + 1) if len(labels) else []
