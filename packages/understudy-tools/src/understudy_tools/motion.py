"""Motion and rest of a robot: the one definition of an idle frame, and the values that it compares.

A frame is **idle** if no dimension of the actions and states (`motion_keys`) changes by 5 %
(`MOTION_SHARE`) of its own speed since the frame before. A first frame is never idle. Units differ
by dimension: radians, meters, a gripper's share. So the speed of a dimension is the 99th percentile
of its changes per frame over the dataset, where it changes.

A constant difference or velocity moves a robot without changing. Where such actions are recorded
with a state, the state changes. A dimension that is named as one (`rate_dims`) also moves while its
value is 5 % of its 99th percentile.

`non_idle_ranges` finds the frame ranges of an episode without long pauses, which are runs of idle
frames. Without other settings only frames in which nothing moves are removed. `IdleRule.droid()` is
the rule of openpi's `compute_droid_nonidle_ranges.py`, which made DROID's keep-ranges. Its values
are commanded joint velocities in rad/s at 15 frames per second.
"""

import re
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from functools import cached_property
from typing import Any

import numpy as np

from understudy_base import DatasetError
from understudy_data import DEFAULTS, Catalog, Lost, Part, Rows, Workers, storable

MOTION_SHARE = 0.05
"""Share of a dimension's own speed from which on it moves."""

IDLE = "no dimension of actions and states changes by 5 % of its own speed"
"""The definition, for messages."""
_RATE = re.compile(r"(^|[^a-z])(delta|deltas|rel|relative|vel|velocity|velocities|twist)([^a-z]|$)")
_GRIPPER = re.compile(r"grip|finger|hand|jaw")

PART_ROWS = 1_000_000
"""Rows of a part of the work."""
_PER_OCTAVE = 16  # bins of a histogram of changes, each 4 % wide
# exponents of two; changes outside are counted in the outermost bins
_LOWEST = -64
_HIGHEST = 64


def motion_keys(catalog: Catalog) -> list[str]:
    """Numeric columns of actions and states, a gripper's included.

    Raises:
        DatasetError: there is none.
    """
    numeric = numeric_keys(catalog)
    keys = named_motion(numeric)
    if not keys:
        message = "no column is named action or observation.state"
        raise DatasetError(
            message, where=catalog.root, fix=f"name one with --keys: {', '.join(numeric)}"
        )
    return keys


def named_motion(keys: Sequence[str]) -> list[str]:
    """Return those keys that are actions or states, by their names."""
    return [key for key in keys if key.startswith(("action", "observation.state"))]


def numeric_keys(catalog: Catalog) -> list[str]:
    """Numeric features in the rows, without index columns and images."""
    return [
        key
        for key, feature in catalog.features.items()
        if not (
            feature.is_camera or feature.is_text or feature.looks_like_images or key in DEFAULTS
        )
    ]


@dataclass(frozen=True)
class EpisodeWork:
    """Work on the numbers of episodes, by their table rows (`parts.Work`).

    Attributes:
        catalog: the dataset.
        keys: numeric columns; their dimensions follow each other.
        dims: dimensions to take; empty: all.
    """

    catalog: Catalog
    keys: tuple[str, ...]
    dims: tuple[int, ...]

    def depends_on(self, part: Part) -> Any:
        """Return the metadata, the settings, and the versions of the files."""
        paths = sorted({self.catalog.data_path(row) for row in part})
        return self._mark, self.catalog.marks(paths)

    @cached_property
    def _mark(self) -> str:
        return (
            f"{self.catalog.mark} "
            f"{[value for name, value in vars(self).items() if name != 'catalog']}"
        )

    def __call__(self, part: Part) -> Any:
        """Return the result of some episodes."""
        raise NotImplementedError

    def values(self, part: Part) -> Iterator[tuple[int, np.ndarray]]:
        """Yield (table row, values (L, D)) of each episode.

        Raises:
            DatasetError: a column cannot be read.
        """
        rows = Rows(self.catalog, self.keys, cache_bytes=0)
        lengths = self.catalog.episodes.lengths
        for row in part:
            values = np.concatenate(
                [rows.span(row, key, 0, int(lengths[row])) for key in self.keys], axis=1
            )
            if len(self.dims):
                values = values[:, list(self.dims)]
            yield row, values

    def run(
        self, workers: Workers, done: Callable[[Part], None] = lambda part: None
    ) -> Iterator[Any]:
        """Yield the results of all episodes with frames, file by file, so that each file is read
        once.
        """
        lengths = self.catalog.episodes.lengths
        order = np.argsort(self.catalog.episodes.data_file, kind="stable")
        order = order[lengths[order] > 0]
        for _, result in workers.run(
            self, Workers.cut(order.tolist(), lengths[order].tolist(), PART_ROWS), done
        ):
            if isinstance(result, Lost):
                raise result.error.replaced(where=self.catalog.root)
            yield result


