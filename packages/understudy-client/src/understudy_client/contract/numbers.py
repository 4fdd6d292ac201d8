"""Explanations of numbers that do not fit those of training: another unit, normalized numbers,
another order.

Each dimension of training is a Student distribution with 3 degrees of freedom around its mean, so
that one outlier does not decide. A changed unit pays for its stretch: log p(x) = log t((f(x) -
mean) / deviation) - log deviation + log |f'|. Differences between explanations are in nats per
number, and need no threshold of units.
"""

from collections.abc import Mapping, Sequence

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
    plain = log_likelihood(values, facts).mean(0)
    total = float(plain.sum())
    candidates: list[tuple[float, Mismatch]] = []
    units: list[tuple[float, str, np.ndarray]] = []
    for unit in (*FACTORS, NORMALIZED):
        numbers, likelihood = _converted(values, facts, unit)
        # 0 has no unit
        gains = np.where(values == 0, 0.0, likelihood - log_likelihood(values, facts)).mean(0)
        # One joint may have another unit; normalized numbers are so in all dimensions.
        changed = np.ones_like(bad) if unit == NORMALIZED else bad & (gains > _BETTER)
        changed &= ~outside(numbers, facts, np.nan_to_num(facts.high - facts.low))
        if gains[changed].sum() > _BETTER * bad[changed].sum() > 0:
            units.append((float(gains[changed].sum()), unit, changed & bad))
    if units:
        units.sort(key=lambda fit: fit[0])
        gain, unit, changed = units[-1]
        rivals = [other for fit, other, _ in units[:-1] if gain - fit < _CLEARLY]
        candidates.append((gain, _unit_mismatch(unit, rivals, values, facts, changed)))
    order = _best_order(values, facts)
    is_few = 0 < episodes <= _FEW_EPISODES
    moved = order != np.arange(facts.width)
    if moved.any() and not is_few and bad[moved].mean() >= _MOVED_OUTSIDE:
        gain = float(log_likelihood(values[:, order], facts).mean(0).sum()) - total
        if gain > _BETTER * bad.sum() and not outside(values[:, order], facts).any():
            places = [
                f"{facts.names[order[i]]} in place of {facts.names[i]}"
                for i in np.flatnonzero(moved)
            ]
            came = f"by its ranges {', '.join(places)}"
            fix = f"send {', '.join(facts.names)}"
            candidates.append(
                (gain, Mismatch("dimension order", facts.key, "another order", came, fix))
            )
    for head, other in (others or {}).items():
        if other.width == facts.width:
            gain = float(log_likelihood(values, other).mean(0).sum()) - total
            if (
                gain > _BETTER * facts.width
                and not outside(values, other, other.high - other.low).any()
            ):
                came = f"a state like that of {head}"
                fix = f"load the policy with head={head!r}"
                candidates.append(
                    (gain, Mismatch("other robot", facts.key, "another robot", came, fix))
                )
    if candidates:
        return max(candidates, key=lambda candidate: candidate[0])[1]
    return Mismatch(
        "range", facts.key, *_ranges(values, facts, bad), "check units, zeros and joints"
    )


def explain_figures(facts: VectorFacts, other: VectorFacts) -> Mismatch | None:
    """Return the best explanation of a vector whose figures do not fit those of training; None
    where they fit.

    Means and deviations that differ by the factor of one unit show it even where all numbers are in
    the range.
    """
    varies = (facts.figures["std"] > 0) & (other.figures["std"] > 0)
    values = _typical(other)
    for unit, factor in FACTORS.items():
        with np.errstate(divide="ignore", invalid="ignore"):
            ratio = np.abs(np.log(other.figures["std"] / (factor * facts.figures["std"])))
            apart = (
                np.abs(other.figures["mean"] / factor - facts.figures["mean"])
                / facts.figures["std"]
            )
            fits = varies & (ratio < _SAME_SCALE) & (apart < _SAME_MEAN)
        if fits.sum() >= max(2, varies.sum() / 2):
            return _unit_mismatch(unit, (), values, facts, fits)
    return explain_numbers(values, facts)


