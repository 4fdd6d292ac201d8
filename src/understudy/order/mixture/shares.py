"""Mixture: the source of each position, placed exactly instead of drawn.

A period of M slots repeats forever. Source d owns m_d of them (largest remainder of its weight times M), placed by
earliest deadline: its k-th sample (k = 1, 2, ...) may come from slot floor((k-1) M / m_d) on and must come before slot
ceil(k M / m_d). For unit jobs with whole-numbered releases and deadlines, earliest-deadline-first finds such a
placement whenever one exists, and for shares that sum to one it exists (Baruah, Cohen, Plaxton, Varvel: "Proportionate
progress", Algorithmica 1996; Tijdeman's chairman assignment, 1980). Hence after any number x of positions every source
has had its exact share x m_d / M to within less than one sample.

A source never runs out: its stream has its own epochs (`order/lanes.py`).
"""

import heapq
import math
from collections.abc import Sequence
from dataclasses import dataclass
from fractions import Fraction
from functools import lru_cache

import numpy as np

from understudy.order.prefix_sums import Ints
from understudy.order.random.philox import Words


def check_weights(weights: Sequence[float], names: Sequence[str]) -> list[float]:
    """Weights as floats.

    Raises:
        ValueError: a weight that is no finite number above 0; names its source.
    """
    if len(weights) != len(names):
        raise ValueError(f"{len(weights)} weights for {len(names)} sources: give one each")
    for weight, name in zip(weights, names):
        if not (isinstance(weight, (int, float, np.integer, np.floating)) and math.isfinite(weight) and weight > 0):
            raise ValueError(
                f"weight {weight} of source {name!r}: weights are finite numbers above 0; leave a source out to skip it"
            )
    if not math.isfinite(sum(map(float, weights))):
        raise ValueError(f"weights {list(weights)} add up to infinity: only their ratios count, give smaller numbers")
    return [float(weight) for weight in weights]


def share_slots(weights: Sequence[float], slots: int) -> tuple[int, ...]:
    """Divide `slots` among sources: the floor of each exact quota, the rest to the largest remainders.

    Ties go to the earlier source. The sums are exact (fractions), so the result is the same on every platform.
    """
    exact = [Fraction(weight) for weight in weights]
    common = math.lcm(*(weight.denominator for weight in exact))  # floats: powers of two, so this stays small
    whole = [weight.numerator * (common // weight.denominator) for weight in exact]
    total = sum(whole)
    counts, remainders = map(list, zip(*(divmod(weight * slots, total) for weight in whole)))
    by_remainder = sorted(range(len(exact)), key=lambda d: (-remainders[d], d))
    for d in by_remainder[: slots - sum(counts)]:
        counts[d] += 1
    return tuple(counts)


def share_errors(
    slots: Sequence[int], weights: Sequence[float], tolerance: float = 0.01
) -> list[tuple[int, float, float]]:
    """Sources whose share has a relative error above `tolerance`.

    Returns:
        (source, its share, the share of its weight), the largest error first.
    """
    shares = [(d, count / sum(slots), weight / sum(weights)) for d, (count, weight) in enumerate(zip(slots, weights))]
    off = [(abs(share / target - 1), d, share, target) for d, share, target in shares]
    return [(d, share, target) for error, d, share, target in sorted(off, reverse=True) if error > tolerance]


@dataclass(frozen=True)
class Period:
    """One period of M slots: `source` int64 (M,) of each slot, and `before` uint64 (M,), its source's earlier slots.

    `counts` uint64 (D,) are the m_d, `slots_of[d]` int64 (m_d,) the slots of source d in order.
    """

    counts: Words
    source: Ints
    before: Words
    slots_of: tuple[Ints, ...]


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
    return Period(np.array(counts, np.uint64), placed, before, tuple(np.split(grouped, starts[1:-1])))