def rate_dims(catalog: Catalog, keys: Sequence[str]) -> np.ndarray:
    """Return which dimensions of the columns are differences or velocities, bool (D,).

    The names of a column and of its dimensions decide (`action.joint_velocity`, `delta_x`), or
    `control_mode` in info.json for all actions. A gripper is none: its action is a place in most
    control modes.
    """
    mode = str(catalog.info.get("control_mode", "")).lower()
    is_rate: list[bool] = []
    for key in keys:
        feature = catalog.features[key]
        whole = _RATE.search(key.lower()) or (key.startswith("action") and _RATE.search(mode))
        flat = len(is_rate) + int(np.prod(feature.shape))
        names = feature.dimension_names if len(feature.shape) == 1 else [""] * (flat - len(is_rate))
        is_rate += [
            bool(whole or _RATE.search(n.lower())) and not _GRIPPER.search(n.lower()) for n in names
        ]
    return np.array(is_rate, bool)


def moves(
    steps: np.ndarray, threshold: np.ndarray, values: np.ndarray, rates: np.ndarray
) -> np.ndarray:
    """Return whether a dimension moves in each frame, bool (L,); not finite is a motion.

    Args:
        steps: change of each frame (L, D).
        threshold: least change of a dimension that moves (D,).
        values: (L, D); compared where they are differences or velocities.
        rates: least magnitude of such a value (D,), infinite for other dimensions.
    """
    still = (np.abs(steps) < threshold).all(axis=1)
    if np.isfinite(rates).any():
        still &= (np.abs(values[:, np.isfinite(rates)]) < rates[np.isfinite(rates)]).all(axis=1)
    return ~still


def changes(values: np.ndarray) -> np.ndarray:
    """Change of each frame (L, D) since the frame before, float64; infinite for the first frame."""
    with np.errstate(invalid="ignore"):  # inf - inf is NaN
        return np.diff(values.astype(np.float64), axis=0, prepend=np.inf)


@storable
class SpeedHistogram:
    """Counts of the magnitudes of `width` dimensions D. Zeros and values that are not finite are
    not counted.
    """

    def __init__(self, width: int) -> None:
        self._counts = np.zeros((width, (_HIGHEST - _LOWEST) * _PER_OCTAVE), np.int64)

    def add(self, steps: np.ndarray) -> None:
        """Count the changes (L, D) of an episode."""
        for counts, column in zip(self._counts, np.abs(steps).T):
            moved = column[np.isfinite(column) & (column > 0)]
            bins = np.floor((np.log2(moved) - _LOWEST) * _PER_OCTAVE).astype(np.int64)
            counts += np.bincount(bins.clip(0, len(counts) - 1), minlength=len(counts))

    def merge(self, other: "SpeedHistogram") -> None:
        """Add the counts of other changes."""
        self._counts += other._counts

    def quantile(self, share: float) -> np.ndarray:
        """Quantile of each dimension (D,), at most 4.5 % too large; infinite for one that never
        changes.
        """
        total = self._counts.sum(axis=1)
        reached = self._counts.cumsum(axis=1) >= np.maximum(1, np.ceil(share * total))[:, None]
        edges = 2.0 ** (_LOWEST + (1 + np.arange(self._counts.shape[1])) / _PER_OCTAVE)
        return np.where(total > 0, edges[reached.argmax(axis=1)], np.inf)


