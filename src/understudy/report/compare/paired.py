"""Paired difference of the losses of two validations of the same samples, episode by episode."""

import math

import numpy as np

from understudy.report.compare.intervals import loss_interval
from understudy.train.validation.episode_sums import EpisodeSums


def paired_difference(
    one: EpisodeSums, other: EpisodeSums, source: str | None = None
) -> tuple[float, list[float] | None] | None:
    """Return the difference of two losses and its interval, from the residuals of each episode (`intervals.py`).

    Args:
        one: sums of the first run.
        other: sums of the second one.
        source: dataset to include; None: all.

    Returns:
        None where the samples or the loss terms are not the same. The interval is None for a single episode.
    """
    if one.digest != other.digest or one.weights != other.weights:
        return None
    loss, first = _residuals(one, source)
    base, second = _residuals(other, source)
    difference, count = loss - base, len(first)
    if not count or not math.isfinite(difference):
        return None
    left = first - second
    se = math.sqrt(count / (count - 1) * math.fsum(left * left)) if count > 1 else None
    return difference, loss_interval(difference, se, count)


def _residuals(sums: EpisodeSums, source: str | None) -> tuple[float, np.ndarray]:
    """Loss, and residual of each episode, float64 (E,)."""
    own = np.array([source is None or sums.names[number] == source for number in sums.source], bool)
    losses, residual = [], np.zeros(int(own.sum()))
    for term, weight in sums.weights.items():
        values, counts = sums.sums[term][own], sums.counts[term][own]
        if total := math.fsum(counts):
            mean = math.fsum(values) / total
            losses.append(weight * mean)
            residual += weight * (values - mean * counts) / total
    return (math.fsum(losses) if losses else math.nan), residual
