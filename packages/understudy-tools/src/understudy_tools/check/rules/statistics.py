"""Rules of recorded statistics: shape, order, and equality with the rows.

Tolerances are those of correct writers: float32 sums, means of parts, and statistics of a sample of
the rows.
"""

from dataclasses import replace
from itertools import pairwise
from typing import Annotated

import numpy as np

from understudy_base import DatasetError, plural
from understudy_data import Catalog, RecordedStatistics
from understudy_tools.check.column_facts import Column
from understudy_tools.check.findings import RECOMPUTE, Finding, Findings, Place
from understudy_tools.check.row_facts import ACTION, STATE, RowFacts
from understudy_tools.check.threshold import Threshold

_MEAN: Annotated[
    float,
    Threshold(
        "difference of a recorded mean, in standard deviations; of an episode's, in its range",
        fault="recorded_statistics_of_another_episode",
    ),
] = 0.02
_STD: Annotated[
    float, Threshold("difference of a recorded std, in the true one", fault="recorded_std_is_wrong")
] = 0.02
_RANGE: Annotated[
    float,
    Threshold(
        "difference of a recorded minimum or maximum, in the true range",
        fault="recorded_maximum_is_wrong",
    ),
] = 0.002
_MOST_NAMED = 8
_QUANTILES = ("q01", "q10", "q50", "q90", "q99")


def check_statistics(catalog: Catalog, facts: RowFacts) -> Findings:
    """Yield findings about the statistics recorded with the dataset."""
    recorded = RecordedStatistics(catalog)
    path = recorded.path
    try:
        stats = catalog.stats
    except DatasetError as error:
        yield Finding("statistics.shape", "warning", error.what, Place(file=path), fix=RECOMPUTE)
        return
    lacking = [key for key in (ACTION, STATE) if key in catalog.features and key not in stats]
    if lacking:
        message = "no statistics are recorded"
        if stats:
            message = f"no statistics of {', '.join(lacking)}"
        yield Finding("statistics.missing", "warning", message, Place(file=path), fix=RECOMPUTE)
    for key, entry in stats.items():
        if key in facts.columns:
            yield from _column(catalog, facts, facts.columns[key], entry, recorded)
        elif (
            key in catalog.features
            and catalog.features[key].is_camera
            and not catalog.features[key].is_depth
        ):
            yield from _images(key, entry, path)
    if recorded.episodes_path:
        yield from _per_episode(catalog, facts, recorded)


def _column(
    catalog: Catalog,
    facts: RowFacts,
    column: Column,
    entry: dict[str, np.ndarray],
    statistics: RecordedStatistics,
) -> Findings:
    place = Place(column=column.key, file=statistics.path)
    recorded = {
        name: np.asarray(value, np.float64).reshape(-1)
        for name, value in entry.items()
        if name != "count"
    }
    wrong = {name: len(value) for name, value in recorded.items() if len(value) != column.width}
    if wrong:
        name, width = next(iter(wrong.items()))
        message = f"{name} has {width} values, the feature {column.width}"
        yield Finding("statistics.shape", "warning", message, place, width, column.width, RECOMPUTE)
        return
    yield from _order(column, recorded, place)
    read = facts.summarized(column)
    if read.any() and {"mean", "std"} <= recorded.keys() and not column.bad.any():
        complete = bool((read | (catalog.episodes.lengths == 0)).all())
        yield from _compare(column, recorded, place, summarize(column, read), complete)
    if column.key in (ACTION, STATE):
        yield from _far(column, entry, statistics)


