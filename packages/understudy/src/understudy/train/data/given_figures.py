"""Figures that a run does not compute from all of its rows, confronted with a sample of them before
the first step.

Statistics of a file, of released weights or of an initial policy may be those of other units, of
absolute actions in place of differences, or of a robot whose gripper never moved. So may those of a
norm head that several sources share, for one of them. A line names the dimensions of far values
(`RowSample.confront`). Beyond `ABSURD`, the mean square that a loss begins with, the run
is refused.

A dimension is never divided by a spread that is tiny beside its range: training divides by the
range there, and a line names it. That holds where the figures describe the rows but for rare
values, and of weights also where one dimension rested in their training. Where most dimensions
disagree, the figures are those of something else, and stay.

The sample is a function of the seed: at most `ROWS` rows of at most `SEGMENTS` segments, whatever
the dataset has.
"""

import logging
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import Any

import numpy as np

from understudy.train.data.run_data import RunData
from understudy_base import ACTION, STATE, DatasetError, Record, redact
from understudy_data import DimensionMode, HeadMember, KeyedDraws, RowSample, Statistics

ROWS = 100_000
"""Most rows of a sample of all sources."""
SEGMENTS = 64
"""Most segments of a source that are read; fewer of each where there are several sources."""
SOURCES = 256
"""Most sources that are confronted."""
ABSURD = 1000.0
"""Mean square of the normalized values of a vector from which a run is refused; sound ones have
about 1.
"""
_MOST_NAMED = 12

logger = logging.getLogger(__name__)


@dataclass(frozen=True)
class Origin:
    """Origin of a normalization, for messages."""

    name: str
    """As in `data.stats recorded`."""
    fix: str
    """Remedy of figures that are not those of the rows."""
    of_weights: bool = False
    """Whether weights were trained with it, so that no other one can take its place as a whole."""
    refuses: bool = True
    """Whether absurd values are an error, and not only named."""


def of_file(stats: str) -> Origin:
    """Return the origin of statistics that `data.stats` names."""
    anew = "; `understudy edit` computes recorded ones anew" if stats == HeadMember.RECORDED else ""
    return Origin(
        f"data.stats {redact(stats)}",
        "give statistics of this data, in its units and of its differences, or leave `stats` out: "
        f"they are computed then{anew}",
    )


def of_weights(path: str) -> Origin:
    """Return the origin of the figures next to released weights."""
    fix = (
        "give data in the units of these weights, with their delta_action_dims, or train them "
        "further with the figures of this data: --policy.normalization data"
    )
    return Origin(f"policy.weights {path}", fix, of_weights=True)


def of_policy(path: str) -> Origin:
    """Return the origin of the figures of an initial policy."""
    fix = "give data in the units of that policy, or train a new policy (without init_from)"
    return Origin(f"init_from {path}", fix, of_weights=True)


OF_HEAD = Origin(
    "the statistics of the whole norm head",
    "give the sources different robot types or control modes",
    refuses=False,
)
"""Origin of computed figures that a source shares with others."""
OF_START = Origin(
    "the statistics of the start of the run",
    "correct the new episodes, or resume without --data.update",
)
"""Origin of the figures of a run, for episodes that were appended to its datasets."""


