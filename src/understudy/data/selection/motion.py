"""Values that show motion, episode by episode, and the change per frame that counts as motion.

Units differ by dimension: radians, meters, a gripper's share. So the threshold of a dimension is a share of its own
speed: of the 99th percentile of its changes per frame over the whole dataset, where it changes at all.
"""

from collections.abc import Iterator, Sequence

import numpy as np

from understudy.data.format.catalog import Catalog
from understudy.data.format.features import INDEX_KEYS
from understudy.data.read.rows import Rows
from understudy.errors import DatasetError

MOTION_SHARE = 0.05
"""Share of a dimension's own speed from which on it moves."""

_PER_OCTAVE = 16  # bins of a histogram of changes, each 4 % wide
_LOWEST, _HIGHEST = -64, 64  # exponents of two; changes outside are counted in the outermost bins


def motion_keys(catalog: Catalog) -> list[str]:
    """Numeric columns of actions and states, a gripper's included.

    Raises:
        DatasetError: there is none.
    """
    numeric = numeric_keys(catalog)
    keys = [key for key in numeric if key.startswith(("action", "observation.state"))]
    if not keys:
        message = "no column is named action or observation.state"
        raise DatasetError(message, where=catalog.root, fix=f"name one with --key: {', '.join(numeric)}")
    return keys


def numeric_keys(catalog: Catalog) -> list[str]:
    """Numeric features in the rows, without index columns and images."""
    return [
        key
        for key, feature in catalog.features.items()
        if not (feature.is_camera or feature.is_text or feature.looks_like_images or key in INDEX_KEYS)
    ]


def episode_values(catalog: Catalog, keys: Sequence[str], dims: Sequence[int] = ()) -> Iterator[tuple[int, np.ndarray]]:
    """Yield (table row, values (L, D)) of each episode with frames, file by file, so that each is read once.

    Args:
        catalog: the dataset.
        keys: numeric columns; their dimensions follow each other.
        dims: dimensions to take; empty: all.

    Raises:
        DatasetError: a column cannot be read.
    """
    rows, lengths = Rows(catalog, keys, cache_bytes=0), catalog.episodes.lengths
    for row in np.argsort(catalog.episodes.data_file, kind="stable").tolist():
        length = int(lengths[row])
        if length:
            taken = rows.take(np.asarray([row]), dict.fromkeys(keys, np.arange(length)[None]))
            values = np.concatenate([np.asarray(taken[key])[0].reshape(length, -1) for key in keys], axis=1)
            yield row, values[:, list(dims)] if len(dims) else values


def changes(values: np.ndarray) -> np.ndarray:
    """Change of each frame (L, D) since the frame before, float64; infinite for the first frame."""
    with np.errstate(invalid="ignore"):  # inf - inf is NaN
        return np.diff(values.astype(np.float64), axis=0, prepend=np.inf)


class SpeedHistogram:
    """Counts of the magnitudes of D dimensions. Zeros and values that are not finite are not counted."""

    def __init__(self) -> None:
        self._counts = np.zeros((0, (_HIGHEST - _LOWEST) * _PER_OCTAVE), np.int64)

    def add(self, steps: np.ndarray) -> None:
        """Count the changes (L, D) of an episode."""
        if not len(self._counts):
            self._counts = np.zeros((steps.shape[1], self._counts.shape[1]), np.int64)
        for counts, column in zip(self._counts, np.abs(steps).T):
            moved = column[np.isfinite(column) & (column > 0)]
            bins = np.floor((np.log2(moved) - _LOWEST) * _PER_OCTAVE).astype(np.int64)
            counts += np.bincount(bins.clip(0, len(counts) - 1), minlength=len(counts))

    def quantile(self, share: float) -> np.ndarray:
        """Quantile of each dimension (D,), at most 4.5 % too large; infinite for one that never changes."""
        total = self._counts.sum(axis=1)
        reached = self._counts.cumsum(axis=1) >= np.maximum(1, np.ceil(share * total))[:, None]
        edges = 2.0 ** (_LOWEST + (1 + np.arange(self._counts.shape[1])) / _PER_OCTAVE)
        return np.where(total > 0, edges[reached.argmax(axis=1)], np.inf)


def motion_thresholds(
    catalog: Catalog, keys: Sequence[str], dims: Sequence[int] = (), *, share: float, difference: bool = True
) -> tuple[float, ...]:
    """Return the threshold of each dimension (D,), in its own unit per frame; reads all rows once.

    Args:
        catalog: the dataset.
        keys: numeric columns.
        dims: dimensions of them; empty: all.
        share: of the 99th percentile of a dimension's changes per frame, those of zero left out.
        difference: False: of the magnitudes of the values instead of their changes.
    """
    histogram = SpeedHistogram()
    for _, values in episode_values(catalog, keys, dims):
        histogram.add(changes(values)[1:] if difference else values.astype(np.float64))
    return tuple((share * histogram.quantile(0.99)).tolist())
