"""`Viewer`: everything that the page of an episode shows, as named resources made on demand, and
its export.

The server answers requests with them, and an export writes them to files. Names are the ones of
`ROUTES`; a name is never a path of the file system. A page from a file may not read JSON, so each
resource of JSON in an export is a script that hands its value over (`static/view.js`).
"""

import json
import re
from collections.abc import Callable, Mapping, Sequence
from dataclasses import asdict, dataclass
from functools import cached_property
from pathlib import Path
from typing import Any

import numpy as np

from understudy_base import (
    ACTION,
    ConfigError,
    DataAccessError,
    DatasetError,
    Record,
    create_folder,
)
from understudy_data import Catalog, Selection
from understudy_kit import COLORS, STATIC, numbers, render_file
from understudy_tools.report.view.episodes import BLOCK, Columns, Findings, lane, text_lanes
from understudy_tools.report.view.sheets import Sheets

PAGE = 100
"""Episodes of a page of the list."""
OWN = Path(__file__).parents[1] / "static"
ASSETS = {
    "curves.js": STATIC,
    "view.js": OWN,
    "page.css": STATIC,
    "view.css": OWN,
}
"""Files of the page -> their folder."""
SCRIPTS = ("curves.js", "view.js")
_TEXT = {
    "js": "text/javascript; charset=utf-8",
    "css": "text/css; charset=utf-8",
    "json": "application/json",
}
_MOST_TEXT = 300
_NUMBER = r"(0|[1-9]\d{0,14})"
ROUTES = {
    "page": r"(?:index\.html)?",
    "asset": rf"({'|'.join(map(re.escape, ASSETS))})",
    "episodes": r"episodes\.json",
    "episode": rf"{_NUMBER}/{_NUMBER}/episode\.json",
    "block": rf"{_NUMBER}/{_NUMBER}/rows-{_NUMBER}\.json",
    "sheet": rf"{_NUMBER}/{_NUMBER}/camera-{_NUMBER}-{_NUMBER}\.(?:png|jpg)",
    "findings": rf"{_NUMBER}/{_NUMBER}/findings\.json",
    "predicted": rf"{_NUMBER}/{_NUMBER}/predicted\.json",
    "check": r"check\.json",
}
"""Kind of a resource -> pattern of its name; numbers are source, episode id, and the place in the
episode.
"""
_PATTERNS = {kind: re.compile(pattern) for kind, pattern in ROUTES.items()}


class UnknownResource(KeyError):
    """There is no such resource."""


@dataclass(frozen=True)
class Resource:
    """Content with its media type."""

    content: bytes
    kind: str


@dataclass(eq=False)
class Source:
    """A dataset to show, with the readers of its content.

    Attributes:
        name: Name of the dataset.
        catalog: Its metadata.
        rows: Table rows int64 (n,) of the episodes to show, ascending; None shows all.
        keep_ranges: Frame ranges to mark; None for none.
        findings: File with the JSON of `understudy check`; "" for none.

    Raises:
        DatasetError: Keep-ranges or findings are malformed, or describe another dataset.
    """

    name: str
    catalog: Catalog
    rows: np.ndarray | None = None
    keep_ranges: str | Mapping[str, Any] | None = None
    findings: str = ""

    def __post_init__(self) -> None:
        self.listed = np.arange(len(self.catalog.episodes)) if self.rows is None else self.rows
        self.columns = Columns(self.catalog)
        self.sheets = Sheets(self.catalog)
        self.checked = Findings(self.catalog, self.findings)
        self._segments = None
        if self.keep_ranges is not None:
            self._segments = (
                Selection(keep_ranges=self.keep_ranges, keep_rule="start")
                .apply(self.catalog)
                .segments
            )

    def keep_lanes(self, episode: int) -> list[dict[str, Any]]:
        """Return the lane of the keep-ranges of an episode, which may be empty; none without
        ranges.
        """
        if self._segments is None:
            return []
        first, last = np.searchsorted(self._segments[:, 0], [episode, episode + 1])
        return [
            lane(
                "keep",
                "keep",
                [[start, stop, "kept"] for _, start, stop in self._segments[first:last].tolist()],
            )
        ]

    @cached_property
    def metadata(self) -> dict[str, dict[int, Any]]:
        """Metadata of episodes beyond the format's own, by name and id; {} where it cannot be
        read.
        """
        try:
            return self.catalog.episode_metadata()
        except DatasetError:
            return {}


