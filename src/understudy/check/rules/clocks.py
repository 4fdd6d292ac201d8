"""Rules of timestamps."""

from collections.abc import Iterator

import numpy as np

from understudy.check.findings import Finding, Place, Severity
from understudy.check.remedies import REWRITE, correct
from understudy.check.row_facts import RowFacts
from understudy.data.format.catalog import INFO, Catalog

TOLERANCE = 1e-4
"""Seconds by which LeRobot lets a timestamp differ from a multiple of 1/fps."""
_RATE = 0.03  # share by which the median step may differ from 1/fps
_UNLIKE = 0.26  # logarithm of the ratio of two rates from which they are two findings
_GROSS = 5.0  # times the median size from which an episode has a finding of its own
_UNITS = {"milliseconds": 1e3, "microseconds": 1e6, "nanoseconds": 1e9}
_FIX = f"frames are paired by number here; for LeRobot: {REWRITE}"


def split_gross(rows: np.ndarray, size: np.ndarray) -> list[np.ndarray]:
    """Split rows into those of gross size and the others, so that a fault of all episodes hides none of a few.

    Args:
        rows: int64 (n,), table rows.
        size: float64 (N,), size of the fault in each row of the table.
    """
    if not len(rows):
        return []
    is_gross = size[rows] > _GROSS * np.median(size[rows])
    return [part for part in (rows[is_gross], rows[~is_gross]) if len(part)]


def _rate_fix(catalog: Catalog, rate: float) -> str:
    """Return the remedy for timestamps that advance at another rate than info.json declares: the videos decide."""
    videos = [float(catalog.features[camera].info.get("video.fps") or 0) for camera in catalog.episodes.videos]
    others = [fps for fps in videos if fps and abs(fps / rate - 1) >= _RATE]
    if others:
        return f"the videos play at {others[0]:g} frames per second, not at {rate:.4g}: {_FIX}"
    if all(videos):
        return correct(f"fps: {videos[0] if videos else rate:.4g}", INFO)
    return f"if the videos play at {rate:.4g} frames per second, {correct('fps', INFO)}; if not, {_FIX}"


def check_clocks(catalog: Catalog, facts: RowFacts) -> Iterator[Finding]:
    """Yield findings about timestamps, from their least, median and largest steps per episode."""
    first, least, middle, most, off = facts.time.T
    fps, ids = float(catalog.fps), catalog.episodes.ids
    has_times = np.isfinite(middle)
    rounding = 1.2e-7 * (np.abs(first) + catalog.episodes.lengths / fps)  # of float32, at both ends
    several = has_times & (catalog.episodes.lengths > 1)

    def about(
        rule: str, severity: Severity, rows: np.ndarray, message: str, measured: float, expected: float, fix: str = _FIX
    ) -> Finding:
        row = int(rows[0])
        frame = int(facts.late_frame[row]) if rule == "clock.gap" else None
        place = Place(tuple(ids[rows].tolist()), "timestamp", file=catalog.data_path(row), frame=frame)
        return Finding(rule, severity, message, place, measured, expected, fix)

    bad = np.flatnonzero((facts.late_frame > 0) & ~np.isfinite(middle))  # of episodes with timestamps
    falls = np.flatnonzero(several & (least <= 0))
    if len(falls):
        message = f"timestamps do not rise: the least step is {least[falls].min():.4g} s"
        yield about("clock.order", "error", falls, message, float(least[falls].min()), 1 / fps)
    several &= least > 0
    rate = np.divide(1, middle, out=np.full(len(middle), np.nan), where=middle > 0)
    wrong = np.flatnonzero(several & (catalog.episodes.lengths > 3) & (np.abs(middle * fps - 1) > _RATE))
    wrong = wrong[np.argsort(rate[wrong], kind="stable")]
    for alike in np.split(wrong, np.flatnonzero(np.diff(np.log(rate[wrong])) > _UNLIKE) + 1) if len(wrong) else ():
        clock_rate = float(np.median(rate[alike]))
        message = f"timestamps advance at {clock_rate:.4g} frames per second, info.json declares {fps:g}"
        unit = next((name for name, factor in _UNITS.items() if abs(clock_rate * factor / fps - 1) < 0.1), "")
        fix = _rate_fix(catalog, clock_rate) if len(alike) > 0.5 * several.sum() else _FIX
        yield about("clock.fps", "error", np.sort(alike), message + f": in {unit}?" * bool(unit), clock_rate, fps, fix)
    fine = several & ~np.isin(np.arange(len(first)), wrong)
    for late in split_gross(np.flatnonzero(fine & (most * fps > 1.5)), most):
        worst = float(most[late].max())
        message = f"timestamps jump by up to {worst:.4g} s, {worst * fps:.3g} frames: frames are absent"
        yield about("clock.gap", "warning", late, message, worst, 1 / fps)
    for jitter in split_gross(
        np.flatnonzero(fine & (most * fps <= 1.5) & (off > np.maximum(TOLERANCE, rounding))), off
    ):
        message = f"timestamps are up to {off[jitter].max():.3g} s off frame / fps; LeRobot allows {TOLERANCE:g} s"
        yield about("clock.jitter", "warning", jitter, message, float(off[jitter].max()), TOLERANCE)
    starts = np.flatnonzero(has_times & (np.abs(first) > np.maximum(0.5 / fps, TOLERANCE)))
    everywhere = len(starts) == has_times.sum()
    for late_start in split_gross(starts, np.abs(first)):
        worst = float(first[late_start][np.abs(first[late_start]).argmax()])
        message = f"timestamps start at up to {worst:.4g} s instead of 0"
        severity: Severity = "note" if everywhere and abs(worst) * fps < 1.5 else "warning"
        yield about("clock.start", severity, late_start, message, worst, 0.0)
    if len(bad):
        yield about("clock.order", "error", bad, "timestamps are not finite", float("nan"), 1 / fps)
