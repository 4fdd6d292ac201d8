"""Rules of the numbers in one column: finite values, outliers, constant dimensions, jumps, bounds.

Rules that compare episodes need `FEW` of them, and report a behavior only where a minority of the
episodes has it: a gripper that jumps in each episode is a gripper.
"""

from collections.abc import Iterator, Sequence
from dataclasses import replace
from typing import Annotated

import numpy as np

from understudy_base import plural
from understudy_tools.check.column_facts import TURNS, Column, is_sign_flip, quaternions, wrapping
from understudy_tools.check.findings import (
    LOOK,
    Finding,
    Findings,
    Place,
    Severity,
    drop,
    is_few,
    undecided,
)
from understudy_tools.check.row_facts import ACTION, STATE, RowFacts
from understudy_tools.check.threshold import Threshold

FEW = 4
"""Least number of episodes to compare one with the others."""
_MINORITY: Annotated[
    float,
    Threshold(
        "share of the episodes that may show a behavior unlike the others",
        fault="dead_joint_in_two_episodes",
    ),
] = 0.2
_FAR: Annotated[
    float,
    Threshold(
        "half ranges of the central 98 % from which a value of action or state is an outlier",
        fault="outlier_in_the_action",
    ),
] = 8.0
_EXTREME: Annotated[
    float,
    Threshold("the same, from which a training refuses the value", fault="extreme_values_in_half"),
] = 1e6
_LEAST_UNIT: Annotated[
    float,
    Threshold("half range in which such a value counts at least", fault="extreme_values_in_half"),
] = 1e-3
_HUGE: Annotated[
    float,
    Threshold(
        "magnitude of which the square overflows float32", fault="huge_values_of_a_resting_joint"
    ),
] = 1e19
_COMPARE = ("values.dead", "values.gripper", "values.jump", "values.saturation", "values.unit")
_DECIDE = (ACTION, STATE)
_SHOCK: Annotated[
    float,
    Threshold(
        "as `_FAR`, for sensors: forces, currents and accelerations peak at contacts",
        fault="shock_of_a_force",
    ),
] = 1000.0
_GLITCH: Annotated[
    float,
    Threshold(
        "share of the distance of an outlier from the others that one step covers",
        fault="outlier_in_the_action",
    ),
] = 0.25
_SHORT: Annotated[
    int,
    Threshold(
        "frames of a dataset from which a constant column is no chance",
        fault="action_never_changes",
    ),
] = 10


def is_input(key: str) -> bool:
    """Whether a column is an input or output of policies."""
    return key.startswith(("action", "observation."))


def check_values(facts: RowFacts) -> Findings:
    """Yield findings about the values of each numeric column."""
    for key, column in facts.columns.items():
        yield from _finite(column)
        if not is_input(key):
            continue
        read = facts.summarized(column)
        if not read.any():
            continue
        yield from _outliers(column, read)
        yield from _constant(column, read)
        if read.sum() >= FEW:
            yield from _dead(facts, column, read)
            yield from _jumps(column, read)
            yield from _bounds(column, read)
        elif key in _DECIDE:
            for rule in _COMPARE:
                yield undecided(rule, FEW, "episodes", int(read.sum()))


def _finite(column: Column) -> Findings:
    rows = np.flatnonzero(column.bad)
    if not len(rows):
        return
    severity: Severity = "error" if column.key in _DECIDE else "warning"
    frames = int(column.bad.sum())
    message = f"{plural(frames, 'frame')} with a value that is not finite"
    place = column.place(rows, frame=int(column.bad_frame[rows[0]]))
    yield Finding("values.finite", severity, message, place, frames, 0, drop(place.episodes))


