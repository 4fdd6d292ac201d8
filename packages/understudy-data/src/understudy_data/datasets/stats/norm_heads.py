"""Normalization of a run: statistics of its training frames, pooled per norm head.

A dimension of the action that is learnt as a difference to the state uses the statistics of
action[t + k] - state[t] over all frames t and all valid steps k of their windows. Every other
dimension uses one value per frame. Each training frame counts once, independent of mixture weights:
another weight must not change the meaning of a command. Validation frames do not count.

A head is one robot under one control mode. Statistics are pooled across datasets only if both
match: the same command must map to the same normalized value, and velocities or another robot's
joints mean something else.

Outliers that would flatten all other values under normalization are errors before the first step.
Their unit of distance is half the range of the central 98 % of a column, a thousandth of that
range's distance from 0, or 0.001, whichever is largest: a joint that rests but for a few frames has
no outliers. Where the central 98 % are equal, the unit is 1: a touch sensor that counts to 4,096
and is rarely touched has nothing else to lose.
"""

import logging
import warnings
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, ClassVar

import numpy as np

from understudy_base import ACTION, STATE, DatasetError, Progress
from understudy_data.datasets.episode_arrays import EpisodeArrays
from understudy_data.datasets.read.rows import Rows
from understudy_data.datasets.stats.stats_files import RECORDED, read_stats_file
from understudy_data.datasets.stats.summary import (
    DELTA,
    FIGURES,
    DimensionMode,
    Request,
    Statistics,
    Summary,
    count_frames,
    count_pairs,
    load_or_compute_all,
    offset_and_spread,
    pool,
    quantile_stride,
    summarize,
    uses_range,
    vector_widths,
)
from understudy_data.parts import Workers

FAR = 1e6
"""Distance from the central range, in units, from which a value is an error in every mode."""
HUGE = 1e19
"""Magnitude from which any value is an error: its square overflows float32."""
WIDE = 100.0
"""Spread, in units, from which a warning is given: most values then use a hundredth of the
normalized range.
"""

LOADED_BYTES = 256 << 20

logger = logging.getLogger("understudy.data.stats.norm_heads")


def check_outliers(
    key: str,
    statistics: Statistics,
    low: np.ndarray,
    high: np.ndarray,
    data: Iterable[EpisodeArrays],
) -> None:
    """Refuse values far outside the central range of a column. Unknown figures (NaN) are not
    checked.

    Args:
        key: the column.
        statistics: its statistics.
        low: float64 [dim], least values to check.
        high: float64 [dim], greatest values to check.
        data: datasets in which to locate the value for the message.

    Raises:
        DatasetError: names the dimension, the episode and the frame.
    """
    with np.errstate(invalid="ignore"):
        beyond = np.maximum(high - statistics.q99, statistics.q01 - low) / _unit(statistics)
        bad = np.flatnonzero((beyond > FAR) | (high > HUGE) | (low < -HUGE))
    if not len(bad):
        return
    dim = int(bad[0])
    value = (
        high[dim] if high[dim] - statistics.q99[dim] > statistics.q01[dim] - low[dim] else low[dim]
    )
    where, episode = _locate(key, dim, data)
    problem = (
        f"{key}[{dim}] is {value:.4g}, and 98 % of its values are between {_range(statistics, dim)}"
    )
    fix = "leave its episode out"
    if episode is not None:
        fix = f"leave the episode out: exclude_episodes {episode}"
    raise DatasetError(problem, where=where or None, fix=f"{fix}, or correct the data")


def warn_wide_spread(head: str, key: str, statistics: Statistics, spread: np.ndarray) -> None:
    """Warn where the `spread`, float32 [dim], of a column is far larger than the range of most
    values.
    """
    with np.errstate(invalid="ignore"):
        ratio = spread / _unit(statistics)
    no_help = uses_range(statistics, "quantile")  # that mode would divide by the range, too
    for dim in np.flatnonzero(ratio > WIDE).tolist():
        advice = "" if no_help[dim] else " (data.normalize quantile ignores them)"
        warnings.warn(
            f"head {head!r}: {key}[{dim}] is divided by {spread[dim]:.3g}, and 98 % of its values "
            f"are between {_range(statistics, dim)}: a few values decide its normalization{advice}",
            stacklevel=2,
        )


