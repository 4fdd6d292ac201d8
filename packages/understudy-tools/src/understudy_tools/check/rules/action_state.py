"""Rules of action against state: copies, a state that stops, actions of another episode, and the
delay between both.
"""

from collections.abc import Iterator
from typing import Annotated

import numpy as np

from understudy_data import Catalog
from understudy_tools.check.column_facts import LAGS, PairFacts
from understudy_tools.check.findings import LOOK, Finding, Place, Severity, drop, is_few, undecided
from understudy_tools.check.row_facts import ACTION, STATE, RowFacts
from understudy_tools.check.rules.values import FEW
from understudy_tools.check.threshold import Threshold

RULES = ("values.lag", "values.sign", "values.copy", "values.frozen")
_LEAST_STILL: Annotated[
    float,
    Threshold(
        "seconds for which no dimension of the state changes", fault="state_stops_in_the_middle"
    ),
] = 0.4
_MEANWHILE: Annotated[
    float,
    Threshold(
        "share of its range that the action covers while the state stops",
        fault="state_stops_in_the_middle",
    ),
] = 0.15
_FOLLOWS: Annotated[
    float,
    Threshold(
        "correlation of action and state in four of five episodes, from which a lower one counts",
        fault="actions_of_another_episode",
    ),
] = 0.8
_FOREIGN: Annotated[
    float,
    Threshold(
        "correlation of action and state below which an action is of another episode",
        fault="actions_of_another_episode",
    ),
] = 0.6
_MOVES: Annotated[
    float,
    Threshold(
        "share of the usual range from which a dimension moves in an episode",
        fault="actions_of_another_episode",
    ),
] = 0.3
_LATE: Annotated[
    float,
    Threshold(
        "frames by which a delay differs from the usual one", fault="action_late_by_one_frame"
    ),
] = 0.6
_SHARP: Annotated[
    float,
    Threshold(
        "correlation by which that two frames from the peak is lower, where motion shows a delay",
        fault="action_late_by_one_frame",
    ),
] = 0.04


def check_action_state(catalog: Catalog, facts: RowFacts) -> Iterator[Finding]:
    """Yield findings about action and state of the same joints; they need the same width."""
    if facts.pairs is None:
        for rule in RULES:
            yield undecided(rule, 1, "pair of action and state of one width", 0)
        return
    yield from _copies(catalog, facts, facts.pairs)
    yield from _frozen(catalog, facts, facts.pairs)
    yield from _foreign(catalog, facts, facts.pairs)
    yield from _delays(catalog, facts.pairs)


def _copies(catalog: Catalog, facts: RowFacts, pairs: PairFacts) -> Iterator[Finding]:
    rows = np.flatnonzero(pairs.copies)
    if len(rows):
        place = Place.from_rows(catalog, rows, ACTION)
        fix = drop(place.episodes)
        if len(rows) == facts.is_read.sum():
            fix = "take the state of the next frame as action, or record the commands"
        message = "the action equals the state in all frames: a policy learns to stay"
        yield Finding("values.copy", "warning", message, place, len(rows), 0, fix)


def _frozen(catalog: Catalog, facts: RowFacts, pairs: PairFacts) -> Iterator[Finding]:
    """Episodes whose state stops while the action covers a part of its range, unless most states
    do.
    """
    least = max(5, round(_LEAST_STILL * catalog.fps))
    rows = np.flatnonzero((pairs.frozen >= least) & (pairs.meanwhile > _MEANWHILE) & ~pairs.copies)
    if len(rows):
        row = int(rows[pairs.meanwhile[rows].argmax()])
        message = (
            f"no dimension changes for {int(pairs.frozen[row])} frames, while the action covers "
        )
        message += f"{pairs.meanwhile[row]:.0%} of its range"
        few = len(rows) <= max(1, 0.3 * facts.is_read.sum())
        place = Place.from_rows(catalog, rows, STATE, frame=int(pairs.frozen_frame[rows[0]]))
        measured = int(pairs.frozen[row])
        severity: Severity = "warning" if few else "note"
        yield Finding("values.frozen", severity, message, place, measured, least, LOOK)


