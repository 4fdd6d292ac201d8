"""Contents of a dataset as plain values, and a report as text: contents first, then findings."""

from collections import Counter
from datetime import timedelta
from math import isfinite
from typing import Any

import numpy as np

from understudy_base import plural
from understudy_data import Catalog, VideoFile
from understudy_tools.check.findings import SEVERITIES, Report
from understudy_tools.check.image_facts import VideoFacts
from understudy_tools.check.row_facts import RowFacts
from understudy_tools.check.rules.episodes import MEASURES
from understudy_tools.motion import IDLE

MOST_VALUES = 8
"""Distinct values of metadata to list; of more numbers the range is, of more texts the most
frequent ones.
"""
MOST_TASKS = 20
"""Tasks to print."""


def describe_contents(
    catalog: Catalog,
    metadata: dict[str, dict[int, Any]],
    rows: RowFacts | None,
    videos: VideoFacts | None,
    names: dict[str, str],
) -> dict[str, Any]:
    """Describe a dataset as values that JSON holds.

    Args:
        catalog: the dataset, under its own keys.
        metadata: name -> episode id -> value.
        rows, videos: facts, as far as they were read.
        names: standard key -> key of the dataset.
    """
    lengths = catalog.episodes.lengths
    undeclared = rows.undeclared if rows is not None else {}
    ranges = _ranges(rows, names) if rows is not None else {}
    video_files = videos.files if videos else {}
    return {
        "robot": catalog.robot_type,
        "fps": catalog.fps,
        "duration": float(lengths.sum() / catalog.fps),
        "lengths": {
            "min": int(lengths.min()),
            "median": float(np.median(lengths)),
            "max": int(lengths.max()),
        },
        "tasks": _tasks(catalog),
        "features": {
            key: {"dtype": feature.dtype, "shape": list(feature.shape), "camera": feature.is_camera}
            for key, feature in catalog.features.items()
        },
        "metadata": {name: _metadata(values, len(lengths)) for name, values in metadata.items()},
        "undeclared": undeclared,
        "columns": ranges,
        "videos": {
            camera: _encoding(catalog, files, camera) for camera, files in video_files.items()
        },
    }


def _tasks(catalog: Catalog) -> list[dict[str, Any]]:
    counts: Counter[int] = Counter()
    for row in range(len(catalog.episodes)):
        counts.update(set(catalog.episodes.tasks_of(row).tolist()))
    return [{"task": text, "episodes": counts[task]} for task, text in enumerate(catalog.tasks)]


def _metadata(values: dict[int, Any], episodes: int) -> dict[str, Any]:
    """Return "missing" (episodes), "distinct", and "values" with their episodes, or "min" and
    "max".
    """
    present = [
        value for value in values.values() if not (isinstance(value, float) and not isfinite(value))
    ]
    counts = Counter(map(_countable, present))
    summary: dict[str, Any] = {"missing": episodes - len(present), "distinct": len(counts)}
    numbers = all(isinstance(value, (int, float)) for value in counts)
    if len(counts) > MOST_VALUES and numbers:
        return summary | {"min": min(counts), "max": max(counts)}
    shown = counts.most_common(MOST_VALUES)
    if numbers:
        shown.sort()
    return summary | {"values": [[value, count] for value, count in shown]}


def _countable(value: Any) -> bool | int | float | str:
    """Return a scalar or a text as it is, and the begin of the text of anything else."""
    if isinstance(value, (bool, int, float, str)):
        return value
    return str(value)[:80]


def _ranges(rows: RowFacts, names: dict[str, str]) -> dict[str, dict[str, list[Any]]]:
    """Return the least and the greatest finite value of each dimension, and the dimensions with one
    value.
    """
    ranges = {}
    for key, column in rows.columns.items():
        if rows.is_read.any():
            low = np.nanmin(column.low[rows.is_read], axis=0)
            high = np.nanmax(column.high[rows.is_read], axis=0)
            constant = np.flatnonzero(low == high).tolist()
            ranges[names.get(key, key)] = {
                "min": low.tolist(),
                "max": high.tolist(),
                "constant": constant,
            }
    return ranges


