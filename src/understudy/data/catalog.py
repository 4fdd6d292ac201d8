"""What a dataset holds: one `Catalog` for LeRobot v2.0, v2.1, v3.0 and v3.1, read from `meta/` alone.

Small, read-only, cheap to pickle (numpy columns, a few integers per episode). Not here: rows, pictures, windows,
selection; nothing of `data/` or `videos/` is opened.
"""

import os
from collections.abc import Mapping
from dataclasses import dataclass, field
from functools import cached_property
from typing import Any

import numpy as np

from understudy.data import lerobot_v2, lerobot_v3
from understudy.data.errors import DatasetError
from understudy.data.features import INDEX_KEYS, Feature, parse_features
from understudy.data.files import Files
from understudy.data.jsonlines import read_json
from understudy.data.layout import EpisodeTable, FileTable, Videos
from understudy.data.recorded_stats import PER_EPISODE, Stats, read_stats
from understudy.data.remote.settings import Remote

INFO = "meta/info.json"
VERSIONS = {"v2.0": lerobot_v2, "v2.1": lerobot_v2, "v3.0": lerobot_v3, "v3.1": lerobot_v3}


@dataclass(frozen=True, eq=False, repr=False)
class Catalog:
    """A dataset's metadata.

    Attributes:
        files: access to everything under the root.
        version: "v2.0", "v2.1", "v3.0" or "v3.1".
        fps: frames per second, as recorded.
        robot_type: as recorded, None when it is not said.
        features: key -> Feature, in info.json's order, without those that cannot be delivered.
        left_out: key -> why, of those.
        stored: key -> what it is called in this dataset's files, of those that bear another name (`standard.py`).
        tasks: text by task_index; "" where an index is skipped (see `report`).
        episodes: the episode table, keyed by episode id.
        info: meta/info.json as it is.
        oddities: what was odd in the metadata and how it was read, one line each.
    """

    files: Files
    version: str
    fps: float
    robot_type: str | None
    features: Mapping[str, Feature]
    tasks: tuple[str, ...]
    episodes: EpisodeTable
    info: Mapping[str, Any]
    oddities: tuple[str, ...]
    left_out: Mapping[str, str]
    stored: Mapping[str, str] = field(default_factory=dict)

    @classmethod
    def open(cls, root: "str | os.PathLike[str] | Catalog", remote: Remote | None = None) -> "Catalog":
        """Read the metadata of the dataset at a path or fsspec URL (`https://`, `s3://`, `hf://datasets/...`, ...).

        Args:
            remote: how a dataset that is not on this machine is read (credentials, cache folder, deadlines).

        Raises:
            DatasetError: there is no dataset, its version is not one of those above, or its metadata is broken.
        """
        if isinstance(root, Catalog):
            return root
        files = Files(root, remote)
        if files.is_local and not files.exists(INFO):
            there = "there is no meta/info.json" if files.exists("") else "there is no such folder"
            raise DatasetError(
                there, where=files.root, fix="give the folder of a LeRobot dataset, the one that holds meta/"
            )
        info = read_json(files, INFO)
        where = files.where(INFO)
        version = _version(info, where)
        fps = info.get("fps")
        if isinstance(fps, bool) or not isinstance(fps, (int, float)) or not 0 < fps < 1e6:
            raise DatasetError(f"fps is {fps!r}, not a positive number", where=where, fix="write the recording rate")
        features = parse_features(info.get("features"), where)
        reasons = {key: _why_not(files, version, feature) for key, feature in features.items() if feature.is_video}
        left_out = {key: why for key, why in reasons.items() if why}
        features = {key: feature for key, feature in features.items() if key not in left_out}
        oddities = [f"{key} {why}: left out" for key, why in left_out.items()]
        reader = VERSIONS[version]
        by_index = reader.read_tasks(files, oddities)
        tasks = _in_order(by_index, where, oddities)
        episodes = reader.read_episodes(files, info, features, by_index, oddities)
        robot = info.get("robot_type")
        _check_totals(info, episodes, len(by_index), oddities)
        return cls(
            files=files,
            version=version,
            fps=fps,
            robot_type=robot if isinstance(robot, str) else None,
            features=features,
            tasks=tasks,
            episodes=episodes,
            info=info,
            oddities=tuple(oddities),
            left_out=left_out,
        )

    @property
    def root(self) -> str:
        """The folder (absolute) or URL."""
        return self.files.root

    @property
    def name(self) -> str:
        """The last part of the root, for people and journals."""
        return self.root.rstrip("/").rpartition("/")[2] or self.root

    @property
    def camera_keys(self) -> tuple[str, ...]:
        """Keys of the features that are pictures, `video` and `image` alike."""
        return tuple(key for key, feature in self.features.items() if feature.is_picture)

    @cached_property
    def stats(self) -> Stats:
        """The statistics recorded with the dataset, read when first asked for (see `recorded_stats.py`); {} when there
        are none. v2.1's per-episode records are put together."""
        stats = read_stats(self.files)
        if not self.stored:
            return stats
        own = {key: self.stored.get(key, key) for key in self.features}
        return {key: stats[name] for key, name in own.items() if name in stats}

    def episode_texts(self) -> dict[str, dict[int, str]]:
        """Text that the metadata holds about episodes beside their tasks: name -> episode id -> text. Read anew."""
        return VERSIONS[self.version].read_texts(self.files)

    def data_path(self, row: int) -> str:
        """Where the rows of a table row's episode lie, relative to the root."""
        return self.episodes.data.find(self.files, int(self.episodes.data_file[row]))

    def video_path(self, camera: str, row: int) -> str:
        """The video file that holds an episode's pictures, relative to the root.

        Raises:
            DatasetError: the camera is none of this dataset, or the episode has no video of it.
        """
        file = int(self.videos(camera).file[row])
        if file < 0:
            what = f"episode {int(self.episodes.ids[row])} names no video of {camera}"
            raise DatasetError(what, where=self.root, fix=f"leave the episode out, or the key {camera!r}")
        return self.videos(camera).files.find(self.files, file)

    def videos(self, camera: str) -> Videos:
        """The places of one camera's pictures."""
        if camera not in self.episodes.videos:
            cameras = ", ".join(self.episodes.videos) or "none"
            raise DatasetError(f"no video camera {camera!r}", where=self.root, fix=f"its video cameras: {cameras}")
        return self.episodes.videos[camera]

    def __repr__(self) -> str:
        table = self.episodes
        size = f"{len(table)} episodes, {table.frames} frames, {self.fps} fps"
        return f"Catalog({self.root!r}: LeRobot {self.version}, {size})"

    def report(self) -> list[str]:
        """Everything odd that metadata and folder listings show, one line each and how it is read; [] for a clean
        dataset. Opens no data or video file: `EpisodeDataset` says what is wrong inside them when it meets it."""
        lines = list(self.oddities)
        if self.version == "v2.1" and not self.files.exists(PER_EPISODE):
            lines.append(f"{PER_EPISODE} is not there")
        elif self.version != "v2.1" and not self.files.exists("meta/stats.json"):
            lines.append("meta/stats.json is not there")
        else:
            lines += self._odd_stats()
        lines += self._missing(self.episodes.data, self.episodes.data_file, "data")
        for key, videos in self.episodes.videos.items():
            lines += self._missing(videos.files, videos.file, key)
            without = np.flatnonzero((videos.file < 0) & (self.episodes.lengths > 0))
            if len(without):
                lines.append(
                    f"{key}: {len(without)} episodes name no video, first {int(self.episodes.ids[without[0]])}"
                )
        return lines

    def _missing(self, table: FileTable, file_of: np.ndarray, what: str) -> list[str]:
        try:
            absent = table.missing(self.files)
        except DatasetError as error:  # a folder that may not be listed
            return [str(error)]
        if not len(absent):
            moved = [f for f in range(min(len(table), 64)) if table.find(self.files, f) != table.path(f)]
            if not moved:
                return []
            said, lies = table.path(moved[0]), table.find(self.files, moved[0])
            return [f"{what}: the path template names {said}, the file lies in {lies}; files are found by name"]
        episode = int(self.episodes.ids[np.flatnonzero(file_of == absent[0])[0]])
        return [
            f"{what}: {len(absent)} of {len(table)} files are not there, "
            f"first {table.path(int(absent[0]))} (episode {episode})"
        ]

    def _odd_stats(self) -> list[str]:
        try:
            stats = self.stats
        except DatasetError as error:
            return [str(error)]
        lines = []
        for key, entry in stats.items():
            if key in self.features and not self.features[key].is_picture and key not in INDEX_KEYS and "std" in entry:
                flat, size = int((entry["std"] == 0).sum()), int(entry["std"].size)
                if flat:
                    lines.append(f"{key}: {flat} of {size} dimensions are constant (standard deviation 0)")
        return lines

    def __getstate__(self) -> dict[str, Any]:
        return {key: value for key, value in self.__dict__.items() if key != "stats"}

    def __setstate__(self, state: dict[str, Any]) -> None:
        self.__dict__.update(state)