def name_dimensions(key: str, dims: Iterable[int], names: Sequence[str]) -> str:
    """Return dimensions of a column as a list for a message, with their names:
    `action[6] (gripper)`.
    """
    listed = []
    for dim in dims:
        name = names[dim] if dim < len(names) else str(dim)
        in_brackets = f" ({name})" if name != str(dim) else ""
        listed.append(f"{key}[{dim}]{in_brackets}")
    return ", ".join(listed)


def _log_ranged(
    head: str, key: str, statistics: Statistics, ranged: np.ndarray, names: Sequence[str]
) -> None:
    """Name the dimensions that their range normalizes, as one line."""
    if dims := np.flatnonzero(ranged).tolist():
        ends = f"{statistics.min[dims[0]]:.4g} to {statistics.max[dims[0]]:.4g}"
        logger.info(
            "normalization of head %r: divides by the range, since the usual spread is tiny beside "
            "it: %s (%s is %s)",
            head,
            name_dimensions(key, dims, names),
            f"{key}[{dims[0]}]",
            ends,
        )


def _unit(statistics: Statistics) -> np.ndarray:
    away = np.maximum(abs(statistics.q01), abs(statistics.q99))
    least = np.where(_is_resting(statistics), 1.0, 1e-3)
    return np.maximum(np.maximum((statistics.q99 - statistics.q01) / 2, 1e-3 * away), least)


def _is_resting(statistics: Statistics) -> np.ndarray:
    """Dimensions whose central 98 % are one number, bool [dim]."""
    return np.asarray(statistics.q99 == statistics.q01)


def _range(statistics: Statistics, dim: int) -> str:
    return f"{statistics.q01[dim]:.3g} and {statistics.q99[dim]:.3g}"


def _locate(key: str, dim: int, data: Iterable[EpisodeArrays]) -> tuple[str, int | None]:
    """Source, episode and frame of the largest value of one dimension, in action and state for a
    difference.
    """
    most = -1.0
    where = ""
    of = None
    candidates = (ACTION, STATE) if key == ACTION else (key,)
    for part in data:
        keys = tuple(name for name in candidates if vector_widths(part).get(name, 0) > dim)
        rows = Rows(part.catalog, keys, LOADED_BYTES)
        for episode, start, stop in part.segments.tolist():
            row = part.catalog.episodes.row_of(episode)
            for name in keys:
                column = abs(rows.span(row, name, start, stop)[:, dim].astype(np.float64))
                if column.max() > most:
                    most = float(column.max())
                    of = int(episode)
                    where = f"{part.name}, episode {episode}, frame {start + int(column.argmax())}"
    return where, of


@dataclass(frozen=True)
class HeadMember:
    """One source of a head.

    Attributes:
        data: training part of the source, in standard keys; its segments give the frames.
        head: name of the head (see `head_name`).
        delta: dimensions of the action that are learnt as differences to the same dimension of the
            state.
        recorded: statistics by key to use without reading rows. Those of the action describe
            differences in the dimensions of `delta`.
        modes: key -> normalization of each dimension, the same in all sources of a head; None: that
            of the run for all.
    """

    data: EpisodeArrays
    head: str
    delta: tuple[int, ...] = ()
    recorded: Mapping[str, Statistics] | None = None
    modes: Mapping[str, Sequence[DimensionMode]] | None = None

    RECORDED: ClassVar[str] = RECORDED
    """Name of the statistics of a dataset's own files, in place of a path."""

    def modes_of_keys(self, mode: DimensionMode) -> dict[str, Sequence[DimensionMode]]:
        """Return the normalization of each dimension of `ACTION` and, if present, `STATE`; `mode`
        where `modes` has none.
        """
        given = self.modes or {}
        widths = vector_widths(self.data)
        return {key: given.get(key) or (mode,) * width for key, width in widths.items()}

    def read_statistics(self, path: str, mode: DimensionMode) -> dict[str, Statistics]:
        """Read statistics that were computed elsewhere, by key (`read_stats_file`).

        Args:
            path: the file, or `RECORDED`.
            mode: that of the run.

        Raises:
            DatasetError: the file cannot be read, or lacks figures that the normalization needs.
        """
        return read_stats_file(path, self.modes_of_keys(mode), self.data, self.delta)