def _outliers(column: Column, read: np.ndarray) -> Findings:
    """Values far outside the central 98 %, in standard deviations ("z") as after normalization."""
    q01, q50, q99 = np.quantile(column.sample, [0.01, 0.5, 0.99], axis=0)
    unit = np.maximum(
        (q99 - q01) / 2, 1e-3 * np.maximum(np.maximum(np.abs(q01), np.abs(q99)), 1e-3)
    )
    resting = q99 - q01 <= 1e-3 * np.maximum(np.abs(q50), 1e-6)
    beyond = np.maximum(column.high - q99, q01 - column.low) / unit
    beyond[~read] = 0.0
    std = column.sample.std(axis=0)
    wraps = wrapping(column, read)

    def worst_of(rows: np.ndarray, dim: int) -> tuple[float, float]:
        """Distance and value of the farthest value of a dimension."""
        row = int(rows[beyond[rows, dim].argmax()])
        is_high = column.high[row, dim] - q99[dim] > q01[dim] - column.low[row, dim]
        extremes = column.high if is_high else column.low
        return float(beyond[row, dim]), float(extremes[row, dim])

    limit = _FAR if column.key in _DECIDE else _SHOCK
    for dim in np.flatnonzero((beyond > limit).any(axis=0) & ~wraps).tolist():
        rows = np.flatnonzero(beyond[:, dim] > limit)
        far, value = worst_of(rows, dim)
        is_extreme = (
            far * min(1.0, unit[dim] / _LEAST_UNIT) > _EXTREME and not resting[dim]
        ) or abs(value) > _HUGE
        if not is_extreme and (resting[dim] or len(rows) > max(1, _MINORITY * read.sum())):
            continue
        step = column.step[rows, dim]
        glitches = rows[
            (step > _GLITCH * beyond[rows, dim] * unit[dim]) & (step > 4 * column.beside[rows, dim])
        ]
        if not is_extreme and len(glitches):
            rows = glitches
            far, value = worst_of(rows, dim)
        z = abs(value - column.sample[:, dim].mean()) / std[dim] if std[dim] > 0 else float("inf")
        severity: Severity = "warning" if len(glitches) else "note"
        if is_extreme:
            severity = "error"
        usual = [float(q01[dim]), float(q99[dim])]
        message = (
            f"z = {z:.3g}: a value is {value:.4g}; 98 % of the values are between "
            f"{usual[0]:.4g} and "
        )
        message += f"{usual[1]:.4g}"
        place = column.place(rows, dim)
        fix = drop(place.episodes) if is_extreme or len(rows) == 1 else LOOK
        yield Finding("values.outlier", severity, message, place, value, usual, fix, far)


def _constant(column: Column, read: np.ndarray) -> Findings:
    frames = int(column.lengths[read].sum())
    if frames < 2:
        return
    still = np.flatnonzero(column.low[read].min(axis=0) == column.high[read].max(axis=0))
    if len(still):
        all_of_them = len(still) == column.width and column.key in _DECIDE and column.width > 1
        severity: Severity = "warning" if all_of_them and frames >= _SHORT else "note"
        message = (
            f"{len(still)} of {column.width} dimensions have one value in all rows: "
            f"{column.list_names(still)}"
        )
        if len(still) > 8:
            message += ", ..."
        place = Place(column=column.key)
        yield Finding("values.constant", severity, message, place, still.tolist(), [])


def _dead(facts: RowFacts, column: Column, read: np.ndarray) -> Findings:
    """Dimensions that are exactly constant in a few episodes and move in almost all others."""
    lengths = column.lengths
    long_enough = read & (lengths >= max(10, 0.5 * float(np.median(lengths[read]))))
    total = int(long_enough.sum())
    if total < FEW:
        return
    moves = column.range > 0
    lively = (column.range > 0.2 * np.maximum(column.spread, 1e-12)) & moves
    dead_by_row: dict[int, list[int]] = {}
    for dim in range(column.width):
        still = np.flatnonzero(long_enough & ~moves[:, dim])
        others = lively[long_enough, dim].sum() / total
        if len(still) and len(still) <= max(1, _MINORITY * total) and others >= 0.75:
            for row in still.tolist():
                dead_by_row.setdefault(row, []).append(dim)
    by_dims: dict[tuple[int, ...], list[int]] = {}
    for row, dims in dead_by_row.items():
        by_dims.setdefault(tuple(dims), []).append(row)
    for dead, rows in by_dims.items():
        names = column.list_names(dead)
        place = column.place(rows, dead[0])
        if len(dead) <= 2 and column.grippers[list(dead)].all():
            rule = "values.gripper"
            is_certain = True
            message = (
                f"{names} does not open or close, and does so in "
                f"{100 * lively[long_enough, dead[0]].mean():.0f} "
            )
            message += "% of the episodes"
        else:
            rule = "values.dead"
            is_certain = _partner_moves(facts, column, rows, dead)
            message = (
                f"{names}: one value ({column.low[rows[0], dead[0]]:.4g}) in the whole "
                "episode, and motion in "
            )
            message += "the others"
        severity: Severity = "warning" if is_certain else "note"
        yield Finding(rule, severity, message, place, 0.0, float(column.spread[dead[0]]), LOOK)


