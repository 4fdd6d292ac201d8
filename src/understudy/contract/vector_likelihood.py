"""How well numbers fit those of training: as they are, after a change of unit, or in another order.

Each dimension of training is a Student distribution with 3 degrees of freedom around its mean, so that one outlier does
not decide. A changed unit pays for its stretch: log p(x) = log t((f(x) - mean) / deviation) - log deviation + log |f'|.
Differences between explanations are in nats per number, and need no threshold of units.
"""

from collections.abc import Mapping

import numpy as np

from understudy.contract.facts import VectorFacts

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


def log_likelihood(values: np.ndarray, facts: VectorFacts) -> np.ndarray:
    """Log density of each number, float64 (n, D), up to one constant; `values` is (n, D)."""
    return _density(values, facts.center, facts.spread) - np.log(facts.spread)


def converted(values: np.ndarray, facts: VectorFacts, unit: str) -> tuple[np.ndarray, np.ndarray]:
    """Return numbers in the unit of training, and the log density of each, float64 (n, D) both.

    Args:
        values: numbers of the robot, float64 (n, D).
        facts: of training.
        unit: one of `FACTORS`, or `NORMALIZED`.
    """
    if unit == NORMALIZED:
        own, stretch = values * facts.spread + facts.center, facts.spread
    else:
        own, stretch = values / FACTORS[unit], np.full(facts.width, 1 / FACTORS[unit])
    return own, log_likelihood(own, facts) + np.log(stretch)


def best_order(values: np.ndarray, facts: VectorFacts) -> np.ndarray:
    """Order of the sent dimensions that fits best: dimension i of training is dimension `order[i]` of `values`.

    Starts from the given order, the reverse and exchanged halves, and swaps pairs while that helps.
    """
    width = facts.width
    cost = np.stack(  # [trained, sent]
        [(_density(values, facts.center[i], facts.spread[i]) - np.log(facts.spread[i])).mean(0) for i in range(width)]
    )
    half, rows = width // 2, np.arange(width)
    best, score = rows, float(cost[rows, rows].sum())
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
            best, score = order, total
    return best


def _density(values: np.ndarray, center: np.ndarray, spread: np.ndarray) -> np.ndarray:
    return np.asarray(-(_FREEDOM + 1) / 2 * np.log1p(((values - center) / spread) ** 2 / _FREEDOM))