@dataclass(frozen=True)
class NormHeads:
    """Norm heads of the sources of a run.

    Attributes:
        members: the sources.
        chunk: frames of the action's window.
        cache: folder for the summaries of each source; None stores nothing.
        validation: validation parts, checked for errors only.
        workers: processes that read the rows; None reads them in this one.
    """

    members: Sequence[HeadMember]
    chunk: int
    cache: Path | None = None
    validation: Sequence[EpisodeArrays] = ()
    workers: Workers | None = None

    @staticmethod
    def name(robot_type: str | None, control_mode: str | None, fallback: str) -> str:
        """Return the name of the head of a robot under a control mode (`head_name`)."""
        return head_name(robot_type, control_mode, fallback)

    def statistics(self) -> dict[str, dict[str, Statistics]]:
        """Compute the statistics of each head, by key (`compute_statistics`).

        Raises:
            DatasetError: as there.
        """
        return compute_statistics(
            self.members, self.chunk, self.cache, self.validation, self.workers
        )

    def normalization(
        self, mode: DimensionMode, absolute: dict[str, dict[str, Statistics]] | None = None
    ) -> dict[str, Any]:
        """Compute a policy's normalization, as plain lists for JSON (`compute_normalization`).

        Args:
            mode: normalization of the dimensions for which a member has none.
            absolute: receives the statistics of each head whose rows are all read, with those of
                the actions as recorded.

        Raises:
            DatasetError: as there.
        """
        return compute_normalization(
            self.members, mode, self.chunk, self.cache, self.validation, self.workers, absolute
        )


def head_name(robot_type: str | None, control_mode: str | None, fallback: str) -> str:
    """Return `robot_type::control_mode`, or `fallback` where either is missing, "" or "unknown".

    The fallback is the dataset's name: a dataset of an unknown robot has its own head.
    """
    names = [part.strip() for part in (robot_type, control_mode) if isinstance(part, str)]
    if len(names) < 2 or any(part.lower() in ("", "unknown") for part in names):
        return fallback
    return "::".join(names)


def compute_normalization(
    members: Sequence[HeadMember],
    mode: DimensionMode,
    chunk: int,
    cache: Path | None = None,
    validation: Sequence[EpisodeArrays] = (),
    workers: Workers | None = None,
    absolute: dict[str, dict[str, Statistics]] | None = None,
) -> dict[str, Any]:
    """Compute a policy's normalization as plain lists for JSON.

        {"heads": [H names, sorted],
         "action": {"offset": [H][A], "spread": [H][A]},
         "observation.state": the same (absent where no source has it),
         "delta": [H][A] bools, "dims": {"action": [H], "observation.state": [H]}}

    A and S are the widths of the widest head; beyond a head's own width (`dims`) offset and spread
    are 0. The order of `members` does not change a bit. For other arguments and errors see
    `compute_statistics`.

    Raises:
        DatasetError: also where recorded statistics lack figures that `mode` needs, or cannot be
            pooled for it.
    """
    statistics = compute_statistics(members, chunk, cache, validation, workers, absolute)
    firsts = {member.head: member for member in reversed(members)}
    dims: dict[str, list[int]] = {}
    for key in (ACTION, STATE):
        if any(key in of_head for of_head in statistics.values()):
            dims[key] = [_width(of_head, key) for of_head in statistics.values()]
    out: dict[str, Any] = {"heads": list(statistics)}
    for key in dims:
        maps: list[dict[str, np.ndarray]] = []
        for head, of_head in statistics.items():
            if key in of_head:
                maps.append(_normalize_column(firsts[head], key, of_head[key], mode))
            else:
                maps.append({})
        for name in ("offset", "spread"):
            rows = [key_map.get(name, np.zeros(0, np.float32)) for key_map in maps]
            padded = [np.pad(row, (0, max(dims[key]) - len(row))).tolist() for row in rows]
            out.setdefault(key, {})[name] = padded
    delta = {member.head: member.delta for member in members}
    out["delta"] = [
        np.isin(np.arange(max(dims[ACTION])), delta[head]).tolist() for head in statistics
    ]
    return out | {"dims": dims}