@dataclass
class Samples:
    """Samples of the rows of the sources of a run, each read once."""

    data: RunData
    seed: int
    sources: int = 1
    """Number of sources among which the rows are divided."""
    _read: dict[int, RowSample] = field(default_factory=dict)

    def of(self, number: int) -> RowSample:
        """Return rows of a source."""
        if number not in self._read:
            source = self.data.sources[number]
            chunk = source.training.reach_of(ACTION)[1] + 1
            key = KeyedDraws(self.seed).key("given figures", number)
            share = max(1, ROWS // self.sources)
            segments = max(1, SEGMENTS // self.sources)
            self._read[number] = RowSample.read(
                source.training, source.delta, chunk, key, share, segments
            )
        return self._read[number]


def with_ranges(
    recorded: Mapping[str, Statistics],
    sample: Callable[[], RowSample],
    modes: Mapping[str, Sequence[DimensionMode]],
    where: str,
) -> dict[str, Statistics]:
    """Return given statistics with the range of the rows where they have equal quantiles and no
    range.

    Args:
        recorded: the statistics, by key.
        sample: reads rows.
        modes: normalization of each dimension, by key.
        where: place of the statistics.

    Raises:
        DatasetError: the rows of such a dimension do not rest at its quantiles.
    """
    completed = dict(recorded)
    for key, statistics in recorded.items():
        with np.errstate(invalid="ignore"):
            equal = (statistics.q99 <= statistics.q01) & ~np.isfinite(
                statistics.min + statistics.max
            )
        equal &= np.array([mode == "quantile" for mode in modes[key]])
        if not equal.any():
            continue
        read = sample()
        rows = read.rows[key]
        rest = statistics.q01
        low = np.minimum(rows.min(0), rest)
        high = np.maximum(rows.max(0), rest)
        away = (np.abs(rows - np.where(equal, rest, 0)) > read.noise(key)).mean(0)
        if (wrong := np.flatnonzero(equal & (away > read.RARE))).size:
            dim = int(wrong[0])
            ends = np.quantile(rows[:, dim], [0.01, 0.99])
            problem = (
                f"{read.name(key, [dim])} has q01 = q99 = {rest[dim]:.6g}, and "
                f"98 % of its values are between {ends[0]:.4g} and {ends[1]:.4g}: these are not "
                "the statistics of this data"
            )
            raise DatasetError(problem, where=where, fix=of_file(where).fix)
        completed[key] = replace(
            statistics,
            min=np.where(equal, low, statistics.min),
            max=np.where(equal, high, statistics.max),
        )
    return completed


def settle(
    normalization: Record,
    samples: Samples,
    origins: Mapping[int, Origin],
    modes: Sequence[Mapping[str, Sequence[DimensionMode]]] = (),
) -> dict[str, Any]:
    """Confront a normalization with the rows of some sources, and return it with the spreads to
    train with.

    Args:
        normalization: the normalization, its heads in the sequence of those of the run.
        samples: rows of the sources.
        origins: number of a source -> origin of the figures of its head.
        modes: by source, normalization of each dimension that the settings name; `identity` is not
            confronted.

    Raises:
        DatasetError: the figures are not those of the rows, and the loss would be absurd.
    """
    data = samples.data
    settled: dict[str, Any] = dict(normalization)
    for head in dict.fromkeys(int(data.head_of_source[number]) for number in origins):
        numbers = [number for number in origins if data.head_of_source[number] == head]
        given = [origins[number] for number in numbers if origins[number].refuses]
        if given and given[0] is not OF_START:
            settled = _mend(settled, samples, head, numbers, given[0])
    for number, origin in origins.items():
        identity = modes[number] if modes else {}
        _confront(settled, samples, number, origin, identity)
    return settled


def _mend(
    normalization: Record, samples: Samples, head: int, numbers: Sequence[int], origin: Origin
) -> dict[str, Any]:
    """Return a normalization that divides by the range of the rows where the spread of a head is
    tiny beside it.
    """
    mended = dict(normalization)
    lines = list[str]()
    sample = RowSample.joined([samples.of(number) for number in numbers])
    for key in (ACTION, STATE):
        if key not in normalization or key not in sample.rows:
            continue
        width = sample.rows[key].shape[1]
        offset, spread = (
            _of_head(normalization, key, name, head)[:width] for name in ("offset", "spread")
        )
        figures = sample.mended(key, offset, spread, origin.of_weights)
        ranged = np.flatnonzero(figures.ranged)
        constant = np.flatnonzero(figures.constant)
        if not (ranged.size or constant.size):
            continue
        for name, values in {"offset": figures.offset, "spread": figures.spread}.items():
            mended[key] = {**mended[key], name: _with_head(mended, key, name, head, values)}
        if ranged.size:
            lines.append(f"divides by the range of the rows: {sample.name(key, ranged)}")
        if constant.size:
            lines.append(f"takes the constant of the rows: {sample.name(key, constant)}")
    if lines:
        has_tiny_spread = any("range" in line for line in lines)
        reason = "their spread is tiny beside it" if has_tiny_spread else "they rest"
        logger.warning(
            "normalization by %s: training %s (%s)", origin.name, "; ".join(lines), reason
        )
    return mended


def _of_head(normalization: Record, key: str, name: str, head: int) -> np.ndarray:
    return np.atleast_2d(np.asarray(normalization[key][name], np.float64))[head]


def _with_head(
    normalization: Record, key: str, name: str, head: int, values: np.ndarray
) -> list[Any]:
    """Return the table of a key with the first values of one head replaced, float32."""
    table = np.asarray(normalization[key][name], np.float32)
    np.atleast_2d(table)[head, : len(values)] = values.astype(np.float32)
    filled: list[Any] = table.tolist()
    return filled


def _confront(
    normalization: Record,
    samples: Samples,
    number: int,
    origin: Origin,
    modes: Mapping[str, Sequence[DimensionMode]],
) -> None:
    """Name the dimensions of a source whose normalized values are far from sound ones, or refuse
    them.
    """
    data = samples.data
    head = int(data.head_of_source[number])
    sample = samples.of(number)
    far_dims = list[str]()
    narrow_dims = list[str]()
    absurd = list[tuple[float, str]]()
    for key in (ACTION, STATE):
        if key not in sample.rows or key not in normalization:
            continue
        width = sample.rows[key].shape[1]
        offset, spread = (
            _of_head(normalization, key, name, head)[:width] for name in ("offset", "spread")
        )
        names = sample.names[key]
        fit = sample.confront(key, offset, spread)
        chosen = np.ones(width, bool)
        if key in modes:
            chosen = np.array([mode != "identity" for mode in modes[key]])
        bad = chosen & fit.far
        far_dims += [fit.describe(key, dim, names) for dim in np.flatnonzero(bad).tolist()]
        square = float((fit.magnitude[:, bad] ** 2).mean(0).sum() / width) if bad.any() else 0.0
        if square > ABSURD:
            absurd.append((square, key))
        narrow = np.flatnonzero(chosen & fit.narrow).tolist()
        narrow_dims += [sample.name(key, [dim]) for dim in narrow]
    where = f"source {data.names[number]!r}, " if len(data.names) > 1 else ""
    named = _shortened(far_dims)
    if absurd and origin.refuses:
        square, key = max(absurd)
        problem = (
            f"{where}normalized by {origin.name}, values are not of the size that these figures "
            f"describe: beyond {sample.FAR:g} are {named}; the mean square of {key!r} is "
            f"{square:.3g}, in place of about 1"
        )
        raise DatasetError(problem, fix=origin.fix)
    if far_dims:
        logger.warning(
            "normalization by %s: %snormalized values beyond %g, in place of about 1, in %s: %s",
            origin.name,
            where,
            sample.FAR,
            named,
            origin.fix,
        )
    if narrow_dims and origin.refuses:
        logger.warning(
            "normalization by %s: %sthe values of %s stay within %g after normalization: the "
            "figures are those of a wider motion, or of other units",
            origin.name,
            where,
            _shortened(narrow_dims),
            sample.NARROW,
        )


def _shortened(items: Sequence[str]) -> str:
    more = f" and {len(items) - _MOST_NAMED} more" if len(items) > _MOST_NAMED else ""
    return ", ".join(items[:_MOST_NAMED]) + more


def shared_heads(data: RunData) -> Iterable[int]:
    """Return the numbers of the sources whose head other sources share."""
    counts = np.bincount(data.head_of_source, minlength=len(data.heads))
    numbers: list[int] = np.flatnonzero(counts[data.head_of_source] > 1).tolist()
    return numbers


def limited(origins: Mapping[int, Origin], seed: int) -> dict[int, Origin]:
    """Return at most `SOURCES` of the sources, chosen by the seed."""
    numbers = list(origins)
    if len(numbers) <= SOURCES:
        return dict(origins)
    chosen = KeyedDraws(seed).choose(SOURCES, len(numbers), "confronted sources")
    return {numbers[place]: origins[numbers[place]] for place in sorted(chosen.tolist())}
