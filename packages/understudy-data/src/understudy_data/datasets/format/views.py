"""Views: named selections of a dataset, stored in it as `meta/views/NAME.json`, a list of versions
that only grows.

    select    settings in the words of a run's `data`: where, episodes, keep_ranges, val_fraction
              and others
    made_on   number of the dataset's episodes at that time, and a digest of their ids and lengths
    selected  number of episodes that it selected then
    digest    SHA-256 of all of the above

Files that it uses are copies in `meta/views/files`, named by their SHA-256. A dataset may grow: the
episodes of that time come first, as they were. Otherwise ids may name other episodes, and the view
is refused.
"""

import hashlib
import json
import re
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any, ClassVar

import numpy as np

from understudy_base import VIEW_NAME, DatasetError, hold_folder, write_bytes, write_text
from understudy_data.datasets.format.episode_table import EpisodeTable
from understudy_data.datasets.format.meta_files import read_json
from understudy_data.datasets.format.selection_fields import (
    COPY,
    KINDS,
    SPLIT,
    Kind,
    is_natural,
    is_unset,
)
from understudy_data.storage.dataset_root import Files, as_dataset_error
from understudy_data.storage.remote_options import RemoteOptions

FOLDER = "meta/views"
SETTINGS: Mapping[str, Kind] = {**KINDS, **SPLIT}
"""Settings that a view may have, those of `data` in a run that select -> their values in a file."""
_SAVE = "restore it, or save the view again: understudy select PATH NAME"


@dataclass(frozen=True)
class View:
    """A version of a view."""

    name: str
    version: int
    digest: str
    select: Mapping[str, Any]
    """Settings that are not the default, with paths of its files on this machine."""
    made_on: Mapping[str, Any]
    selected: Mapping[str, int]

    def __str__(self) -> str:
        return f"{self.name}@{self.version}"

    @property
    def record(self) -> str:
        """`NAME@VERSION DIGEST`, for the record of a run."""
        return f"{self} {self.digest}"

    def combine(self, beside: Mapping[str, Any]) -> dict[str, Any]:
        """Return settings that select the frames of the view that the settings `beside` it select,
        too.

        Settings of the view that `beside` does not name are left out.

        Raises:
            DatasetError: both have another value of a setting that has no intersection, or no
                episode is in both.
        """
        merged = dict(beside)
        split = set()
        if SPLIT.keys() & self.select.keys():
            split = SPLIT.keys() & beside.keys()
        for name in split | (self.select.keys() & beside.keys()):
            value = self.select.get(name, "another split")
            other = beside[name]
            if is_unset(name, other) or other == value:
                merged[name] = self.select.get(name, other)
                continue
            join = SETTINGS[name].join
            merged[name] = None if join is None else join(value, other)
            if merged[name] is None:
                problem = (
                    f"{name} is {str(other)[:80]} beside the view {self}, which has "
                    f"{str(value)[:80]}"
                )
                raise DatasetError(problem, fix="leave the setting out, or save another view")
        if left := {*(merged.get("episodes") or ())} - {*(merged.get("exclude_episodes") or ())}:
            merged["episodes"] = tuple(sorted(left))
        return merged

    def describe(self, episodes: int, of: int) -> str:
        """Describe the view in one line: `episodes` that it selects `of` those that the dataset has
        now.
        """
        then = f"{self.selected['episodes']:,} of {self.made_on['episodes']:,} when it was made"
        return f"#{self} ({self.digest[:12]}): selects {episodes:,} of {of:,} episodes, {then}"