def _partner_moves(facts: RowFacts, column: Column, rows: list[int], dims: Sequence[int]) -> bool:
    """Whether the same dimensions of action, for a state, or of the state move there; True without
    such a column.

    Where both rest, an arm is not used in the episode.
    """
    partner = facts.partner(column)
    if partner is None or partner.width != column.width:
        return True
    return bool((partner.range[rows][:, dims] > 0.1 * partner.spread[list(dims)]).any())


def _jumps(column: Column, read: np.ndarray) -> Findings:
    """Single steps far larger than all usual ones of the dimension and than their neighbors, in few
    episodes.
    """
    usual = np.quantile(column.steps, 0.99, axis=0) if len(column.steps) else np.zeros(column.width)
    typical = np.median(column.step[read], axis=0)
    limit = np.maximum(np.maximum(5 * usual, 5 * typical), 0.25 * column.spread)
    by_place: dict[tuple[tuple[int, ...], int], list[int]] = {}
    wraps: list[tuple[int, int]] = []
    flips: list[tuple[int, int]] = []
    rotations = quaternions(column, read)
    large = (column.step > limit) & (column.step > 4 * column.beside) & read[:, None] & (limit > 0)
    for dim in np.flatnonzero(large.any(axis=0)).tolist():
        rows = np.flatnonzero(large[:, dim])
        if len(rows) > max(1, _MINORITY * read.sum()) or column.grippers[dim]:
            continue
        if all(is_sign_flip(column, row, dim, rotations) for row in rows.tolist()):
            flips += [(dim, row) for row in rows.tolist()]
            continue
        turns = [
            np.abs(column.step[rows, dim] - turn) < 4 * typical[dim] + 0.01 * turn for turn in TURNS
        ]
        if np.any(turns, axis=0).all():
            wraps += [(dim, row) for row in rows.tolist()]
            continue
        by_place.setdefault(
            (tuple(rows.tolist()), int(column.step_frame[rows[0], dim])), []
        ).append(dim)
    for (rows_of, frame), dims in by_place.items():
        steps = column.step[rows_of, :][:, dims] / limit[dims]
        number, position = np.unravel_index(int(steps.argmax()), steps.shape)
        dim = dims[int(position)]
        step = float(column.step[rows_of[int(number)], dim])
        message = (
            f"changes by {step:.4g} between two frames, otherwise by {typical[dim]:.3g} at "
            "most in most episodes"
        )
        if len(dims) > 1:
            message += f"; {len(dims)} dimensions jump there"
        severity: Severity = "warning" if column.key in _DECIDE else "note"
        place = column.place(rows_of, dim, frame)
        most = float(limit[dim])
        yield Finding("values.jump", severity, message, place, step, most, LOOK, step / most)
    kinds = (
        (
            wraps,
            "angles wrap by a whole turn",
            "a policy learns angles better as sine and cosine, or unwrapped",
        ),
        (
            flips,
            "quaternions change their sign, not their rotation,",
            "give all quaternions of an episode one sign",
        ),
    )
    for places, fact, fix in kinds:
        if places:
            dims_of = sorted({column.names[dim] for dim, _ in places})
            message = f"{fact} between two frames: {', '.join(dims_of[:8])}"
            place = column.place(list({row for _, row in places}), places[0][0])
            yield Finding(
                "values.jump", "note", message, place, measured=len(places), expected=0, fix=fix
            )


def _usual_speed(steps: np.ndarray) -> float:
    """Upper quartile of the steps of a moving dimension; inf for one that rests."""
    if not steps.any():
        return np.inf
    return float(np.quantile(steps[steps > 0], 0.75))


