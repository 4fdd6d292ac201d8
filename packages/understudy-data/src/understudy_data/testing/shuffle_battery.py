"""Statistical tests of permutations of many keys against random permutations.

`battery(images, n)` takes one row of images y(i), y(i+1), ... per key and gives a p-value per test,
two-sided: a shuffle that is too even is as wrong as one that is not even enough. Keys are fixed, so
results are deterministic.
"""

from math import isqrt

import numpy as np
from scipy import stats

LAGS = (1, 2, 4, 16, 64, 256)
GRID = 16


def battery(images: np.ndarray, n: int) -> dict[str, float]:
    """p-values by test name. images: int64 (keys, m), consecutive images of permutations of [0, n),
    m <= n.
    """
    keys, m = images.shape
    whole = m == n
    found = {
        "successions": _poisson(np.sum(images[:, 1:] == images[:, :-1] + 1), keys * (m - 1) / n),
        "coincidences of keys": _poisson(np.sum(images[1:] == images[:-1]), (keys - 1) * m / n),
        "second difference": _flat(images[:, 2:] - 2 * images[:, 1:-1] + images[:, :-2], n),
        "low bits": _grid(images[:, 1:] % 8, images[:, :-1] % 8, 8),
    }
    if whole:
        inputs = np.broadcast_to(np.arange(n), images.shape)
        found["fixed points"] = _poisson(np.sum(images == inputs), keys)
        found["input and output"] = _grid(inputs * GRID // n, images * GRID // n, GRID)
    centerd = images / n - 0.5
    # as far apart, two inputs of a mixed-radix Feistel network share a half
    radix = -(-n // (isqrt(n - 1) + 1))
    lags = (*LAGS, radix) if 2 * radix < m else LAGS
    for lag in lags:
        later = images[:, lag:]
        earlier = images[:, :-lag]
        found[f"difference, lag {lag}"] = _flat(later - earlier, n, never_zero=True)
        found[f"pairs, lag {lag}"] = _grid(later * GRID // n, earlier * GRID // n, GRID)
        z = np.mean(centerd[:, lag:] * centerd[:, :-lag]) * 12 * np.sqrt(keys * (m - lag))
        found[f"correlation, lag {lag}"] = float(2 * stats.norm.sf(abs(z)))
    return found


def two_sided(statistic: float, distribution) -> float:
    """Twice the smaller tail."""
    return float(min(1.0, 2 * min(distribution.sf(statistic), distribution.cdf(statistic))))


def _poisson(count: int, expected: float) -> float:
    distribution = stats.poisson(expected)
    return float(min(1.0, 2 * min(distribution.sf(count - 1), distribution.cdf(count))))


def _flat(differences: np.ndarray, n: int, bins: int = 64, never_zero: bool = False) -> float:
    """Differences modulo n are uniform, over all n values or over all but 0."""
    counts = np.bincount((differences % n * bins // n).ravel(), minlength=bins)
    values = np.diff(-(-np.arange(bins + 1) * n // bins))
    values[0] -= never_zero
    expected = values / values.sum() * differences.size
    return two_sided(float(np.sum((counts - expected) ** 2 / expected)), stats.chi2(bins - 1))


def _grid(rows: np.ndarray, columns: np.ndarray, bins: int) -> float:
    """Rows and columns are independent, given how often each comes (a permutation fixes that)."""
    table = np.bincount((rows * bins + columns).ravel(), minlength=bins * bins).reshape(bins, bins)
    expected = np.outer(table.sum(1), table.sum(0)) / table.sum()
    return two_sided(float(np.sum((table - expected) ** 2 / expected)), stats.chi2((bins - 1) ** 2))
