"""Episodes in which one dimension is shifted by a constant: a joint that was calibrated anew, for example.

Two signs are independent. A joint whose action and state agree in all other episodes has a constant between them here.
Or the first value, the mean and both extremes of this dimension alone are shifted by one amount, by more than it
usually moves and far more than in any other episode: a smaller shift of both may be another place to start from.
"""

from collections.abc import Iterator

import numpy as np

from understudy.check.column_facts import Column
from understudy.check.findings import Finding, Place
from understudy.check.row_facts import ACTION, STATE, RowFacts
from understudy.check.rules.values import is_gripper, is_input
from understudy.data.format.catalog import Catalog

_ENOUGH = 8  # episodes
_LEAST_FRAMES = 10
_FAR = 3.0  # times the largest deviation of any other episode
_FARTHER = 5.0  # the same, where action and state are shifted together
_AGREE = 0.25  # share of the shift by which its measures may differ
_LEAST = 0.1  # of the usual range of the dimension
_SAME_RANGE = 1.5  # ratio to the usual range
_FIX = "add the difference to this dimension, or leave the episode out with --data.exclude-episodes"


def check_offsets(catalog: Catalog, facts: RowFacts) -> Iterator[Finding]:
    """Yield findings about dimensions that are shifted in one episode."""
    named: set[tuple[int, int]] = set()
    for row, dim, shift in _between(catalog, facts):
        named.add((row, dim))
        column = facts.columns[STATE]
        message = f"action and state are {abs(shift):.4g} farther apart than in any other episode, all the time"
        yield _finding(catalog, column, row, dim, shift, message)
    for key, column in facts.columns.items():
        if is_input(key):
            shifted = list(_shifted(catalog, facts, column))
            for row, dim, shift in shifted:
                if (row, dim) not in named and [odd_row for odd_row, _, _ in shifted].count(row) == 1:
                    message = f"all values are shifted by {shift:.4g}, start and both extremes alike"
                    yield _finding(catalog, column, row, dim, shift, message)


def _finding(catalog: Catalog, column: Column, row: int, dim: int, shift: float, message: str) -> Finding:
    name = column.names[dim] if column.width > 1 else ""
    place = Place((int(catalog.episodes.ids[row]),), column.key, name)
    return Finding("values.offset", "warning", message, place, shift, 0.0, _FIX, abs(shift))


def _rows(catalog: Catalog, facts: RowFacts, *columns: Column) -> np.ndarray:
    read = facts.is_read & (catalog.episodes.lengths >= _LEAST_FRAMES)
    for column in columns:
        read = read & np.isfinite(column.mean).all(axis=1) & (column.bad == 0)
    rows = np.flatnonzero(read)
    return rows if len(rows) >= _ENOUGH else rows[:0]


def _deviations(values: np.ndarray) -> tuple[np.ndarray, int, float]:
    """(Deviations (n,) from the median, place of the largest, largest of the others)."""
    deviations = values - np.median(values)
    by = np.argsort(np.abs(deviations))
    return deviations, int(by[-1]), float(np.abs(deviations[by[-2]]))


def _between(catalog: Catalog, facts: RowFacts) -> Iterator[tuple[int, int, float]]:
    """(Table row, dimension, shift) where the means of action and state differ by more in one episode."""
    action, state = facts.columns.get(ACTION), facts.columns.get(STATE)
    if facts.pairs is None or action is None or state is None or action.names != state.names:
        return
    rows = _rows(catalog, facts, action, state)
    for dim in range(state.width if len(rows) else 0):
        alike = facts.pairs.correlation[rows, dim]
        if is_gripper(state, dim) or not np.nanmedian(np.append(alike, 0.0)) > 0.8:
            continue
        shifts, place, other = _deviations(state.mean[rows, dim] - action.mean[rows, dim])
        shift, usual = float(shifts[place]), float(np.median(state.range[rows, dim]))
        if abs(shift) > max(_FAR * other, _LEAST * usual) and usual > 0 and alike[place] > 0.8:
            yield int(rows[place]), dim, shift


def _shifted(catalog: Catalog, facts: RowFacts, column: Column) -> Iterator[tuple[int, int, float]]:
    """(Table row, dimension, shift) where first value, mean and extremes of one episode are shifted alike."""
    rows = _rows(catalog, facts, column)
    for dim in range(column.width if len(rows) else 0):
        extent = column.range[rows, dim]
        usual = float(np.median(extent))
        if usual <= 0 or is_gripper(column, dim):
            continue
        tables = [_deviations(table[rows, dim]) for table in (column.mean, column.first, column.low, column.high)]
        if len({place for _, place, _ in tables}) > 1:
            continue
        place = tables[0][1]
        shifts = np.array([deviations[place] for deviations, _, _ in tables])
        others = np.array([other for _, _, other in tables])
        shift = float(np.median(shifts))
        if (
            (np.abs(shifts) > _FARTHER * others).all()
            and np.ptp(shifts) < _AGREE * abs(shift)
            and abs(shift) > usual
            and usual / _SAME_RANGE < extent[place] < usual * _SAME_RANGE
        ):
            yield int(rows[place]), dim, shift