def _encoding(catalog: Catalog, files: list[VideoFile], camera: str) -> dict[str, Any]:
    """Return the most frequent encoding of a camera's files, and the sizes of those that were
    opened.
    """
    entry: dict[str, Any] = {
        "files": int((catalog.videos(camera).expected > 0).sum()),
        "files_read": len(files),
    }
    for name in ("codec", "pixels", "width", "height", "fps", "gop", "b_frames"):
        of_files = [getattr(file, name) for file in files]
        values = [value for value in of_files if value is not None]
        entry[name] = max(set(values), key=values.count) if values else None
    frames = sum(file.count for file in files)
    size = sum(file.bytes or 0 for file in files) or None
    bytes_per_frame = size / frames if size and frames else None
    return entry | {"frames": frames, "bytes": size, "bytes_per_frame": bytes_per_frame}


UNUSUAL = 3.0
"""Robust z from which an episode is shown as unusual."""


def format_report(report: Report, limit: int = 40) -> str:
    """Format a report: contents, findings with place and fix (at most `limit` of each severity),
    their counts, and the argument that leaves bad episodes out.
    """
    read = ", ".join(
        plural(count, name.replace("_", " ").removesuffix("s"))
        for name, count in report.read.items()
    )
    if "images" in report.read:  # the last
        cameras = sum(feature["camera"] for feature in report.contents["features"].values())
        read += f" of {report.frames * cameras:,}"
    lines = [report.root]
    if report.contents:
        lines += _format_contents(report)
    else:
        lines.append("  LeRobot format unknown")
    lines.append(f"read {read or 'metadata'}")
    for severity in SEVERITIES:
        findings = [finding for finding in report.findings if finding.severity == severity]
        for finding in findings[:limit]:
            place = str(finding.place)
            at_place = f": {place}" if place else ""
            lines.append(f"{severity} {finding.rule}{at_place}")
            lines.append(f"  {finding.message}")
            if finding.fix:
                lines.append(f"  fix: {finding.fix}")
        if len(findings) > limit:
            lines.append(f"and {len(findings) - limit} more of severity {severity}")
    if report.undecided:
        by_reason: dict[str, list[str]] = {}
        for rule in report.undecided:
            by_reason.setdefault(
                ": ".join(filter(None, (str(rule.place), rule.message))), []
            ).append(rule.rule)
        lines.append("too little data for")
        lines += [f"  {', '.join(rules)}: {reason}" for reason, rules in by_reason.items()]
    if unusual := [entry for entry in report.ranking if entry["score"] >= UNUSUAL][:5]:
        lines.append("most unusual episodes")
        lines += [f"  {entry['episode']}: {entry['why']}" for entry in unusual]
        used = [entry["why"].split()[0] for entry in unusual]
        lines += [
            f"  ({name}: {meaning})"
            for name, meaning in MEASURES.items()
            if name.split()[0] in used
        ]
    counts = report.counts
    result = "sound: " if not (counts["error"] or counts["warning"]) else ""
    if counts["error"]:
        result = plural(len(report.bad_episodes), "bad episode") + ": "
    numbers = ", ".join(plural(counts[name], name) for name in SEVERITIES)
    lines.append(f"{result}{numbers}, {report.seconds:.1f} s")
    if exclude := report.exclude:
        lines.append(f"leave them out: train {exclude['train']}, or edit {exclude['edit']}")
    return "\n".join(lines)


