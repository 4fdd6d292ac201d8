"""`Viewer`: everything that the page of an episode shows, as named resources made on demand.

The server answers requests with them, and an export writes them to files. Names are those of `ROUTES`; no name is ever
a path of the file system.
"""

import json
import re
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from functools import cached_property
from html import escape
from importlib.resources import files
from typing import Any

import numpy as np

from understudy.batch_keys import ACTION
from understudy.data.format.catalog import Catalog
from understudy.data.selection.keep_ranges import KeepRanges
from understudy.errors import DatasetError
from understudy.report import html
from understudy.report.view.columns import BLOCK, Columns, numbers
from understudy.report.view.episode_list import EpisodeList
from understudy.report.view.findings import Findings
from understudy.report.view.lanes import Keep, metadata_of, text_lanes
from understudy.report.view.sheets import Sheets

SCRIPTS = ("load.js", "film.js", "curves.js", "main.js")
_TEXT = {"js": "text/javascript; charset=utf-8", "css": "text/css; charset=utf-8", "json": "application/json"}
_NUMBER = r"(0|[1-9]\d{0,14})"
ROUTES = {
    "page": r"(?:index\.html)?",
    "asset": rf"({'|'.join(map(re.escape, SCRIPTS))}|view\.css)",
    "episodes": r"episodes\.json",
    "episode": rf"{_NUMBER}/{_NUMBER}/episode\.json",
    "block": rf"{_NUMBER}/{_NUMBER}/rows-{_NUMBER}\.json",
    "sheet": rf"{_NUMBER}/{_NUMBER}/camera-{_NUMBER}-{_NUMBER}\.(?:png|jpg)",
    "findings": rf"{_NUMBER}/{_NUMBER}/findings\.json",
    "predicted": rf"{_NUMBER}/{_NUMBER}/predicted\.json",
    "check": r"check\.json",
}
"""Kind of a resource -> pattern of its name; numbers are source, episode id, and the place in the episode."""
_PATTERNS = {kind: re.compile(pattern) for kind, pattern in ROUTES.items()}


class UnknownResource(KeyError):
    """There is no such resource."""


@dataclass(frozen=True)
class Resource:
    """Content with its media type."""

    content: bytes
    kind: str


@dataclass(frozen=True)
class Source:
    """A dataset to show.

    Attributes:
        name: of the dataset.
        catalog: its metadata.
        rows: int64 (n,), table rows of the episodes to show, ascending; None shows all.
        keep_ranges: frame ranges to mark; None for none.
        findings: file with the JSON of `understudy check`; "" for none.
    """

    name: str
    catalog: Catalog
    rows: np.ndarray | None = None
    keep_ranges: KeepRanges | None = None
    findings: str = ""


class _Shown:
    """A source with the readers of its content."""

    def __init__(self, source: Source) -> None:
        self.catalog = source.catalog
        self.columns, self.sheets = Columns(source.catalog), Sheets(source.catalog)
        self.keep = None if source.keep_ranges is None else Keep(source.catalog, source.keep_ranges)
        self.findings = Findings(source.catalog, source.findings)

    @cached_property
    def metadata(self) -> dict[str, dict[int, Any]]:
        return metadata_of(self.catalog)


