"""Rules of the data files and the places of episodes in them."""

from typing import Annotated

import numpy as np

from understudy_base import DatasetError, plural
from understudy_data import Catalog, FileCheck
from understudy_tools.check.findings import (
    EDIT,
    REWRITE,
    Finding,
    Findings,
    Place,
    Severity,
    correct,
    drop,
    list_ids,
    restore,
)
from understudy_tools.check.image_facts import VideoFacts
from understudy_tools.check.row_facts import RowFacts
from understudy_tools.check.rules.pairing import claimed_ids
from understudy_tools.check.threshold import Threshold


def check_files(catalog: Catalog) -> Findings:
    """Yield findings about missing and orphan files, from folder listings."""
    try:
        gaps = catalog.missing_files()
    except DatasetError as error:
        yield Finding(
            "files.missing", "error", error.what, Place(file=str(error.where)), fix=error.fix
        )
        return
    for gap in gaps or []:
        camera = "" if gap.kind == "data" else gap.kind
        place = Place.from_rows(catalog, gap.rows, camera=camera)
        yield Finding(
            "files.missing", "error", gap.line, place, len(gap.rows), 0, restore("the files")
        )
    if gaps is not None:
        yield from _orphans(catalog)


def _orphans(catalog: Catalog) -> Findings:
    """Files with the suffix of data or videos in the folders of the tables that no episode
    names.
    """
    files = FileCheck(catalog)
    for camera, paths in files.unlisted().items():
        message = (
            f"{plural(len(paths), 'file is', 'files are')} named by no episode, first {paths[0]}"
        )
        described = "" if camera else files.describe_unlisted(paths)
        if described:
            message += f": {described}"
        fix = f"remove the file, or restore meta/; {EDIT} copies named files only"
        if "cut" in described:
            fix = (
                "a recorder ended before it wrote meta/: continue with it if it can, else its "
                "rows are lost; "
            )
            fix += f"{EDIT} copies the listed episodes"
        yield Finding(
            "files.orphan",
            "warning",
            message,
            Place(camera=camera, file=paths[0]),
            len(paths),
            0,
            fix,
        )


def check_rows(catalog: Catalog, facts: RowFacts, videos: VideoFacts | None = None) -> Findings:
    """Yield findings about rows that disagree with the episode table; `videos` tell which of them
    is wrong.
    """
    yield from _unreadable(catalog, facts)
    lengths = catalog.episodes.lengths
    has_rows = facts.is_known(facts.found) & (lengths > 0)
    # the cause is in `_unreadable`
    has_rows[[row for key, row in facts.absent if key == "episode_index"]] = False
    short = np.flatnonzero(
        has_rows & (facts.found != lengths) & ~facts.is_split & ~facts.is_doubtful
    )
    by_rows = _confirmed_lengths(catalog, videos) if len(short) else lengths
    agree = (by_rows != lengths) & (by_rows == facts.found)
    for row in short[:20].tolist():
        count = int(facts.found[row])
        length = int(lengths[row])
        message = (
            f"meta/ gives {plural(length, 'frame')}, the file has {plural(count, 'row')} of "
            "the episode"
        )
        place = Place.from_rows(catalog, [row], file=catalog.data_path(row))
        score = float(abs(count - length))
        fix = drop(place.episodes)
        if agree[row]:
            if catalog.episodes.videos:
                message += f", its videos {count}, too"
            else:
                message += " and they are whole"
            message += ": only meta/ is wrong"
            fix = _TAKE_LENGTHS
        yield Finding("rows.count", "error", message, place, count, length, fix, score)
    if len(short) > 20:
        place = Place.from_rows(catalog, short[20:])
        message = f"the same for {plural(len(place.episodes), 'more episode')}"
        fix = drop(place.episodes)
        if agree[short].all():
            message += "; rows and videos agree: only meta/ is wrong"
            fix = _TAKE_LENGTHS
        yield Finding("rows.count", "error", message, place, fix=fix)
    yield from _about(
        catalog, facts.is_split, "rows.split", "error", "the rows are not contiguous in the file"
    )
    if facts.orphans:
        rows = sum(facts.orphans.values())
        episodes = sorted(facts.orphans)
        message = (
            f"{plural(rows, 'row')} ({rows / max(1, facts.rows):.1%}) of "
            f"{plural(len(episodes), 'episode')} that "
        )
        message += f"meta/ does not list there: {list_ids(episodes)}"
        fix = f"{EDIT} (copies listed rows only), or restore the episodes in meta/episodes"
        listed = np.flatnonzero(np.isin(catalog.episodes.ids, episodes))
        if len(listed) and catalog.version.startswith("v3"):
            named = np.unique(
                catalog.episodes.data.number[catalog.episodes.data_file[listed]]
            ).tolist()
            message += (
                f"; meta/ lists {list_ids(catalog.episodes.ids[listed].tolist())} in file "
                f"{list_ids(named)}"
            )
            message += f", the rows are in {facts.orphan_file}: file numbers are off"
            fix = (
                "correct data/file_index in meta/episodes, or give the data files their names back"
            )
        yield Finding(
            "rows.orphan", "warning", message, Place(file=facts.orphan_file), rows, 0, fix
        )
    yield from _frame_index(catalog, facts)
    yield from _index(catalog, facts)


