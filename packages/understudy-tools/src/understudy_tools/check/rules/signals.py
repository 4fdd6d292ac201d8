"""Rules of the signal in one dimension, compared with the other episodes: noise, ticks, rows of
zeros, quaternions.
"""

import re
from collections.abc import Iterator
from typing import Annotated

import numpy as np

from understudy_tools.check.column_facts import Column
from understudy_tools.check.findings import (
    LOOK,
    Finding,
    Findings,
    Severity,
    drop,
    is_few,
    undecided,
)
from understudy_tools.check.row_facts import ACTION, STATE, RowFacts
from understudy_tools.check.rules.values import FEW, is_input
from understudy_tools.check.threshold import Threshold

_MINORITY: Annotated[
    float,
    Threshold("share of the episodes that may differ from the others", fault="noise_in_the_state"),
] = 0.2
_LEAST_FRAMES = 20
_LOUDER: Annotated[
    float,
    Threshold("mean second difference, in that of the other episodes", fault="noise_in_the_state"),
] = 1.8
_ROUGHER: Annotated[
    float,
    Threshold(
        "mean second difference in mean changes, in that of the other episodes",
        fault="noise_in_the_state",
    ),
] = 1.5
_ROUGH: Annotated[
    float,
    Threshold(
        "mean second difference, in mean changes; 1.7 is that of noise", fault="noise_in_the_state"
    ),
] = 0.8
_COARSER: Annotated[
    float, Threshold("least change, in that of the other episodes", fault="state_in_64_ticks")
] = 4.0
_COARSE: Annotated[float, Threshold("least change, in mean changes", fault="state_in_64_ticks")] = (
    0.15
)
_LEAST_CHANGES = 20
_REPEATED: Annotated[
    float, Threshold("share of the frames that equal the one before", fault="state_in_64_ticks")
] = 0.02
_EDGE: Annotated[
    float,
    Threshold(
        "change between rows of zeros and others, in usual changes", fault="zeros_at_the_start"
    ),
] = 4.0
_NORM: Annotated[
    float, Threshold("deviation of a squared norm from 1", fault="quaternion_of_another_norm")
] = 0.04
_HANDS = 7  # episodes that show the range of a hand
_HAND: Annotated[
    int, Threshold("dimensions that are mirrored together", fault="g1_v30_hand_inverted")
] = 3
_ASIDE: Annotated[
    float,
    Threshold(
        "share of its range between the mean of a dimension in an episode and all others",
        fault="g1_v30_hand_inverted",
    ),
] = 0.25
_TIGHT: Annotated[
    float,
    Threshold("the same distance, in the spread of the other means", fault="g1_v30_hand_inverted"),
] = 1.0
_AS_WIDE: Annotated[
    float,
    Threshold("ratio of the range in an episode to the usual one", fault="g1_v30_hand_inverted"),
] = 1.8
_QUATERNION = re.compile(r"(^|[^a-z])(q[wxyz]|quat[a-z]*)([^a-z]|$)")


def check_signals(facts: RowFacts) -> Findings:
    """Yield findings about action and state."""
    for key in (ACTION, STATE):
        column = facts.columns.get(key)
        if column is None:
            continue
        read = facts.summarized(column, finite=True)
        yield from _zeros(column, read)
        rows = np.flatnonzero(read & (column.lengths >= _LEAST_FRAMES))
        if len(rows) > FEW:
            yield from _noise(column, rows)
            yield from _norms(column, rows)
            yield from _inverted(column, rows)
        else:
            yield undecided(
                "values.noise", FEW + 1, f"episodes of {_LEAST_FRAMES} frames", len(rows)
            )
        if len(rows) >= _HANDS:
            yield from _mirrored(column, rows)
        elif column.width >= _HAND:
            yield undecided("values.sign", _HANDS, f"episodes of {_LEAST_FRAMES} frames", len(rows))


def _finding(
    rule: str,
    column: Column,
    odd: np.ndarray,
    rows: np.ndarray,
    message: str,
    measured: float,
    expected: float,
    severity: Severity = "warning",
) -> Finding:
    """Warn of the episodes of `rows` with a dimension in bool (n, D)."""
    dims = np.flatnonzero(odd.any(axis=0)).tolist()
    only_dim = dims[0] if len(dims) == 1 else None
    place = column.place(rows[odd.any(axis=1)], only_dim)
    return Finding(
        rule, severity, f"{column.list_names(dims)}: {message}", place, measured, expected, LOOK
    )


