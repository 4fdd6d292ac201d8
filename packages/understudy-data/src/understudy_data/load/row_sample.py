"""`RowSample`: some rows of a source, beside the figures that normalize them.

A dimension is never divided by a spread that is tiny beside its range: `mended` takes the range
there. That holds where the figures describe the rows but for rare values.
"""

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import ClassVar

import numpy as np

from understudy_base import ACTION, STATE
from understudy_data.datasets.episode_arrays import EpisodeArrays
from understudy_data.datasets.read.rows import Rows
from understudy_data.datasets.stats.far_values import FAR, NARROW, Fit, confront, rounding
from understudy_data.datasets.stats.norm_heads import name_dimensions
from understudy_data.datasets.stats.summary import LEAST_SHARE, TINY, check_finite, vector_widths
from understudy_data.order import KeyedDraws
from understudy_data.order.random import permutation

_CACHE = 256 << 20
_VALUES = 1 << 23  # most numbers of a sample


@dataclass(frozen=True)
class MendedFigures:
    """Figures of a column that the rows corrected."""

    offset: np.ndarray
    """float64 [dim]."""
    spread: np.ndarray
    """float64 [dim]."""
    ranged: np.ndarray
    """bool [dim]: the range of the rows took the place of a tiny spread."""
    constant: np.ndarray
    """bool [dim]: the rows rest, and their value took the place of the figures."""


@dataclass(frozen=True)
class RowSample:
    """Rows of a source, of consecutive frames of a few segments."""

    rows: Mapping[str, np.ndarray]
    """`ACTION`, as learnt, and `STATE` if present: float64 [n, dim] each."""
    names: Mapping[str, Sequence[str]]
    """Names of the dimensions, by key."""

    FAR: ClassVar[float] = FAR
    """Magnitude of a normalized value that is far: sound ones are of about 1."""
    NARROW: ClassVar[float] = NARROW
    """Half the range of normalized values below which a dimension is narrow."""
    RARE: ClassVar[float] = 0.02
    """Most values outside the quantiles that describe a dimension."""

    @classmethod
    def read(
        cls,
        data: EpisodeArrays,
        delta: Sequence[int],
        chunk: int,
        key: int,
        rows: int,
        segments: int,
    ) -> "RowSample":
        """Read consecutive rows of a few segments, both chosen by a key.

        Args:
            data: the source.
            delta: dimensions of the action that are differences to the state, each by one valid
                step of its window.
            chunk: frames of the action's window.
            key: 64 bits.
            rows: most rows.
            segments: most segments.

        Raises:
            DatasetError: a file cannot be read, or a value is not finite.
        """
        widths = vector_widths(data)
        keys = tuple(widths)
        rows = min(rows, max(1000, _VALUES // sum(widths.values())))
        count = min(len(data.segments), segments, rows)
        draws = KeyedDraws(key)
        chosen = np.sort(
            permutation(len(data.segments), key).forward(np.arange(count, dtype=np.uint64))
        ).astype(np.int64)
        reader = Rows(data.catalog, keys, _CACHE)
        tables: dict[str, list[np.ndarray]] = {name: [] for name in keys}
        for number in chosen.tolist():
            episode, start, stop = data.segments[number].tolist()
            size = min(stop - start, rows // count)
            first = start + draws.key("first row", number) % (stop - start - size + 1)
            bound = first + size
            if delta:
                bound = min(int(data.window_stops[number]), first + size + chunk - 1)
            row = data.catalog.episodes.row_of(episode)
            read = {}
            for name in keys:
                table = reader.span(row, name, first, bound)
                check_finite(name, table, f"{data.name}, episode {episode}")
                read[name] = table.astype(np.float64)
            action = read[ACTION][:size].copy()
            if delta:
                now = np.arange(size)
                steps = (now * 7919 + draws.key("step", number) % chunk) % chunk
                ahead = now + steps % (bound - first - now)
                dims = list(delta)
                action[:, dims] = read[ACTION][ahead][:, dims] - read[STATE][:size][:, dims]
            for name in keys:
                part = action if name == ACTION else read[name][:size]
                tables[name].append(part)
        features = data.catalog.features
        return cls(
            {name: np.concatenate(parts) for name, parts in tables.items()},
            {name: features[name].dimension_names for name in keys},
        )

    @classmethod
    def joined(cls, samples: Sequence["RowSample"]) -> "RowSample":
        """Return the rows of several sources of one norm head, whose dimensions have the names of
        the first one.
        """
        rows = {}
        for key in (ACTION, STATE):
            parts = [sample.rows[key] for sample in samples if key in sample.rows]
            if parts:
                rows[key] = np.concatenate(parts)
        return cls(rows, samples[0].names)

    def name(self, key: str, dims: Iterable[int]) -> str:
        """Return dimensions of a column as a list for a message: `action[6] (gripper)`."""
        return name_dimensions(key, dims, self.names[key])

    def noise(self, key: str) -> np.ndarray:
        """Return the range, float64 [dim], below which values are one number and its rounding."""
        return rounding(self.rows[key])

    def confront(self, key: str, offset: np.ndarray, spread: np.ndarray) -> Fit:
        """Measure a column by the figures that normalize it (`far_values.confront`).

        Args:
            key: the column.
            offset: float64 [dim]; NaN, where a figure is unknown, is far from nothing.
            spread: float64 [dim]; 0 for a constant.
        """
        return confront(self.rows[key], offset, spread)

    def mended(
        self, key: str, offset: np.ndarray, spread: np.ndarray, may_rest: bool
    ) -> MendedFigures:
        """Divide by the range where a spread is tiny beside it, and take the value of a dimension
        that rests.

        Where most dimensions disagree, the figures are those of something else, and stay.

        Args:
            key: the column.
            offset: float64 [dim].
            spread: float64 [dim].
            may_rest: whether single dimensions may have rested in the rows of the figures, as in
                those of released weights.
        """
        rows = self.rows[key]
        low = rows.min(0)
        high = rows.max(0)
        half = (high - low) / 2
        noise = rounding(rows)
        distance = np.abs(rows - offset)
        far = (distance > np.maximum(FAR * spread, noise)).mean(0)
        rests = 2 * half <= noise
        inside = (offset >= low - half) & (offset <= high + half)
        tiny = ~rests & (spread < TINY * half) & (far >= max(LEAST_SHARE, 3 / len(rows))) & inside
        agrees = far <= self.RARE
        # one dimension may have rested there; if most differ, it is a matter of units
        if may_rest:
            agrees |= tiny.sum() <= (~rests).sum() / 2
        ranged = tiny & agrees
        constant = rests & (spread <= noise) & (distance.max(0) > FAR * spread)
        return MendedFigures(
            np.where(ranged | constant, (low + high) / 2, offset),
            np.where(ranged, half, np.where(constant, 0.0, spread)),
            ranged,
            constant,
        )