def _width(of_head: Mapping[str, Statistics], key: str) -> int:
    """Number of dimensions of a vector of a head; 0 without it."""
    return len(of_head[key].mean) if key in of_head else 0


def compute_statistics(
    members: Sequence[HeadMember],
    chunk: int,
    cache: Path | None = None,
    validation: Sequence[EpisodeArrays] = (),
    workers: Workers | None = None,
    absolute: dict[str, dict[str, Statistics]] | None = None,
) -> dict[str, dict[str, Statistics]]:
    """Compute the statistics of each head, sorted by name: `ACTION` (as learnt) and, if present,
    `STATE`.

    Args:
        members: the sources.
        chunk: frames of the action's window.
        cache: folder for the summaries of each source (see `load_or_compute`); None stores nothing.
        validation: validation parts, checked for errors only: one NaN there makes the whole loss
            NaN.
        workers: processes that read the rows; None reads them in this one.
        absolute: receives the statistics of each head whose rows are all read, with those of the
            actions as recorded.

    Raises:
        DatasetError: a value is not finite or an outlier (`check_outliers`), sources of one head
            differ in width or `delta`, or a dimension of `delta` is not in both action and state.
    """
    names = {member.head for member in members}
    heads: dict[str, list[HeadMember]] = {head: [] for head in sorted(names)}
    for member in members:
        heads[member.head].append(member)
    for head, of_head in heads.items():
        for member in of_head:
            _check_member(member)
            _check_pair(head, of_head[0], member)
    requests = [Request(data, (), chunk, dict.fromkeys((ACTION, STATE), 0)) for data in validation]
    spans = dict[str, slice]()
    for head, of_head in heads.items():
        of_rows = [] if _as_recorded(of_head) else _requests(of_head, chunk)
        spans[head] = slice(len(requests), len(requests) + len(of_rows))
        requests += of_rows
    parts = [*validation, *(member.data for member in members if member.recorded is None)]
    with Progress(sum(map(count_frames, parts)), "statistics", "frame") as bar:
        ahead = bar.n

        def compute(request: Request) -> dict[str, Summary]:
            return summarize(
                request.data, request.delta, chunk, request.strides, bar.update, workers
            )

        def done(request: Request) -> None:
            """Advance the bar by the frames of a source even if they are not read."""
            nonlocal ahead
            ahead += count_frames(request.data)
            bar.update(max(0, ahead - bar.n))

        summaries = load_or_compute_all(cache, requests, compute, done)
    others = list(zip(validation, summaries))
    pooled = {
        head: _pool_head(of_head, chunk, summaries[spans[head]], absolute)
        for head, of_head in heads.items()
    }
    for head, of_head in heads.items():
        catalogs = {id(member.data.catalog) for member in of_head}
        for key, statistics in pooled[head].items():
            check_outliers(
                key,
                statistics,
                statistics.min,
                statistics.max,
                [m.data for m in of_head if m.recorded is None],
            )
            delta = of_head[0].delta if key == ACTION else ()
            learnt = np.isin(np.arange(len(statistics.mean)), delta)
            for data, of_data in others:
                if key in of_data and id(data.catalog) in catalogs:
                    # The column itself does not hold the differences.
                    low, high = (
                        np.where(learnt, np.nan, end)
                        for end in (of_data[key].min, of_data[key].max)
                    )
                    check_outliers(key, statistics, low, high, [data])
    return pooled


