"""Explanations of numbers that do not fit those of training: another unit, normalized numbers,
another order.

Each dimension of training is a Student distribution with 3 degrees of freedom around its mean, so
that one outlier does not decide. A changed unit pays for its stretch: log p(x) = log t((f(x) -
mean) / deviation) - log deviation + log |f'|. Differences between explanations are in nats per
number, and need no threshold of units.
"""

from collections.abc import Iterator, Mapping, Sequence

import numpy as np

from understudy_client.contract.facts import VectorFacts
from understudy_client.contract.mismatch import Mismatch

_BETTER = 2.0  # nats per number that an explanation gains
_CLEARLY = 1.0  # nats by which the factor of a unit must fit better than those of other units
# share of the observations outside the range of training from which a dimension needs an
# explanation
_OUTSIDE = 0.5
# ranges of so few are narrow: a new scene leaves them, and another order may seem to explain it
_FEW_EPISODES = 12
_MOVED_OUTSIDE = 0.2  # share of the exchanged dimensions that must be outside the range of training
# |log| of the ratio of two deviations of one unit; inches and degrees are 0.38 apart
_SAME_SCALE = 0.14
_SAME_MEAN = 0.5  # deviations between two means of one unit
UNIT_KINDS = ("degrees", "radians", "scale", "normalized")
NUMBER_KINDS = (*UNIT_KINDS, "dimension order", "other robot", "range")

FACTORS: Mapping[str, float] = {
    "degrees for radians": 180 / np.pi,
    "radians for degrees": np.pi / 180,
    "millimeters for meters": 1e3,
    "meters for millimeters": 1e-3,
    "centimeters for meters": 1e2,
    "meters for centimeters": 1e-2,
    "inches for meters": 1 / 0.0254,
    "meters for inches": 0.0254,
}
"""Changed unit -> factor of its numbers."""
NORMALIZED = "normalized"
_FREEDOM = 3.0


def explain_numbers(
    values: np.ndarray,
    facts: VectorFacts,
    episodes: int = 0,
    others: Mapping[str, VectorFacts] | None = None,
) -> Mismatch | None:
    """Return the best explanation of numbers that do not fit those of training; None where they
    fit.

    Args:
        values: float64 (n, D).
        facts: the vector in training.
        episodes: training episodes; 0 if unknown.
        others: the vector of other robots of the policy, by norm head.
    """
    bad = outside(values, facts)
    if not bad.any():
        return None
    candidates = [*_of_units(values, facts, bad)]
    if not 0 < episodes <= _FEW_EPISODES:
        candidates += _of_order(values, facts, bad)
    candidates += _of_others(values, facts, others or {})
    if candidates:
        return max(candidates, key=lambda candidate: candidate[0])[1]
    ranges = _ranges(values, facts, bad)
    return Mismatch("range", facts.key, *ranges, "check units, zeros and joints")


Candidates = Iterator[tuple[float, Mismatch]]
"""Explanations, each with the nats that it gains."""


def _of_units(values: np.ndarray, facts: VectorFacts, bad: np.ndarray) -> Candidates:
    """Yield the unit that fits best, if any. `bad` bool (D,): dimensions outside the range."""
    likelihood = log_likelihood(values, facts)
    fits: list[tuple[float, str, np.ndarray]] = []
    for unit in (*FACTORS, NORMALIZED):
        numbers, converted = _converted(values, facts, unit)
        # 0 has no unit
        gains = np.where(values == 0, 0.0, converted - likelihood).mean(0)
        # One joint may have another unit; normalized numbers are so in all dimensions.
        changed = np.ones_like(bad) if unit == NORMALIZED else bad & (gains > _BETTER)
        changed &= ~outside(numbers, facts, np.nan_to_num(facts.high - facts.low))
        if gains[changed].sum() > _BETTER * bad[changed].sum() > 0:
            fits.append((float(gains[changed].sum()), unit, changed & bad))
    if fits:
        fits.sort(key=lambda fit: fit[0])
        gain, unit, changed = fits.pop()
        rivals = [rival for rival_gain, rival, _ in fits if gain - rival_gain < _CLEARLY]
        yield gain, _unit_mismatch(unit, rivals, values, facts, changed)


