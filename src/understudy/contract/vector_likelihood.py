"""How well numbers fit those of training: as they are, after a change of unit, or in another order.

Each dimension of training is a Student distribution with 3 degrees of freedom around its mean, so that one outlier does
not decide. A changed unit pays for its stretch: log p(x) = log t((f(x) - mean) / deviation) - log deviation + log |f'|.
Differences between explanations are in nats per number, and need no threshold of units.
"""

from collections.abc import Callable, Mapping
from typing import Literal

import numpy as np

from understudy.contract.facts import VectorFacts

Unit = Literal["degrees", "radians", "normalized", "x1000", "x0.001"]
_RADIAN = np.pi / 180
_FREEDOM = 3.0


def log_likelihood(values: np.ndarray, facts: VectorFacts) -> np.ndarray:
    """Log density of each number, float64 (n, D), up to one constant; `values` is (n, D)."""
    return _density(values, facts.center, facts.spread) - np.log(facts.spread)


def unit_likelihoods(values: np.ndarray, facts: VectorFacts) -> dict[Unit, np.ndarray]:
    """Log density of each number, float64 (n, D), if the robot sends another unit than that of training."""
    stretches: Mapping[Unit, tuple[Callable[[np.ndarray], np.ndarray], np.ndarray]] = {
        "degrees": (lambda x: x * _RADIAN, np.full(facts.width, _RADIAN)),
        "radians": (lambda x: x / _RADIAN, np.full(facts.width, 1 / _RADIAN)),
        "normalized": (lambda x: x * facts.spread + facts.center, facts.spread),
        "x1000": (lambda x: x / 1000, np.full(facts.width, 1e-3)),
        "x0.001": (lambda x: x * 1000, np.full(facts.width, 1e3)),
    }
    return {
        unit: log_likelihood(change(values), facts) + np.log(stretch) for unit, (change, stretch) in stretches.items()
    }


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