def _foreign(catalog: Catalog, facts: RowFacts, pairs: PairFacts) -> Iterator[Finding]:
    """Episodes in which two or more dimensions of the action do not correlate with those of the
    state, and move.
    """
    action = facts.columns.get(ACTION)
    state = facts.columns.get(STATE)
    table = pairs.correlation
    rows = np.flatnonzero(np.isfinite(table).any(axis=1))
    if action is None or state is None or len(rows) <= FEW:
        yield undecided(
            "values.exchanged", FEW + 1, "episodes with motion of action and state", len(rows)
        )
        return
    correlation = np.where(np.isfinite(table[rows]), table[rows], 1.0)
    usual = np.quantile(correlation, 0.2, axis=0)
    moves = np.ones(correlation.shape, bool)
    for column in (action, state):
        moves &= column.range[rows] > _MOVES * np.median(column.range[rows], axis=0)
    tells = (usual > _FOLLOWS) & ~state.grippers
    odd = tells & moves & (np.abs(correlation) < _FOREIGN)
    strange = (odd.sum(axis=1) >= 2) & (odd.sum(axis=1) >= 0.25 * (tells & moves).sum(axis=1))
    if tells.sum() < 2:
        yield undecided(
            "values.exchanged", 2, "dimensions whose state follows the action", int(tells.sum())
        )
    elif is_few(strange):
        row = int(np.flatnonzero(strange)[0])
        dims = np.flatnonzero(odd[row])
        worst = float(np.abs(correlation[row, dims]).max())
        message = (
            f"action and state of {state.list_names(dims)} correlate by {worst:.2f} at most, "
            "in the other episodes by "
        )
        message += f"{usual[dims].min():.2f} or more: they may be of another episode or dimension"
        place = Place.from_rows(catalog, rows[strange], ACTION)
        yield Finding(
            "values.exchanged", "warning", message, place, worst, float(usual[dims].min()), LOOK
        )


def _delays(catalog: Catalog, pairs: PairFacts) -> Iterator[Finding]:
    """Episodes in which the state follows the action by another delay than in the others, in
    fractions of a frame.
    """
    follows = pairs.follows
    rows = np.flatnonzero(np.isfinite(follows).all(axis=1) & ~pairs.copies)
    if len(rows) < FEW + 1:
        yield undecided(
            "values.lag",
            FEW + 1,
            "episodes of 28 frames with motion of action and state",
            len(rows),
        )
        return
    table = follows[rows]
    best = table.argmax(axis=1)
    peak = table.max(axis=1)
    delays = best + _vertex(table, best)
    beside = np.stack(
        [
            table[np.arange(len(rows)), np.clip(best + step, 0, table.shape[1] - 1)]
            for step in (-2, 2)
        ]
    )
    sharp = (peak > 0.4) & (peak - beside.max(axis=0) > _SHARP)
    usual = float(np.median(delays[sharp])) if sharp.any() else 0.0
    if sharp.sum() < FEW + 1:
        yield undecided(
            "values.lag",
            FEW + 1,
            "episodes whose motion shows a delay to the frame",
            int(sharp.sum()),
        )
        usual = float(np.median(delays))
    deviation = np.abs(delays - usual)
    odd = (peak > 0.5) & (deviation >= 1.5) & (peak > table[:, round(usual)] + 0.25)
    if sharp.sum() >= FEW + 1:
        order = np.flatnonzero(sharp)[np.argsort(deviation[sharp])]
        most = max(1, len(order) // 5)  # that may be late
        largest = float(deviation[order[: len(order) - most]].max())
        if 2 * largest > 1:
            yield undecided(
                "values.lag", 1, "frame or less between the delays of the episodes", largest
            )
        for place in order[len(order) - most :].tolist():
            if deviation[place] > max(_LATE, 2 * largest):
                odd[place] = True
            elif not odd[place]:
                largest = max(largest, float(deviation[place]))
    if is_few(odd):
        worst = int(np.flatnonzero(odd)[deviation[odd].argmax()])
        lag = float(delays[worst]) + LAGS[0]
        normal = usual + LAGS[0]
        message = (
            f"the state follows the action by {lag:.1f} frames, in the other episodes by "
            f"{normal:.1f}"
        )
        place = Place.from_rows(catalog, rows[odd], ACTION)
        yield Finding("values.lag", "warning", message, place, lag, normal, LOOK)


def _vertex(follows: np.ndarray, best: np.ndarray) -> np.ndarray:
    """Place of the maximum of a parabola through the peak (n,) and its neighbors, relative to it; 0
    at the ends.
    """
    inner = np.clip(best, 1, follows.shape[1] - 2)
    rows = np.arange(len(best))
    before, peak, after = (follows[rows, inner + step] for step in (-1, 0, 1))
    bend = before - 2 * peak + after
    shift = np.divide(before - after, 2 * bend, out=np.zeros(len(best)), where=bend < -1e-9)
    return np.where(inner == best, np.clip(shift, -0.5, 0.5), 0.0)