def _of_order(values: np.ndarray, facts: VectorFacts, bad: np.ndarray) -> Candidates:
    """Yield the order of dimensions that fits best, if it is another one."""
    order = _best_order(values, facts)
    moved = order != np.arange(facts.width)
    if not moved.any() or bad[moved].mean() < _MOVED_OUTSIDE:
        return
    gain = _gain(values[:, order], facts, values, facts)
    if gain > _BETTER * bad.sum() and not outside(values[:, order], facts).any():
        names = facts.names
        places = [f"{names[order[i]]} in place of {names[i]}" for i in np.flatnonzero(moved)]
        came = f"by its ranges {', '.join(places)}"
        fix = f"send {', '.join(names)}"
        yield gain, Mismatch("dimension order", facts.key, "another order", came, fix)


def _of_others(
    values: np.ndarray, facts: VectorFacts, others: Mapping[str, VectorFacts]
) -> Candidates:
    """Yield the other robots whose numbers these may be."""
    for head, other in others.items():
        if other.width != facts.width:
            continue
        gain = _gain(values, other, values, facts)
        is_inside = not outside(values, other, other.high - other.low).any()
        if gain > _BETTER * facts.width and is_inside:
            came = f"a state like that of {head}"
            fix = f"load the policy with head={head!r}"
            yield gain, Mismatch("other robot", facts.key, "another robot", came, fix)


def _gain(explained: np.ndarray, by: VectorFacts, values: np.ndarray, facts: VectorFacts) -> float:
    """Nats per observation that numbers gain where they are those of another vector."""
    likelihood = float(log_likelihood(values, facts).mean(0).sum())
    return float(log_likelihood(explained, by).mean(0).sum()) - likelihood


def explain_figures(facts: VectorFacts, other: VectorFacts) -> Mismatch | None:
    """Return the best explanation of a vector whose figures do not fit those of training; None
    where they fit.

    Means and deviations that differ by the factor of one unit show it even where all numbers are in
    the range.
    """
    std = facts.figures["std"]
    other_std = other.figures["std"]
    varies = (std > 0) & (other_std > 0)
    values = _typical(other)
    for unit, factor in FACTORS.items():
        with np.errstate(divide="ignore", invalid="ignore"):
            ratio = np.abs(np.log(other_std / (factor * std)))
            apart = np.abs(other.figures["mean"] / factor - facts.figures["mean"]) / std
            fits = varies & (ratio < _SAME_SCALE) & (apart < _SAME_MEAN)
        if fits.sum() >= max(2, varies.sum() / 2):
            return _unit_mismatch(unit, (), values, facts, fits)
    return explain_numbers(values, facts)


def _typical(vector: VectorFacts) -> np.ndarray:
    """Three usual numbers of each dimension, float64 (3, D): the mean, and 1.5 deviations from
    it.
    """
    figures = vector.figures
    by_quantiles = (figures["q99"] - figures["q01"]) / 4.65
    std = np.where(np.isnan(figures["std"]), by_quantiles, figures["std"])
    rows = vector.center + np.array([[-1.5], [0.0], [1.5]]) * std
    low = np.where(np.isnan(figures["min"]), -np.inf, figures["min"])
    high = np.where(np.isnan(figures["max"]), np.inf, figures["max"])
    return np.clip(rows, low, high)


def _unit_mismatch(
    unit: str, rivals: Sequence[str], values: np.ndarray, facts: VectorFacts, changed: np.ndarray
) -> Mismatch:
    trained, came = _ranges(values, facts, changed)
    sent, _, recorded = unit.partition(" for ")
    if rivals:
        kind = "scale"
        guess = " or ".join([sent, *(rival.partition(" for ")[0] for rival in rivals)])
        fix = "send the unit of the recordings"
    elif unit == NORMALIZED:
        kind = "normalized"
        guess = "normalized"
        fix = "send the robot's own numbers"
    else:
        kind = sent if sent in UNIT_KINDS else "scale"
        guess = f"in {sent}"
        fix = f"send {recorded}"
    return Mismatch(kind, facts.key, trained, f"{came}, as if {guess}", fix)


