"""Rules that compare whole episodes: repeated ones, and a ranking of unusual ones."""

from collections import defaultdict
from typing import Annotated, Any

import numpy as np

from understudy_data import Catalog
from understudy_tools.check.column_facts import Column, quaternions, wrapping
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
from understudy_tools.check.rules.values import FEW
from understudy_tools.check.threshold import Threshold

ENOUGH = 8
"""Least number of episodes for a ranking."""
WARN: Annotated[
    float,
    Threshold("robust z of an episode from which it is a warning", fault="episode_of_five_frames"),
] = 8.0
NOTE = 5.0
"""Robust z of an episode from which it is a warning, and a note."""
RANKED = 20
MEASURES = {
    "length": "frames of the episode",
    "path": "mean change of all dimensions of the action from frame to frame, in shares of their "
    "ranges",
    "jerk": "roughness of the motion: the same of the third differences",
    "idle share": "share of frames without motion",
    "distance": "from the mean action of the episode to that of the others, in shares of the "
    "ranges",
}
"""Measure of an episode -> its meaning."""
_NOISE: Annotated[
    float,
    Threshold(
        "path and jerk, in ranges, that are more than rounding of float32", fault="episode_shakes"
    ),
] = 1e-5
_LEAST_SCATTER = {"length": 0.15, "path": 0.15, "jerk": 0.2, "idle share": 0.05, "distance": 0.25}
_LOGARITHMIC = ("length", "path", "jerk")
_SAME: Annotated[
    float,
    Threshold(
        "share of a dimension's range by which starts and extremes of copies may differ",
        fault="near_copy_of_an_episode",
    ),
] = 0.01
_SAME_MEAN: Annotated[
    float,
    Threshold(
        "share of a dimension's range by which means of copies may differ",
        fault="near_copy_of_an_episode",
    ),
] = 0.002
_LEAST_MOVING: Annotated[
    int,
    Threshold(
        "dimensions that move in an episode, of which a copy is no chance",
        fault="near_copy_of_an_episode",
    ),
] = 3
_NEIGHBORS = 8  # episodes with the next larger mean that each is compared with
_LONG_REST: Annotated[
    float, Threshold("seconds by which a rest at the end exceeds the usual one", fault="idle_tail")
] = 1.5
_LEAST_FRAMES = 10  # of an episode whose motion is compared


def check_episodes(catalog: Catalog, facts: RowFacts) -> Findings:
    """Yield findings about repeated and about unusual episodes."""
    yield from _repeated(catalog, facts)
    yield from _nearly_repeated(catalog, facts)
    yield from _idle_ends(catalog, facts)
    by_reason: dict[tuple[str, Severity], list[dict[str, Any]]] = defaultdict(list)
    for entry in rank_episodes(catalog, facts):
        for name, z in entry["z"].items():
            if abs(z) >= WARN:
                by_reason[name, "warning"].append(entry)
            elif abs(z) >= NOTE:
                by_reason[name, "note"].append(entry)
    for (name, severity), outliers in by_reason.items():
        worst = max(outliers, key=lambda entry: abs(entry["z"][name]))
        measured, usual, z = (worst[figure][name] for figure in ("measured", "usual", "z"))
        message = f"{name} is {measured:.4g}, the median {usual:.4g} (robust z = {z:.3g})"
        place = Place(tuple(sorted(entry["episode"] for entry in outliers)))
        yield Finding("episodes.outlier", severity, message, place, measured, usual, LOOK, abs(z))


def _repeated(catalog: Catalog, facts: RowFacts) -> Findings:
    groups: dict[bytes, list[int]] = defaultdict(list)
    for row, digest in enumerate(facts.digest):
        if digest:
            groups[digest].append(int(catalog.episodes.ids[row]))
    for ids in groups.values():
        if len(ids) > 1:
            message = f"all rows equal those of episode {ids[0]}"
            yield Finding(
                "episodes.duplicate",
                "warning",
                message,
                Place(tuple(ids)),
                len(ids),
                1,
                drop(ids[1:]),
            )


def _nearly_repeated(catalog: Catalog, facts: RowFacts) -> Findings:
    """Episodes of one length whose first values, means and extremes are equal up to noise in all
    dimensions.
    """
    tables = []
    moved = np.zeros(len(catalog.episodes), bool)
    for column in (facts.columns.get(key) for key in (ACTION, STATE)):
        if column is not None and len(column.sample):
            moves = column.spread > 0
            moved |= (column.range > 0.2 * np.where(moves, column.spread, np.inf)).sum(
                axis=1
            ) >= _LEAST_MOVING
            parts = (column.mean, column.first, column.low, column.high)
            for share, part in zip((_SAME_MEAN, *3 * (_SAME,)), parts):
                tables.append((part - column.bounds[0])[:, moves] / column.spread[moves] / share)
    if not moved.any():
        return
    values = np.concatenate(tables, axis=1)
    lengths = catalog.episodes.lengths
    rows = np.flatnonzero(
        facts.is_read & (lengths >= _LEAST_FRAMES) & np.isfinite(values).all(axis=1) & moved
    )
    rows = rows[np.lexsort((values[rows, 0], lengths[rows]))]
    near: set[int] = set()
    for step in range(1, _NEIGHBORS + 1):
        left = rows[:-step]
        right = rows[step:]
        alike = (lengths[left] == lengths[right]) & (np.abs(values[left, 0] - values[right, 0]) < 1)
        left = left[alike]
        right = right[alike]
        same = (np.abs(values[left] - values[right]) < 1).all(axis=1)
        same &= np.array(
            [facts.digest[a] != facts.digest[b] for a, b in zip(left.tolist(), right.tolist())],
            bool,
        )
        near |= {*left[same].tolist(), *right[same].tolist()}
    if near:
        severity: Severity = "warning" if len(near) <= max(2, 0.2 * len(rows)) else "note"
        message = (
            f"{len(near)} episodes equal another one up to noise: the same length, starts, "
            "means and extremes"
        )
        place = Place.from_rows(catalog, list(near))
        yield Finding("episodes.duplicate", severity, message, place, len(near), 0, LOOK)