def _version(info: Mapping[str, Any], where: str) -> str:
    said = info.get("codebase_version")
    storage = info.get("storage_format", "parquet")
    if storage not in ("parquet", None):
        fix = "convert it to parquet files with LeRobot"
        raise DatasetError(f"storage_format is {storage!r}; parquet is read", where=where, fix=fix)
    version = f"v{str(said).removeprefix('v')}"
    if said is None or version not in VERSIONS:
        fix = f"read are {', '.join(VERSIONS)}; convert the dataset with LeRobot"
        raise DatasetError(f"codebase_version is {said!r}", where=where, fix=fix)
    return version


def _why_not(files: Files, version: str, feature: Feature) -> str:
    """Why a video feature cannot be delivered, "" when it can."""
    if feature.is_depth:
        return "is depth video, which is not read"
    if VERSIONS[version] is lerobot_v3:
        listing = files.entries(f"videos/{feature.key}")
        found = listing is None or len(listing) > 0
    else:
        chunks = files.entries("videos")
        found = chunks is None or any(files.exists(f"videos/{name}/{feature.key}") for name, folder in chunks if folder)
        found = found or files.exists(f"videos/{feature.key}")
    return "" if found else "is listed in info.json but has no video file"


def _in_order(by_index: dict[int, str], where: str, oddities: list[str]) -> tuple[str, ...]:
    last = max(by_index, default=-1)
    if last >= 10 * len(by_index) + 1000:
        fix = "number the tasks 0, 1, 2, ..."
        raise DatasetError(f"task_index {last} with {len(by_index)} tasks", where=where, fix=fix)
    if last + 1 != len(by_index):
        oddities.append(f"tasks: {last + 1 - len(by_index)} task indices below {last} have no text")
    return tuple(by_index.get(index, "") for index in range(last + 1))