def motion_thresholds(
    catalog: Catalog,
    keys: Sequence[str],
    dims: Sequence[int],
    *,
    share: float,
    difference: bool,
    workers: Workers | None,
) -> tuple[tuple[float, ...], tuple[float, ...]]:
    """Return the thresholds of changes and of rates (`moves`), each (D,), in the columns' units;
    reads all rows once.

    Args:
        catalog: the dataset.
        keys: numeric columns.
        dims: dimensions of them; empty: all.
        share: share of the 99th percentile of a dimension's changes per frame, those of zero left
            out.
        difference: False: of the magnitudes of the values instead of their changes.
        workers: processes that read the rows; None reads them in this one.
    """
    work = MeasureSpeeds(catalog, tuple(keys), tuple(dims), difference)
    speeds = work.speeds()
    for part in work.run(workers or Workers()):
        speeds.merge(part)
    threshold, rates = speeds.thresholds(share)
    if not difference or not np.isfinite(rates).any():
        return tuple(threshold.tolist()), ()
    return tuple(threshold.tolist()), tuple(rates.tolist())


@dataclass(frozen=True)
class MeasureSpeeds(EpisodeWork):
    """Speeds of episodes, by their changes or else by their magnitudes."""

    difference: bool

    def speeds(self) -> "Speeds":
        """Return the speeds of no episode."""
        is_rate = rate_dims(self.catalog, self.keys)
        if len(self.dims):
            is_rate = is_rate[list(self.dims)]
        return Speeds(is_rate)

    def __call__(self, part: Part) -> "Speeds":
        """Return the speeds of some episodes."""
        speeds = self.speeds()
        for _, values in self.values(part):
            steps = changes(values)[1:] if self.difference else values.astype(np.float64)
            speeds.add(steps, values)
        return speeds


@storable
class Speeds:
    """Speed of each dimension of a dataset, episode by episode.

    Args:
        is_rate: which dimensions are differences or velocities (D,), see `rate_dims`.
    """

    def __init__(self, is_rate: np.ndarray) -> None:
        self._is_rate = is_rate
        self._steps = SpeedHistogram(len(is_rate))
        self._values = SpeedHistogram(int(is_rate.sum()))

    def add(self, steps: np.ndarray, values: np.ndarray) -> None:
        """Count the changes (any, D) and the values (L, D) of an episode."""
        if len(steps):
            self._steps.add(steps)
        if self._is_rate.any() and len(values):
            self._values.add(values[:, self._is_rate].astype(np.float64))

    def merge(self, other: "Speeds") -> None:
        """Add the counts of other episodes."""
        self._steps.merge(other._steps)
        self._values.merge(other._values)

    def thresholds(self, share: float = MOTION_SHARE) -> tuple[np.ndarray, np.ndarray]:
        """Return `threshold` and `rates` of `moves`, each (D,)."""
        rates = np.full(len(self._is_rate), np.inf)
        if self._is_rate.any():
            rates[self._is_rate] = share * self._values.quantile(0.99)
        return share * self._steps.quantile(0.99), rates


