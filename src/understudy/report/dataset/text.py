"""The facts about a dataset in words, for a terminal."""

from datetime import timedelta
from typing import Any


def told(facts: dict[str, Any]) -> str:
    """The facts in words, for a terminal."""
    lengths, rows = facts["lengths"], facts["rows"]
    lines = [
        facts["root"],
        f"  LeRobot {facts['format']}, robot {facts['robot'] or 'not named'}, {facts['fps']:g} frames per second",
        f"  {facts['episodes']:,} episodes, {facts['frames']:,} frames, {duration(facts['seconds'])}",
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
        lines.append("columns that info.json does not declare, and that are read only by name")
        lines += [f"  {name}  {kind}" for name, kind in facts["undeclared"].items()]
    for camera, video in facts["videos"].items():
        lines += [f"video {camera}", f"  {encoding(video)}"]
    if "keep" in facts:
        lines += ["keep-ranges", *(f"  {line}" for line in facts["keep"]["told"])]
    lines.append(f"wrong or odd ({rows['episodes_read']} of {facts['episodes']} episodes read)")
    lines += [f"  {line}" for line in facts["wrong"]] or ["  nothing"]
    return "\n".join(lines)


def encoding(video: dict[str, Any]) -> str:
    """How a camera's files are encoded, in words."""
    if not video["files_read"]:
        return f"{video['files']} files, none could be read"
    frames = "with B-frames" if video["b_frames"] else "no B-frames"
    return (
        f"{video['codec']} {video['width']}×{video['height']} {video['pixels']}, {video['fps']:g} fps, key frame every "
        f"{video['gop']} pictures, {frames}, {video['bytes_per_picture']:,.0f} bytes per picture; "
        f"{video['files_read']} of {video['files']} files read, {video['pictures']:,} pictures, "
        f"{video['bytes'] / 1e6:,.1f} MB"
    )


def duration(seconds: float) -> str:
    """h:mm:ss."""
    return str(timedelta(seconds=round(seconds)))