def _check_totals(info: Mapping[str, Any], episodes: EpisodeTable, tasks: int, oddities: list[str]) -> None:
    """Totals in info.json are only compared: what is read is the tables."""
    videos = sum(int(np.unique(v.file[v.file >= 0]).size) for v in episodes.videos.values())
    true = {"total_episodes": len(episodes), "total_frames": episodes.frames, "total_tasks": tasks}
    if "episode_chunk" in episodes.data.template or "total_chunks" in info:
        true["total_chunks"] = int(np.unique(episodes.data.chunk).size)
    if "total_videos" in info:
        true["total_videos"] = videos
    for key, value in true.items():
        if key in info and info[key] != value:
            oddities.append(f"info.json: {key} is {info[key]!r}, the tables hold {value}")
    if int(episodes.ids[-1]) != len(episodes) - 1 or int(episodes.ids[0]) != 0:
        oddities.append(
            f"episode ids have gaps: {len(episodes)} episodes from {int(episodes.ids[0])} to {int(episodes.ids[-1])}"
        )
    splits = info.get("splits")
    if isinstance(splits, dict) and splits.get("train") not in (None, f"0:{len(episodes)}"):
        oddities.append(f"info.json: splits {splits} do not match {len(episodes)} episodes; splits are not used")
    empty = np.flatnonzero(episodes.lengths == 0)
    if len(empty):
        oddities.append(f"{len(empty)} episodes have no frame, first {int(episodes.ids[empty[0]])}")
