"""Normalized values of a size that sound figures do not give: one measure for the start of a
training and `check`.
"""

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np

from understudy_data.datasets.stats.norm_heads import name_dimensions

FAR = 20.0
"""Magnitude of a normalized value that is far: sound ones are of about 1."""
SHARE = 0.01
"""Share of far values from which a dimension is named."""
NARROW = 0.01
"""Half the range of the normalized values below which a dimension is named."""


@dataclass(frozen=True)
class Fit:
    """Rows [n, dim] beside the figures that normalize them.

    Attributes:
        offset, spread: float64 [dim], the figures.
        magnitude: float64 [n, dim], of the normalized values; infinite for other values than that
            of a constant.
        share: float64 [dim], of far values.
        far: bool [dim], more than `SHARE` are far.
        narrow: bool [dim], the values move, and stay within `NARROW` after normalization.
    """

    offset: np.ndarray
    spread: np.ndarray
    magnitude: np.ndarray
    share: np.ndarray
    far: np.ndarray
    narrow: np.ndarray

    def describe(self, key: str, dim: int, names: Sequence[str]) -> str:
        """Name a dimension with its share of far values and their typical size."""
        is_constant = self.spread[dim] == 0
        if is_constant:
            value = f"constant {self.offset[dim]:.4g}"
        else:
            value = f"typically {self.typical(dim):.3g}"
        return f"{name_dimensions(key, [dim], names)} {self.share[dim]:.0%} ({value})"

    def typical(self, dim: int) -> float:
        """Return the median magnitude of a dimension."""
        return float(np.median(self.magnitude[:, dim]))


def confront(rows: np.ndarray, offset: np.ndarray, spread: np.ndarray) -> Fit:
    """Measure rows by the figures that normalize them.

    Args:
        rows: finite numbers [n, dim], at least one.
        offset: float64 [dim]; NaN, where a figure is unknown, is far from nothing.
        spread: float64 [dim]; 0 for a constant.
    """
    noise = rounding(rows)
    distance = np.abs(rows - offset)
    moved = distance > noise
    magnitude = np.divide(distance, spread, out=np.where(moved, np.inf, 0.0), where=spread > 0)
    share = (magnitude > FAR).mean(0)
    far = share > SHARE
    half = (rows.max(0) - rows.min(0)) / 2
    narrow = (2 * half > noise) & (spread > 0) & (half < NARROW * spread) & ~far
    return Fit(offset, spread, magnitude, share, far, narrow)


def rounding(rows: np.ndarray) -> np.ndarray:
    """Return the range, float64 [dim], below which the values of rows [n, dim] are one number and
    its rounding.
    """
    return np.maximum(1e-6, 1e-5 * np.abs(rows).max(0))