class EpisodeList:
    """Episodes in the sequence of their sources and ids."""

    def __init__(self, sources: Sequence[Source]) -> None:
        self._sources = sources

    def __len__(self) -> int:
        return sum(len(source.listed) for source in self._sources)

    def all(self) -> list[tuple[int, int]]:
        """Return (source, episode id) of every listed episode."""
        episodes: list[tuple[int, int]] = []
        for number, source in enumerate(self._sources):
            ids = source.catalog.episodes.ids[source.listed].tolist()
            episodes += [(number, episode) for episode in ids]
        return episodes

    def page(self, query: str = "", number: int = 0) -> dict[str, Any]:
        """Return a page of the episodes that match: {"total", "page", "size", "episodes"}.

        Args:
            query: Ids "3" or "3-9", or parts of a task or of the name of one of several sources;
                all words must match.
            number: Number of the page, from 0 on.
        """
        words = query.lower().split()
        matching = [source.listed[self._mask(source, words)] for source in self._sources]
        ends = np.cumsum([len(rows) for rows in matching])
        total = int(ends[-1]) if len(ends) else 0
        first = number * PAGE
        last = min((number + 1) * PAGE, total)
        episodes = []
        for place in range(max(0, first), last):
            source = int(np.searchsorted(ends, place, side="right"))
            row = int(matching[source][place - (ends[source] - len(matching[source]))])
            episodes.append(self.describe(source, row))
        return {"total": total, "page": number, "size": PAGE, "episodes": episodes}

    def describe(self, source: int, row: int) -> dict[str, Any]:
        """Return {"source", "id", "length", "seconds", "task"} of one episode."""
        catalog = self._sources[source].catalog
        length = int(catalog.episodes.lengths[row])
        texts = [
            catalog.tasks[task] for task in catalog.episodes.tasks_of(row).tolist() if task >= 0
        ]
        return {
            "source": source,
            "id": int(catalog.episodes.ids[row]),
            "length": length,
            "seconds": round(length / catalog.fps, 2),
            "task": "; ".join(texts)[:_MOST_TEXT],
        }

    def _mask(self, source: Source, words: Sequence[str]) -> np.ndarray:
        """Listed rows that match all words, bool (n,)."""
        rows = source.listed
        table = source.catalog.episodes
        tasks = source.catalog.tasks
        mask = np.ones(len(rows), bool)
        ids = table.ids[rows]
        offsets = table.task_offsets
        for word in words:
            # -1: a task of no list
            fits = np.asarray([word in task.lower() for task in tasks] + [False])
            counts = np.concatenate([[0], np.cumsum(fits[table.task_indices])])
            matches = counts[offsets[rows + 1]] > counts[offsets[rows]]
            matches |= len(self._sources) > 1 and word in source.name.lower()
            if bounds := re.fullmatch(r"(\d{1,15})(?:-(\d{1,15}))?", word):
                matches |= (ids >= int(bounds[1])) & (ids <= int(bounds[2] or bounds[1]))
            mask &= matches
        return mask