def _order(column: Column, recorded: dict[str, np.ndarray], place: Place) -> Findings:
    bad = [name for name, value in recorded.items() if not np.isfinite(value).all()]
    if bad:
        message = f"{bad[0]} holds values that are not finite"
        yield Finding("statistics.order", "warning", message, place, measured=bad, fix=RECOMPUTE)
        return
    if "std" in recorded and (recorded["std"] < 0).any():
        message = f"std is {recorded['std'].min():.4g}"
        yield Finding(
            "statistics.order",
            "warning",
            message,
            place,
            float(recorded["std"].min()),
            0.0,
            RECOMPUTE,
        )
    chain = [name for name in ("min", *_QUANTILES, "max") if name in recorded]
    scale = np.ones(column.width)
    if {"min", "max"} <= recorded.keys():
        scale = recorded["max"] - recorded["min"]
    slack = 1e-3 * np.abs(scale) + 1e-6
    for lower, upper in pairwise(chain):
        over = recorded[lower] - recorded[upper] - slack
        if (over > 0).any():
            dim = int(over.argmax())
            message = (
                f"{lower} {recorded[lower][dim]:.4g} is above {upper} {recorded[upper][dim]:.4g}"
            )
            dim_place = replace(place, dimension=column.names[dim])
            yield Finding(
                "statistics.order",
                "warning",
                message,
                dim_place,
                float(recorded[lower][dim]),
                fix=RECOMPUTE,
            )
            return


def _compare(
    column: Column,
    recorded: dict[str, np.ndarray],
    place: Place,
    true: dict[str, np.ndarray],
    complete: bool,
) -> Findings:
    """Compare recorded figures with the `true` ones of the rows: of some of them only the range,
    which must hold it.
    """
    std = np.maximum(true["std"], 1e-6 + 1e-4 * np.abs(true["mean"]))
    span = np.maximum(true["max"] - true["min"], 1e-6 + 1e-4 * np.abs(true["max"]))
    off: dict[str, np.ndarray] = {}
    if complete:
        off["mean"] = np.abs(recorded["mean"] - true["mean"]) / std / _MEAN
        off["std"] = np.where(
            _is_rounding(recorded["std"], true),
            0.0,
            np.abs(recorded["std"] - true["std"]) / std / _STD,
        )
    for name, sign in (("min", 1.0), ("max", -1.0)):
        if name in recorded:
            # positive: the recorded range is too narrow
            distance = sign * (recorded[name] - true[name])
            if complete:
                distance = np.abs(distance)
            tolerance = _RANGE * span
            off[name] = distance / tolerance
    if not off:
        return
    # `_order` reports those that are not finite
    off = {name: np.nan_to_num(values) for name, values in off.items()}
    worst = {name: (float(values.max()), int(values.argmax())) for name, values in off.items()}
    name, (score, dim) = max(worst.items(), key=lambda item: item[1][0])
    if score <= 1:
        return
    count = sum(1 for values in zip(*off.values()) if max(values) > 1)
    message = (
        f"recorded {name} is {recorded[name][dim]:.4g}, that of the rows {true[name][dim]:.4g}"
    )
    if column.width > 1:
        message += f"; {count} of {column.width} dimensions differ"
    place = replace(place, dimension=column.dimension(dim))
    measured = float(recorded[name][dim])
    expected = float(true[name][dim])
    yield Finding(
        "statistics.values", "warning", message, place, measured, expected, RECOMPUTE, score
    )


def _far(column: Column, entry: dict[str, np.ndarray], statistics: RecordedStatistics) -> Findings:
    """Name dimensions whose values the recorded figures normalize to far ones, and the figures of
    the rows do not.
    """
    if not len(column.sample):
        return
    far = statistics.far(column.key, column.names, entry, column.sample)
    if not far.dims:
        return
    dims = sorted(far.dims)
    named = ", ".join(far.dims[dim] for dim in dims[:_MOST_NAMED])
    more = f" and {len(dims) - _MOST_NAMED} more" if len(dims) > _MOST_NAMED else ""
    message = (
        f"normalized by {' and '.join(far.modes)} of the recorded statistics, values exceed "
        f"{far.limit:g}, in place of about 1, in {named}{more}"
    )
    place = Place(column=column.key, file=statistics.path, dimension=column.dimension(dims[0]))
    yield Finding("statistics.far", "warning", message, place, len(dims), 0, RECOMPUTE, len(dims))


def _is_rounding(std: np.ndarray, true: dict[str, np.ndarray]) -> np.ndarray:
    """Whether a recorded std differs from the true one by no more than E[x^2] - E[x]^2 in float32
    may.
    """
    with np.errstate(invalid="ignore"):
        largest = np.maximum(np.abs(true["min"]), np.abs(true["max"]))
        return np.asarray(
            np.abs(std**2 - true["std"] ** 2) <= 4 * np.finfo(np.float32).eps * largest**2
        )


