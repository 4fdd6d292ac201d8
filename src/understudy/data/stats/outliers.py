"""Outliers that would flatten all other values under normalization, detected before the first step.

The unit of distance is half the range of the central 98 % of a column, a thousandth of that range's distance from 0, or
0.001, whichever is largest: a joint that rests but for a few frames has no outliers. Where the central 98 % are
equal, the unit is 1: a touch sensor that counts to 4,096 and is rarely touched has nothing else to lose.
"""

import warnings
from collections.abc import Iterable

import numpy as np

from understudy.batch_keys import ACTION, STATE
from understudy.data.dataset import EpisodeDataset
from understudy.data.read.rows import Rows
from understudy.data.stats.dataset_summaries import vector_widths
from understudy.data.stats.normalization import Statistics
from understudy.errors import DatasetError

FAR = 1e6
"""Distance from the central range, in units, from which a value is an error in every mode."""
HUGE = 1e19
"""Magnitude from which any value is an error: its square overflows float32."""
WIDE = 100.0
"""Spread, in units, from which a warning is given: most values then use a hundredth of the normalized range."""

LOADED_BYTES = 256 << 20


def check_outliers(
    key: str, known: Statistics, low: np.ndarray, high: np.ndarray, data: Iterable[EpisodeDataset]
) -> None:
    """Refuse values far outside the central range of a column. Unknown figures (NaN) are not checked.

    Args:
        key: the column.
        known: its statistics.
        low: float64 [dim], least values to check.
        high: float64 [dim], greatest values to check.
        data: datasets in which to locate the value for the message.

    Raises:
        DatasetError: names the dimension, the episode and the frame.
    """
    with np.errstate(invalid="ignore"):
        beyond = np.maximum(high - known.q99, known.q01 - low) / _unit(known)
        bad = np.flatnonzero((beyond > FAR) | (high > HUGE) | (low < -HUGE))
    if not len(bad):
        return
    dim = int(bad[0])
    value = high[dim] if high[dim] - known.q99[dim] > known.q01[dim] - low[dim] else low[dim]
    where, episode = _locate(key, dim, data)
    what = f"{key}[{dim}] is {value:.4g}, and 98 % of its values are between {_range(known, dim)}"
    fix = f"leave the episode out: exclude_episodes {episode}" if episode is not None else "leave its episode out"
    raise DatasetError(what, where=where or None, fix=f"{fix}, or correct the data")


def warn_wide_spread(head: str, key: str, known: Statistics, spread: np.ndarray) -> None:
    """Warn where the `spread`, float32 [dim], of a column is far larger than the range of most values."""
    with np.errstate(invalid="ignore"):
        ratio = spread / _unit(known)
    for dim in np.flatnonzero(ratio > WIDE).tolist():
        advice = "" if _is_resting(known)[dim] else " (data.normalize quantile ignores them)"
        warnings.warn(
            f"head {head!r}: {key}[{dim}] is divided by {spread[dim]:.3g}, and 98 % of its values are between "
            f"{_range(known, dim)}: a few values decide its normalization{advice}",
            stacklevel=2,
        )


def _unit(known: Statistics) -> np.ndarray:
    away = np.maximum(abs(known.q01), abs(known.q99))
    least = np.where(_is_resting(known), 1.0, 1e-3)
    return np.maximum(np.maximum((known.q99 - known.q01) / 2, 1e-3 * away), least)


def _is_resting(known: Statistics) -> np.ndarray:
    """Dimensions whose central 98 % are one number, bool [dim]."""
    return np.asarray(known.q99 == known.q01)


def _range(known: Statistics, dim: int) -> str:
    return f"{known.q01[dim]:.3g} and {known.q99[dim]:.3g}"


def _locate(key: str, dim: int, data: Iterable[EpisodeDataset]) -> tuple[str, int | None]:
    """Source, episode and frame of the largest value of one dimension, in action and state for a difference."""
    most, where, of = -1.0, "", None
    for part in data:
        keys = tuple(
            name for name in ((ACTION, STATE) if key == ACTION else (key,)) if vector_widths(part).get(name, 0) > dim
        )
        rows = Rows(part.catalog, keys, LOADED_BYTES)
        for episode, start, stop in part.segments.tolist():
            row = part.catalog.episodes.rows_of(np.array([episode]))
            for values in rows.take(row, {name: np.arange(start, stop)[None] for name in keys}).values():
                column = abs(np.asarray(values).reshape(stop - start, -1)[:, dim].astype(np.float64))
                if column.max() > most:
                    most, of = float(column.max()), int(episode)
                    where = f"{part.name}, episode {episode}, frame {start + int(column.argmax())}"
    return where, of
