"""The page of `understudy inspect`: facts, episodes with their images and curves, distribution of actions."""

from collections.abc import Iterator
from html import escape
from typing import Any

import numpy as np

from understudy.data.dataset import EpisodeDataset
from understudy.data.format.catalog import Catalog
from understudy.data.format.episode_table import spread_evenly
from understudy.data.selection.motion import IDLE, numeric_keys
from understudy.plural import plural
from understudy.report import html
from understudy.report.dataset.episode_metadata import format_metadata
from understudy.report.dataset.examine import finding
from understudy.report.dataset.text import duration, encoding
from understudy.report.sparklines import curves, histogram

ACTION, STATE = "action", "observation.state"
IMAGES = 8
"""Images per episode."""
WALL = 12
"""Most episodes with their first and last image."""
SAMPLED = 64
"""Most episodes in the distributions of actions."""
DIMENSIONS = 64
"""Most dimensions of a column to draw."""


def page(catalog: Catalog, facts: dict[str, Any], shown: int, limit: int = SAMPLED) -> str:
    """Render the facts and some episodes as one HTML page.

    Args:
        catalog: The dataset.
        facts: Result of `examine`.
        shown: Episodes to show; 0 also leaves out the first and last frames.
        limit: Most episodes to open for the distributions, and for the first and last frames.
    """
    lengths = facts["lengths"]
    actions = _Actions(catalog, min(limit, SAMPLED))
    tiles = [
        (f"{facts['episodes']:,}", "episodes"),
        (f"{facts['frames']:,}", "frames"),
        (duration(facts["seconds"]), "recorded, h:mm:ss"),
        (f"{facts['fps']:g}", "frames per second"),
        (f"{lengths['min']}–{lengths['max']}", f"frames per episode, median {lengths['median']:g}"),
        *_idle_tile(idle := facts["rows"]["idle_share"]),
        (str(len(facts["wrong"])), "defects"),
    ]
    wrong = "".join(f"<li>{escape(line)}</li>" for line in facts["wrong"])
    kept = "".join(f"<li>{escape(line)}</li>" for line in facts.get("keep", {}).get("told", []))
    features = [
        [key, f["dtype"] + (", a camera" if f["camera"] else ""), " × ".join(map(str, f["shape"]))]
        for key, f in facts["features"].items()
    ]
    features += [[name, kind, "not declared"] for name, kind in facts["undeclared"].items()]
    videos = [f"<h3>{escape(key)}</h3><p>{escape(encoding(video))}</p>" for key, video in facts["videos"].items()]
    metadata = format_metadata(facts["metadata"])
    tasks = [[task["task"], task["episodes"]] for task in facts["tasks"][:50]]
    return html.page(
        f"{catalog.name} · understudy inspect",
        f'<h1>{escape(catalog.name)}</h1><p class="soft">LeRobot {escape(facts["format"])} · '
        f"{escape(facts['robot'] or 'robot not named')} · {escape(facts['root'])}</p>" + html.tiles(tiles),
        html.section("Defects", html.card(f"<ul>{wrong}</ul>" if wrong else "none")),
        html.section("Keep-ranges", html.card(f"<ul>{kept}</ul>") if kept else ""),
        html.section("Encoding", html.card(*videos)) if videos else "",
        html.section("Episodes", *_episodes(catalog, shown), note="" if idle is None else f"Idle frames: {IDLE}."),
        html.section("First and last frames", *(_walls(catalog, min(limit, WALL)) if shown else ())),
        html.section("Actions", *actions.cards(), note=actions.note()),
        html.section("Tasks", html.card(html.table(["task", "episodes"], tasks)) if tasks else ""),
        html.section("Metadata of episodes", html.card(html.table(["name", "values"], metadata)) if metadata else ""),
        html.section("Features", html.card(html.table(["key", "dtype", "shape"], features), *_dimensions(catalog))),
        html.section("Episode lengths", html.card(_histogram(catalog.episodes.lengths))),
    )


class _Actions:
    """Distribution of actions in some episodes, spread over the dataset."""

    def __init__(self, catalog: Catalog, count: int) -> None:
        self._catalog = catalog
        self._wrong: list[str] = []
        self._read = 0
        values: list[np.ndarray] = []
        if ACTION in numeric_keys(catalog):
            for row in spread_evenly(len(catalog.episodes), count):
                episode, length = int(catalog.episodes.ids[row]), int(catalog.episodes.lengths[row])
                if not length:
                    continue
                with finding(self._wrong):
                    data = EpisodeDataset(catalog, episodes=[episode], keys=[ACTION])
                    batch = data.batch(np.full(length, episode), np.arange(length))
                    values.append(batch[ACTION].double().numpy().reshape(length, -1))
                    self._read += 1
        self._values = np.concatenate(values) if values else None

    def note(self) -> str:
        return f"Histograms over {self._read} of {plural(len(self._catalog.episodes), 'episode')}."

    def cards(self) -> Iterator[str]:
        if self._values is None:
            return
        names, values = self._catalog.features[ACTION].dimension_names, self._values
        cells = [histogram(names[d], values[:, d]) for d in range(min(DIMENSIONS, values.shape[1]))]
        yield html.card(html.grid(cells, "dims") + _left_out(values.shape[1]))


def _idle_tile(share: float | None) -> list[tuple[str, str]]:
    return [] if share is None else [(f"{100 * share:.1f} %", "idle frames")]


