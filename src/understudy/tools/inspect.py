"""`understudy inspect PATH`: what a dataset holds, what is wrong with it, how it is encoded; and a page that shows it.

Not here: how the facts are found (`examine.py`), the page's looks (`html.py`).
"""

import json
from dataclasses import asdict, dataclass
from datetime import timedelta
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

from understudy.declare import Ge, Positional

if TYPE_CHECKING:
    import numpy as np

    from understudy.data.catalog import Catalog
    from understudy.data.samples import EpisodeDataset


@dataclass(frozen=True)
class InspectConfig:
    """Look at a dataset."""

    path: Positional[str] = ""
    """Folder (or URL) of a LeRobot dataset."""
    page: str | None = None
    """Where the HTML page goes; by default NAME-inspect.html in the current folder, and none with --json."""
    json: bool = False
    """Print the facts as one JSON object."""
    shown: Annotated[int, Ge(0)] = 4
    """Episodes on the page."""
    limit: Annotated[int, Ge(1)] = 500
    """At most this many episodes, and video files per camera, are opened, spread evenly over the dataset."""
    keep: str = ""
    """JSON file of keep-ranges: tell which of its keys are episodes of this dataset, and which frames it keeps."""

    def problems(self) -> list[str]:
        return [] if self.path else ["path: required, the folder of a dataset"]


def inspect(config: InspectConfig) -> None:
    """Print the facts and write the page."""
    from understudy.data.catalog import Catalog
    from understudy.data.select import select
    from understudy.extras import need
    from understudy.tools.examine import examine
    from understudy.tools.html import refuse_foreign, write_page

    if config.page or not config.json:
        need("report")
    if config.page:
        refuse_foreign(Path(config.page))
    catalog = Catalog.open(config.path)
    kept = select(catalog, keep=config.keep, keep_rule="start").keep if config.keep else None
    facts = examine(catalog, config.limit)
    if kept is not None:
        facts["keep"] = asdict(kept) | {"told": kept.lines()}
    target = config.page if config.page or config.json else f"{catalog.name}-inspect.html"
    if target:
        write_page(Path(target), page(catalog, facts, config.shown))
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
        f"  {facts['episodes']:,} episodes, {facts['frames']:,} frames, {_time(facts['seconds'])}",
        f"  episodes of {lengths['min']} to {lengths['max']} frames, median {lengths['median']:g}",
        "tasks",
        *[f"  {task['episodes']:>7,} episodes  {task['task']}" for task in facts["tasks"][:20]],
    ]
    if len(facts["tasks"]) > 20:
        lines.append(f"  and {len(facts['tasks']) - 20} more")
    lines.append("features")
    width = max(map(len, facts["features"]))
    lines += [f"  {key:<{width}}  {f['dtype']} {tuple(f['shape'])}" for key, f in facts["features"].items()]
    for camera, video in facts["videos"].items():
        lines += [f"video {camera}", f"  {_encoding(video)}"]
    if "keep" in facts:
        lines += ["keep-ranges", *(f"  {line}" for line in facts["keep"]["told"])]
    lines.append(f"wrong or odd ({rows['episodes_read']} of {facts['episodes']} episodes read)")
    lines += [f"  {line}" for line in facts["wrong"]] or ["  nothing"]
    return "\n".join(lines)


def _encoding(video: dict[str, Any]) -> str:
    if not video["files_read"]:
        return f"{video['files']} files, none could be read"
    frames = "with B-frames" if video["b_frames"] else "no B-frames"
    return (
        f"{video['codec']} {video['width']}×{video['height']} {video['pixels']}, {video['fps']:g} fps, key frame every "
        f"{video['gop']} pictures, {frames}, {video['bytes_per_picture']:,.0f} bytes per picture; "
        f"{video['files_read']} of {video['files']} files read, {video['pictures']:,} pictures, "
        f"{video['bytes'] / 1e6:,.1f} MB"
    )


def _time(seconds: float) -> str:
    return str(timedelta(seconds=round(seconds)))


