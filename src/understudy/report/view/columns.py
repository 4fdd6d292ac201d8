"""Columns of an episode as curves: all values of a short episode, or the range of each bucket of a long one."""

import math
import threading
from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np

from understudy.data.format.catalog import Catalog
from understudy.data.format.features import INDEX_KEYS, Feature
from understudy.data.read.rows import Rows
from understudy.errors import DatasetError

BUCKETS = 2000
"""Longest curve; longer episodes have the least and the largest value of each bucket of frames."""
BLOCK = 1024
"""Frames of a block of exact values."""
WIDEST = 64
"""Dimensions of a column that are shown."""
DIGITS = 7
_ROW_BYTES = 512 << 20


class Columns:
    """Numbers and texts of a dataset's episodes. Safe in threads.

    Args:
        catalog: the dataset.
    """

    def __init__(self, catalog: Catalog) -> None:
        self._catalog = catalog
        features = catalog.features
        shown = [key for key, own in features.items() if not own.is_camera and key not in INDEX_KEYS]
        # State and action first; then as declared.
        shown.sort(key=lambda key: (key != "observation.state", key != "action"))
        self._rows = Rows(catalog, shown, _ROW_BYTES)
        self._alone: dict[str, Rows] = {}
        self._lock = threading.Lock()
        self.keys = tuple(shown)
        self.numbers = tuple(key for key in shown if not features[key].is_text and _width(features[key]))
        """Columns that are curves."""

    @property
    def notes(self) -> list[str]:
        """Irregularities of the rows read so far."""
        return self._rows.notes

    def read(self, row: int, start: int = 0, stop: int | None = None) -> tuple[dict[str, Any], dict[str, str]]:
        """Read the columns of the episode of a table row.

        Args:
            row: the table row.
            start: first frame.
            stop: end of the frames; None: the episode's end.

        Returns:
            Key -> array (frames, ...) or list of values, and key -> error of each column that cannot be read.
        """
        stop = int(self._catalog.episodes.lengths[row]) if stop is None else stop
        frames, rows = np.arange(start, stop)[None], np.full(1, row)
        keys = [*self.keys, "task_index", "timestamp"]
        try:
            return {key: each[0] for key, each in self._rows.take(rows, dict.fromkeys(keys, frames)).items()}, {}
        except DatasetError as error:
            found, errors = {}, {}
            first = error
        for key in keys:  # one broken column must not hide the others
            try:
                with self._lock:
                    own = self._alone.setdefault(
                        key, Rows(self._catalog, [key] if key in self.keys else [], _ROW_BYTES // 8)
                    )
                found[key] = own.take(rows, {key: frames})[key][0]
            except DatasetError as error:
                errors[key] = str(error)
        if not found:
            return {}, {"": str(first)}
        return found, errors

    def curves(self, values: Mapping[str, Any]) -> list[dict[str, Any]]:
        """Return the curves of an episode's columns, as JSON holds them.

        Args:
            values: of `read`, whole.

        Returns:
            For each column {"key", "names": of its dimensions, "size": number of all dimensions, "bucket": frames of
            a point, "low": [dimensions][points], "high": the same, or None where a point is one frame}. Numbers that
            are not finite are None.
        """
        return [curve(self._catalog.features[key], values[key]) for key in self.numbers if key in values]

    def block(self, row: int, number: int) -> dict[str, Any]:
        """Return exact values of frames [BLOCK * number, BLOCK * (number + 1)) by column: [dimensions][frames].

        Raises:
            IndexError: the episode has no such block.
        """
        length = int(self._catalog.episodes.lengths[row])
        start, stop = number * BLOCK, min((number + 1) * BLOCK, length)
        if not 0 <= start < stop:
            raise IndexError(f"block {number} of {-(-length // BLOCK)}")
        values, _ = self.read(row, start, stop)
        return {key: numbers(_flat(values[key])[:, :WIDEST].T) for key in self.numbers if key in values}


def curve(feature: Feature, values: np.ndarray) -> dict[str, Any]:
    """Return one entry of `Columns.curves` for the values (frames, ...) of a feature."""
    flat = _flat(values)[:, :WIDEST]
    bucket = -(-max(1, len(flat)) // BUCKETS)
    names, width = feature.dimension_names, _width(feature)
    low, high = ranges(flat, bucket)
    return {
        "key": feature.key,
        "names": names[:WIDEST] if width > 1 else [feature.key],
        "size": width,
        "bucket": bucket,
        "low": numbers(low.T),
        "high": None if bucket == 1 else numbers(high.T),
    }


def ranges(values: np.ndarray, bucket: int) -> tuple[np.ndarray, np.ndarray]:
    """Return the least and the largest finite value of each bucket of rows: float64 (points, D); NaN without any.

    Args:
        values: (frames, D).
        bucket: rows of a bucket; the last one may have less.
    """
    values = np.where(np.isfinite(values), values, np.nan).astype(np.float64)
    if bucket == 1:
        return values, values
    starts = np.arange(0, len(values), bucket)
    return np.fmin.reduceat(values, starts, axis=0), np.fmax.reduceat(values, starts, axis=0)


def numbers(values: np.ndarray) -> list[Any]:
    """Convert an array to nested lists of JSON numbers with `DIGITS` digits; None for numbers that are not finite."""
    if values.ndim > 1:
        return [numbers(each) for each in values]
    return [float(f"{one:.{DIGITS}g}") if math.isfinite(one) else None for one in values.tolist()]


def runs(values: Sequence[Any]) -> list[list[Any]]:
    """Return runs of equal neighbours as [start, stop, value]."""
    found: list[list[Any]] = []
    for frame, value in enumerate(values):
        if found and found[-1][2] == value:
            found[-1][1] = frame + 1
        else:
            found.append([frame, frame + 1, value])
    return found


def _width(feature: Feature) -> int:
    return math.prod(feature.shape)


def _flat(values: np.ndarray) -> np.ndarray:
    return np.asarray(values, np.float64).reshape(len(values), -1)
