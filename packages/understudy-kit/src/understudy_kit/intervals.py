"""Confidence interval of a success rate. Needs the standard library alone."""

from math import sqrt

Z95 = 1.959963984540054  # standard normal quantile at 0.975


def wilson_interval(successes: int, count: int, z: float = Z95) -> tuple[float, float]:
    """Compute the confidence interval of a success rate, 95 % by default; (0, 1) for no episodes.

    Wilson, "Probable inference, the law of succession, and statistical inference", JASA 22 (1927).
    Unlike the textbook interval it is accurate near 0 and 1 and never leaves [0, 1], which matters
    with 30 rollouts.
    """
    if not 0 <= successes <= count:
        raise ValueError(f"{successes} successes of {count}: not a count")
    if count == 0:
        return 0.0, 1.0
    rate = successes / count
    z2 = z * z
    center = (rate + z2 / (2 * count)) / (1 + z2 / count)
    half = z / (1 + z2 / count) * sqrt(rate * (1 - rate) / count + z2 / (4 * count * count))
    # At the ends the bound is exactly 0 or 1, without rounding.
    low = 0.0 if successes == 0 else center - half
    high = 1.0 if successes == count else center + half
    return low, high