def page(catalog: "Catalog", facts: dict[str, Any], shown: int) -> str:
    """The facts and some episodes as one HTML page."""
    from html import escape

    from understudy.tools import html

    lengths = facts["lengths"]
    tiles = [
        (f"{facts['episodes']:,}", "episodes"),
        (f"{facts['frames']:,}", "frames"),
        (_time(facts["seconds"]), "recorded, h:mm:ss"),
        (f"{facts['fps']:g}", "frames per second"),
        (f"{lengths['min']}–{lengths['max']}", f"frames per episode, median {lengths['median']:g}"),
        (str(len(facts["wrong"])), "oddities"),
    ]
    wrong = "".join(f"<li>{escape(line)}</li>" for line in facts["wrong"])
    kept = "".join(f"<li>{escape(line)}</li>" for line in facts.get("keep", {}).get("told", []))
    features = [[key, f["dtype"], " × ".join(map(str, f["shape"]))] for key, f in facts["features"].items()]
    videos = [[camera, _encoding(video)] for camera, video in facts["videos"].items()]
    tasks = [[task["task"], task["episodes"]] for task in facts["tasks"][:50]]
    return html.page(
        f"{catalog.name} · understudy inspect",
        f'<h1>{escape(catalog.name)}</h1><p class="soft">LeRobot {escape(facts["format"])} · '
        f"{escape(facts['robot'] or 'robot not named')} · {escape(facts['root'])}</p>",
        html.tiles(tiles),
        html.section("Wrong or odd", html.card(f"<ul>{wrong}</ul>" if wrong else "nothing")),
        html.section("Keep-ranges", html.card(f"<ul>{kept}</ul>") if kept else ""),
        html.section("Encoding", html.card(html.table(["camera", "encoding"], videos)) if videos else ""),
        html.section("Episodes", *_episodes(catalog, shown)),
        html.section("Tasks", html.card(html.table(["task", "episodes"], tasks)) if tasks else ""),
        html.section("Features", html.card(html.table(["key", "dtype", "shape"], features))),
        html.section("Lengths of the episodes", html.card(_histogram(catalog.episodes.lengths))),
    )


def _histogram(lengths: "np.ndarray") -> str:
    from understudy.tools import html

    figure, chart = html.axes(11.2, 1.9)
    chart.hist(lengths, bins=min(60, max(10, len(lengths) // 5)), color=html.COLOURS[0], alpha=0.8)
    chart.set_xlabel("frames")
    chart.set_ylabel("episodes")
    return html.svg(figure, "histogram of the lengths of the episodes")


def _episodes(catalog: "Catalog", shown: int) -> list[str]:
    """One card for each of some episodes, spread over the dataset."""
    import numpy as np

    rows = np.flatnonzero(catalog.episodes.lengths > 0)
    chosen = rows[np.linspace(0, len(rows) - 1, min(shown, len(rows))).round().astype(int)] if len(rows) else rows
    return [_episode(catalog, int(row)) + "<br>" for row in chosen]


def _episode(catalog: "Catalog", row: int, pictures: int = 8) -> str:
    """Pictures from first to last, and what the rows hold over time; what cannot be read is said in its place."""
    from html import escape

    import numpy as np

    from understudy.data.samples import EpisodeDataset
    from understudy.tools import html
    from understudy.tools.examine import finding, row_keys

    episode, length = int(catalog.episodes.ids[row]), int(catalog.episodes.lengths[row])
    wrong: list[str] = []
    parts: list[str] = []
    task = ""
    for camera in catalog.camera_keys:
        with finding(wrong):
            data = EpisodeDataset(catalog, episodes=[episode], keys=[camera])
            at = np.unique(np.linspace(0, length - 1, min(pictures, length)).round().astype(int))
            batch = data.batch(np.full(len(at), episode), at)
            task = batch["task"][0]
            small = np.pad(_small(batch[camera].numpy()), ((0, 0), (0, 0), (0, 2), (0, 0)), constant_values=128)
            strip = np.concatenate(list(small), axis=1)[:, :-2]
            parts.append(f"<p><small>{escape(camera)}</small></p>" + html.picture(strip, 1040, camera))
    with finding(wrong):
        keys = [key for key in row_keys(catalog) if key.startswith(("action", "observation."))]
        data = EpisodeDataset(catalog, episodes=[episode], keys=keys)
        parts.append(_lines(data, episode, length, keys, catalog.fps))
        task = task or data.sample(episode, 0)["task"]
    told = "".join(f'<p class="bad">{escape(line)}</p>' for line in wrong)
    return html.card(
        f'<h3>episode {episode} <span class="soft">· {length} frames · {escape(task)}</span></h3>', told, *parts
    )


def _small(pictures: "np.ndarray", height: int = 160) -> "np.ndarray":
    """uint8 [n, C, H, W] -> [n, h, w, 3], thinned to about `height` and with grey as colour."""
    import numpy as np

    step = max(1, pictures.shape[2] // height)
    thin = pictures[:, :3, ::step, ::step].transpose(0, 2, 3, 1)
    return np.repeat(thin, 3, axis=3) if thin.shape[3] == 1 else thin


def _lines(data: "EpisodeDataset", episode: int, length: int, keys: list[str], fps: float) -> str:
    """A chart per column, one line per dimension."""
    import numpy as np

    from understudy.tools import html

    frames = np.arange(length)
    batch = data.batch(np.full(length, episode), frames)
    cards = []
    for key in keys:
        values = batch[key].double().numpy().reshape(length, -1)
        figure, chart = html.axes(5.4, 2.1)
        for dimension in range(min(64, values.shape[1])):
            chart.plot(
                frames / fps, values[:, dimension], linewidth=1.1, color=html.COLOURS[dimension % len(html.COLOURS)]
            )
        chart.set_xlabel("seconds")
        more = f", {values.shape[1]} dimensions" if values.shape[1] > 1 else ""
        cards.append(f"<div><p><small>{key}{more}</small></p>{html.svg(figure, key)}</div>")
    return html.grid(cards, "two")
