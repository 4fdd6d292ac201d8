"""Content of an episode without its images: curves and exact values, lanes, and findings."""

import json
import math
import threading
from collections import defaultdict
from collections.abc import Mapping, Sequence
from itertools import groupby
from operator import index
from pathlib import Path
from typing import Any

import numpy as np

from understudy_base import DataAccessError, DatasetError, Record
from understudy_data import DEFAULTS, Catalog, Feature, Rows
from understudy_kit import numbers, ranges
from understudy_tools.check.examine import check_dataset
from understudy_tools.check.findings import Place

BUCKETS = 2000
"""Longest curve; longer episodes have the least and the largest value of each bucket of frames."""
BLOCK = 1024
"""Frames of a block of exact values."""
WIDEST = 64
"""Dimensions of a column that are shown."""
LONGEST = 2000
"""Most entries of a lane."""
MOST = 200
"""Findings of one episode, or of no episode, that are shown."""
_DIGITS = 7
_ROW_BYTES = 512 << 20
_FIX = "give the output of `understudy check PATH --json`"


# -- curves ----------------------------------------------------------------------------------------


class Columns:
    """Numbers and texts of a dataset's episodes. Safe in threads.

    Args:
        catalog: The dataset.
    """

    def __init__(self, catalog: Catalog) -> None:
        self._catalog = catalog
        features = catalog.features
        shown = [
            key
            for key, feature in features.items()
            if not feature.is_camera and key not in DEFAULTS
        ]
        # State and action first; then as declared.
        shown.sort(key=lambda key: (key != "observation.state", key != "action"))
        self._rows = Rows(catalog, shown, _ROW_BYTES)
        self._alone: dict[str, Rows] = {}
        self._lock = threading.Lock()
        self.keys = tuple(shown)
        self.numbers = tuple(
            key for key in shown if not features[key].is_text and _width(features[key])
        )
        """Columns that are curves."""

    @property
    def notes(self) -> list[str]:
        """Irregularities of the rows read so far."""
        return self._rows.notes

    def read(
        self, row: int, start: int = 0, stop: int | None = None
    ) -> tuple[dict[str, Any], dict[str, str]]:
        """Read the columns of the episode of a table row.

        Args:
            row: The table row.
            start: First frame.
            stop: End of the frames; None: the episode's end.

        Returns:
            Key -> array (frames, ...) or list of values, and key -> error of each column that
            cannot be read.
        """
        stop = int(self._catalog.episodes.lengths[row]) if stop is None else stop
        frames = np.arange(start, stop)[None]
        rows = np.full(1, row)
        keys = [*self.keys, "task_index", "timestamp"]
        try:
            columns = self._rows.take(rows, dict.fromkeys(keys, frames))
            return {key: values[0] for key, values in columns.items()}, {}
        except DataAccessError as error:
            first = error
        readable: dict[str, Any] = {}
        errors: dict[str, str] = {}
        for key in keys:  # one broken column must not hide the others
            try:
                with self._lock:
                    names = [key] if key in self.keys else []
                    reader = self._alone.setdefault(
                        key, Rows(self._catalog, names, _ROW_BYTES // 8)
                    )
                readable[key] = reader.take(rows, {key: frames})[key][0]
            except DataAccessError as error:
                errors[key] = str(error)
        return (readable, errors) if readable else ({}, {"": str(first)})

    def curves(self, values: Record) -> list[dict[str, Any]]:
        """Return the curves of an episode's columns, as JSON holds them.

        Args:
            values: Columns of the whole episode (`read`).

        Returns:
            For each column {"key", "names" of its dimensions, "size": number of all dimensions,
            "bucket": frames of a point, "low": [dimensions][points], "high": the same, or None
            where a point is one frame}. Numbers that are not finite are None.
        """
        return [
            curve(self._catalog.features[key], values[key]) for key in self.numbers if key in values
        ]

    def block(self, row: int, number: int) -> dict[str, Any]:
        """Return exact values of frames [BLOCK * number, BLOCK * (number + 1)) by column:
        [dimensions][frames].

        Raises:
            IndexError: The episode has no such block.
        """
        length = int(self._catalog.episodes.lengths[row])
        start = number * BLOCK
        stop = min((number + 1) * BLOCK, length)
        if not 0 <= start < stop:
            raise IndexError(f"block {number} of {-(-length // BLOCK)}")
        values, _ = self.read(row, start, stop)
        return {
            key: numbers(_flat(values[key])[:, :WIDEST].T, _DIGITS)
            for key in self.numbers
            if key in values
        }


def curve(feature: Feature, values: np.ndarray) -> dict[str, Any]:
    """Return one entry of `Columns.curves` for the values (frames, ...) of a feature."""
    flat = _flat(values)[:, :WIDEST]
    bucket = -(-max(1, len(flat)) // BUCKETS)
    width = _width(feature)
    names = feature.dimension_names[:WIDEST] if width > 1 else [feature.key]
    low, high = ranges(flat, bucket)
    highs = None if bucket == 1 else numbers(high.T, _DIGITS)
    return {
        "key": feature.key,
        "names": names,
        "size": width,
        "bucket": bucket,
        "low": numbers(low.T, _DIGITS),
        "high": highs,
    }


def _width(feature: Feature) -> int:
    return math.prod(feature.shape)


def _flat(values: np.ndarray) -> np.ndarray:
    return np.asarray(values, np.float64).reshape(len(values), -1)


# -- lanes -----------------------------------------------------------------------------------------


def lane(name: str, kind: str, entries: Sequence[Sequence[Any]]) -> dict[str, Any]:
    """Return a lane of `kind` "text" or "keep"; `entries` are [start, stop, text]."""
    return {"name": name, "kind": kind, "entries": [list(entry) for entry in entries[:LONGEST]]}


def text_lanes(catalog: Catalog, values: Record) -> list[dict[str, Any]]:
    """Return a lane of the task, and one of each column of texts or records.

    Args:
        catalog: The dataset.
        values: Columns of a whole episode (`Columns.read`).
    """
    lanes = []
    if "task_index" in values:
        tasks = _runs(np.asarray(values["task_index"]).reshape(-1).tolist())
        lanes.append(
            lane(
                "task", "text", [[start, stop, catalog.tasks[task]] for start, stop, task in tasks]
            )
        )
    for key, column in values.items():
        feature = catalog.features.get(key)
        if feature is None or not feature.is_text:
            continue
        if feature.dtype == "language":
            lanes += _record_lanes(key, column, catalog.fps)
        else:
            lanes.append(lane(key, "text", [run for run in _runs(column) if run[2]]))
    return lanes


def _runs(values: Sequence[Any]) -> list[tuple[int, int, Any]]:
    """Runs of equal neighbours, (start, stop, value) each."""
    runs = []
    start = 0
    for value, neighbours in groupby(values):
        stop = start + len(list(neighbours))
        runs.append((start, stop, value))
        start = stop
    return runs


def _record_lanes(key: str, column: Sequence[Any], fps: float) -> list[dict[str, Any]]:
    """Return a lane of each style of records: each from its time to the next one of its style, or
    to the end.
    """
    starts: dict[str, dict[int, str]] = defaultdict(dict)
    for records in column:
        if not isinstance(records, list):
            continue
        for record in records:
            if isinstance(record, Mapping) and record.get("content"):
                frame = max(0, round(float(record.get("timestamp") or 0) * fps))
                starts[str(record.get("style") or "")][frame] = str(record["content"])
    lanes = []
    for style, texts in starts.items():
        frames = sorted(frame for frame in texts if frame < len(column))
        ends = [*frames[1:], len(column)]
        entries = [[start, stop, texts[start]] for start, stop in zip(frames, ends)]
        title = f"{key}: {style}" if style else key
        lanes.append(lane(title, "text", entries))
    return lanes


# -- findings --------------------------------------------------------------------------------------


class Findings:
    """Findings of a dataset, if they are known.

    Most rules compare episodes, so a check covers the whole dataset: all metadata and rows, and no
    image.

    Args:
        catalog: The dataset.
        path: File with the JSON of `understudy check`; "" for none.

    Raises:
        DatasetError: The file cannot be read, has no findings, or describes a dataset with other
            episodes.
    """

    def __init__(self, catalog: Catalog, path: str = "") -> None:
        self._catalog = catalog
        self._lock = threading.Lock()
        self._by_episode: dict[int, list[dict[str, Any]]] | None = None
        self._general: list[dict[str, Any]] = []
        if path:
            findings = _read(path, catalog)
            try:
                self._take(findings)
            except (AttributeError, TypeError, ValueError) as error:
                raise DatasetError(f"holds no findings: {error}", where=path, fix=_FIX) from error

    @property
    def known(self) -> bool:
        """Whether the dataset was checked."""
        return self._by_episode is not None

    def check(self) -> dict[str, Any]:
        """Check the dataset unless that is done; return {"episodes", "general"}: numbers of
        findings.

        Raises:
            DatasetError: The source gives no answer.
        """
        with self._lock:
            if self._by_episode is None:
                # a run renames keys
                stored = Catalog.open(self._catalog.root, self._catalog.files.options)
                report = check_dataset(stored, "rows")
                self._take(report.to_json()["findings"])
            assert self._by_episode is not None
            return {"episodes": len(self._by_episode), "general": len(self._general)}

    def of(self, episode: int) -> dict[str, Any]:
        """Return {"known", "episode": findings about this episode, "general": those about no
        episode}.
        """
        findings = (self._by_episode or {}).get(episode, [])
        return {"known": self.known, "episode": findings[:MOST], "general": self._general[:MOST]}

    def _take(self, findings: Sequence[Record]) -> None:
        by_episode: dict[int, list[dict[str, Any]]] = defaultdict(list)
        general = []
        for finding in findings:
            place = finding.get("place") or {}
            frame = place.get("frame")
            short = {
                name: str(finding.get(name) or "")
                for name in ("rule", "severity", "message", "fix")
            }
            fields: dict[str, Any] = {
                name: place.get(name) or "" for name in ("file", "camera", "column", "dimension")
            }
            short["where"] = str(Place(**fields))
            for number, episode in enumerate(place.get("episodes") or ()):
                # The frame belongs to the first episode.
                of_episode = by_episode[index(episode)]
                own_frame = None if number or frame is None else index(frame)
                of_episode.append(short | {"frame": own_frame})
            if not place.get("episodes"):
                general.append(short | {"frame": None})
        self._by_episode = by_episode
        self._general = general


def _read(path: str, catalog: Catalog) -> list[Record]:
    try:
        content = json.loads(Path(path).read_bytes())
    except OSError as error:
        raise DatasetError(f"cannot be read: {error.strerror}", where=path, fix=_FIX) from error
    except (ValueError, RecursionError) as error:
        raise DatasetError(f"not valid JSON: {error}", where=path, fix=_FIX) from error
    facts = content if isinstance(content, dict) else {}
    findings = facts.get("findings")
    size = facts.get("episodes"), facts.get("frames")
    if not isinstance(findings, list) or None in size:
        raise DatasetError("holds no findings", where=path, fix=_FIX)
    if size != (catalog.num_episodes, catalog.num_frames):
        sizes = (
            f"{size[0]} episodes and {size[1]} frames, this one {catalog.num_episodes} and "
            f"{catalog.num_frames}"
        )
        raise DatasetError(
            f"its dataset has {sizes}", where=path, fix="check this dataset: understudy check PATH"
        )
    return findings