def summarize(column: Column, rows: np.ndarray) -> dict[str, np.ndarray]:
    """Combine the summaries of episodes (Chan, Golub & LeVeque 1979).

    Args:
        column: the column.
        rows: bool (N,), the episodes to combine.

    Returns:
        "min", "max", "mean" and "std" (population), float64 (D,) each.
    """
    count = column.lengths[rows][:, None].astype(np.float64)
    total = max(1.0, float(count.sum()))
    mean = (count * column.mean[rows]).sum(0) / total
    m2 = column.m2[rows].sum(0) + (count * (column.mean[rows] - mean) ** 2).sum(0)
    return {
        "min": column.low[rows].min(0),
        "max": column.high[rows].max(0),
        "mean": mean,
        "std": np.sqrt(m2 / total),
    }


def _images(key: str, entry: dict[str, np.ndarray], path: str) -> Findings:
    place = Place(camera=key, file=path)
    for name in ("mean", "max"):
        if name in entry and np.isfinite(entry[name]).all() and (entry[name] > 1.5).any():
            message = f"{name} is {float(entry[name].max()):.4g}; image statistics are in [0, 1]"
            yield Finding(
                "statistics.images",
                "warning",
                message,
                place,
                float(entry[name].max()),
                1.0,
                RECOMPUTE,
            )
            return
    bad = [name for name, value in entry.items() if not np.isfinite(value).all()]
    if bad:
        message = f"{bad[0]} holds values that are not finite"
        yield Finding("statistics.order", "warning", message, place, measured=bad, fix=RECOMPUTE)


def _per_episode(catalog: Catalog, facts: RowFacts, statistics: RecordedStatistics) -> Findings:
    """Compare the records of each episode with its rows, for action and state."""
    path = statistics.episodes_path
    keys = [key for key in (ACTION, STATE) if key in facts.columns]
    try:
        recorded = statistics.of_episodes(keys)
    except (DatasetError, ValueError, KeyError, AttributeError) as error:
        message = f"the records of episodes cannot be read: {error}"
        yield Finding("statistics.shape", "warning", message, Place(file=path), fix=RECOMPUTE)
        return
    ids = catalog.episodes.ids
    if recorded and path == statistics.path:
        has_record = np.any(
            [
                ~np.isnan(tables["mean"]).all(axis=1)
                for tables in recorded.values()
                if "mean" in tables
            ],
            axis=0,
        )
        if len(absent := np.flatnonzero(~has_record)):
            message = plural(len(absent), "episode has no record", "episodes have no record")
            place = Place.from_rows(catalog, absent, file=path)
            yield Finding(
                "statistics.episodes", "warning", message, place, len(absent), 0, RECOMPUTE
            )
    for key, tables in recorded.items():
        column = facts.columns[key]
        read = facts.summarized(column, finite=True)
        spread = np.maximum(column.range, 1e-5 + 1e-4 * np.abs(column.mean))
        true = {"mean": column.mean, "std": column.std, "min": column.low, "max": column.high}
        off = np.zeros((len(ids), column.width))
        for name, table in tables.items():
            if table.shape == off.shape:
                differs = np.abs(table - true[name]) / spread
                if name == "std":
                    differs = np.where(_is_rounding(table, true), 0.0, differs)
                off = np.fmax(off, differs)
        rows = np.flatnonzero(read & (off > _MEAN).any(axis=1))
        if len(rows):
            worst, dim = np.unravel_index(np.argmax(np.where(read[:, None], off, 0)), off.shape)
            figures = {
                name: table[worst, dim]
                for name, table in tables.items()
                if table.shape == off.shape
            }
            name = max(
                figures, key=lambda statistic: abs(figures[statistic] - true[statistic][worst, dim])
            )
            message = f"{name} of episode {int(ids[worst])} is recorded as {figures[name]:.4g}, "
            message += f"that of its rows is {true[name][worst, dim]:.4g}; "
            message += plural(len(rows), "episode differs", "episodes differ")
            place = replace(column.place(rows, int(dim)), file=path)
            measured = float(figures[name])
            expected = float(true[name][worst, dim])
            yield Finding(
                "statistics.episodes", "warning", message, place, measured, expected, RECOMPUTE
            )
