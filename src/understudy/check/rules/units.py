"""Rules that compare one episode's dimensions with those of the others: unit, direction, column order."""

from collections.abc import Iterator

import numpy as np

from understudy.check.column_facts import Column
from understudy.check.findings import Finding, Place, Severity
from understudy.check.row_facts import ACTION, STATE, RowFacts
from understudy.check.rules.values import FEW, is_gripper, is_input
from understudy.data.format.catalog import Catalog

UNITS = {
    "degrees and radians": 57.29578,
    "millimeters and meters": 1000.0,
    "centimeters and meters": 100.0,
    "counts of 4096 a turn and radians": 651.9,
}
_RATIO = 6.0  # least ratio of magnitudes that can be a change of unit
_ALIKE = 2.5  # ratio within which the shape of a motion is the same in both units
_AS_FAR = 0.7  # share of the distance of an exchanged dimension from its usual values
_FIX = "convert the values, or leave the episodes out with --data.exclude-episodes"


def check_units(catalog: Catalog, facts: RowFacts) -> Iterator[Finding]:
    """Yield findings about dimensions whose meaning differs between episodes."""
    for key, column in facts.columns.items():
        read = facts.is_read & np.isfinite(column.mean).all(axis=1) & (catalog.episodes.lengths >= 5)
        if is_input(key) and read.sum() >= FEW:
            rows = np.flatnonzero(read)
            partner = facts.columns.get({ACTION: STATE, STATE: ACTION}.get(key, ""))
            yield from _units(catalog, column, rows, partner)
            yield from _exchanged(catalog, column, rows)
    if facts.pairs is not None:
        yield from _directions(catalog, facts)


def _place(catalog: Catalog, rows: np.ndarray, key: str, dimension: str = "") -> Place:
    return Place(tuple(catalog.episodes.ids[np.sort(rows)].tolist()), key, dimension)


def _units(catalog: Catalog, column: Column, rows: np.ndarray, partner: Column | None) -> Iterator[Finding]:
    """Two groups of episodes whose magnitudes and ranges differ by one large factor, each group alike.

    A change of unit keeps the shape of the motion. A sensor's noise while an arm is not used, or a shock, has another
    one. The partner of `column` (state of an action, and the reverse) shows the same factor or none. Where it shows
    another one, or rests in one group, or the factor is that of no known units, the robot moved by more: a note.
    """
    lengths = catalog.episodes.lengths
    for dim in range(column.width):
        if is_gripper(column, dim) and "gripper" not in column.names[dim].lower():
            continue
        magnitude = np.maximum(np.abs(column.low[rows, dim]), np.abs(column.high[rows, dim]))
        extent = column.range[rows, dim]
        if not (magnitude > 0).all() or (extent > 0).sum() < FEW:
            continue
        logs = np.log(magnitude)
        order = np.argsort(logs)
        gaps = np.diff(logs[order])
        cut = int(gaps.argmax())
        gap = float(gaps[cut])
        low, high = order[: cut + 1], order[cut + 1 :]
        inner = max(float(np.ptp(logs[low])), float(np.ptp(logs[high])))
        if gap < np.log(_RATIO) or inner > 0.6 * gap:
            continue
        moved = np.log(np.median(extent[high]) / np.median(extent[low])) if np.median(extent[low]) > 0 else 0.0
        if abs(moved) < np.log(_RATIO):  # the values are elsewhere, but move by as much
            continue
        if not _is_same_shape(column, rows[low], rows[high], dim, lengths):
            continue
        few, many = (high, low) if len(high) <= len(low) else (low, high)
        factor = float(np.exp(abs(np.median(logs[high]) - np.median(logs[low]))))
        name = next((name for name, unit in UNITS.items() if 0.6 < factor / unit < 1.7), "")
        size = float(np.median(magnitude[few])), float(np.median(magnitude[many]))
        severity: Severity = "note"
        shared = _shared(partner, rows[low], rows[high], dim)
        is_unit = bool(name) and (shared == 0 or factor / _ALIKE < shared < factor * _ALIKE)
        if is_unit or 0 < shared < _RATIO / 2:
            severity = "warning"
        yield Finding(
            "values.unit",
            severity,
            f"magnitudes are {size[0]:.4g} here and {size[1]:.4g} in the other {len(many)} episodes, a factor of "
            f"{factor:.3g}" + (f": {name}?" if name else ""),
            _place(catalog, rows[few], column.key, column.names[dim] if column.width > 1 else ""),
            measured=size[0],
            expected=size[1],
            fix=_FIX,
            score=factor,
        )


def _is_same_shape(column: Column, low: np.ndarray, high: np.ndarray, dim: int, lengths: np.ndarray) -> bool:
    """Whether two groups of episodes are equally rough, and cross their range equally fast."""
    for measure in (_roughness, _travel):
        of_low, of_high = (float(np.median(measure(column, rows, dim, lengths))) for rows in (low, high))
        if not of_low / _ALIKE <= of_high <= of_low * _ALIKE:
            return False
    return True