def _typical(vector: VectorFacts) -> np.ndarray:
    """Three usual numbers of each dimension, float64 (3, D): the mean, and 1.5 deviations from
    it.
    """
    figures = vector.figures
    std = np.where(
        np.isnan(figures["std"]), (figures["q99"] - figures["q01"]) / 4.65, figures["std"]
    )
    rows = vector.center + np.array([[-1.5], [0.0], [1.5]]) * std
    low, high = (
        np.where(np.isnan(figures[name]), fill, figures[name])
        for name, fill in (("min", -np.inf), ("max", np.inf))
    )
    return np.clip(rows, low, high)


def _unit_mismatch(
    unit: str, rivals: Sequence[str], values: np.ndarray, facts: VectorFacts, changed: np.ndarray
) -> Mismatch:
    trained, came = _ranges(values, facts, changed)
    if rivals:
        others = " or ".join(other.partition(" for ")[0] for other in (unit, *rivals))
        return Mismatch(
            "scale",
            facts.key,
            trained,
            f"{came}, as if {others}",
            "send the unit of the recordings",
        )
    if unit == NORMALIZED:
        return Mismatch(
            "normalized",
            facts.key,
            trained,
            f"{came}, as if normalized",
            "send the robot's own numbers",
        )
    sent, _, recorded = unit.partition(" for ")
    kind = sent if sent in ("degrees", "radians") else "scale"
    return Mismatch(kind, facts.key, trained, f"{came}, as if in {sent}", f"send {recorded}")


def _ranges(values: np.ndarray, facts: VectorFacts, mask: np.ndarray) -> tuple[str, str]:
    """Ranges of some dimensions, at most four by name: in training, and of the robot."""
    dims = np.flatnonzero(mask)
    trained = [f"{facts.names[i]} {facts.low[i]:.4g}..{facts.high[i]:.4g}" for i in dims[:4]]
    came = [
        f"{facts.names[i]} {values[:, i].min():.4g}..{values[:, i].max():.4g}" for i in dims[:4]
    ]
    more = [f"and {len(dims) - 4} more"] if len(dims) > 4 else []
    return ", ".join([*trained, *more]), ", ".join([*came, *more])


def outside(values: np.ndarray, facts: VectorFacts, more: "np.ndarray | float" = 0.0) -> np.ndarray:
    """Whether most numbers of a dimension are outside its range by its margin and `more`, bool
    (D,).
    """
    margin = facts.margin + more
    return np.asarray(
        ((values > facts.high + margin) | (values < facts.low - margin)).mean(0) > _OUTSIDE
    )


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
    width = facts.width
    cost = np.stack(  # [trained, sent]
        [
            (_density(values, facts.center[i], facts.spread[i]) - np.log(facts.spread[i])).mean(0)
            for i in range(width)
        ]
    )
    half = width // 2
    rows = np.arange(width)
    best = rows
    score = float(cost[rows, rows].sum())
    for start in (rows, rows[::-1], np.roll(rows, half), np.roll(rows, 1), np.roll(rows, -1)):
        order = start.copy()
        while True:
            now = cost[rows, order]
            swapped = cost[:, order]  # [i, j]: dimension i with the number that j has
            gain = swapped + swapped.T - now[:, None] - now
            i, j = np.unravel_index(int(gain.argmax()), gain.shape)
            if gain[i, j] <= 1e-9:
                break
            order[[i, j]] = order[[j, i]]
        if (total := float(cost[rows, order].sum())) > score + 1e-9:
            best = order
            score = total
    return best


def _density(values: np.ndarray, center: np.ndarray, spread: np.ndarray) -> np.ndarray:
    return np.asarray(-(_FREEDOM + 1) / 2 * np.log1p(((values - center) / spread) ** 2 / _FREEDOM))