def _check_member(member: HeadMember) -> None:
    """Refuse a source that does not fit its `delta` or recorded statistics."""
    widths = vector_widths(member.data)
    where = member.data.name
    for dim in member.delta:
        short = [key for key in (ACTION, STATE) if not 0 <= dim < widths.get(key, 0)]
        if short:
            problem = f"delta names dimension {dim}, {short[0]!r} has {widths.get(short[0], 0)}"
            raise DatasetError(
                problem, where=where, fix="name dimensions, from 0, that action and state both have"
            )
    if member.recorded is None:
        return
    for key in widths:
        wide = _width(member.recorded, key)
        if wide != widths[key]:
            problem = (
                f"the recorded statistics have {wide or 'no'} dimensions of {key!r}, the "
                f"dataset {widths[key]}"
            )
            raise DatasetError(
                problem, where=where, fix="name those of this robot, or compute them"
            )


def _check_pair(head: str, first: HeadMember, other: HeadMember) -> None:
    """Refuse two sources of one head that differ in width or `delta`."""
    for key in (ACTION, STATE):
        have = [vector_widths(m.data).get(key, 0) for m in (first, other)]
        if have[0] != have[1]:
            widths = " and ".join(
                f"{m.data.name!r} has {width or 'no'}" for m, width in zip((first, other), have)
            )
            fix = (
                "give them different robot types or control modes, or map their keys (names) to "
                "the same thing"
            )
            raise DatasetError(f"head {head!r}: {widths} dimensions of {key!r}", fix=fix)
    if set(first.delta) != set(other.delta):
        deltas = " and ".join(f"{m.data.name!r} has {sorted(m.delta)}" for m in (first, other))
        problem = f"head {head!r}: {deltas} as differences to the state (delta)"
        raise DatasetError(problem, fix="give both the same delta, or different control modes")
    for key in (ACTION, STATE):
        modes = [list((m.modes or {}).get(key, ())) for m in (first, other)]
        if modes[0] != modes[1]:
            dim = next((dim for dim, pair in enumerate(zip(*modes)) if pair[0] != pair[1]), 0)
            named = " and ".join(
                f"{m.data.name!r} by {by[dim:][:1]}" for m, by in zip((first, other), modes)
            )
            problem = f"head {head!r}: {key}[{dim}] is normalized in {named}"
            raise DatasetError(
                problem, fix=f"name the dimension by its number in data.normalize: {key}[{dim}]"
            )


def _as_recorded(members: Sequence[HeadMember]) -> bool:
    """Whether all sources of a head have the same recorded statistics."""
    recorded = [member.recorded for member in members if member.recorded is not None]
    return len(recorded) == len(members) and all(_same(other, recorded[0]) for other in recorded)


def _requests(members: Sequence[HeadMember], chunk: int) -> list[Request]:
    """Requests for the summaries of the sources of one head without recorded statistics."""
    reading = [member.data for member in members if member.recorded is None]
    delta = tuple(sorted(set(members[0].delta)))
    rows = quantile_stride(sum(map(count_frames, reading)))
    strides = {
        ACTION: rows,
        STATE: rows,
        DELTA: quantile_stride(sum(count_pairs(data, chunk) for data in reading), chunk),
    }
    return [Request(data, delta, chunk, strides) for data in reading]