@dataclass(frozen=True)
class IdleRule:
    """Definition of idle frames, and of the ranges to keep."""

    threshold: float | tuple[float, ...] = 1e-3
    """A frame is idle when all values changed by less than this since the previous frame, in the
    column's units; one number, or one for each dimension (`motion_thresholds`). The first frame is
    never idle. A value that is not finite is a change.
    """
    difference: bool = True
    """False: a frame is idle when all values are below the threshold in magnitude (velocities of a
    resting robot).
    """
    min_idle: int = 7
    """Consecutive idle frames to remove; shorter pauses stay."""
    min_moving: int = 1
    """Least frames of a range between two pauses to keep it."""
    cut_last: int = 0
    """Frames cut from the end of each range: action chunks that begin there reach into the pause.
    """
    settled: bool = True
    """Keep the first `min_idle` frames of a pause, since a gripper may still be closing. Also keep
    a whole pause in which values drift by `threshold` or more (least to greatest), since it is a
    slow movement. False: remove each pause from its first frame on, however far its small changes
    add up.
    """
    rates: tuple[float, ...] = ()
    """For each dimension the least value that is a motion, infinite where the value is none
    (`motion.moves`); empty: for none.
    """

    @classmethod
    def droid(cls) -> "IdleRule":
        """Return openpi's rule and numbers."""
        return cls(
            threshold=1e-3, difference=True, min_idle=7, min_moving=16, cut_last=10, settled=False
        )


@dataclass(frozen=True)
class FindRanges(EpisodeWork):
    """Table row, `non_idle_ranges`, frames in pauses and idle frames of each episode."""

    rule: IdleRule

    def __call__(self, part: Part) -> list[tuple[int, list[tuple[int, int]], int, int]]:
        """Return the ranges of each episode."""
        episodes = []
        for row, values in self.values(part):
            ranges = non_idle_ranges(values, self.rule)
            paused = sum(stop - start for start, stop in idle_ranges(values, self.rule))
            idle = int(idle_frames(values, self.rule)[1:].sum())
            episodes.append((row, ranges, paused, idle))
        return episodes


def idle_frames(values: np.ndarray, rule: IdleRule) -> np.ndarray:
    """Return which frames are idle, bool (L,), for the numbers (L, ...) of one episode."""
    flat = values.reshape(len(values), -1).astype(np.float64)
    steps = changes(flat) if rule.difference else flat
    rates = np.asarray(rule.rates) if rule.rates else np.full(flat.shape[1], np.inf)
    return ~moves(steps, np.asarray(rule.threshold), flat, rates)


def idle_ranges(values: np.ndarray, rule: IdleRule) -> list[tuple[int, int]]:
    """Find the long idle [start, stop) frame ranges of one episode, ascending and disjoint.

    Args:
        values: numbers (L, ...), one row per frame.
        rule: the definition of idle.
    """
    if len(values) == 0:
        return []
    flat = values.reshape(len(values), -1).astype(np.float64)
    threshold = np.asarray(rule.threshold)
    idle = idle_frames(values, rule)
    pauses = [(start, stop) for start, stop in _runs(idle) if stop - start >= rule.min_idle]
    if not rule.settled:
        return pauses
    return [
        (start + rule.min_idle, stop)
        for start, stop in pauses
        if stop - start > rule.min_idle
        and not (rule.difference and (np.ptp(flat[start - 1 : stop], axis=0) >= threshold).any())
    ]


def non_idle_ranges(values: np.ndarray, rule: IdleRule) -> list[tuple[int, int]]:
    """Return the [start, stop) frame ranges to keep of one episode, ascending, disjoint, not empty.

    Args:
        values: numbers (L, ...), one row per frame.
        rule: the definition of idle.
    """
    moving = np.ones(len(values), bool)
    for start, stop in idle_ranges(values, rule):
        moving[start:stop] = False
    ranges = [
        (start, stop - rule.cut_last)
        for start, stop in _runs(moving)
        if stop - start >= rule.min_moving
    ]
    return [(start, stop) for start, stop in ranges if start < stop]


def _runs(flags: np.ndarray) -> Sequence[tuple[int, int]]:
    """[start, stop) of each maximal run of True in bool (L,)."""
    turns = np.flatnonzero(np.diff(np.concatenate([[False], flags, [False]]).astype(np.int8)))
    return list(zip(turns[::2].tolist(), turns[1::2].tolist()))