def _dimensions(catalog: Catalog) -> Iterator[str]:
    """Render the names of the dimensions of each column of several numbers."""
    for key in numeric_keys(catalog):
        names = catalog.features[key].dimension_names
        if len(names) > 1:
            text = ", ".join(names[:DIMENSIONS]) + (", …" if len(names) > DIMENSIONS else "")
            yield f"<p><small><b>{escape(key)}</b>: {escape(text)}</small></p>"


def _left_out(width: int) -> str:
    return f'<p class="soft">and {width - DIMENSIONS} more dimensions</p>' if width > DIMENSIONS else ""


def _histogram(lengths: np.ndarray) -> str:
    def draw(chart: Any) -> None:
        chart.hist(lengths, bins=min(60, max(10, len(lengths) // 5)), color=html.COLORS[0], alpha=0.8)
        chart.set_xlabel("frames")
        chart.set_ylabel("episodes")

    return html.chart(draw, "histogram of episode lengths", height=1.9, wide=True)


def _chosen(catalog: Catalog, count: int) -> list[int]:
    """Rows of `count` episodes with frames, spread over the dataset."""
    rows = np.flatnonzero(catalog.episodes.lengths > 0)
    return [int(rows[place]) for place in spread_evenly(len(rows), count)] if count else []


def _episodes(catalog: Catalog, shown: int) -> list[str]:
    """Render a card for each of `shown` episodes, spread over the dataset."""
    return [_episode(catalog, row) for row in _chosen(catalog, shown)]


def _walls(catalog: Catalog, count: int) -> Iterator[str]:
    """Render the first and last images of some episodes, a card per camera."""
    for camera in catalog.camera_keys:
        wrong: list[str] = []
        images, captions = [], []
        for row in _chosen(catalog, count):
            episode, length = int(catalog.episodes.ids[row]), int(catalog.episodes.lengths[row])
            with finding(wrong):
                data = EpisodeDataset(catalog, episodes=[episode], keys=[camera])
                at = np.array([0, length - 1])
                pair = _small(data.batch(np.full(2, episode), at)[camera].numpy())
                images += list(pair)
                captions += [f"episode {episode}, first", f"episode {episode}, last"]
        yield html.card(f"<h3>{escape(camera)}</h3>", _errors(wrong), html.film(images, captions, camera))


def _episode(catalog: Catalog, row: int) -> str:
    """Render an episode: images from first to last and curves of its rows, or the errors in their place."""
    episode, length = int(catalog.episodes.ids[row]), int(catalog.episodes.lengths[row])
    wrong: list[str] = []
    parts: list[str] = []
    task = ""
    for camera in catalog.camera_keys:
        with finding(wrong):
            data = EpisodeDataset(catalog, episodes=[episode], keys=[camera])
            at = np.unique(np.linspace(0, length - 1, min(IMAGES, length)).round().astype(int))
            batch = data.batch(np.full(len(at), episode), at)
            task = batch["task"][0]
            captions = [f"{frame / catalog.fps:.1f} s" for frame in at]
            parts += [f"<p><small>{escape(camera)}</small></p>"]
            parts += [html.film(list(_small(batch[camera].numpy())), captions, f"{camera}, episode {episode}")]
    with finding(wrong):
        keys = [key for key in numeric_keys(catalog) if key.startswith(("action", "observation."))]
        data = EpisodeDataset(catalog, episodes=[episode], keys=keys)
        batch = data.batch(np.full(length, episode), np.arange(length))
        columns = {key: batch[key].double().numpy().reshape(length, -1) for key in keys}
        task = task or batch["task"][0]
        parts += _columns(catalog, columns)
    title = f'<h3>episode {episode} <span class="soft">· {length} frames · {escape(task)}</span></h3>'
    return html.card(title, _errors(wrong), *parts)


def _errors(wrong: list[str]) -> str:
    return "".join(f'<p class="bad">{escape(line)}</p>' for line in wrong)


def _small(images: np.ndarray, height: int = 160) -> np.ndarray:
    """Convert images [n, C, H, W] to uint8 [n, h, w, 3], thinned to about `height`, grey and depth as RGB."""
    step = max(1, images.shape[2] // height)
    thin = images[:, :3, ::step, ::step].transpose(0, 2, 3, 1)
    thin = thin if thin.dtype == np.uint8 else html.as_gray(thin)
    return np.repeat(thin, 3, axis=3) if thin.shape[3] == 1 else thin


def _columns(catalog: Catalog, columns: dict[str, np.ndarray]) -> Iterator[str]:
    """Render a small curve per dimension, with action and state of a joint on one scale if they have equal widths."""
    together = ACTION in columns and STATE in columns and columns[ACTION].shape == columns[STATE].shape
    groups = [[ACTION, STATE]] if together else []
    groups += [[key] for key in columns if not (together and key in (ACTION, STATE))]
    for keys in groups:
        names, width = catalog.features[keys[0]].dimension_names, columns[keys[0]].shape[1]
        cells = [
            curves(names[d], [columns[key][:, d] for key in keys], html.COLORS) for d in range(min(DIMENSIONS, width))
        ]
        swatches = "".join(
            f'<span class="key" style="background:{color}"></span>{escape(key)}'
            for key, color in zip(keys, html.COLORS)
        )
        dimensions = f"{width} dimension{'s' if width != 1 else ''}"
        yield f"<p><small>{swatches} · {dimensions}, each on its own scale</small></p>"
        yield html.grid(cells, "dims") + _left_out(width)