def _pool_head(
    members: Sequence[HeadMember],
    chunk: int,
    summaries: Sequence[dict[str, Summary]],
    absolute: dict[str, dict[str, Statistics]] | None,
) -> dict[str, Statistics]:
    """Statistics of one head by `ACTION` and `STATE`. summaries: of `_requests`."""
    recorded = [member.recorded for member in members if member.recorded is not None]
    if _as_recorded(members):
        return {
            key: recorded[0][key] for key in vector_widths(members[0].data)
        }  # keeps the quantiles, which pooling would lose
    delta = tuple(sorted(set(members[0].delta)))
    parts = list(summaries)
    parts += [
        _summaries_from(m.data, m.recorded, delta, chunk) for m in members if m.recorded is not None
    ]
    keys = list(vector_widths(members[0].data))
    if delta:
        keys.append(DELTA)
    pooled = {}
    for key in keys:
        pooled[key] = pool([part[key] for part in parts])
    if absolute is not None and not recorded:
        absolute[members[0].head] = {key: pooled[key] for key in vector_widths(members[0].data)}
    if delta:
        learnt = vars(pooled.pop(DELTA))
        action = vars(pooled[ACTION])
        figures = {name: np.array(figure) for name, figure in action.items() if name != "count"}
        for name, figure in figures.items():
            figure[list(delta)] = learnt[name]
        pooled[ACTION] = Statistics(action["count"], **figures)
    return pooled


def _same(a: Mapping[str, Statistics], b: Mapping[str, Statistics]) -> bool:
    if a.keys() != b.keys():
        return False
    for key, statistics in a.items():
        others = vars(b[key])
        for name, value in vars(statistics).items():
            if not np.array_equal(value, others[name], equal_nan=True):
                return False
    return True


def _summaries_from(
    data: EpisodeArrays, recorded: Mapping[str, Statistics], delta: tuple[int, ...], chunk: int
) -> dict[str, Summary]:
    """Convert statistics computed elsewhere to summaries without rows."""

    def summary(s: Statistics, count: int, dims: Sequence[int]) -> Summary:
        figures = {name: getattr(s, name)[list(dims)] for name in FIGURES}
        return Summary(count, **figures, rows=np.empty((0, len(dims))), stride=0)

    summaries = {key: summary(s, s.count, range(len(s.mean))) for key, s in recorded.items()}
    if delta:
        count = round(recorded[ACTION].count * count_pairs(data, chunk) / count_frames(data))
        # pairs per frame as in this dataset
        summaries[DELTA] = summary(recorded[ACTION], count, delta)
    return summaries


def _normalize_column(
    member: HeadMember, key: str, statistics: Statistics, mode: DimensionMode
) -> dict[str, np.ndarray]:
    """Offset and spread of one key under the head of a source, float32 [dim]; names doubtful
    dimensions.
    """
    names = member.data.catalog.features[key].dimension_names
    modes = list((member.modes or {}).get(key) or [mode] * len(statistics.mean))
    maps = _offset_and_spread(member.head, key, statistics, modes)
    ranged = uses_range(statistics, modes)
    _log_ranged(member.head, key, statistics, ranged, names)
    warn_wide_spread(member.head, key, statistics, np.where(ranged, 0, maps["spread"]))
    return maps


def _offset_and_spread(
    head: str, key: str, statistics: Statistics, modes: Sequence[DimensionMode]
) -> dict[str, np.ndarray]:
    """Offset and spread of one key under one head, float32 [dim]."""
    with np.errstate(over="ignore"):
        maps = offset_and_spread(statistics, modes)
    bad = ~np.isfinite(maps["offset"]) | ~np.isfinite(maps["spread"])
    if bad.any():
        dim = int(bad.argmax())
        place = f"head {head!r}: {key}[{dim}]"
        if modes[dim] == "quantile" and statistics.q99[dim] <= statistics.q01[dim]:
            problem = (
                f"{place} has q01 = q99 = {statistics.q01[dim]:.6g} in the statistics that are "
                "given, which have no minimum and maximum to divide by instead"
            )
            raise DatasetError(
                problem, fix="compute them (leave `stats` out): the rows have its range"
            )
        if np.isnan(maps["offset"][dim]) or np.isnan(maps["spread"][dim]):
            problem = (
                f"{place} has no figures for {modes[dim]!r}: recorded statistics lack them, or "
                "differ and cannot be pooled"
            )
            fix = "compute them, give all sources of the head the same file, or another mode"
            raise DatasetError(problem, fix=fix)
        raise DatasetError(
            f"{place} has values beyond float32, in which a policy computes", fix="correct the data"
        )
    return maps