_TAKE_LENGTHS = f"{EDIT} --lengths rows"


def _confirmed_lengths(catalog: Catalog, videos: VideoFacts | None) -> np.ndarray:
    """Return the lengths, int64 (N,), that `edit --lengths rows` takes; those of meta/ if videos
    are unread.
    """
    is_read = videos is not None or not catalog.episodes.videos
    counted = FileCheck(catalog).counted() if is_read else catalog
    return counted.episodes.lengths


def _about(
    catalog: Catalog, is_odd: np.ndarray, rule: str, severity: Severity, message: str
) -> Findings:
    rows = np.flatnonzero(is_odd)
    if len(rows):
        place = Place.from_rows(catalog, rows, file=catalog.data_path(int(rows[0])))
        yield Finding(rule, severity, message, place, len(rows), 0, drop(place.episodes))


def _unreadable(catalog: Catalog, facts: RowFacts) -> Findings:
    table = catalog.episodes
    for file, column, error in facts.unreadable:
        rows = np.flatnonzero((table.data_file == file) & (table.lengths > 0))
        place = Place.from_rows(catalog, rows, column, file=catalog.data_path(int(rows[0])))
        yield Finding(
            "files.unreadable", "error", error.what, place, fix=restore(place.file, error.fix)
        )
    for key in dict.fromkeys(key for key, _ in facts.absent):
        rows = np.array(sorted(row for other, row in facts.absent if other == key))
        count = sum(facts.absent[key, row] for row in rows.tolist())
        place = Place.from_rows(catalog, rows, key, file=catalog.data_path(int(rows[0])))
        message = f"null or NaN in {plural(count, 'row')}, where a whole number is declared"
        yield Finding("files.unreadable", "error", message, place, count, 0, drop(place.episodes))
    for key, files in facts.lacking.items():
        rows = np.flatnonzero(np.isin(table.data_file, files) & (table.lengths > 0))
        message = f"the column is declared in info.json and absent in {plural(len(files), 'file')}"
        place = Place.from_rows(catalog, rows, key, file=catalog.data_path(int(rows[0])))
        fix = f"restore the files, or remove the feature {key!r} from meta/info.json"
        yield Finding("files.columns", "error", message, place, len(files), 0, fix)
    if len(facts.schemas) > 1 and not facts.lacking:
        # the usual schema first
        by_files = sorted(facts.schemas.items(), key=lambda item: -len(item[1]))
        usual, *kinds = (dict(schema) for schema, _ in by_files)
        odd = by_files[-1][1][0]
        differing_keys = set[str]()
        for kind in kinds:
            differing_keys.update(key for key in {*usual, *kind} if usual.get(key) != kind.get(key))
        differing = sorted(differing_keys)
        is_declared = any(key in catalog.features for key in differing)
        severity: Severity = "warning" if is_declared else "note"
        place = Place(
            column=differing[0],
            file=catalog.data_path(int(np.flatnonzero(table.data_file == odd)[0])),
        )
        message = f"files differ in the types of {', '.join(differing[:8])}"
        fix = f"{EDIT} (writes one schema); this reader converts to the declared dtype"
        yield Finding("files.columns", severity, message, place, len(facts.schemas), 1, fix)
    extra = {
        key: kind for key, kind in facts.undeclared.items() if not key.startswith("__index_level")
    }
    if extra:
        listed = ", ".join(f"{key} ({kind})" for key, kind in list(extra.items())[:8])
        message = f"info.json does not declare {listed}"
        yield Finding(
            "files.columns", "note", message, measured=sorted(extra), fix=correct("features")
        )


