"""Requirements of statistics: `factory(root)` returns feature -> {"min", "max", "mean", "std"} and
more.

They may be computed or recorded ones.
"""

from collections.abc import Mapping
from functools import cache
from typing import Any

import numpy as np

from understudy_conformance.requirement import Factory, NotApplicable, Violation, require
from understudy_conformance.samples import to_array
from understudy_conformance.sets import FEATURES, DemoSet, paint, root_of, values

IMAGE_TOLERANCE = 0.02
"""Largest error of the mean and std of a camera, of 1: lossy coding, and frames that are left out.
"""
RELATIVE = 1e-6
"""Largest relative error of a float32 feature."""


def read_statistics(factory: Factory) -> tuple[Mapping[str, Any], DemoSet]:
    """Return the statistics of the first set that the factory opens."""
    demo = factory.base(lambda statistics: dict(statistics))
    return factory(root=root_of(demo)), demo


@cache
def true_rows(demo: DemoSet, key: str) -> Any:
    """Return float64 rows of a feature, or (n, 3) pixels of a camera in 0..1."""
    if key in FEATURES:
        return np.array([values(*place)[key] for place in demo.frames], np.float64)
    camera = demo.cameras.index(key)
    return np.array([paint(camera, *place) for place in demo.frames]).reshape(-1, 3) / 255


def compare(factory: Factory, keys: list[str], names: tuple[str, ...], relative: float) -> str:
    """Compare statistics of features with those of their rows in float64."""
    statistics, demo = read_statistics(factory)
    faults = []
    count = 0
    for key in keys:
        if key not in statistics:
            continue
        rows = true_rows(demo, key)
        for name in names:
            truth = getattr(rows, name)(0)
            actual = to_array(statistics[key][name]).astype(np.float64).reshape(-1)
            count += 1
            if actual.shape != truth.shape or not np.allclose(
                actual, truth, rtol=relative, atol=relative
            ):
                faults.append(f"{name} of {key} is {actual.tolist()}, not {truth.tolist()}")
    if faults:
        raise Violation("; ".join(faults[:3]))
    if not count:
        raise NotApplicable(f"no statistics of {', '.join(keys)}")
    return f"{count} values"


@require(
    "R-STAT-01",
    "Means and standard deviations are those of the rows to 1e-6, also of small motion around a "
    "large mean.",
    "The difference of two large squares erases the standard deviation; the normalized values "
    "explode.",
    "LeRobot #4704",
)
def check_moments(factory: Factory) -> str:
    """Compare float32 features; one dimension varies by 1 around 10,000."""
    return compare(
        factory, ["observation.state", "action", "observation.gripper"], ("mean", "std"), RELATIVE
    )


@require(
    "R-STAT-02",
    "Minima and maxima are those of the rows.",
    "Quantized actions are clipped to them.",
)
def check_ranges(factory: Factory) -> str:
    """Compare float32 features."""
    return compare(
        factory, ["observation.state", "action", "observation.gripper"], ("min", "max"), 0
    )


@require(
    "R-STAT-03",
    "Statistics of a float64 feature are those of its rows.",
    "In float32, seconds since 1970 are 128 seconds apart.",
    "LeRobot #4846",
)
def check_double(factory: Factory) -> str:
    """Compare seconds since 1970."""
    statistics, demo = read_statistics(factory)
    key = "observation.clock"
    if key not in statistics:
        raise NotApplicable(f"no statistics of {key}")
    rows = true_rows(demo, key)
    truth = {"min": rows.min(), "max": rows.max(), "mean": rows.mean()}
    actual = {name: float(to_array(statistics[key][name]).reshape(-1)[0]) for name in truth}
    wrong = [
        f"{name} is {actual[name]!r}, not {truth[name]!r}"
        for name in truth
        if abs(actual[name] - truth[name]) > 1e-3
    ]
    if wrong:
        raise Violation("; ".join(wrong))
    return f"{len(truth)} values to 1 ms"


@require(
    "R-STAT-04",
    "A feature of one dimension keeps it: its statistics have the shape [1].",
    "A lost dimension broadcasts over the batch.",
    "LeRobot #4846",
)
def check_shape(factory: Factory) -> str:
    """Look at the gripper."""
    statistics, _ = read_statistics(factory)
    key = "observation.gripper"
    if key not in statistics:
        raise NotApplicable(f"no statistics of {key}")
    shapes = {name: to_array(statistics[key][name]).shape for name in ("min", "max", "mean", "std")}
    wrong = {name: list(shape) for name, shape in shapes.items() if shape != (1,)}
    if wrong:
        raise Violation(f"shapes {wrong}, not [1]")
    return "shape [1]"


@require(
    "R-STAT-05",
    "Means and standard deviations of a camera are those of its pixels in 0 to 1, within 0.02.",
    "Squares of uint8 overflow; the standard deviation becomes 0.006, or 0.",
    "LeRobot #3682",
)
def check_images(factory: Factory) -> str:
    """Compare channels."""
    demo = factory.base(lambda statistics: dict(statistics))
    return compare(factory, list(demo.cameras), ("mean", "std"), IMAGE_TOLERANCE)


@require(
    "R-STAT-06",
    "Quantiles `qNN` lie between the rows next to theirs.",
    "Quantiles that are averaged over episodes, or interpolated in wide bins, are of no row.",
    "LeRobot #3801",
)
def check_quantiles(factory: Factory) -> str:
    """Compare the quantiles that the statistics have, with a tolerance of 2 % of the range."""
    statistics, demo = read_statistics(factory)
    count = 0
    faults = []
    for key in ("observation.state", "action"):
        if key not in statistics:
            continue
        rows = true_rows(demo, key)
        span = 0.02 * (rows.max(0) - rows.min(0))
        for name in statistics[key]:
            if not (name[:1] == "q" and name[1:].isdigit()):
                continue
            share = int(name[1:]) / 100
            count = count + 1
            low = np.quantile(rows, share, axis=0, method="lower") - span
            high = np.quantile(rows, share, axis=0, method="higher") + span
            actual = to_array(statistics[key][name]).astype(np.float64).reshape(-1)
            if actual.shape != low.shape or ((actual < low) | (actual > high)).any():
                faults.append(
                    f"{name} of {key} is {actual.tolist()}, not in {low.tolist()} to "
                    f"{high.tolist()}"
                )
    if faults:
        raise Violation("; ".join(faults[:2]))
    if not count:
        raise NotApplicable("no quantiles")
    return f"{count} quantiles"
