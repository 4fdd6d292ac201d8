"""`understudy inspect PATH`: what a dataset holds, what is wrong with it, how it is encoded; and a page that shows it.

Not here: how the facts are found (`examine.py`), the page (`inspect_page.py`).
"""

import json
from dataclasses import asdict, dataclass
from datetime import timedelta
from pathlib import Path
from typing import Annotated, Any, Literal

from understudy.declare import Ge, Interval, Positional


@dataclass(frozen=True)
class InspectConfig:
    """Look at a dataset."""

    path: Positional[str] = ""
    """Folder (or URL) of a LeRobot dataset."""
    page: str | None = None
    """Where the HTML page goes; by default NAME-inspect.html in the current folder, and none with --json."""
    json: bool = False
    """Print the facts as one JSON object."""
    shown: Annotated[int, Interval(ge=0, le=10**4)] = 4
    """Episodes on the page."""
    limit: Annotated[int, Ge(1)] = 500
    """At most this many episodes, and video files per camera, are opened, spread evenly over the dataset."""
    keep: str = ""
    """JSON file of keep-ranges: tell which of its keys are episodes of this dataset, and which frames it keeps."""
    keep_rule: Literal["window", "start"] = "start"
    """As in a run's `data.keep_rule`: samples whose whole window lies in a range, or all that begin in one."""
    chunk: Annotated[int, Ge(1)] = 1
    """Frames of a window, as in a run's `data.chunk`."""

    video_path: str = ""
    """Path template of the videos, instead of the one in info.json."""
    data_path: str = ""
    """Path template of the data files, instead of the one in info.json."""
    version: Literal["", "v2.0", "v2.1", "v3.0", "v3.1"] = ""
    """The format to read the dataset as, instead of the one that its info.json says."""

    def problems(self) -> list[str]:
        found = [] if self.path else ["path: required, the folder of a dataset"]
        if not self.keep and (self.chunk, self.keep_rule) != (1, "start"):
            found.append("keep: --chunk and --keep-rule are about the ranges of --keep; name its file")
        return found


def inspect(config: InspectConfig) -> None:
    """Print the facts and write the page."""
    from understudy.data.catalog import Catalog
    from understudy.data.select import select
    from understudy.extras import need
    from understudy.tools.examine import examine
    from understudy.tools.html import refuse_foreign, write_page
    from understudy.tools.inspect_page import page

    if config.page or not config.json:
        need("report")
    if config.page:
        refuse_foreign(Path(config.page))
    catalog = Catalog.open(
        config.path,
        video_path=config.video_path or None,
        data_path=config.data_path or None,
        version=config.version or None,
    )
    reach = 0, config.chunk - 1
    kept = select(catalog, keep=config.keep, keep_rule=config.keep_rule, reach=reach).keep if config.keep else None
    facts = examine(catalog, config.limit)
    if kept is not None:
        facts["keep"] = asdict(kept) | {"told": kept.lines()}
    target = config.page if config.page or config.json else f"{catalog.name}-inspect.html"
    if target:
        write_page(Path(target), page(catalog, facts, config.shown, config.limit))
    if config.json:
        print(json.dumps(facts, ensure_ascii=False))
        return
    print(told(facts))
    print(f"page: {target}")


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