def _few(odd: np.ndarray) -> np.ndarray:
    """Keep the dimensions of bool (n, D) in which a minority of the episodes is odd."""
    return odd & (odd.sum(axis=0) <= max(1, _MINORITY * len(odd)))


def _noise(column: Column, rows: np.ndarray) -> Findings:
    """Noise raises second differences; coarse ticks raise the least change. Both against nearly all
    other episodes.
    """
    lengths = column.lengths[rows][:, None]
    jerk = column.jerk[rows]
    mean = column.path[rows] / np.maximum(lengths - 1, 1)
    others = np.quantile(jerk, 1 - _MINORITY, axis=0)
    rough = np.divide(jerk, mean, out=np.zeros(jerk.shape), where=mean > 0)
    limit = np.maximum(_ROUGH, _ROUGHER * np.quantile(rough, 1 - _MINORITY, axis=0))
    odd = _few((jerk > _LOUDER * others) & (rough > limit) & (others > 0) & ~column.grippers)
    odd &= column.step[rows] < 30 * mean  # one jump is not noise
    if odd.any():
        row, dim = np.unravel_index(
            int(np.where(odd, jerk / np.where(others > 0, others, 1), 0).argmax()), odd.shape
        )
        ratio = float(jerk[row, dim] / others[dim])
        message = f"second differences are {ratio:.3g} times those of the other episodes: noise"
        yield _finding("values.noise", column, odd, rows, message, ratio, 1.0)
    tick = column.tick[rows]
    changes = column.changes[rows]
    step = np.divide(
        column.path[rows], changes, out=np.full(tick.shape, np.inf), where=changes >= _LEAST_CHANGES
    )
    tick = np.where(np.isfinite(tick), tick, 0.0)
    usual = np.quantile(tick, 1 - _MINORITY, axis=0)
    repeated = 1 - changes / np.maximum(lengths - 1, 1)  # coarse steps repeat values at slow places
    odd = _few((tick > _COARSER * usual) & (tick > _COARSE * step) & (usual > 0) & ~column.grippers)
    odd &= repeated > np.maximum(_REPEATED, np.median(repeated, axis=0))
    moves = column.range[rows] > 0.3 * np.median(column.range[rows], axis=0)
    odd &= moves
    if odd.any():
        row, dim = np.unravel_index(
            int(np.where(odd, tick / np.where(usual > 0, usual, 1), 0).argmax()), odd.shape
        )
        message = (
            f"the least change is {tick[row, dim]:.3g}, in the other episodes "
            f"{usual[dim]:.3g}: coarse steps"
        )
        yield _finding(
            "values.noise", column, odd, rows, message, float(tick[row, dim]), float(usual[dim])
        )


def _zeros(column: Column, read: np.ndarray) -> Findings:
    """Rows of zeros that the values jump to or from."""
    if column.width < 2 or not len(column.steps):
        return
    usual = np.quantile(column.steps, 0.99, axis=0)
    edge = (column.zero_edge > np.maximum(_EDGE * usual, 1e-9)) & (column.zeros > 0)[:, None]
    rows = np.flatnonzero(read & (edge.sum(axis=1) >= min(2, column.width)))
    if len(rows):
        frames = int(column.zeros[rows].sum())
        place = column.place(rows, frame=int(column.zero_frame[rows[0]]))
        message = (
            f"{frames} row{'s' * (frames > 1)} of zeros beside other values: not recorded yet?"
        )
        fix = f"cut these frames with --keep-ranges, or {drop(place.episodes)}"
        yield Finding("values.zeros", "warning", message, place, frames, 0, fix)


def _norms(column: Column, rows: np.ndarray) -> Findings:
    """Four dimensions side by side of norm 1 in most episodes, or by their names, and of another
    norm in some.
    """
    square = column.square[rows]
    varies = column.high[rows].max(axis=0) > column.low[rows].min(axis=0)
    start = 0
    while start + 4 <= column.width:
        part = slice(start, start + 4)
        off = np.abs(square[:, part].sum(axis=1) - 1)
        names = [name.lower() for name in column.names[part]]
        named = all(_QUATERNION.search(name) for name in names)
        others = np.median(off) < 0.25 * _NORM and varies[part].all()
        odd = off > _NORM
        if odd.any() and (named or (others and odd.mean() <= _MINORITY)):
            table = np.zeros((len(rows), column.width), bool)
            table[odd, part] = True
            worst = float(np.sqrt(square[off.argmax(), part].sum()))
            yield _finding(
                "values.quaternion", column, table, rows, f"norm {worst:.3g}", worst, 1.0
            )
        if named or others:
            start += 4
        else:
            start += 1