def _ranges(values: np.ndarray, facts: VectorFacts, mask: np.ndarray) -> tuple[str, str]:
    """Ranges of some dimensions, at most four by name: in training, and of the robot."""
    dims = np.flatnonzero(mask)
    trained = []
    came = []
    for i in dims[:4]:
        numbers = values[:, i]
        trained.append(f"{facts.names[i]} {facts.low[i]:.4g}..{facts.high[i]:.4g}")
        came.append(f"{facts.names[i]} {numbers.min():.4g}..{numbers.max():.4g}")
    if len(dims) > 4:
        trained.append(f"and {len(dims) - 4} more")
        came.append(trained[-1])
    return ", ".join(trained), ", ".join(came)


def outside(values: np.ndarray, facts: VectorFacts, more: "np.ndarray | float" = 0.0) -> np.ndarray:
    """Whether most numbers of a dimension are outside its range by its margin and `more`, bool
    (D,).
    """
    margin = facts.margin + more
    is_outside = (values > facts.high + margin) | (values < facts.low - margin)
    return np.asarray(is_outside.mean(0) > _OUTSIDE)


def log_likelihood(values: np.ndarray, facts: VectorFacts) -> np.ndarray:
    """Log density of each number, float64 (n, D), up to one constant; `values` is (n, D)."""
    return _density(values, facts.center, facts.spread) - np.log(facts.spread)


def _converted(values: np.ndarray, facts: VectorFacts, unit: str) -> tuple[np.ndarray, np.ndarray]:
    """Return numbers in the unit of training, and the log density of each, float64 (n, D) both.

    Args:
        values: numbers of the robot, float64 (n, D).
        facts: facts of training.
        unit: one of `FACTORS`, or `NORMALIZED`.
    """
    if unit == NORMALIZED:
        numbers = values * facts.spread + facts.center
        stretch = facts.spread
    else:
        numbers = values / FACTORS[unit]
        stretch = np.full(facts.width, 1 / FACTORS[unit])
    return numbers, log_likelihood(numbers, facts) + np.log(stretch)


def _best_order(values: np.ndarray, facts: VectorFacts) -> np.ndarray:
    """Order of the sent dimensions that fits best: dimension i of training is dimension `order[i]`
    of `values`.

    Starts from the given order, the reverse and exchanged halves, and swaps pairs while that helps.
    """
    density = []
    for center, spread in zip(facts.center, facts.spread):
        density.append((_density(values, center, spread) - np.log(spread)).mean(0))
    likelihood = np.stack(density)  # [trained, sent]
    rows = np.arange(facts.width)
    best = rows
    best_sum = float(likelihood[rows, rows].sum())
    rolled = [np.roll(rows, shift) for shift in (facts.width // 2, 1, -1)]
    for start in (rows, rows[::-1], *rolled):
        order = start.copy()
        while True:
            present = likelihood[rows, order]
            swapped = likelihood[:, order]  # [i, j]: dimension i with the number that j has
            gain = swapped + swapped.T - present[:, None] - present
            i, j = np.unravel_index(int(gain.argmax()), gain.shape)
            if gain[i, j] <= 1e-9:
                break
            order[[i, j]] = order[[j, i]]
        order_sum = float(likelihood[rows, order].sum())
        if order_sum > best_sum + 1e-9:
            best = order
            best_sum = order_sum
    return best


def _density(values: np.ndarray, center: np.ndarray, spread: np.ndarray) -> np.ndarray:
    return np.asarray(-(_FREEDOM + 1) / 2 * np.log1p(((values - center) / spread) ** 2 / _FREEDOM))
