"""Ages of past frames and states, in seconds, as settings name them. No torch."""

from collections.abc import Sequence
from math import isfinite


def times_of(ages: Sequence[float]) -> tuple[float, ...]:
    """Convert ages in seconds, in any order, to times from the present, oldest first, 0 last; none: no time at all."""
    return (*(-age for age in sorted(ages, reverse=True)), 0.0) if ages else ()


def age_problems(name: str, ages: Sequence[float]) -> list[str]:
    """List the rules that ages in seconds break, one line `field: value: rule` each."""
    shown = ", ".join(f"{age:g}" for age in ages)
    if any(not (isfinite(age) and age > 0) for age in ages):
        return [f"{name}: {shown}: must be seconds above 0, the ages of past frames"]
    if len(set(ages)) < len(ages):
        return [f"{name}: {shown}: must be different ages"]
    return []
