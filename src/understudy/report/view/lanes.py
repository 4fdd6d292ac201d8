"""Lanes below the curves of an episode: task, texts of the frames, keep-ranges, as [start, stop, text] each."""

from collections import defaultdict
from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np

from understudy.data.format.catalog import Catalog
from understudy.data.selection.keep_ranges import KeepRanges
from understudy.data.selection.select import Selection
from understudy.errors import DatasetError
from understudy.report.view.columns import runs

LONGEST = 2000
"""Most entries of a lane."""


def lane(name: str, kind: str, entries: Sequence[Sequence[Any]]) -> dict[str, Any]:
    """Return a lane of `kind` "text" or "keep"; `entries` are [start, stop, text]."""
    return {"name": name, "kind": kind, "entries": [list(entry) for entry in entries[:LONGEST]]}


def text_lanes(catalog: Catalog, values: Mapping[str, Any]) -> list[dict[str, Any]]:
    """Return a lane of the task, and one of each column of texts or records.

    Args:
        catalog: the dataset.
        values: columns of a whole episode (`Columns.read`).
    """
    found = []
    if "task_index" in values:
        tasks = runs(np.asarray(values["task_index"]).reshape(-1).tolist())
        found.append(lane("task", "text", [[start, stop, catalog.tasks[task]] for start, stop, task in tasks]))
    for key, column in values.items():
        feature = catalog.features.get(key)
        if feature is None or not feature.is_text:
            continue
        if feature.dtype == "language":
            found += _record_lanes(key, column, catalog.fps)
        else:
            found.append(lane(key, "text", [run for run in runs(column) if run[2]]))
    return found


def _record_lanes(key: str, column: Sequence[Any], fps: float) -> list[dict[str, Any]]:
    """Return a lane of each style of records: each from its time to the next one of its style, or to the end."""
    starts: dict[str, dict[int, str]] = defaultdict(dict)
    for records in column:
        for record in records if isinstance(records, list) else ():
            if isinstance(record, Mapping) and record.get("content"):
                frame = max(0, round(float(record.get("timestamp") or 0) * fps))
                starts[str(record.get("style") or "")][frame] = str(record["content"])
    lanes = []
    for style, texts in starts.items():
        frames = sorted(frame for frame in texts if frame < len(column))
        ends = [*frames[1:], len(column)]
        entries = [[start, stop, texts[start]] for start, stop in zip(frames, ends)]
        lanes.append(lane(f"{key}: {style}" if style else key, "text", entries))
    return lanes


class Keep:
    """Keep-ranges of a dataset by episode.

    Args:
        catalog: the dataset.
        ranges: the ranges (see `Selection`).

    Raises:
        DatasetError: the ranges are malformed, or none is of this dataset.
    """

    def __init__(self, catalog: Catalog, ranges: KeepRanges) -> None:
        selection = Selection(keep_ranges=ranges, keep_rule="start").apply(catalog)
        self._segments = selection.segments
        self.notes = selection.notes

    def lane(self, episode: int) -> dict[str, Any]:
        """Return the lane of an episode; it is empty where the ranges leave the episode out."""
        first, last = np.searchsorted(self._segments[:, 0], [episode, episode + 1])
        return lane("keep", "keep", [[int(a), int(b), "kept"] for _, a, b in self._segments[first:last]])


def metadata_of(catalog: Catalog) -> dict[str, dict[int, Any]]:
    """Return metadata of episodes beyond the format's own, by name and id; {} where it cannot be read."""
    try:
        return catalog.episode_metadata()
    except DatasetError:
        return {}