def _roughness(column: Column, rows: np.ndarray, dim: int, lengths: np.ndarray) -> np.ndarray:
    """Mean second difference as a share of the mean change: about 1.7 for noise, less for motion."""
    mean = column.path[rows, dim] / np.maximum(lengths[rows] - 1, 1)
    return np.divide(column.jerk[rows, dim], mean, out=np.zeros(len(rows)), where=mean > 0)


def _travel(column: Column, rows: np.ndarray, dim: int, lengths: np.ndarray) -> np.ndarray:
    """Mean change as a share of the range: small for a shock, large for noise."""
    mean = column.path[rows, dim] / np.maximum(lengths[rows] - 1, 1)
    return np.divide(mean, column.range[rows, dim], out=np.zeros(len(rows)), where=mean > 0)


def _shared(partner: Column | None, low: np.ndarray, high: np.ndarray, dim: int) -> float:
    """Ratio of the ranges of the same dimension of another column: 0 if unknown, inf if it rests in `low`."""
    if partner is None or partner.width <= dim:
        return 0.0
    of_low, of_high = float(np.median(partner.range[low, dim])), float(np.median(partner.range[high, dim]))
    return of_high / of_low if of_low > 0 else float("inf") if of_high > 0 else 0.0


def _exchanged(catalog: Catalog, column: Column, rows: np.ndarray) -> Iterator[Finding]:
    """Two dimensions that have each other's values in a few episodes."""
    if column.width < 2 or len(rows) < FEW + 1:
        return
    mean, spread = column.mean[rows], np.sqrt(column.m2[rows] / np.maximum(catalog.episodes.lengths[rows], 1)[:, None])
    center, width = np.median(mean, axis=0), np.median(spread, axis=0)
    scatter = 1.4826 * np.median(np.abs(mean - center), axis=0)
    unit = np.maximum(scatter, 0.25 * width) + 1e-9
    far = np.abs(mean - center) / unit
    aside = np.where(mean > center, far, -far)
    far[far <= 2 * np.quantile(far, 0.8, axis=0)] = 0  # other episodes are as far: the place of rest varies
    exchanged: dict[tuple[int, ...], list[int]] = {}
    for row in np.flatnonzero((far > 6).sum(axis=1) >= 2).tolist():
        dims = np.flatnonzero(far[row] > 6)
        cross = np.abs(mean[row, dims][:, None] - center[dims]) / unit[dims]  # (dimension, place whose values it has)
        cross[np.eye(len(dims), dtype=bool)] = np.inf
        to = cross.argmin(axis=1)
        fits = (cross.min(axis=1) < 3) & (far[row, dims] > 3 * cross.min(axis=1))
        for cycle in _cycles(to, fits) if len(dims) <= 12 else ():
            exchanged.setdefault(tuple(dims[cycle].tolist()), []).append(row)
    for swapped, episodes in exchanged.items():
        names = " and ".join(column.names[dim] for dim in swapped)
        of = list(swapped)
        for row in episodes:
            # Another episode that is as far, and fits no exchange, shows that this dimension rests there at times.
            alike = (aside[:, of] * np.sign(aside[row, of]) > _AS_FAR * np.abs(aside[row, of])).all(axis=1)
            if alike[episodes].sum() < alike.sum():
                continue
            yield Finding(
                "values.exchanged",
                "warning",
                f"{names} have each other's usual values",
                _place(catalog, rows[row : row + 1], column.key, column.names[swapped[0]]),
                measured=mean[row, of].tolist(),
                expected=center[of].tolist(),
                fix=_FIX,
            )


def _cycles(to: np.ndarray, fits: np.ndarray) -> Iterator[list[int]]:
    """Yield the cycles of a map (n,), through places that fit alone."""
    seen: set[int] = set()
    for start in range(len(to)):
        path = [start]
        while fits[path[-1]] and int(to[path[-1]]) not in path:
            path.append(int(to[path[-1]]))
        if fits[path[-1]] and int(to[path[-1]]) == start and not seen & set(path):
            seen |= set(path)
            yield path


def _directions(catalog: Catalog, facts: RowFacts) -> Iterator[Finding]:
    """Dimensions of which action and state correlate in most episodes, and oppose each other in few."""
    assert facts.pairs is not None
    table = facts.pairs.correlation
    is_finite = np.isfinite(table)
    names = facts.columns[STATE].names if STATE in facts.columns else []
    for dim in range(table.shape[1] if names else 0):
        rows = np.flatnonzero(is_finite[:, dim])
        if len(rows) < FEW:
            continue
        correlation = table[rows, dim]
        opposed = rows[correlation < -0.5]
        usual = 0.5 if is_gripper(facts.columns[STATE], dim) else 0.8
        if np.median(correlation) > usual and 0 < len(opposed) <= max(1, 0.3 * len(rows)):
            yield Finding(
                "values.sign",
                "warning",
                f"action and state correlate by {correlation.min():.2f}, in the other episodes by "
                f"{np.median(correlation):.2f}",
                _place(catalog, opposed, STATE, names[dim]),
                measured=float(correlation.min()),
                expected=float(np.median(correlation)),
                fix=_FIX,
            )
