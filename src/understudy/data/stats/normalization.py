"""Statistics of a column, and the affine map by which a policy normalizes it."""

from dataclasses import dataclass
from typing import Literal

import numpy as np

Mode = Literal["mean_std", "min_max", "quantile"]


@dataclass(frozen=True)
class Statistics:
    """Statistics of one column, float64 [dim] each; population deviation; NaN is unknown."""

    count: int
    """Rows; 0 where unknown."""
    mean: np.ndarray
    std: np.ndarray
    min: np.ndarray
    max: np.ndarray
    q01: np.ndarray
    q99: np.ndarray


def offset_and_spread(statistics: Statistics, mode: Mode = "mean_std") -> dict[str, np.ndarray]:
    """Return the affine map of one column, (x - offset) / spread: {"offset", "spread"}, float32 [dim].

    "mean_std" gives mean 0 and deviation 1. "min_max" gives -1..1. "quantile" maps the 1 % and 99 % quantiles to -1 and
    1; values beyond are not clipped, so the inverse is exact. A constant dimension gets spread 0 and its value as
    offset. A dimension may change so rarely that both quantiles are equal (a gripper that closes in one frame of two
    hundred): it falls back to its range, since spread 0 would lose it.
    """
    s = statistics
    if mode == "mean_std":
        offset, spread = s.mean, s.std
    elif mode == "min_max":
        offset, spread = (s.min + s.max) / 2, (s.max - s.min) / 2
    elif mode == "quantile":
        rare = s.q99 <= s.q01
        low, high = np.where(rare, s.min, s.q01), np.where(rare, s.max, s.q99)
        offset, spread = (low + high) / 2, (high - low) / 2
    else:
        raise ValueError(f"mode={mode!r}: must be mean_std, min_max or quantile")
    # Rounding leaves a deviation of 1e-17 on equal numbers; only min == max identifies a constant.
    constant = s.min == s.max
    offset = np.where(constant, s.min, offset).astype(np.float32)
    spread = np.where(constant, 0.0, spread).astype(np.float32)
    return {"offset": offset, "spread": spread}