class Viewer:
    """Episodes of datasets as resources of a page. Safe in threads.

    Args:
        sources: The datasets.
        title: Title of the page.
        predict: `EpisodeActions.predict`, the actions that a policy predicts for an episode of a
            source; None without a policy.
    """

    def __init__(
        self,
        sources: Sequence[Source],
        title: str,
        predict: Callable[[int, int, int], Record] | None = None,
    ) -> None:
        self.title = title
        self._predict = predict
        self._sources = sources
        self.list = EpisodeList(sources)

    def read(self, name: str, query: Mapping[str, str] | None = None) -> Resource:
        """Return the resource `name` (see `ROUTES`).

        Args:
            name: Name of the resource.
            query: "query" and "page" of the list of episodes.

        Raises:
            UnknownResource: There is no such resource.
            DatasetError: The dataset's part of it cannot be read.
        """
        for kind, pattern in _PATTERNS.items():
            if match := pattern.fullmatch(name):
                try:
                    return self._make(kind, match.groups(), query or {})
                except IndexError as error:
                    raise UnknownResource(name) from error
        raise UnknownResource(name)

    def find(self, source: int, episode: int) -> int:
        """Return the table row of an episode. Raises UnknownResource for one that is not shown."""
        if not 0 <= source < len(self._sources):
            raise UnknownResource(f"source {source}")
        try:
            row = self._sources[source].catalog.episodes.row_of(episode)
        except DatasetError as error:
            raise UnknownResource(f"episode {episode}") from error
        if row not in self._sources[source].listed:
            raise UnknownResource(f"episode {episode}")
        return row

    def _make(self, kind: str, values: tuple[str, ...], query: Mapping[str, str]) -> Resource:
        if kind == "page":
            return Resource(self.page().encode(), "text/html; charset=utf-8")
        if kind == "asset":
            name = values[0]
            return Resource((ASSETS[name] / name).read_bytes(), _TEXT[name.rpartition(".")[2]])
        if kind == "episodes":
            page = query.get("page", "0")
            number = int(page) if re.fullmatch(_NUMBER, page) else 0
            return _json(self.list.page(query.get("query", ""), number))
        if kind == "check":
            return _json([source.checked.check() for source in self._sources])
        source, episode, *places = map(int, values)
        row = self.find(source, episode)
        shown = self._sources[source]
        if kind == "episode":
            return _json(self.episode(source, row))
        if kind == "block":
            return _json(shown.columns.block(row, places[0]))
        if kind == "predicted":
            return _json(self._predicted(source, episode, int(shown.catalog.episodes.lengths[row])))
        if kind == "findings":
            return _json(shown.checked.of(episode))
        return Resource(*shown.sheets.read(shown.catalog.camera_keys[places[0]], row, places[1]))

    def episode(self, source: int, row: int) -> dict[str, Any]:
        """Return the content of an episode without images, predicted actions and findings, as JSON
        holds it.
        """
        shown = self._sources[source]
        catalog = shown.catalog
        values, errors = shown.columns.read(row)
        described = self.list.describe(source, row)
        number = described["id"]
        cameras = []
        for camera in catalog.camera_keys:
            try:
                layout = asdict(shown.sheets.layout(camera, row)) if described["length"] else None
                cameras.append({"key": camera, "layout": layout, "error": ""})
            except DataAccessError as error:
                cameras.append({"key": camera, "layout": None, "error": str(error)})
        return described | {
            "fps": catalog.fps,
            "cameras": cameras,
            "curves": shown.columns.curves(values),
            "block": BLOCK,
            "lanes": [*text_lanes(catalog, values), *shown.keep_lanes(number)],
            "metadata": {
                name: str(texts[number])
                for name, texts in shown.metadata.items()
                if number in texts
            },
            "notes": [*shown.columns.notes, *shown.sheets.notes],
            "errors": errors,
        }

    @property
    def predicts(self) -> bool:
        """Whether a policy predicts actions."""
        return self._predict is not None

    def _predicted(self, source: int, episode: int, length: int) -> dict[str, Any]:
        if self._predict is None:
            raise UnknownResource("no policy")
        predicted = self._predict(source, episode, length)
        return {
            "key": ACTION,
            "chunk": predicted["chunk"],
            "starts": predicted["starts"],
            "values": numbers(np.asarray(predicted["actions"]).T, 7),
            "mae": numbers(predicted["mae"], 7),
            "unreadable": predicted["unreadable"],
        }

    def page(self, exported: Sequence[tuple[int, int]] | None = None) -> str:
        """Return the page.

        Args:
            exported: Pairs (source, episode id) to list in a page without a server.
        """
        listed = None
        if exported is not None:
            listed = [
                self.list.describe(source, self.find(source, episode))
                for source, episode in exported
            ]
        setup = {
            "title": self.title,
            "sources": [
                {
                    "name": source.name,
                    "version": source.catalog.version,
                    "robot": source.catalog.robot_type or "",
                }
                for source in self._sources
            ],
            "colors": COLORS,
            "listed": listed,
            "predicts": self.predicts,
        }
        return render_file(OWN / "view.html", title=self.title, setup=setup, scripts=SCRIPTS)