def _inverted(column: Column, rows: np.ndarray) -> Findings:
    """Grippers that begin and end at the other end of their range than in nearly all other
    episodes.
    """
    low = column.low[rows].min(axis=0)
    high = column.high[rows].max(axis=0)
    middle = (low + high) / 2
    odd = np.zeros((len(rows), column.width), bool)
    strong = True
    for dim in range(column.width):
        if not (column.grippers[dim] and high[dim] > low[dim]):
            continue
        moves = column.range[rows, dim] > 0.5 * (high[dim] - low[dim])
        sides = [np.sign(table[rows, dim] - middle[dim]) for table in (column.first, column.last)]
        mean = column.mean[rows, dim]
        if moves.sum() <= FEW:
            continue
        usual = [float(np.median(side[moves])) for side in sides]
        other = moves & np.all(
            [(side == -most) & (most != 0) for side, most in zip(sides, usual)], axis=0
        )
        center = float(np.median(mean[moves]))
        other &= np.abs(2 * middle[dim] - mean - center) < np.abs(mean - center)
        remaining = moves & ~other
        agree = 0.0
        if remaining.any():
            agree = float(np.mean([side[remaining] == most for side, most in zip(sides, usual)]))
        if is_few(other, _MINORITY) and agree >= 0.9:
            odd[other, dim] = True
            strong &= agree >= 0.95 and usual[0] == usual[1]
    if odd.any():
        severity: Severity = "warning" if strong else "note"
        message = (
            "begins and ends at the other end of its range than in the other episodes: inverted?"
        )
        yield _finding(
            "values.sign", column, odd, rows, message, int(odd.any(axis=1).sum()), 0, severity
        )


def _mirrored(column: Column, rows: np.ndarray) -> Findings:
    """Fingers of a hand that are mirrored at the middle of their range in an episode, several of
    them together.
    """
    low = column.low[rows].min(axis=0)
    high = column.high[rows].max(axis=0)
    unit = np.where(high > low, high - low, np.inf)
    tables = [(table[rows] - low) / unit for table in (column.mean, column.first, column.last)]
    extent = column.range[rows]
    least, most = _bounds_of_others(tables[0])
    aside = _nearest_other(tables[0]) > np.maximum(_ASIDE, _TIGHT * (most - least))
    ratio = extent / np.maximum(_median_of_others(extent), 1e-12)
    odd = aside & (ratio < _AS_WIDE) & (ratio > 1 / _AS_WIDE)
    for table in tables:
        least, most = _bounds_of_others(table)
        slack = 0.25 * (most - least) + 0.05
        odd &= (1 - table > least - slack) & (1 - table < most + slack)
    odd[odd.sum(axis=1) < _HAND] = False
    odd = _few(odd)
    if odd.any():
        message = "mirrored at the middle of the range, unlike in the other episodes: inverted?"
        yield _finding("values.sign", column, odd, rows, message, int(odd.any(axis=1).sum()), 0)


