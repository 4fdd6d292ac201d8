"""Facts of the sources that rows and videos do not hold: carried into the output where they stay
true, or named.

Carried are further fields of info.json, and further entries of its features, where all sources have
them and agree. Counts and lists of episodes, and facts about images of a camera that are resized,
do not stay true. Files beside rows and videos are named.
"""

import json
import re
from collections.abc import Mapping, Sequence
from typing import Any

from understudy_data import Catalog
from understudy_tools.edit.plan import Plan

_WRITTEN = {
    "codebase_version",
    "robot_type",
    "chunks_size",
    "fps",
    "data_path",
    "video_path",
    "features",
}
_WRITTEN |= {
    "data_files_size_in_mb",
    "video_files_size_in_mb",
    "total_episodes",
    "total_frames",
    "total_tasks",
}
_WRITTEN |= {"total_videos", "total_chunks", "splits"}
_OF_FEATURE = {"dtype", "shape", "names", "info", "video_info"}
OF_VIDEO = ("video.", "audio.", "has_audio", "is_depth_map")
"""Beginnings of entries of `info` that a video file decides."""
_FILES = (
    "info.json",
    "stats.json",
    "tasks.",
    "episodes",
    "edit.json",
    "contract.json",
    "import.json",
    "published.json",
)
_FOLDERS = ("data", "videos", "meta", "images")
_OF_EPISODES = re.compile(
    r"total|episode|(^|_)(num|count|counts|frames|rows|indices|duration|hours)(_|$)"
)
"""Names of fields that count or list episodes or frames, which an output has others of, or numbers
anew.
"""
_MOST = 8  # names in a line


def carried_info(plan: Plan) -> tuple[dict[str, Any], list[str]]:
    """Return the further fields of info.json that hold for the output, and lines about those that
    are left out.
    """
    infos = [source.info for source in _used(plan)]
    names = [name for name in _all_names(infos) if name not in _WRITTEN]
    carried = {}
    left_out = []
    for name in names:
        values = [info[name] for info in infos if name in info]
        if _OF_EPISODES.search(name.lower()) and any(
            value not in ([], {}, None) for value in values
        ):
            left_out.append(f"{name} of info.json: left out, since episodes may differ")
        elif len(values) < len(infos) or _differ(values):
            left_out.append(f"{name} of info.json: left out, since the sources differ")
        else:
            carried[name] = values[0]
    other_splits: list[str] = []
    for info in infos:
        other_splits += _other_splits(info)
    if other_splits:
        listed = ", ".join(dict.fromkeys(other_splits))
        left_out.append(
            f"splits {listed} of info.json: left out, since episodes are numbered anew; see --split"
        )
    return carried, left_out


def carried_entries(plan: Plan, key: str) -> tuple[dict[str, Any], dict[str, Any], list[str]]:
    """Return further entries of a feature, further ones of its `info`, and lines about those that
    are left out.
    """
    entries = [_entry(source, key) for source in _used(plan)]
    resized = key in plan.encode and plan.encode[key].size is not None
    whole = [_further_entries(entry) for entry in entries]
    is_video = key in plan.features and plan.features[key].is_video
    details = [_details(entry, is_video) for entry in entries]
    left_out: list[str] = []
    carried = []
    for place, parts in (("", whole), ("info.", details)):
        agreed = {}
        for name in _all_names(parts):
            values = [part[name] for part in parts if name in part]
            differ = len(values) < len(parts) or _differ(values)
            if resized or differ:
                why = "the sources differ" if differ else "its images are resized"
                left_out.append(f"{place}{name} of {key} in info.json: left out, since {why}")
            else:
                agreed[name] = values[0]
        carried.append(agreed)
    return carried[0], carried[1], left_out


def left_files(plan: Plan) -> list[str]:
    """Return a line about the files of each source that are neither rows, videos nor written
    anew.
    """
    lines = []
    for source in _used(plan):
        names = _further_files(source, set(plan.files))
        if names:
            more = f" and {len(names) - _MOST} more" if len(names) > _MOST else ""
            lines.append(
                f"{', '.join(names[:_MOST])}{more} of {source.root}: left out, copy what stays true"
            )
    return lines


def _all_names(entries: Sequence[Mapping[str, Any]]) -> dict[str, None]:
    """Names in any of the entries, in order of their first appearance."""
    names = dict[str, None]()
    for entry in entries:
        names.update(dict.fromkeys(entry))
    return names


def _differ(values: Sequence[Any]) -> bool:
    """Return whether values of JSON differ; NaN is equal to NaN."""
    texts = {json.dumps(value, sort_keys=True) for value in values}
    return len(texts) > 1


def _used(plan: Plan) -> list[Catalog]:
    numbers = {piece.source for piece in plan.pieces}
    return [plan.sources[number] for number in sorted(numbers)]


def _other_splits(info: Mapping[str, Any]) -> Sequence[str]:
    splits = info.get("splits")
    return [name for name in splits if name != "train"] if isinstance(splits, dict) else []


def _entry(source: Catalog, key: str) -> dict[str, Any]:
    entry = source.info["features"].get(source.stored_names.get(key, key))
    return dict(entry) if isinstance(entry, dict) else {}


def _further_entries(entry: Mapping[str, Any]) -> dict[str, Any]:
    return {name: value for name, value in entry.items() if name not in _OF_FEATURE}


def _details(entry: Mapping[str, Any], is_video: bool) -> dict[str, Any]:
    """Entries of `info`; of a video without those that its file decides."""
    info = entry.get("info") or entry.get("video_info") or {}
    if not isinstance(info, dict):
        return {}
    return {
        name: value for name, value in info.items() if not (is_video and name.startswith(OF_VIDEO))
    }


def _as_listed(path: str, is_folder: bool) -> str:
    return f"{path}/" if is_folder else path


def _further_files(source: Catalog, written: set[str]) -> list[str]:
    top = source.files.entries("") or []
    names = [_as_listed(name, is_folder) for name, is_folder in top if name not in _FOLDERS]
    for name, is_folder in source.files.entries("meta") or []:
        path = f"meta/{name}"
        is_known = name.startswith(_FILES) and (path != "meta/contract.json" or path in written)
        if not is_known:
            names.append(_as_listed(path, is_folder))
    return [
        name
        for name in names
        if not name.rpartition("/")[2].startswith(".") and not name.startswith(".")
    ]
