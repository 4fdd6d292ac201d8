"""What is kept of a column while its rows pass by once: enough to pool it with other sources, in bounded memory.

Moments are numpy's own over blocks of up to `ROWS` rows, put together by the parallel formula of Chan, Golub & LeVeque
(1979): a column of one block has numpy's figures bit for bit, a pool has the variance of all its rows. Quantiles are
taken from rows, never from quantiles: a pool of up to `ROWS` rows keeps them all and is exact; of a larger one each
source keeps every stride-th row, at least a half of `ROWS` together (a seventh, for windows of an awkward length: see
`stride_of`). The 1 % quantile of such a pool lies between the exact 0.98 % and 1.02 % ones: three standard errors of
`ROWS` / 2 independent rows, and one row per source.
"""

from collections.abc import Sequence
from dataclasses import dataclass
from itertools import count
from math import gcd

import numpy as np

from understudy.data.format.recorded_stats import aggregate
from understudy.data.stats.normalization import Statistics

ROWS = 1 << 22
"""Rows of a pool from which quantiles are exact, and rows of a block: 4 bytes times this and the width are held."""

FIGURES = ("mean", "std", "min", "max")


@dataclass(frozen=True)
class Summary:
    """One column of one source.

    Attributes:
        count: rows; 0 where it is not known (figures computed elsewhere).
        mean, std, min, max: float64 [dim]; population deviation.
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
        """The same with every `stride`-th row only, a multiple of its own stride."""
        rows = self.rows[:0] if stride == 0 else self.rows[:: stride // self.stride]
        return Summary(self.count, self.mean, self.std, self.min, self.max, rows, stride)


def stride_of(total: int, period: int = 1) -> int:
    """Every which of a pool's `total` rows are kept: a power of the smallest prime that does not divide `period`.

    Rows that come in runs of `period` (the pairs of one frame with each step of its window) must not be met at the same
    place of each run. Powers of one number, so that what was kept for a smaller pool serves a larger one.
    """
    base = next(p for p in count(2) if gcd(p, period) == 1)
    stride = 1
    while total > stride * ROWS:
        stride *= base
    return stride


class Gathering:
    """Takes the rows of one column as they come.

    Args:
        total: how many will come; stride: see `Summary`.
    """

    def __init__(self, total: int, stride: int) -> None:
        self._left, self._stride = total, stride
        self._block: np.ndarray | None = None
        self._filled, self._before = 0, 0
        self._parts: list[dict[str, np.ndarray]] = []
        self._kept: list[np.ndarray] = []

    def add(self, rows: np.ndarray) -> None:
        """Count rows in: numbers or bools [n, dim], finite."""
        while len(rows):
            if self._block is None:
                self._block = np.empty((min(self._left, ROWS), rows.shape[1]), rows.dtype)
            room = min(len(self._block) - self._filled, len(rows))
            self._block[self._filled : self._filled + room] = rows[:room]
            self._filled, self._left, rows = self._filled + room, self._left - room, rows[room:]
            if self._filled == len(self._block):
                self._close(self._block)

    def _close(self, block: np.ndarray) -> None:
        """Turn a full block into its figures and the rows to keep."""
        self._parts.append(_moments(block))
        if self._stride == 1 or not self._stride:
            self._kept.append(block if self._stride else block[:0].copy())
        else:
            self._kept.append(block[-self._before % self._stride :: self._stride].copy())  # lets go of the block
        self._before += len(block)
        self._block, self._filled = None, 0

    def summary(self) -> Summary:
        """Of everything that came, once all of it has."""
        if self._left or not self._parts:
            raise ValueError(f"{self._left} rows are still to come, {self._before} came")
        moments = _together(self._parts)
        rows = self._kept[0] if len(self._kept) == 1 else np.concatenate(self._kept)
        mean, std, low, high = (moments[name] for name in FIGURES)
        return Summary(self._before, mean, std, low, high, rows, self._stride)


def pooled(parts: Sequence[Summary]) -> Statistics:
    """Statistics of the union of sources, the same bits in any sequence of them.

    NaN where they do not follow from the parts: quantiles where one kept no rows, everything where the number of rows
    behind one is not known. The parts that kept rows have one stride.
    """
    parts = sorted(parts, key=lambda part: (part.count, *(getattr(part, name).tobytes() for name in FIGURES)))
    moments = _together([{name: getattr(p, name) for name in FIGURES} | {"count": np.array([p.count])} for p in parts])
    if len(parts) > 1 and not all(part.count for part in parts):
        moments |= {name: np.full_like(moments[name], np.nan) for name in ("mean", "std")}
    quantiles = np.full((2, parts[0].rows.shape[1]), np.nan)
    if all(len(part.rows) for part in parts):
        if len({part.stride for part in parts}) > 1:
            raise ValueError(f"strides {sorted({part.stride for part in parts})} in one pool")
        for dim in range(quantiles.shape[1]):  # one dimension at a time: a quantile sorts a copy
            x = np.concatenate([part.rows[:, dim].astype(np.float64) for part in parts])
            quantiles[:, dim] = np.quantile(x, [0.01, 0.99])
    return Statistics(sum(p.count for p in parts), *(moments[name] for name in FIGURES), *quantiles)


def _together(parts: list[dict[str, np.ndarray]]) -> dict[str, np.ndarray]:
    return parts[0] if len(parts) == 1 else aggregate(parts)


def _moments(table: np.ndarray) -> dict[str, np.ndarray]:
    """Figures of rows [n, dim], float64 [dim]."""
    found = []
    for dim in range(table.shape[1]):
        x = table[:, dim].astype(np.float64)
        found.append([x.mean(), x.std(), x.min(), x.max()])
    return {**dict(zip(FIGURES, np.array(found).T)), "count": np.array([len(table)])}