def _bounds_of_others(values: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
    """Least and largest value of all other rows, for each row and column of (n, D); n is 2 or
    more.
    """
    ordered = np.sort(values, axis=0)
    least = np.where(values == ordered[0], ordered[1], ordered[0])
    most = np.where(values == ordered[-1], ordered[-2], ordered[-1])
    return least, most


def _nearest_other(values: np.ndarray) -> np.ndarray:
    """Distance to the nearest value of another row, for each row and column of (n, D); n is 2 or
    more.
    """
    order = np.argsort(values, axis=0)
    steps = np.diff(np.take_along_axis(values, order, axis=0), axis=0)
    edge = np.full((1, values.shape[1]), np.inf)
    nearest = np.minimum(np.concatenate([edge, steps]), np.concatenate([steps, edge]))
    distance = np.empty_like(nearest)
    np.put_along_axis(distance, order, nearest, axis=0)
    return distance


def _median_of_others(values: np.ndarray) -> np.ndarray:
    """Median of all other rows, for each row and column of (n, D); n is 2 or more."""
    count = len(values) - 1
    order = np.argsort(values, axis=0)
    ordered = np.take_along_axis(values, order, axis=0)
    # of each value in the order; without it the later ones move up
    place = np.arange(len(values))[:, None]
    low = (count - 1) // 2
    high = count // 2
    below = np.where(place > low, ordered[low], ordered[low + 1])
    above = np.where(place > high, ordered[high], ordered[high + 1])
    median = np.empty_like(below)
    np.put_along_axis(median, order, (below + above) / 2, axis=0)
    return median


_ENOUGH = 8  # episodes
_LEAST_SHIFTED = 10
_FAR: Annotated[
    float,
    Threshold(
        "shift of the state from the action, in the largest one of any other episode",
        fault="encoder_offset_in_one_joint",
    ),
] = 3.0
_FARTHER: Annotated[
    float,
    Threshold(
        "shift of action and state, in the largest one of any other episode",
        fault="joint_calibrated_anew",
    ),
] = 5.0
_AGREE: Annotated[
    float,
    Threshold(
        "share of a shift by which mean, start and extremes may differ",
        fault="joint_calibrated_anew",
    ),
] = 0.25
_LEAST: Annotated[
    float,
    Threshold(
        "shift of the state from the action, in the usual range",
        fault="encoder_offset_in_one_joint",
    ),
] = 0.1
_SAME_RANGE: Annotated[
    float,
    Threshold(
        "ratio of the range in a shifted episode to the usual one", fault="joint_calibrated_anew"
    ),
] = 1.5
_FIX = "add the difference to this dimension, or leave the episode out with --data.exclude-episodes"


def check_offsets(facts: RowFacts) -> Findings:
    """Yield findings about dimensions that are shifted in one episode."""
    named: set[tuple[int, int]] = set()
    for row, dim, shift in _between(facts):
        named.add((row, dim))
        column = facts.columns[STATE]
        message = (
            f"action and state are {abs(shift):.4g} farther apart than in any other episode, "
            "all the time"
        )
        yield _offset_finding(column, row, dim, shift, message)
    for key, column in facts.columns.items():
        if is_input(key):
            shifted = list(_shifted(facts, column))
            for row, dim, shift in shifted:
                if (row, dim) not in named and [odd_row for odd_row, _, _ in shifted].count(
                    row
                ) == 1:
                    message = (
                        f"all values are shifted by {shift:.4g}, start and both extremes alike"
                    )
                    yield _offset_finding(column, row, dim, shift, message)


def _offset_finding(column: Column, row: int, dim: int, shift: float, message: str) -> Finding:
    return Finding(
        "values.offset", "warning", message, column.place([row], dim), shift, 0.0, _FIX, abs(shift)
    )


def _rows(facts: RowFacts, *columns: Column) -> np.ndarray:
    read = [
        facts.summarized(column, finite=True) & (column.lengths >= _LEAST_SHIFTED)
        for column in columns
    ]
    rows = np.flatnonzero(np.all(read, axis=0))
    return rows if len(rows) >= _ENOUGH else rows[:0]


def _deviations(values: np.ndarray) -> tuple[np.ndarray, int, float]:
    """(Deviations (n,) from the median, place of the largest, largest of the others)."""
    deviations = values - np.median(values)
    by = np.argsort(np.abs(deviations))
    return deviations, int(by[-1]), float(np.abs(deviations[by[-2]]))


def _between(facts: RowFacts) -> Iterator[tuple[int, int, float]]:
    """(Table row, dimension, shift) where the means of action and state differ by more in one
    episode.
    """
    action = facts.columns.get(ACTION)
    state = facts.columns.get(STATE)
    if facts.pairs is None or action is None or state is None or action.names != state.names:
        return
    rows = _rows(facts, action, state)
    if not len(rows):
        return
    for dim in range(state.width):
        alike = facts.pairs.correlation[rows, dim]
        if state.grippers[dim] or not np.nanmedian(np.append(alike, 0.0)) > 0.8:
            continue
        shifts, place, other = _deviations(state.mean[rows, dim] - action.mean[rows, dim])
        shift = float(shifts[place])
        usual = float(np.median(state.range[rows, dim]))
        if abs(shift) > max(_FAR * other, _LEAST * usual) and usual > 0 and alike[place] > 0.8:
            yield int(rows[place]), dim, shift


def _shifted(facts: RowFacts, column: Column) -> Iterator[tuple[int, int, float]]:
    """(Table row, dimension, shift) where first value, mean and extremes of one episode are shifted
    alike.
    """
    rows = _rows(facts, column)
    if not len(rows):
        return
    for dim in range(column.width):
        extent = column.range[rows, dim]
        usual = float(np.median(extent))
        if usual <= 0 or column.grippers[dim]:
            continue
        tables = [
            _deviations(table[rows, dim])
            for table in (column.mean, column.first, column.low, column.high)
        ]
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