def _bounds(column: Column, read: np.ndarray) -> Findings:
    """Episodes that return to exactly their own extreme again and again, which other episodes
    exceed.
    """
    at_high = column.at_high >= column.at_low
    share = (
        np.where(at_high, column.at_high, column.at_low) / np.maximum(column.lengths, 1)[:, None]
    )
    spread = column.spread
    speed = np.array([_usual_speed(steps) for steps in column.steps.T])
    # Motion is cut off at a bound at its usual speed; a joint at rest comes and goes by ticks.
    stuck = (share > 0.1) & (column.visits >= 3) & (column.range > 0.2 * spread) & read[:, None]
    stuck &= column.entry > 0.25 * speed
    for dim in np.flatnonzero(stuck.any(axis=0)).tolist():
        if column.grippers[dim]:
            continue
        rows = np.flatnonzero(stuck[:, dim])
        if len(rows) > max(1, _MINORITY * read.sum()):
            continue
        others = read.copy()
        others[rows] = False
        beyond = np.where(
            at_high[rows, dim],
            np.median(column.high[others, dim]) - column.high[rows, dim],
            column.low[rows, dim] - np.median(column.low[others, dim]),
        )
        rows = rows[beyond > 0.05 * spread[dim]]
        if not len(rows):
            continue
        bounds = np.where(at_high[rows, dim], column.high[rows, dim], column.low[rows, dim])
        for bound in np.unique(bounds):
            bounded = rows[bounds == bound]
            row = int(bounded[share[bounded, dim].argmax()])
            most = float(share[row, dim])
            message = f"up to {most:.0%} of the frames are exactly {bound:.4g}, in "
            message += (
                f"{int(column.visits[row, dim])} separate ranges, and other episodes exceed it"
            )
            yield Finding(
                "values.saturation", "warning", message, column.place(bounded, dim), most, 0.0, LOOK
            )


UNITS = {
    "degrees and radians": 57.29578,
    "millimeters and meters": 1000.0,
    "centimeters and meters": 100.0,
    "counts of 4096 a turn and radians": 651.9,
}
_RATIO: Annotated[
    float,
    Threshold("ratio of magnitudes that can be a change of unit", fault="degrees_in_one_joint"),
] = 6.0
_ALIKE: Annotated[
    float,
    Threshold(
        "ratio within which the shape of a motion is the same in both units",
        fault="degrees_in_one_joint",
    ),
] = 2.5
_AS_FAR: Annotated[
    float,
    Threshold(
        "share of the distance of an exchanged dimension from its usual values",
        fault="joints_exchanged",
    ),
] = 0.7
_UNIT_FIX = "convert the values, or leave the episodes out with --data.exclude-episodes"


def check_units(facts: RowFacts) -> Findings:
    """Yield findings about dimensions whose meaning differs between episodes."""
    for key, column in facts.columns.items():
        rows = np.flatnonzero(facts.summarized(column) & (column.lengths >= 5))
        if is_input(key) and len(rows) >= FEW:
            yield from _units(column, rows, facts.partner(column))
            yield from _exchanged(column, rows)
    yield from _directions(facts)


def _units(column: Column, rows: np.ndarray, partner: Column | None) -> Findings:
    """Two groups of episodes whose magnitudes and ranges differ by one large factor, each group
    alike.

    A change of unit keeps the shape of the motion. A sensor's noise while an arm is not used, or a
    shock, has another one. The partner of `column` (state of an action, and the reverse) shows the
    same factor or none. Where it shows another one, or rests in one group, or the factor is that of
    no known units, the robot moved by more: a note.
    """
    for dim in range(column.width):
        if column.grippers[dim] and "gripper" not in column.names[dim].lower():
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
        low = order[: cut + 1]
        high = order[cut + 1 :]
        inner = max(float(np.ptp(logs[low])), float(np.ptp(logs[high])))
        if gap < np.log(_RATIO) or inner > 0.6 * gap:
            continue
        moved = 0.0
        if np.median(extent[low]) > 0:
            moved = np.log(np.median(extent[high]) / np.median(extent[low]))
        if abs(moved) < np.log(_RATIO):  # the values are elsewhere, but move by as much
            continue
        if not _is_same_shape(column, rows[low], rows[high], dim):
            continue
        few, many = (high, low) if len(high) <= len(low) else (low, high)
        factor = float(np.exp(abs(np.median(logs[high]) - np.median(logs[low]))))
        name = next((name for name, unit in UNITS.items() if 0.6 < factor / unit < 1.7), "")
        size = float(np.median(magnitude[few])), float(np.median(magnitude[many]))
        shared = _shared(partner, rows[low], rows[high], dim)
        is_unit = bool(name) and (shared == 0 or factor / _ALIKE < shared < factor * _ALIKE)
        severity: Severity = "warning" if is_unit or 0 < shared < _RATIO / 2 else "note"
        message = (
            f"magnitudes are {size[0]:.4g} here and {size[1]:.4g} in the other {len(many)} "
            "episodes, a factor of "
        )
        message += f"{factor:.3g}"
        if name:
            message += f": {name}?"
        place = column.place(rows[few], dim)
        yield Finding("values.unit", severity, message, place, *size, _UNIT_FIX, factor)


