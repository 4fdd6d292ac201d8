"""Facts about a dataset as text."""

from datetime import timedelta
from typing import Any

from understudy.data.selection.motion import IDLE
from understudy.plural import plural
from understudy.report.dataset.episode_metadata import format_metadata


def format_facts(facts: dict[str, Any]) -> str:
    """Format the facts for a terminal."""
    lengths, rows = facts["lengths"], facts["rows"]
    lines = [
        facts["root"],
        f"  LeRobot {facts['format']}, robot {facts['robot'] or 'not named'}, {facts['fps']:g} frames per second",
        f"  {plural(facts['episodes'], 'episode')}, {plural(facts['frames'], 'frame')}, {duration(facts['seconds'])}",
        f"  episodes of {lengths['min']} to {lengths['max']} frames, median {lengths['median']:g}",
        "tasks",
        *[
            f"  {task['episodes']:>7,} {'episode ' if task['episodes'] == 1 else 'episodes'}  {task['task']}"
            for task in facts["tasks"][:20]
        ],
    ]
    if len(facts["tasks"]) > 20:
        lines.append(f"  and {len(facts['tasks']) - 20} more")
    lines.append("features")
    width = max(map(len, facts["features"]))
    for key, f in facts["features"].items():
        lines.append(f"  {key:<{width}}  {f['dtype']} {tuple(f['shape'])}" + (", a camera" if f["camera"] else ""))
    if facts["undeclared"]:
        lines.append("columns that info.json does not declare; they are read only by name")
        lines += [f"  {name}  {kind}" for name, kind in facts["undeclared"].items()]
    if facts["metadata"]:
        lines.append("metadata of episodes, for conditions (--where, data.where)")
        names = format_metadata(facts["metadata"])
        width = max(len(name) for name, _ in names)
        lines += [f"  {name:<{width}}  {values}" for name, values in names]
    for camera, video in facts["videos"].items():
        lines += [f"video {camera}", f"  {encoding(video)}"]
    if "keep" in facts:
        lines += ["keep-ranges", *(f"  {line}" for line in facts["keep"]["told"])]
    if rows["idle_share"] is not None:
        lines.append(f"idle in {rows['idle_share']:.1%} of the frames read: {IDLE}")
    lines.append(f"defects ({rows['episodes_read']} of {plural(facts['episodes'], 'episode')} read)")
    lines += [f"  {line}" for line in facts["wrong"]] or ["  none"]
    return "\n".join(lines)


def encoding(video: dict[str, Any]) -> str:
    """Format the encoding of a camera's files."""
    if not video["files_read"]:
        return f"{plural(video['files'], 'file')}, none readable"
    frames = "with B-frames" if video["b_frames"] else "no B-frames"
    return (
        f"{video['codec']} {video['width']}×{video['height']} {video['pixels']}, {video['fps']:g} fps, key frame every "
        f"{video['gop']} frames, {frames}, {video['bytes_per_picture']:,.0f} bytes per frame; "
        f"{video['files_read']} of {plural(video['files'], 'file')} read, {plural(video['pictures'], 'frame')}, "
        f"{video['bytes'] / 1e6:,.1f} MB"
    )


def duration(seconds: float) -> str:
    """Format seconds as h:mm:ss."""
    return str(timedelta(seconds=round(seconds)))