def _idle_ends(catalog: Catalog, facts: RowFacts) -> Findings:
    """Episodes that rest at their end far longer than the others."""
    rows = np.flatnonzero(facts.is_read & (catalog.episodes.lengths >= _LEAST_FRAMES))
    if len(rows) <= FEW:
        yield undecided("episodes.idle", FEW + 1, f"episodes of {_LEAST_FRAMES} frames", len(rows))
        return
    seconds = facts.idle_end[rows] / float(catalog.fps)
    usual = float(np.median(seconds))
    scatter = 1.4826 * float(np.median(np.abs(seconds - usual)))
    odd = seconds - usual > max(_LONG_REST, 6 * scatter)
    steps_before = catalog.episodes.lengths[rows] - 1 - facts.idle_end[rows]
    # slow ones rest in between, too
    odd &= (steps_before > 0) & (facts.idle[rows] - facts.idle_end[rows] <= 0.1 * steps_before)
    if is_few(odd):
        worst = float(seconds[odd].max())
        message = f"no motion in the last {worst:.3g} s, in the other episodes {usual:.3g} s"
        fix = "cut the rest: understudy ranges, then understudy edit --keep-ranges"
        yield Finding(
            "episodes.idle",
            "warning",
            message,
            Place.from_rows(catalog, rows[odd]),
            worst,
            usual,
            fix,
        )


def rank_episodes(catalog: Catalog, facts: RowFacts) -> list[dict[str, Any]]:
    """Rank episodes by their largest robust z, the most unusual first.

    Measured are the length, the path of all dimensions per frame in units of their range, the jerk
    relative to the path, the share of idle frames, and the distance of the mean from that of the
    other episodes.

    Returns:
        For each episode "episode", "score", "why", and "z", "measured", "usual" by measure. [] for
        less than `ENOUGH`.
    """
    lengths = catalog.episodes.lengths
    rows = np.flatnonzero(facts.is_read & (lengths > 0))
    column = facts.columns.get(ACTION) or facts.columns.get(STATE)
    if len(rows) < ENOUGH:
        return []
    measures: dict[str, np.ndarray] = {"length": lengths[rows].astype(np.float64)}
    if column is not None and np.isfinite(column.mean[rows]).all():
        unit = np.where((column.spread > 0) & ~_jumping(column, rows), column.spread, np.inf)
        measures["path"] = (column.path[rows] / unit).sum(1) / np.maximum(lengths[rows] - 1, 1)
        measures["jerk"] = (column.jerk[rows] / unit).sum(1)
        measures["idle share"] = facts.idle[rows] / np.maximum(lengths[rows] - 1, 1)
        measures["distance"] = _distances(column.mean[rows], unit)
    for name in {"path", "jerk"} & measures.keys():
        measures[name] = np.where(measures[name] < _NOISE, 0.0, measures[name])
    scores: dict[str, np.ndarray] = {}
    for name, values in measures.items():
        least_frames = 0 if name == "length" else _LEAST_FRAMES
        moving = lengths[rows] >= least_frames
        some = (values > 0) & moving
        if name in _LOGARITHMIC:
            floor = np.median(values[some]) / 100 if some.any() else 1.0
            values = np.log(np.maximum(values, floor))
        of = values[moving] if moving.any() else values
        middle = np.median(of)
        scatter = 1.4826 * max(float(np.median(np.abs(of - middle))), _LEAST_SCATTER[name])
        z = (values - middle) / scatter
        z[~moving] = 0.0
        scores[name] = np.maximum(z, 0) if name == "distance" else z
    total = np.stack([np.abs(z) for z in scores.values()]).max(axis=0)
    ranking: list[dict[str, Any]] = []
    for place in np.argsort(-total, kind="stable").tolist():
        if total[place] < 2 and len(ranking) >= RANKED:
            break
        z = {name: round(float(values[place]), 2) for name, values in scores.items()}
        measured = {name: float(values[place]) for name, values in measures.items()}
        usual = {name: float(np.median(values)) for name, values in measures.items()}
        worst = max(z, key=lambda name: abs(z[name]))
        ranking.append(
            {
                "episode": int(catalog.episodes.ids[rows[place]]),
                "score": round(float(total[place]), 2),
                "why": f"{worst} {measured[worst]:.4g}, median {usual[worst]:.4g}",
                "z": z,
                "measured": measured,
                "usual": usual,
            }
        )
    return ranking


def _jumping(column: Column, rows: np.ndarray) -> np.ndarray:
    """Find dimensions of rotations that jump without motion: bool (D,)."""
    jumping = wrapping(column, rows)
    for part in quaternions(column, rows):
        jumping[part] = True
    return jumping


def _distances(means: np.ndarray, unit: np.ndarray) -> np.ndarray:
    """Distance of each episode's mean (n, D) from the median episode, as a root mean square over
    the dimensions.
    """
    off = (means - np.median(means, axis=0)) / unit
    return np.asarray(
        np.sqrt((off**2).mean(axis=1))
        * np.sqrt(off.shape[1] / max(1, int(np.isfinite(unit).sum())))
    )