def _is_same_shape(column: Column, low: np.ndarray, high: np.ndarray, dim: int) -> bool:
    """Whether two groups of episodes are equally rough, and cross their range equally fast."""
    for shape in zip(_shape(column, low, dim), _shape(column, high, dim)):
        of_low, of_high = (float(np.median(measure)) for measure in shape)
        if not of_low / _ALIKE <= of_high <= of_low * _ALIKE:
            return False
    return True


def _shape(column: Column, rows: np.ndarray, dim: int) -> list[np.ndarray]:
    """Roughness and travel of a dimension, (n,) each.

    The mean second difference as a share of the mean change is about 1.7 for noise, less for
    motion. The mean change as a share of the range is small for a shock, large for noise.
    """
    mean = column.path[rows, dim] / np.maximum(column.lengths[rows] - 1, 1)
    shares = (column.jerk[rows, dim], mean), (mean, column.range[rows, dim])
    return [
        np.divide(part, whole, out=np.zeros(len(rows)), where=mean > 0) for part, whole in shares
    ]


def _shared(partner: Column | None, low: np.ndarray, high: np.ndarray, dim: int) -> float:
    """Ratio of the ranges of the same dimension of another column: 0 if unknown, inf if it rests in
    `low`.
    """
    if partner is None or partner.width <= dim:
        return 0.0
    of_low = float(np.median(partner.range[low, dim]))
    of_high = float(np.median(partner.range[high, dim]))
    if of_low > 0:
        return of_high / of_low
    return float("inf") if of_high > 0 else 0.0


def _exchanged(column: Column, rows: np.ndarray) -> Findings:
    """Two dimensions that have each other's values in a few episodes."""
    if column.width < 2 or len(rows) < FEW + 1:
        return
    mean = column.mean[rows]
    width = np.median(column.std[rows], axis=0)
    center = np.median(mean, axis=0)
    scatter = 1.4826 * np.median(np.abs(mean - center), axis=0)
    unit = np.maximum(scatter, 0.25 * width) + 1e-9
    far = np.abs(mean - center) / unit
    aside = np.where(mean > center, far, -far)
    # other episodes are as far: the place of rest varies
    far[far <= 2 * np.quantile(far, 0.8, axis=0)] = 0
    exchanged: dict[tuple[int, ...], list[int]] = {}
    for row in np.flatnonzero((far > 6).sum(axis=1) >= 2).tolist():
        dims = np.flatnonzero(far[row] > 6)
        if len(dims) > 12:
            continue
        # (dimension, place whose values it has)
        cross = np.abs(mean[row, dims][:, None] - center[dims]) / unit[dims]
        cross[np.eye(len(dims), dtype=bool)] = np.inf
        to = cross.argmin(axis=1)
        fits = (cross.min(axis=1) < 3) & (far[row, dims] > 3 * cross.min(axis=1))
        for cycle in _cycles(to, fits):
            exchanged.setdefault(tuple(dims[cycle].tolist()), []).append(row)
    for swapped, episodes in exchanged.items():
        names = " and ".join(column.names[dim] for dim in swapped)
        of = list(swapped)
        for row in episodes:
            # Another episode that is as far, and fits no exchange, shows that this dimension rests
            # there at times.
            alike = (aside[:, of] * np.sign(aside[row, of]) > _AS_FAR * np.abs(aside[row, of])).all(
                axis=1
            )
            if alike[episodes].sum() < alike.sum():
                continue
            message = f"{names} have each other's usual values"
            place = column.place(rows[[row]], of[0])
            measured = mean[row, of].tolist()
            expected = center[of].tolist()
            yield Finding(
                "values.exchanged", "warning", message, place, measured, expected, _UNIT_FIX
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


def _directions(facts: RowFacts) -> Findings:
    """Dimensions of which action and state correlate in most episodes, and oppose each other in
    few.
    """
    state = facts.columns.get(STATE)
    if facts.pairs is None or state is None:
        return
    for dim, table in enumerate(facts.pairs.correlation.T):
        rows = np.flatnonzero(np.isfinite(table))
        if len(rows) < FEW:
            continue
        correlation = table[rows]
        least = float(correlation.min())
        usual = float(np.median(correlation))
        least_usual = 0.5 if state.grippers[dim] else 0.8
        if usual > least_usual and is_few(correlation < -0.5, 0.3):
            message = (
                f"action and state correlate by {least:.2f}, in the other episodes by {usual:.2f}"
            )
            place = replace(state.place(rows[correlation < -0.5]), dimension=state.names[dim])
            yield Finding("values.sign", "warning", message, place, least, usual, _UNIT_FIX)