def _frame_index(catalog: Catalog, facts: RowFacts) -> Findings:
    falls = facts.is_read & ~facts.frames_rise
    yield from _about(
        catalog,
        falls,
        "rows.frame_index",
        "error",
        "frame_index does not rise: rows are out of order",
    )
    gaps = facts.is_read & facts.frames_rise & ~facts.frames_count
    message = "frame_index does not count 0, 1, 2, ...: rows were removed"
    yield from _about(catalog, gaps, "rows.frame_index", "warning", message)


def _index(catalog: Catalog, facts: RowFacts) -> Findings:
    """`index` counts all frames. A subset of a dataset keeps the numbers of the whole, shifted by
    episode.
    """
    table = catalog.episodes
    has_index = facts.is_read & facts.is_known(facts.first_index)
    jumps = has_index & ~facts.index_counts
    yield from _about(
        catalog, jumps, "rows.index", "warning", "index does not rise by 1 within the episode"
    )
    # others: `rows.episode`
    has_index &= ~facts.is_doubtful & (claimed_ids(catalog, facts) == table.ids)
    off = np.flatnonzero(has_index & facts.index_counts & (facts.first_index != table.index_from))
    if not len(off):
        return
    measured = int(facts.first_index[off[0]])
    expected = int(table.index_from[off[0]])
    listed = catalog.version.startswith("v3")
    is_error = listed and (facts.position[off] != table.index_from[off]).any()
    severity: Severity = "error" if is_error else "warning"
    source = "dataset_from_index" if listed else "the frames before it number"
    message = f"index of the first row is {measured}, {source} {expected}"
    place = Place.from_rows(catalog, off, "index")
    yield Finding("rows.index", severity, message, place, measured, expected, REWRITE)


TOLERANCE: Annotated[
    float,
    Threshold(
        "seconds by which LeRobot lets a timestamp differ from a multiple of 1/fps",
        fault="timestamps_of_a_hardware_clock",
    ),
] = 1e-4
_RATE: Annotated[
    float, Threshold("share by which the median step may differ from 1/fps", fault="wrong_fps")
] = 0.03
_UNLIKE: Annotated[
    float,
    Threshold(
        "logarithm of the ratio of two rates, from which they are two findings",
        fault="timestamps_in_milliseconds_beside_another_rate",
    ),
] = 0.26
_GROSS: Annotated[
    float,
    Threshold(
        "times the median size, from which an episode has a finding of its own",
        fault="timestamps_start_later_than_others",
    ),
] = 5.0
_UNITS = {"milliseconds": 1e3, "microseconds": 1e6, "nanoseconds": 1e9}
_CLOCK_FIX = f"frames are paired by number here; for LeRobot: {REWRITE}"


def split_gross(rows: np.ndarray, size: np.ndarray) -> list[np.ndarray]:
    """Split rows into those of gross size and the others, so that a fault of all episodes hides
    none of a few.

    Args:
        rows: int64 (n,), table rows.
        size: float64 (N,), size of the fault in each row of the table.
    """
    if not len(rows):
        return []
    is_gross = size[rows] > _GROSS * np.median(size[rows])
    return [part for part in (rows[is_gross], rows[~is_gross]) if len(part)]