class Viewer:
    """Episodes of datasets as resources of a page. Safe in threads.

    Args:
        sources: the datasets.
        title: of the page.
        predict: returns the actions that a policy predicts for an episode, given the source and the episode's id:
            `EpisodeActions.predict`. None where there is no policy.

    Raises:
        DatasetError: keep-ranges or findings are malformed or of another dataset.
    """

    def __init__(
        self,
        sources: Sequence[Source],
        title: str,
        predict: Callable[[int, int, int], Mapping[str, Any]] | None = None,
    ) -> None:
        self.title, self._predict = title, predict
        self._sources = [_Shown(source) for source in sources]
        rows = [np.arange(len(each.catalog.episodes)) if each.rows is None else each.rows for each in sources]
        self.list = EpisodeList([source.name for source in sources], [source.catalog for source in sources], rows)
        self._names = [source.name for source in sources]

    def read(self, name: str, query: Mapping[str, str] | None = None) -> Resource:
        """Return the resource `name` (see `ROUTES`).

        Args:
            name: of the resource.
            query: "query" and "page" of the list of episodes.

        Raises:
            UnknownResource: there is no such resource.
            DatasetError: the dataset's part of it cannot be read.
        """
        for kind, pattern in _PATTERNS.items():
            if found := pattern.fullmatch(name):
                try:
                    return self._make(kind, found.groups(), query or {})
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
        if not self.list.contains(source, row):
            raise UnknownResource(f"episode {episode}")
        return row

    def _make(self, kind: str, values: tuple[str, ...], query: Mapping[str, str]) -> Resource:
        if kind == "page":
            return Resource(self.page().encode(), "text/html; charset=utf-8")
        if kind == "asset":
            return Resource(asset(values[0]), _TEXT[values[0].rpartition(".")[2]])
        if kind == "episodes":
            page = query.get("page", "0")
            number = int(page) if re.fullmatch(_NUMBER, page) else 0
            return _json(self.list.page(query.get("query", ""), number))
        if kind == "check":
            return _json([source.findings.check() for source in self._sources])
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
            return _json(shown.findings.of(episode))
        return Resource(*shown.sheets.read(shown.catalog.camera_keys[places[0]], row, places[1]))

    def episode(self, source: int, row: int) -> dict[str, Any]:
        """Return the content of an episode without images, predicted actions and findings, as JSON holds it."""
        shown = self._sources[source]
        catalog = shown.catalog
        values, errors = shown.columns.read(row)
        lanes = text_lanes(catalog, values)
        described = self.list.describe(source, row)
        if shown.keep is not None:
            lanes.append(shown.keep.lane(described["id"]))
        cameras = []
        for camera in catalog.camera_keys:
            try:
                layout = shown.sheets.layout(camera, row).to_json() if described["length"] else None
                cameras.append({"key": camera, "layout": layout, "error": ""})
            except DatasetError as error:
                cameras.append({"key": camera, "layout": None, "error": str(error)})
        own = {name: texts[described["id"]] for name, texts in shown.metadata.items() if described["id"] in texts}
        return described | {
            "fps": catalog.fps,
            "cameras": cameras,
            "curves": shown.columns.curves(values),
            "block": BLOCK,
            "lanes": lanes,
            "metadata": {name: str(value) for name, value in own.items()},
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
        found = self._predict(source, episode, length)
        return {
            "key": ACTION,
            "chunk": found["chunk"],
            "starts": found["starts"],
            "values": numbers(np.asarray(found["actions"]).T),
            "mae": numbers(np.asarray(found["mae"])),
            "unreadable": found["unreadable"],
        }

    def page(self, exported: Sequence[tuple[int, int]] | None = None) -> str:
        """Return the page.

        Args:
            exported: (source, episode id) of the episodes of a page without a server.
        """
        listed = None
        if exported is not None:
            listed = [self.list.describe(source, self.find(source, episode)) for source, episode in exported]
        catalogs = [shown.catalog for shown in self._sources]
        setup = {
            "title": self.title,
            "sources": [
                {"name": name, "version": catalog.version, "robot": catalog.robot_type or ""}
                for name, catalog in zip(self._names, catalogs)
            ],
            "colors": html.COLORS,
            "listed": listed,
            "predicts": self.predicts,
        }
        text = asset("view.html").decode()
        data = json.dumps(setup, ensure_ascii=False).replace("<", "\\u003c")  # a name must not end the script
        scripts = "\n".join(f'<script src="{name}"></script>' for name in SCRIPTS)
        parts = {"TITLE": escape(self.title), "SCRIPTS": scripts, "SETUP": data}
        return re.sub(r"\{\{(\w+)\}\}", lambda mark: parts[mark[1]], text)


def asset(name: str) -> bytes:
    """Return a file of the page: a script, or the style sheet with that of all pages before it."""
    data = (files("understudy.report.view") / "static" / name).read_bytes()
    return html.STYLE.encode() + data if name == "view.css" else data


def _json(value: Any) -> Resource:
    content = json.dumps(value, ensure_ascii=False, allow_nan=False, separators=(",", ":"))
    return Resource(content.encode("utf-8", "replace"), _TEXT["json"])