def _json(value: Any) -> Resource:
    content = json.dumps(value, ensure_ascii=False, allow_nan=False, separators=(",", ":"))
    return Resource(content.encode("utf-8", "replace"), _TEXT["json"])


# -- export ----------------------------------------------------------------------------------------


def check_folder(folder: Path) -> None:
    """Raise ConfigError unless a folder is new or empty."""
    if folder.is_symlink() or (folder.exists() and (not folder.is_dir() or any(folder.iterdir()))):
        raise ConfigError(
            f"{folder}: exists and is not an empty folder; name a new one, nothing is overwritten"
        )


def export_episodes(
    viewer: Viewer,
    episodes: Sequence[tuple[int, int]],
    folder: Path,
    count: Callable[[int], None] = lambda episodes: None,
) -> None:
    """Write episodes to a new or empty folder, in one step: a kill leaves nothing or all of it.

    Args:
        viewer: The content.
        episodes: Pairs (source, episode id).
        folder: The folder; index.html is the page.
        count: Function called with 1 after each episode.

    Raises:
        ConfigError: The folder has content.
        UnknownResource: There is no such episode.
        DatasetError: An image cannot be read.
        OSError: The folder cannot be written.
    """
    check_folder(folder)
    page = viewer.page(episodes)
    if folder.exists():
        folder.rmdir()
    with create_folder(folder) as new:
        (new / "index.html").write_text(page, encoding="utf-8")
        for name in (*SCRIPTS, "page.css", "view.css"):
            (new / name).write_bytes(viewer.read(name).content)
        for source, episode in episodes:
            _write_episode(viewer, new, f"{source}/{episode}")
            count(1)


def _write_episode(viewer: Viewer, folder: Path, base: str) -> None:
    (folder / base).mkdir(parents=True, exist_ok=True)
    content = _write_script(viewer, folder, f"{base}/episode.json")
    _write_script(viewer, folder, f"{base}/findings.json")
    if viewer.predicts:
        _write_script(viewer, folder, f"{base}/predicted.json")
    if any(curve["bucket"] > 1 for curve in content["curves"]):
        for number in range(-(-content["length"] // BLOCK)):
            _write_script(viewer, folder, f"{base}/rows-{number}.json")
    for camera, layout in enumerate(entry["layout"] for entry in content["cameras"]):
        if layout:
            for number in range(-(-content["length"] // (layout["columns"] * layout["rows"]))):
                name = f"{base}/camera-{camera}-{number}.{layout['extension']}"
                (folder / name).write_bytes(viewer.read(name).content)


def _write_script(viewer: Viewer, folder: Path, name: str) -> dict[str, Any]:
    text = viewer.read(name).content.decode()
    (folder / f"{name}.js").write_text(f"receive({json.dumps(name)}, {text});\n", encoding="utf-8")
    content: dict[str, Any] = json.loads(text)
    return content