def _rate_fix(catalog: Catalog, rate: float) -> str:
    """Return the remedy for timestamps that advance at another rate than info.json declares: the
    videos decide.
    """
    videos = [
        float(catalog.features[camera].info.get("video.fps") or 0)
        for camera in catalog.episodes.videos
    ]
    others = [fps for fps in videos if fps and abs(fps / rate - 1) >= _RATE]
    if others:
        return (
            f"the videos play at {others[0]:g} frames per second, not at {rate:.4g}: {_CLOCK_FIX}"
        )
    if all(videos):
        true_rate = videos[0] if videos else rate
        return correct(f"fps: {true_rate:.4g}", Catalog.INFO)
    remedy = correct("fps", Catalog.INFO)
    return f"if the videos play at {rate:.4g} frames per second, {remedy}; if not, {_CLOCK_FIX}"


def check_clocks(catalog: Catalog, facts: RowFacts) -> Findings:
    """Yield findings about timestamps, from their least, median and largest steps per episode."""
    first, least, middle, most, off = facts.time.T
    fps = float(catalog.fps)
    has_times = np.isfinite(middle)
    rounding = 1.2e-7 * (np.abs(first) + catalog.episodes.lengths / fps)  # of float32, at both ends
    several = has_times & (catalog.episodes.lengths > 1)

    def about(
        rule: str,
        severity: Severity,
        rows: np.ndarray,
        message: str,
        measured: float,
        expected: float,
        fix: str = _CLOCK_FIX,
    ) -> Finding:
        row = int(rows[0])
        frame = int(facts.late_frame[row]) if rule == "clock.gap" else None
        place = Place.from_rows(
            catalog, rows, "timestamp", file=catalog.data_path(row), frame=frame
        )
        return Finding(rule, severity, message, place, measured, expected, fix)

    # of episodes with timestamps
    bad = np.flatnonzero((facts.late_frame > 0) & ~np.isfinite(middle))
    falls = np.flatnonzero(several & (least <= 0))
    if len(falls):
        message = f"timestamps do not rise: the least step is {least[falls].min():.4g} s"
        yield about("clock.order", "error", falls, message, float(least[falls].min()), 1 / fps)
    several &= least > 0
    rate = np.divide(1, middle, out=np.full(len(middle), np.nan), where=middle > 0)
    wrong = np.flatnonzero(
        several & (catalog.episodes.lengths > 3) & (np.abs(middle * fps - 1) > _RATE)
    )
    wrong = wrong[np.argsort(rate[wrong], kind="stable")]
    groups: list[np.ndarray] = []
    if len(wrong):
        groups = np.split(wrong, np.flatnonzero(np.diff(np.log(rate[wrong])) > _UNLIKE) + 1)
    for alike in groups:
        clock_rate = float(np.median(rate[alike]))
        message = (
            f"timestamps advance at {clock_rate:.4g} frames per second, info.json declares {fps:g}"
        )
        unit = next(
            (name for name, factor in _UNITS.items() if abs(clock_rate * factor / fps - 1) < 0.1),
            "",
        )
        fix = _rate_fix(catalog, clock_rate) if len(alike) > 0.5 * several.sum() else _CLOCK_FIX
        yield about(
            "clock.fps",
            "error",
            np.sort(alike),
            message + f": in {unit}?" * bool(unit),
            clock_rate,
            fps,
            fix,
        )
    fine = several & ~np.isin(np.arange(len(first)), wrong)
    for late in split_gross(np.flatnonzero(fine & (most * fps > 1.5)), most):
        worst = float(most[late].max())
        message = (
            f"timestamps jump by up to {worst:.4g} s, {worst * fps:.3g} frames: frames are absent"
        )
        yield about("clock.gap", "warning", late, message, worst, 1 / fps)
    for jitter in split_gross(
        np.flatnonzero(fine & (most * fps <= 1.5) & (off > np.maximum(TOLERANCE, rounding))), off
    ):
        message = (
            f"timestamps are up to {off[jitter].max():.3g} s off frame / fps; LeRobot allows "
            f"{TOLERANCE:g} s"
        )
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