def _format_contents(report: Report) -> list[str]:
    contents = report.contents
    lengths = contents["lengths"]
    tasks = contents["tasks"]
    lines = [
        f"  LeRobot {report.version}, robot {contents['robot'] or 'not named'}, "
        f"{contents['fps']:g} frames per second",
        f"  {plural(report.episodes, 'episode')}, {plural(report.frames, 'frame')}, "
        f"{format_duration(contents['duration'])}",
        f"  episodes of {lengths['min']} to {lengths['max']} frames, median {lengths['median']:g}",
    ]
    if report.idle_share is not None:
        lines.append(f"  idle in {report.idle_share:.1%} of the frames: {IDLE}")
    lines.append("tasks")
    for task in tasks[:MOST_TASKS]:
        unit = "episode " if task["episodes"] == 1 else "episodes"
        lines.append(f"  {task['episodes']:>7,} {unit}  {task['task']}")
    if len(tasks) > MOST_TASKS:
        lines.append(f"  and {len(tasks) - MOST_TASKS} more")
    features = {key: _format_feature(entry) for key, entry in contents["features"].items()}
    lines += ["features", *_aligned(features)]
    if contents["undeclared"]:
        lines.append("columns that info.json does not declare; they are read only by name")
        lines += _aligned(contents["undeclared"])
    if contents["metadata"]:
        lines += ["metadata of episodes, for conditions (--where, data.where)"]
        lines += _aligned(
            {name: format_metadata(entry) for name, entry in contents["metadata"].items()}
        )
    for camera, entry in contents["videos"].items():
        lines += [f"video {camera}", f"  {format_encoding(entry)}"]
    if "keep_ranges" in contents:
        lines += ["keep-ranges", *(f"  {line}" for line in contents["keep_ranges"]["lines"])]
    return lines


def _format_feature(entry: dict[str, Any]) -> str:
    camera = ", a camera" if entry["camera"] else ""
    return f"{entry['dtype']} {tuple(entry['shape'])}{camera}"


def _aligned(rows: dict[str, str]) -> list[str]:
    width = max(map(len, rows), default=0)
    return [f"  {name:<{width}}  {text}" for name, text in rows.items()]


def format_metadata(entry: dict[str, Any]) -> str:
    """Format the values of one name of metadata."""
    if "min" in entry:
        parts = [f"{_format_value(entry['min'])} to {_format_value(entry['max'])}"]
    else:
        parts = [f"{_format_value(value)} ({count:,})" for value, count in entry["values"]]
        if entry["distinct"] > len(parts):
            parts.append(f"{entry['distinct'] - len(parts):,} others")
    if entry["missing"]:
        parts.append(f"missing in {entry['missing']:,}")
    return ", ".join(parts) or "no value"


def _format_value(value: Any) -> str:
    if isinstance(value, bool):
        return "true" if value else "false"
    if isinstance(value, str):
        shortened = value if len(value) <= 60 else value[:57] + "..."
        return f'"{shortened}"'
    return f"{value:,.6g}" if isinstance(value, float) else str(value)


def format_encoding(entry: dict[str, Any]) -> str:
    """Format the encoding of a camera's files."""
    if not entry["files_read"]:
        return f"{plural(entry['files'], 'file')}, none readable"
    pixels = " " + entry["pixels"] if entry["pixels"] else ""
    parts = [
        f"{entry['codec']} {entry['width']}×{entry['height']}{pixels}",
        f"{entry['fps']:g} fps",
        f"key frame every {entry['gop']} frames",
    ]
    if entry["b_frames"]:
        parts.append("with B-frames")
    elif entry["b_frames"] is not None:
        parts.append("no B-frames")
    files = (
        f"{entry['files_read']} of {plural(entry['files'], 'file')} read, "
        f"{plural(entry['frames'], 'frame')}"
    )
    if entry["bytes"]:
        parts.append(f"{entry['bytes_per_frame']:,.0f} bytes per frame")
        files += f", {entry['bytes'] / 1e6:,.1f} MB"
    return f"{', '.join(parts)}; {files}"


def format_duration(seconds: float) -> str:
    """Format seconds as h:mm:ss."""
    return str(timedelta(seconds=round(seconds)))
