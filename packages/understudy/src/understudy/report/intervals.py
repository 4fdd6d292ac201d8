"""Intervals of 95 %: of a loss, of the paired difference of two losses, and of a difference of
success rates.

A loss is a ratio of sums over episodes, R = S / C. Frames of an episode are correlated, so its
standard error counts episodes (`train/validation/metrics.py`), and the interval is R ± t se with
Student's t of m - 1 degrees of freedom for m episodes. Where two runs validated the same samples,
the difference has the standard error of the differences of the residuals of each episode, u_e =
(S_e - R C_e) / C:

    se^2 = m / (m - 1) * sum over the m episodes of (u_e of A - u_e of B)^2.

Episodes that are hard for both runs cancel. The difference of two success rates has the interval of
Newcombe (1998, "Interval estimation for the difference between independent proportions", method
10), made of two Wilson intervals.
"""

import math
from functools import cache
from statistics import NormalDist

import numpy as np

from understudy.train.validation.episode_sums import EpisodeSums

_PROBABILITY = 0.975  # of both sides: 95 % lie between


@cache
def t_quantile(degrees: int) -> float:
    """Return the quantile of Student's t with `degrees` degrees of freedom that an interval of 95 %
    needs.
    """
    if degrees > 2000:  # the difference to the normal quantile is below 1 in 1000
        return NormalDist().inv_cdf(_PROBABILITY)
    low = 0.0
    high = 1.0
    while _t_cdf(high, degrees) < _PROBABILITY:
        high *= 2
    for _ in range(80):
        middle = (low + high) / 2
        low, high = (middle, high) if _t_cdf(middle, degrees) < _PROBABILITY else (low, middle)
    return (low + high) / 2


def loss_interval(loss: float | None, se: float | None, episodes: int) -> list[float] | None:
    """Return the interval of a loss, [low, high]; None for a single episode, or a loss that is not
    finite.
    """
    if loss is None or se is None or episodes < 2:
        return None
    half = t_quantile(episodes - 1) * se
    return [loss - half, loss + half]


def success_difference(
    first: tuple[int, int], second: tuple[int, int]
) -> tuple[float, list[float]]:
    """Return the difference of two success rates, (successes, episodes) each, and its interval.

    Raises:
        ValueError: no episodes, or no count.
    """
    from understudy_kit import wilson_interval

    if not first[1] or not second[1]:
        raise ValueError(f"{first} and {second}: a rate needs an episode")
    p = first[0] / first[1]
    q = second[0] / second[1]
    l1, u1 = wilson_interval(*first)
    l2, u2 = wilson_interval(*second)
    below = math.hypot(p - l1, u2 - q)
    above = math.hypot(u1 - p, q - l2)
    return p - q, [p - q - below, p - q + above]


def paired_difference(
    sums: EpisodeSums, other: EpisodeSums, source: str | None = None
) -> tuple[float, list[float] | None] | None:
    """Return the difference of two losses and its interval, from the residuals of each episode.

    Args:
        sums: Sums of the first run.
        other: Sums of the second one.
        source: Dataset to include; None: all.

    Returns:
        None where the samples or the loss terms are not the same. The interval is None for a single
        episode.
    """
    if sums.digest != other.digest or sums.weights != other.weights:
        return None
    loss, first = _residuals(sums, source)
    base, second = _residuals(other, source)
    difference = loss - base
    count = len(first)
    if not count or not math.isfinite(difference):
        return None
    left = first - second
    se = math.sqrt(count / (count - 1) * math.fsum(left * left)) if count > 1 else None
    return difference, loss_interval(difference, se, count)


def _residuals(sums: EpisodeSums, source: str | None) -> tuple[float, np.ndarray]:
    """Loss, and residual of each episode, float64 (E,)."""
    chosen = np.array(
        [source is None or sums.names[number] == source for number in sums.source], bool
    )
    losses = []
    residual = np.zeros(int(chosen.sum()))
    for term, weight in sums.weights.items():
        values = sums.sums[term][chosen]
        counts = sums.counts[term][chosen]
        if total := math.fsum(counts):
            mean = math.fsum(values) / total
            losses.append(weight * mean)
            residual += weight * (values - mean * counts) / total
    loss = math.fsum(losses) if losses else math.nan
    return loss, residual


def _t_cdf(t: float, degrees: int) -> float:
    """Distribution function for t > 0: the finite series of Abramowitz and Stegun, 26.7.3 and
    26.7.4.
    """
    angle = math.atan(t / math.sqrt(degrees))
    sine = math.sin(angle)
    square = math.cos(angle) ** 2
    odd = degrees % 2
    term = math.cos(angle) if odd else 1.0
    total = 0.0
    for k in range(1 + odd, degrees, 2):  # the term, then the factor to the next one
        total += term
        term *= square * k / (k + 1)
    if odd:
        return 0.5 + (angle + sine * total) / math.pi
    return 0.5 + sine * total / 2
