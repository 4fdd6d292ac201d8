"""Rules of sensors at their own rates: their files, clocks and values."""

from collections.abc import Sequence
from typing import Annotated

import numpy as np

from understudy_base import plural
from understudy_data import Catalog
from understudy_tools.check.findings import (
    LOOK,
    Finding,
    Findings,
    Place,
    Severity,
    correct,
    restore,
)
from understudy_tools.check.sensor_facts import SensorFacts
from understudy_tools.check.threshold import Threshold

_SORT = "sort the samples of the episode by time, and take out those of equal time"
_REGULAR: Annotated[
    float,
    Threshold(
        "99th percentile of the steps, in their median, up to which a clock is regular",
        fault="sensor_pauses",
    ),
] = 1.5
_GAP: Annotated[
    float, Threshold("step of a regular clock, in its median", fault="sensor_pauses")
] = 2.5
_RARE_GAP: Annotated[
    float,
    Threshold(
        "step of another clock, in the 90th percentile; 23 means of random ones",
        fault="random_sensor_pauses",
    ),
] = 10.0
_MOVES: Annotated[
    float,
    Threshold(
        "share of still steps below which a dimension moves by itself", fault="sensor_sticks"
    ),
] = 0.5
_FEW = 10  # samples


def check_sensors(catalog: Catalog, sensors: Sequence[SensorFacts]) -> Findings:
    """Yield findings about all sensors."""
    for facts in sensors:
        yield from _check_files(catalog, facts)
        yield from _check_clock(catalog, facts)
        yield from _check_values(catalog, facts)


def _about(
    catalog: Catalog,
    facts: SensorFacts,
    rule: str,
    severity: Severity,
    rows: Sequence[int],
    message: str,
    fix: str,
) -> Finding:
    place = Place.from_rows(catalog, rows, facts.key, file=facts.file_of(rows[0]))
    return Finding(rule, severity, message, place, fix=fix)


def _check_files(catalog: Catalog, facts: SensorFacts) -> Findings:
    one_file = len(facts.files) == 1
    for row, path in enumerate(facts.files):
        if path in facts.broken:
            rows = [] if one_file else [row]
            place = Place.from_rows(catalog, rows, facts.key, file=path)
            fix = f"{restore(path).partition(',')[0]}, or take the sensor out of {Catalog.SENSORS}"
            yield Finding(
                "sensors.file", "error", f"the sensor file {facts.broken[path]}", place, fix=fix
            )
    if facts.unknown:
        ids = sorted(facts.unknown)
        message = (
            f"samples of {plural(len(ids), 'episode')} that the dataset does not have there, "
            f"first {ids[0]}"
        )
        file = facts.files[0] if one_file else ""
        place = Place(column=facts.key, file=file)
        yield Finding(
            "sensors.episode", "error", message, place, fix="take them out, or restore the episodes"
        )
    with_frames = np.flatnonzero(catalog.episodes.lengths > 0).tolist()
    none = [
        row
        for row in with_frames
        if row not in facts.episodes and facts.file_of(row) not in facts.broken
    ]
    if none:
        message = (
            f"{plural(len(none), 'episode has', 'episodes have')} no sample: all values are "
            "padding there"
        )
        yield _about(
            catalog,
            facts,
            "sensors.episode",
            "warning",
            none,
            message,
            "restore the samples, or " + LOOK,
        )


def _check_clock(catalog: Catalog, facts: SensorFacts) -> Findings:
    falls = facts.rows_where(lambda samples: (samples.steps <= 0).any())
    if falls:
        worst = min(float(facts.episodes[row].steps.min()) for row in falls)
        message = f"the clock of the sensor does not rise: its least step is {worst:.4g} s"
        yield _about(catalog, facts, "sensors.order", "error", falls, message, _SORT)
    limit = _longest_step(facts)
    if limit is None:
        return
    gaps = facts.rows_where(lambda samples: (samples.steps > limit).any())
    if gaps:
        worst = max(float(facts.episodes[row].steps.max()) for row in gaps)
        message = (
            f"the clock of the sensor has gaps of up to {worst:.4g} s, where up to "
            f"{limit:.4g} s are usual"
        )
        yield _about(catalog, facts, "sensors.gap", "warning", gaps, message, LOOK)
    frame = 1 / float(catalog.fps)
    edge = max(limit, frame)
    late = {}
    short = {}
    for row, samples in facts.episodes.items():
        times = samples.times[np.isfinite(samples.times)]
        if not len(times):
            continue
        first = float(times.min())
        last = float(times.max())
        end = (int(catalog.episodes.lengths[row]) - 1) * frame
        if first > edge:
            late[row] = first
        if end - last > edge:
            short[row] = end - last
    for distances, words in (
        (late, "begin up to {:.4g} s after the episode"),
        (short, "end up to {:.4g} s before it"),
    ):
        if distances:
            message = (
                "samples "
                + words.format(max(distances.values()))
                + ": values are padding or old there"
            )
            fix = f"restore the samples, correct their times, or {LOOK}"
            yield _about(catalog, facts, "sensors.extent", "warning", list(distances), message, fix)


def _longest_step(facts: SensorFacts) -> float | None:
    """Longest step in seconds that is not a gap; None where there are too few to know."""
    steps = np.concatenate(
        [np.zeros(0), *(samples.steps[samples.steps > 0] for samples in facts.episodes.values())]
    )
    if len(steps) < _FEW:
        return None
    middle, many, most = np.quantile(steps, [0.5, 0.9, 0.99]).tolist()
    if most <= _REGULAR * middle:
        return float(_GAP * middle)
    return float(_RARE_GAP * many)


def _check_values(catalog: Catalog, facts: SensorFacts) -> Findings:
    bad = facts.rows_where(lambda samples: samples.bad is not None)
    if bad:
        first = facts.episodes[bad[0]].bad
        message = f"times or values are not finite, first that of sample {first}"
        yield _about(
            catalog,
            facts,
            "sensors.finite",
            "error",
            bad,
            message,
            f"record the sensor again, or {LOOK}",
        )
    rows = facts.rows_where(lambda samples: len(samples.times) >= _FEW)
    if not rows:
        return
    still = np.stack([facts.episodes[row].still for row in rows])  # (episodes, D)
    if (still == 1).all():
        message = "no value of the sensor ever changes"
        fix = correct(f"the sensor {facts.key!r}, or take it out", Catalog.SENSORS)
        yield _about(catalog, facts, "sensors.constant", "warning", rows, message, fix)
        return
    names = catalog.sensors[facts.key].feature.dimension_names
    for number in range(still.shape[1]):
        share = still[:, number]
        stuck = share == 1
        if (
            stuck.any()
            and not stuck.all()
            and (share[~stuck] < _MOVES).mean() > 0.5
            and stuck.mean() < 0.5
        ):
            stuck_rows = [row for row, is_stuck in zip(rows, stuck) if is_stuck]
            message = (
                "a dimension of the sensor keeps one value, and changes in most steps of "
                "other episodes"
            )
            name = names[number] if number < len(names) else str(number)
            place = Place.from_rows(
                catalog, stuck_rows, facts.key, name, file=facts.file_of(stuck_rows[0])
            )
            yield Finding("sensors.constant", "warning", message, place, fix=LOOK)
