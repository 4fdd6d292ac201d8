"""Quantized depth: LeRobot stores distances as 12-bit codes in a video, on a logarithmic or a linear scale."""

from __future__ import annotations

from dataclasses import dataclass
from functools import lru_cache

import numpy as np

LARGEST = 4095
"""Largest code."""


@dataclass(frozen=True)
class DepthCodes:
    """Scale of the codes 0 to 4095.

    Attributes:
        minimum: distance of code 0, in meters.
        maximum: distance of code 4095, in meters.
        shift: meters that are added before the logarithm.
        log: whether the scale is logarithmic.
    """

    minimum: float
    maximum: float
    shift: float
    log: bool

    def distances(self, unit: str = "m") -> np.ndarray:
        """Distance of each code, float32 (4096,), read-only; computed in float64 and rounded once.

        Args:
            unit: "m", or "mm" for whole millimeters up to 65535, as LeRobot delivers them.
        """
        return _table(self, unit)


@lru_cache(maxsize=64)
def _table(codes: DepthCodes, unit: str) -> np.ndarray:
    share = np.arange(LARGEST + 1) / LARGEST
    if codes.log:
        low, high = np.log(codes.minimum + codes.shift), np.log(codes.maximum + codes.shift)
        exact = np.exp(low + share * (high - low)) - codes.shift
    else:
        exact = codes.minimum + share * (codes.maximum - codes.minimum)
    exact = np.clip(exact, codes.minimum, codes.maximum)
    if unit == "mm":
        exact = np.clip(np.rint(exact * 1000), 0, 65535)
    table: np.ndarray = exact.astype(np.float32)
    table.flags.writeable = False
    return table
