"""Summaries of columns that can be pooled over sources, in bounded memory.

Moments are numpy's own over blocks of up to `ROWS` rows, merged by the parallel formula of Chan, Golub & LeVeque
(1979). A column of one block has numpy's figures bit for bit; a pool has the variance of all its rows. Quantiles are
computed from rows, never from quantiles. A pool of up to `ROWS` rows keeps all of them and is exact. In a larger pool
each source keeps every stride-th row, together at least half of `ROWS` (a seventh for some window lengths, see
`quantile_stride`). The 1 % quantile of such a pool is between the exact 0.98 % and 1.02 % quantiles: three standard
errors of `ROWS` / 2 independent rows, and one row per source.
"""

from collections.abc import Sequence
from dataclasses import dataclass
from itertools import count
from math import gcd

import numpy as np

from understudy.data.format.recorded_stats import aggregate
from understudy.data.stats.normalization import Statistics
from understudy.data.stats.running import RowSample, compute_moments

ROWS = 1 << 22
"""Rows of a pool up to which quantiles are exact, and rows of a block (4 bytes times this and the width in memory)."""

FIGURES = ("mean", "std", "min", "max")


@dataclass(frozen=True)
class Summary:
    """One column of one source.

    Attributes:
        count: rows; 0 where unknown (figures computed elsewhere).
        mean: float64 [dim].
        std: float64 [dim], population deviation.
        min: float64 [dim].
        max: float64 [dim].
        rows: [R, dim] as stored, every `stride`-th row; [0, dim] with stride 0.
        stride: 0 keeps no rows.
    """

    count: int
    mean: np.ndarray
    std: np.ndarray
    min: np.ndarray
    max: np.ndarray
    rows: np.ndarray
    stride: int

    def thinned(self, stride: int) -> "Summary":
        """Return the summary with every `stride`-th row only; a multiple of its own stride."""
        rows = self.rows[:0] if stride == 0 else self.rows[:: stride // self.stride]
        return Summary(self.count, self.mean, self.std, self.min, self.max, rows, stride)


def quantile_stride(total: int, period: int = 1) -> int:
    """Return the stride at which to keep a pool's `total` rows: a power of the least prime that `period` lacks.

    Rows may come in runs of `period` (the pairs of one frame with each step of its window). A stride without common
    factor meets every place of a run. Powers of one prime let rows kept for a smaller pool serve a larger one.
    """
    base = next(p for p in count(2) if gcd(p, period) == 1)
    stride = 1
    while total > stride * ROWS:
        stride *= base
    return stride


class SummaryBuilder:
    """Accumulates the rows of one column, block by block.

    Args:
        total: number of rows to come.
        stride: see `Summary`.
    """

    def __init__(self, total: int, stride: int) -> None:
        self._total, self._count = total, 0
        self._sample = RowSample(stride)
        self._block: np.ndarray | None = None
        self._filled = 0
        self._parts: list[dict[str, np.ndarray]] = []

    def add(self, rows: np.ndarray) -> None:
        """Add rows: finite numbers or bools [n, dim]."""
        while len(rows):
            if self._block is None:
                self._block = np.empty((min(self._total - self._count, ROWS), rows.shape[1]), rows.dtype)
            room = min(len(self._block) - self._filled, len(rows))
            self._block[self._filled : self._filled + room] = rows[:room]
            self._filled, self._count, rows = self._filled + room, self._count + room, rows[room:]
            if self._filled == len(self._block):
                self._parts.append(_figures(self._block))
                self._sample.add(self._block)
                self._block, self._filled = None, 0

    def summary(self) -> Summary:
        """Return the summary once all rows were added."""
        if self._count < self._total or not self._parts:
            raise ValueError(f"{self._count} of {self._total} rows were added")
        figures = _combine(self._parts)
        mean, std, low, high = (figures[name] for name in FIGURES)
        return Summary(self._count, mean, std, low, high, self._sample.rows(), self._sample.stride)


def pool(parts: Sequence[Summary]) -> Statistics:
    """Combine sources into the statistics of their union; their order does not change a bit.

    Figures that do not follow from the parts are NaN: quantiles where a part kept no rows, mean and deviation where a
    row count is unknown. All parts with rows must have one stride.
    """
    parts = sorted(parts, key=lambda part: (part.count, *(getattr(part, name).tobytes() for name in FIGURES)))
    figures = _combine([{name: getattr(p, name) for name in FIGURES} | {"count": np.array([p.count])} for p in parts])
    if len(parts) > 1 and not all(part.count for part in parts):
        figures |= {name: np.full_like(figures[name], np.nan) for name in ("mean", "std")}
    quantiles = np.full((2, parts[0].rows.shape[1]), np.nan)
    if all(len(part.rows) for part in parts):
        if len({part.stride for part in parts}) > 1:
            raise ValueError(f"strides {sorted({part.stride for part in parts})} in one pool")
        for dim in range(quantiles.shape[1]):  # one dimension at a time: a quantile sorts a copy
            x = np.concatenate([part.rows[:, dim].astype(np.float64) for part in parts])
            quantiles[:, dim] = np.quantile(x, [0.01, 0.99])
    return Statistics(sum(p.count for p in parts), *(figures[name] for name in FIGURES), *quantiles)


def _combine(parts: list[dict[str, np.ndarray]]) -> dict[str, np.ndarray]:
    return parts[0] if len(parts) == 1 else aggregate(parts)


def _figures(block: np.ndarray) -> dict[str, np.ndarray]:
    """Figures of rows [n, dim], float64 [dim]; one dimension at a time bounds memory."""
    columns = [compute_moments(block[:, dim]) for dim in range(block.shape[1])]
    return {name: np.array([getattr(c, name) for c in columns]) for name in FIGURES} | {"count": np.array([len(block)])}
