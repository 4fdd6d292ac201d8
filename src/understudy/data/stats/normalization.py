"""What statistics of a column are, and the numbers by which a policy normalises it."""

from dataclasses import dataclass
from typing import Literal

import numpy as np

Mode = Literal["mean_std", "min_max", "quantile"]


@dataclass(frozen=True)
class Statistics:
    """One column over the rows it was computed from; float64 [dim] each, population deviation; NaN is not known."""

    count: int
    """Rows; 0 where it is not known."""
    mean: np.ndarray
    std: np.ndarray
    min: np.ndarray
    max: np.ndarray
    q01: np.ndarray
    q99: np.ndarray


def offset_and_spread(statistics: Statistics, mode: Mode = "mean_std") -> dict[str, np.ndarray]:
    """The affine map of one column: {"offset", "spread"}, float32 [dim], so that (x - offset) / spread is normal.

    "mean_std" gives mean 0 and deviation 1, "min_max" gives -1..1, "quantile" puts the 1 % and 99 % quantiles at -1 and
    1 (values beyond stay beyond: nothing is clipped, so the inverse is exact). A dimension that never changes gets
    spread 0 and its constant as offset. One that changes, but so rarely that both quantiles are equal (a gripper that
    closes in one frame of two hundred), falls back to its range; spread 0 would lose it.
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
    # Rounding leaves a deviation of 1e-17 on a column of equal numbers: only min == max says constant.
    constant = s.min == s.max
    offset = np.where(constant, s.min, offset).astype(np.float32)
    spread = np.where(constant, 0.0, spread).astype(np.float32)
    return {"offset": offset, "spread": spread}
