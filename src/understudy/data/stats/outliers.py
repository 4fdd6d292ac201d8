"""Values so far from all others that normalising by them would leave nothing of the rest: found before the first step.

A value is measured in half the range in which 98 % of its column lie, or in a thousandth of that range's distance from
0, or in a thousandth of a unit: whichever is most, so that a joint that rests but for a few frames is none of these.
Where those 98 % are all the same, it is measured in whole units: a touch sensor that counts to 4,096 and is rarely
touched has nothing else that normalising could lose.
"""

import warnings
from collections.abc import Iterable

import numpy as np

from understudy.batch_keys import ACTION, STATE
from understudy.data.dataset import EpisodeDataset
from understudy.data.read.rows import Rows
from understudy.data.stats.normalization import Statistics
from understudy.data.stats.source import widths
from understudy.errors import DatasetError

FAR = 1e6
"""A value beyond the range by so many of its halves is an error, whatever it is normalised by."""
HUGE = 1e19
"""A value beyond this is one, too, however many there are: float32 has no square of it."""
WIDE = 100.0
"""A spread of so many of its halves is worth a line: the rest moves within a hundredth of what the policy sees."""

_FILES = 256 << 20


def refuse_far(key: str, known: Statistics, low: np.ndarray, high: np.ndarray, data: Iterable[EpisodeDataset]) -> None:
    """Raise DatasetError where `low` or `high`, float64 [dim], lie far outside of what is known of a column; names the
    dimension, and the episode and frame in `data`. What is not known (NaN) is not held against anything."""
    with np.errstate(invalid="ignore"):
        beyond = np.maximum(high - known.q99, known.q01 - low) / _unit(known)
        bad = np.flatnonzero((beyond > FAR) | (high > HUGE) | (low < -HUGE))
    if not len(bad):
        return
    dim = int(bad[0])
    value = high[dim] if high[dim] - known.q99[dim] > known.q01[dim] - low[dim] else low[dim]
    where, episode = _place(key, dim, data)
    what = f"{key}[{dim}] is {value:.4g}, and 98 % of its values lie between {_range(known, dim)}"
    fix = f"leave the episode out: exclude_episodes {episode}" if episode is not None else "leave its episode out"
    raise DatasetError(what, where=where or None, fix=f"{fix}, or correct the data")


def tell_wide(head: str, key: str, known: Statistics, spread: np.ndarray) -> None:
    """Warn where a column is spread, float32 [dim], over far more than most of its values."""
    with np.errstate(invalid="ignore"):
        ratio = spread / _unit(known)
    for dim in np.flatnonzero(ratio > WIDE).tolist():
        advice = "" if _rests(known)[dim] else " (data.normalise quantile ignores them)"
        warnings.warn(
            f"head {head!r}: {key}[{dim}] is divided by {spread[dim]:.3g}, and 98 % of its values lie between "
            f"{_range(known, dim)}: a few values decide its normalisation{advice}",
            stacklevel=2,
        )


def _unit(known: Statistics) -> np.ndarray:
    away = np.maximum(abs(known.q01), abs(known.q99))
    least = np.where(_rests(known), 1.0, 1e-3)
    return np.maximum(np.maximum((known.q99 - known.q01) / 2, 1e-3 * away), least)


def _rests(known: Statistics) -> np.ndarray:
    """Whether 98 % of a column are one number; the quantiles are no narrower range then. bool [dim]."""
    return np.asarray(known.q99 == known.q01)


def _range(known: Statistics, dim: int) -> str:
    return f"{known.q01[dim]:.3g} and {known.q99[dim]:.3g}"


def _place(key: str, dim: int, data: Iterable[EpisodeDataset]) -> tuple[str, int | None]:
    """Source, episode and frame of the largest value of one dimension; of a difference, of either side."""
    most, where, of = -1.0, "", None
    for part in data:
        keys = tuple(name for name in ((ACTION, STATE) if key == ACTION else (key,)) if widths(part).get(name, 0) > dim)
        rows = Rows(part.catalog, keys, _FILES)
        for episode, start, stop in part.segments.tolist():
            row = part.catalog.episodes.rows_of(np.array([episode]))
            for values in rows.take(row, {name: np.arange(start, stop)[None] for name in keys}).values():
                column = abs(np.asarray(values).reshape(stop - start, -1)[:, dim].astype(np.float64))
                if column.max() > most:
                    most, of = float(column.max()), int(episode)
                    where = f"{part.name}, episode {episode}, frame {start + int(column.argmax())}"
    return where, of
