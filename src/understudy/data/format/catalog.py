"""What a dataset holds: one `Catalog` for LeRobot v2.0, v2.1, v3.0 and v3.1, read from `meta/` alone.

Small, read-only, cheap to pickle (numpy columns, a few integers per episode).
"""

import os
import re
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field, replace
from functools import cached_property, partial
from typing import Any

import numpy as np

from understudy.data.format import lerobot_v2, lerobot_v3
from understudy.data.format.complete import Gap, gaps, has_any, near_miss
from understudy.data.format.episode_store import episodes_once
from understudy.data.format.episode_table import EpisodeTable, Videos
from understudy.data.format.features import INDEX_KEYS, Feature, parse_features
from understudy.data.format.json_files import read_json
from understudy.data.format.path_templates import check_template
from understudy.data.format.recorded_stats import PER_EPISODE, Stats, read_stats
from understudy.errors import DatasetError
from understudy.storage.files import Files
from understudy.storage.options import Remote

INFO = "meta/info.json"
_REPOSITORY = re.compile(r"\w[\w.-]*/\w[\w.-]*")  # OWNER/NAME, as on the hub
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
        without_files: those of them that are cameras of which no video file was found.
        stored: key -> what it is called in this dataset's files, of those that bear another name (`rename.py`).
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
    without_files: tuple[str, ...] = ()
    stored: Mapping[str, str] = field(default_factory=dict)

    @classmethod
    def open(
        cls,
        root: "str | os.PathLike[str] | Catalog",
        remote: Remote | None = None,
        *,
        video_path: str | None = None,
        data_path: str | None = None,
        version: str | None = None,
    ) -> "Catalog":
        """Read the metadata of the dataset at a path or fsspec URL (`https://`, `s3://`, `hf://datasets/...`, ...).

        Args:
            remote: how a dataset that is not on this machine is read (credentials, cache folder, deadlines).
            video_path, data_path: path templates to use instead of those in info.json, as in
                "video/{video_key}/chunk-{chunk_index:03d}/file-{file_index:03d}.mp4".
            version: the format to read it as, instead of info.json's `codebase_version`.

        Raises:
            DatasetError: there is no dataset, its version is not one of those above, or its metadata is broken.
        """
        if isinstance(root, Catalog):
            return root
        files = Files(root, remote)
        if files.is_local and not files.exists(INFO):
            there = "there is no meta/info.json" if files.exists("") else "there is no such folder"
            fix = "give the folder of a LeRobot dataset, the one that holds meta/"
            if not files.exists("") and _REPOSITORY.fullmatch(os.fspath(root)):
                fix += f"; one on the hub is hf://datasets/{os.fspath(root)}"
            raise DatasetError(there, where=files.root, fix=fix)
        info = read_json(files, INFO)
        where = files.where(INFO)
        told = {"video_path": video_path, "data_path": data_path, "codebase_version": version}
        info |= {name: value for name, value in told.items() if value is not None}
        version = _version(info, where if version is None else files.root)
        reader = VERSIONS[version]
        for name in ("video_path", "data_path"):
            if told[name] is not None:
                _check_told(name, told[name], reader.FIELDS, files.root)
        fps = info.get("fps")
        if isinstance(fps, bool) or not isinstance(fps, (int, float)) or not 0 < fps < 1e6:
            raise DatasetError(f"fps is {fps!r}, not a positive number", where=where, fix="write the recording rate")
        features = parse_features(info.get("features"), where)
        left_out = {
            key: "is depth video, which is not read" for key, f in features.items() if f.is_video and f.is_depth
        }
        features = {key: feature for key, feature in features.items() if key not in left_out}
        oddities: list[str] = []
        by_index = reader.read_tasks(files, oddities)
        tasks = _in_order(by_index, where, oddities)
        episodes = episodes_once(
            files,
            info,
            partial(reader.episode_files, files),
            [version, [key for key, feature in features.items() if feature.is_video], sorted(by_index.items())],
            oddities,
            partial(reader.read_episodes, files, info, features, by_index),
        )
        lost = {key: _lost(files, videos, features) for key, videos in episodes.videos.items()}
        lost = {key: why for key, why in lost.items() if why}
        left_out |= lost
        features = {key: feature for key, feature in features.items() if key not in lost}
        episodes = replace(episodes, videos={key: v for key, v in episodes.videos.items() if key not in lost})
        oddities[:0] = [f"{key} {why}: left out" for key, why in left_out.items()]
        robot = info.get("robot_type")
        _check_totals(info, episodes, len(by_index), oddities)
        oddities += [
            f"{key}: {feature.dtype} {feature.shape} looks like pictures; it is read as numbers, and no camera"
            for key, feature in features.items()
            if feature.looks_like_pictures and not feature.is_picture
        ]
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
            without_files=tuple(lost),
        )

    @property
    def root(self) -> str:
        """The folder (absolute), or the URL without its credentials."""
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
        lines = self.odd_metadata()
        if self.version == "v2.1" and not self.files.exists(PER_EPISODE):
            lines.append(f"{PER_EPISODE} is not there")
        elif self.version != "v2.1" and not self.files.exists("meta/stats.json"):
            lines.append("meta/stats.json is not there")
        else:
            lines += self._odd_stats()
        try:
            found = self.gaps()
        except DatasetError as error:  # a folder that may not be listed
            return [*lines, str(error)]
        return lines + [gap.line for gap in found or []]

    def gaps(self, cameras: Iterable[str] | None = None) -> list[Gap] | None:
        """Which files of the rows and of `cameras` (all by default) cannot be read, as far as listings show; None where
        folders cannot be listed. Raises DatasetError for a folder that may not be looked into."""
        return gaps(self.files, self.episodes, self.episodes.videos if cameras is None else cameras)

    def odd_metadata(self) -> list[str]:
        """The lines of `report` about info.json and the tables, recorded statistics aside."""
        lines = list(self.oddities)
        kinds = {"data": self.episodes.data} | {key: videos.files for key, videos in self.episodes.videos.items()}
        for what, table in kinds.items():
            for file in range(min(len(table), 64)):
                said, lies = table.path(file), table.find(self.files, file)
                if said != lies:
                    lines.append(
                        f"{what}: the path template names {said}, the file lies in {lies}; files are found by name"
                    )
                    break
        return lines

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
                    said = f"{key}: {flat} of {size} dimensions are constant (standard deviation 0)"
                    lines.append(f"{said}, as the recorded statistics say; the rows were not read for it")
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


def _check_told(name: str, template: object, fields: set[str], where: str) -> None:
    """Raise DatasetError for a path template that was given and cannot be used."""
    try:
        check_template(template, fields | ({"video_key"} if name == "video_path" else set()))
    except ValueError as error:
        fix = "as in video_path='videos/{video_key}/…', with the fields " + ", ".join(sorted(fields))
        raise DatasetError(f"{name} is {template!r}: {error}", where=where, fix=fix) from error


def _lost(files: Files, videos: Videos, features: Mapping[str, Feature]) -> str:
    """Why a camera has no pictures at all, "" where it has some."""
    if has_any(files, videos):
        return ""
    said = "is listed in info.json but has no video file"
    if not len(videos.files):
        return f"{said}: the episodes name none"
    path = videos.files.path(0)
    near = near_miss(files, path, features)
    return f"{said}: {path} is not there" + (f"; there is {near}/" if near else "")


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