class Views:
    """Views that are stored in a dataset.

    Args:
        files: the dataset's files.
        episodes: its episodes.
    """

    FOLDER: ClassVar = FOLDER
    SETTINGS: ClassVar = SETTINGS

    def __init__(self, files: Files, episodes: EpisodeTable) -> None:
        self._files = files
        self._episodes = episodes

    def path(self, name: str) -> str:
        """Path of the versions of a view under the root."""
        return f"{FOLDER}/{name}.json"

    def names(self) -> list[str]:
        """Return the names of all views, sorted; [] where folders cannot be listed."""
        return [
            entry[:-5]
            for entry, _ in self._files.entries(FOLDER) or ()
            if re.fullmatch(rf"{VIEW_NAME}\.json", entry)
        ]

    def read(self, address: str) -> View:
        """Read the view `NAME` or `NAME@VERSION`.

        Raises:
            DatasetError: there is no such view, it or a file of it changed, or its episodes are not
                those of the time.
        """
        name, _, version = address.partition("@")
        where = self._files.where(self.path(name))
        with as_dataset_error(where, "is no view", _SAVE):
            versions = self._versions(name)
            number = int(version or len(versions))
            if not 0 < number <= len(versions):
                fix = (
                    f"there are {', '.join(self.names()) or 'none'}, with {len(versions)} "
                    f"versions of {name}"
                )
                raise DatasetError(f"there is no view {address!r}", where=self._files.root, fix=fix)
            content = dict(versions[number - 1])
            digest = content.pop("digest")
            made_on = content["made_on"]
            if digest != _digest(content) or not content["select"].keys() <= SETTINGS.keys():
                raise DatasetError(
                    f"version {number} has another digest, or unknown settings",
                    where=where,
                    fix=_SAVE,
                )
            if made_on != _facts(self._episodes, made_on["episodes"]):
                problem = (
                    f"the view was made on {made_on['episodes']} episodes, which are not the "
                    "first ones here"
                )
                raise DatasetError(problem, where=where, fix=_SAVE)
            _check_settings(content["select"], where)
            if not is_natural(content["selected"]["episodes"]):
                raise DatasetError(
                    f"version {number} gives no number of selected episodes", where=where, fix=_SAVE
                )
            select: dict[str, Any] = {}
            for key, value in content["select"].items():
                select[key] = tuple(value) if isinstance(value, list) else value
            select |= {
                key: _fetch(self._files, str(value))
                for key, value in select.items()
                if COPY.fullmatch(str(value))
            }
            return View(name, number, digest, select, made_on, content["selected"])

    def save(self, name: str, select: Mapping[str, Any], selected: Any) -> View:
        """Save settings as the next version of a view; where they and the facts are those of its
        latest, return that one.

        Raises:
            DatasetError: the dataset is on another machine, or `name` is no name of a view.
        """
        if not self._files.is_local or not re.fullmatch(VIEW_NAME, name):
            fix = (
                "give a name of letters, digits, - and _, which begins with a letter, and a folder "
                "on this machine"
            )
            raise DatasetError(f"no view can be saved as {name!r}", where=self._files.root, fix=fix)
        folder = Path(self._files.where(FOLDER))
        settings = dict(select)
        (folder / "files").mkdir(parents=True, exist_ok=True)
        for key, value in select.items():
            if key == "keep_ranges" or str(value).endswith(".parquet"):
                data = Path(value).read_bytes()
                suffix = ".json" if key == "keep_ranges" else ".parquet"
                settings[key] = hashlib.sha256(data).hexdigest() + suffix
                write_bytes(folder / "files" / settings[key], data)
        made_on = _facts(self._episodes, len(self._episodes))
        content = {"select": settings, "made_on": made_on, "selected": selected}
        content["digest"] = _digest(content)
        with hold_folder(folder, waits=True):
            versions = self._versions(name)
            if not versions or versions[-1]["digest"] != content["digest"]:
                text = json.dumps({"versions": [*versions, content]}, indent=1)
                write_text(Path(self._files.where(self.path(name))), text + "\n")
        return self.read(name)

    def _versions(self, name: str) -> list[dict[str, Any]]:
        """Return the content of all versions of a view; [] where there is none."""
        path = self.path(name)
        versions: list[dict[str, Any]] = []
        if self._files.exists(path):
            versions = read_json(self._files, path)["versions"]
        return versions


def _check_settings(select: Mapping[str, Any], where: str) -> None:
    """Check the settings of a view as those of flags: the file may come with the dataset of a
    stranger.

    Raises:
        DatasetError: names the first setting that no flag takes. A file that is none of
            `meta/views/files` is not read.
    """
    for name, value in select.items():
        kind = SETTINGS[name]
        if not kind.accepts(value):
            problem = f"the view has {name} {str(value)[:80]!r}, and {kind.rule}"
            raise DatasetError(problem, where=where, fix=_SAVE)


def _digest(content: Mapping[str, Any]) -> str:
    return hashlib.sha256(json.dumps(content, sort_keys=True).encode()).hexdigest()


def _facts(episodes: EpisodeTable, first: int) -> dict[str, Any]:
    """Number and digest of the first episodes."""
    table = np.stack([episodes.ids[:first], episodes.lengths[:first]]).astype("<i8")
    return {"episodes": table.shape[1], "digest": hashlib.sha256(table.tobytes()).hexdigest()}


def _fetch(files: Files, name: str) -> str:
    """Return the path on this machine of a file of `meta/views/files`.

    Raises:
        DatasetError: it is missing, or its content is not that of its name.
    """
    path = f"{FOLDER}/files/{name}"
    data = files.read(path)
    where = files.where(path)
    if not name.startswith(hashlib.sha256(data).hexdigest()):
        raise DatasetError("its content is not that of its name", where=where, fix=_SAVE)
    if files.is_local:
        return where
    place = Path((files.options or RemoteOptions()).folder, "views", name)
    place.parent.mkdir(parents=True, exist_ok=True)
    write_bytes(place, data, durable=False)
    return str(place)
