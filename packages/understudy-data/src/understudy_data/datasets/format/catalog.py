"""`Catalog`: the metadata of a LeRobot dataset (v2.0, v2.1, v3.0, v3.1), read from `meta/` alone.

Small, read-only and cheap to pickle: numpy columns with a few integers per episode.
"""

import hashlib
import json
import logging
import os
import re
from collections.abc import Iterable, Mapping
from contextlib import suppress
from dataclasses import dataclass, field, fields, replace
from functools import cached_property, partial
from typing import Any, ClassVar

import numpy as np

from understudy_base import DataAccessError, DatasetError, MissingFileError, plural, split_view
from understudy_data.datasets.format import layouts
from understudy_data.datasets.format.episode_table import (
    EpisodeTable,
    MissingFiles,
    Videos,
    describe_ids,
    find_missing,
    has_any_file,
    load_episode_table,
    similar_folder,
)
from understudy_data.datasets.format.features import INDEX_KEYS, Feature, join_stats, parse_features
from understudy_data.datasets.format.meta_files import check_template, fill_template, read_json
from understudy_data.datasets.format.pairing import check_pairing, pair_by_columns
from understudy_data.datasets.format.recorded_stats import PER_EPISODE, Stats, read_stats
from understudy_data.datasets.format.sensors import SENSORS, Sensor, read_sensors
from understudy_data.datasets.format.views import View, Views
from understudy_data.hub.ids import HubId
from understudy_data.plain_values import storable
from understudy_data.storage.dataset_root import Files
from understudy_data.storage.dataset_version import (
    folder_of,
    publication_is_gone,
    publication_name,
)
from understudy_data.storage.remote_options import RemoteOptions

INFO = "meta/info.json"
_MARKS = {"v2.0": ("meta/stats.json", INFO), "v2.1": (PER_EPISODE, INFO)}
_MARKS |= dict.fromkeys(("v3.0", "v3.1"), ("meta/stats.json", INFO))
"""Files by which versions of a dataset differ, beside the first and the last one of the episode
table.
"""
_HUB_ID = re.compile(r"\w[\w.-]*/\w[\w.-]*")  # OWNER/NAME

logger = logging.getLogger("understudy.data.format.catalog")


@dataclass(frozen=True, eq=False, repr=False)
class Catalog:
    """Metadata of a dataset.

    Attributes:
        files: access to all files under the root.
        version: "v2.0", "v2.1", "v3.0" or "v3.1".
        fps: frames per second, as recorded.
        robot_type: as recorded; None when info.json has none.
        features: key -> Feature, in info.json's order, without those that cannot be read.
        skipped_features: key -> reason, for the features that cannot be read.
        cameras_without_files: the skipped features that are cameras without any video file.
        stored_names: key -> name in the files, for features that were renamed (`standard_keys.py`).
        joined: key -> columns of a vector of several, each by its name in the files
            (`features.py`).
        sensors: key -> signal with samples at its own rate (`sensors.py`).
        tasks: text by task_index; "" where an index is skipped (see `report`).
        episodes: the episode table, keyed by episode id.
        info: content of meta/info.json.
        oddities: irregularities of the metadata and how each was read, one line each.
        view: the view of the address, which `Selection.apply` adds to a selection; the episodes are
            those of all.
    """

    INFO: ClassVar = INFO
    """Path of info.json under the root."""
    SENSORS: ClassVar = SENSORS
    """Path of the declarations of sensors."""
    OF_FORMAT: ClassVar = layouts.OF_FORMAT
    """Pattern of names of columns of the episode table that belong to the format."""
    END_IS_CUT: ClassVar = layouts.END_IS_CUT
    """Metadata of episodes: true where the episode is a part of a longer one, without its last
    frame.
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
    skipped_features: Mapping[str, str]
    cameras_without_files: tuple[str, ...] = ()
    stored_names: Mapping[str, str] = field(default_factory=dict)
    joined: Mapping[str, tuple[Feature, ...]] = field(default_factory=dict)
    sensors: Mapping[str, Sensor] = field(default_factory=dict)
    view: View | None = None

    @classmethod
    def open(
        cls,
        root: "str | os.PathLike[str] | Catalog",
        remote: RemoteOptions | None = None,
        *,
        video_path: str | None = None,
        data_path: str | None = None,
        version: str | None = None,
        pairing: str | None = None,
    ) -> "Catalog":
        """Read the metadata of a dataset.

        Args:
            root: a path, a fsspec URL (`https://`, `s3://`, `hf://datasets/OWNER/NAME`, ...), or
                the hub id OWNER/NAME where neither the folder OWNER/NAME nor OWNER exists. `#NAME`
                or `#NAME@VERSION` after it is a view (`views.py`). An open catalog is returned as
                it is.
            remote: how to read a dataset on another machine (credentials, cache folder, deadlines).
            video_path: path template to use instead of that in info.json, as in
                "video/{video_key}/chunk-{chunk_index:03d}/file-{file_index:03d}.mp4".
            data_path: the same for the parquet files.
            version: format version to use instead of info.json's `codebase_version`.
            pairing: side that decides where the name or place of rows and their columns name
                different episodes: "files" or "columns" (`pairing.py`). By default such rows are
                refused in a dataset with images.

        Raises:
            DatasetError: there is no dataset, its version is not supported, or its metadata is
                broken.
        """
        if isinstance(root, Catalog):
            return root
        layout = {"video_path": video_path, "data_path": data_path, "version": version}
        return Opening(root, remote, **layout, pairing=pairing).finish()

    def with_view(self, address: str) -> "Catalog":
        """Return the catalog with the view `#NAME` or `#NAME@VERSION`, "" for none. Raises as
        `Views.read` does.
        """
        view = self.views.read(address[1:]) if address else None
        return replace(self, view=view)

    @property
    def views(self) -> Views:
        """The views that are stored in the dataset."""
        return Views(self.files, self.episodes)

    @cached_property
    def mark(self) -> str:
        """Hash of the address and the metadata, without statistics."""
        table = self.episodes
        facts = (self.root, self.version, self.features, self.stored_names)
        digest = hashlib.sha256(repr(facts).encode())
        digest.update(table.pairing.encode())
        arrays = [
            table.ids,
            table.lengths,
            table.data_file,
            table.data_row,
            table.task_offsets,
            table.task_indices,
        ]
        for videos in table.videos.values():
            arrays += [videos.file, videos.first]
        for array in arrays:
            digest.update(np.ascontiguousarray(array).data)
        digest.update(json.dumps([self.info, self.tasks], sort_keys=True, default=str).encode())
        return digest.hexdigest()

    def marks(self, paths: Iterable[str]) -> list[tuple[str, str]]:
        """Return (path, version) of files under the root; one that cannot be accessed has the
        version "".
        """
        versions = []
        for path in paths:
            version = ""
            with suppress(DatasetError):  # its reader reports it
                version = self.files.version(path)
            versions.append((path, version))
        return versions

    def sensor_files(self, sensor: Sensor) -> list[str]:
        """Paths of a sensor's files: one, or one for each episode of the table."""
        if not sensor.per_episode:
            return [sensor.path]
        ids = self.episodes.ids.tolist()
        return [fill_template(sensor.path, episode_index=episode) for episode in ids]

    def episode_files(self) -> list[str]:
        """List the files of the episode table in order, as paths under the root."""
        return list(layouts.episode_files(self.files, layouts.LAYOUTS[self.version]))

    @property
    def root(self) -> str:
        """Absolute folder, or the URL without its credentials."""
        return self.files.root

    @property
    def name(self) -> str:
        """Last part of the root, for messages and logs."""
        return publication_name(self.root) or self.root.rstrip("/").rpartition("/")[2] or self.root

    @property
    def place(self) -> str:
        """Address, equal for all openings of one dataset; that of a local one has no links."""
        return self.files.place

    @staticmethod
    def describe_ids(ids: np.ndarray) -> str:
        """Return the numbers of episodes for a message, shortened; ids: int, ascending."""
        return describe_ids(ids)

    @staticmethod
    def is_gone(address: str) -> bool:
        """Return whether an address `PATH@NUMBER` names a publication that is not there; False for
        any other address.
        """
        return publication_is_gone(address)

    def read_json(self, path: str) -> dict[str, Any]:
        """Read a JSON file of `meta/`, given by its path relative to the root.

        Raises:
            DatasetError: it is not there, or holds no JSON object.
        """
        return read_json(self.files, path)

    @property
    def camera_keys(self) -> tuple[str, ...]:
        """Keys of all cameras, stored as video or as images."""
        return tuple(key for key, feature in self.features.items() if feature.is_camera)

    @property
    def has_images_by_place(self) -> bool:
        """Whether videos or sensors lie apart from the rows, which can then be paired with those of
        another episode.
        """
        return bool(self.episodes.videos or self.sensors)

    @property
    def num_episodes(self) -> int:
        """Episodes in the dataset."""
        return len(self.episodes)

    @property
    def num_frames(self) -> int:
        """Frames in all episodes."""
        return self.episodes.frames

    @cached_property
    def stats(self) -> Stats:
        """Statistics recorded with the dataset, read on first access; {} when there are none.

        Per-episode records of v2.1 are aggregated (see `recorded_stats.py`). Depth has the unit of
        its images.
        """
        stats = read_stats(self.files)
        if self.stored_names:
            names = {key: self.stored_names.get(key, key) for key in self.features}
            renamed = {key: stats[name] for key, name in names.items() if name in stats}
            for key, parts in self.joined.items():
                if all(part.key in stats for part in parts):
                    renamed[key] = join_stats([stats[part.key] for part in parts])
            stats = renamed
        for key, feature in self.features.items():
            if feature.is_depth and key in stats:
                entry = feature.convert_statistics(stats.pop(key))
                if entry is not None:
                    stats[key] = entry
        return stats

    def episode_texts(self) -> dict[str, dict[int, str]]:
        """Read the texts about episodes in the metadata, tasks aside: name -> episode id ->
        text.
        """
        texts: dict[str, dict[int, str]] = {}
        for name, column in self.episode_metadata().items():
            texts_of_column = {e: text for e, text in column.items() if isinstance(text, str)}
            if texts_of_column:
                texts[name] = texts_of_column
        return texts

    def episode_metadata(self) -> dict[str, dict[int, Any]]:
        """Read the metadata of episodes beyond the format's own: name -> episode id -> value,
        without nulls.
        """
        return layouts.read_metadata(self.files, layouts.LAYOUTS[self.version])

    def data_place(self, row: int) -> str:
        """Name the data file and the episode of a table row, for messages."""
        return f"{self.files.where(self.data_path(row))} (episode {int(self.episodes.ids[row])})"

    def data_path(self, row: int) -> str:
        """Path of the data file of a table row's episode, relative to the root."""
        return self.episodes.data.find(self.files, int(self.episodes.data_file[row]))

    def video_path(self, camera: str, row: int) -> str:
        """Path of an episode's video file, relative to the root.

        Raises:
            DatasetError: the dataset has no such camera, or the episode has no video of it.
        """
        file = int(self.videos(camera).file[row])
        if file < 0:
            problem = f"episode {int(self.episodes.ids[row])} names no video of {camera}"
            raise DatasetError(
                problem, where=self.root, fix=f"leave the episode out, or the key {camera!r}"
            )
        return self.videos(camera).files.find(self.files, file)

    def explain_missing(
        self, error: MissingFileError, row: int, camera: str = ""
    ) -> MissingFileError:
        """Return the error of the file of a table row, or another one if its recorder has joined it
        with others.
        """

        def place(catalog: Catalog) -> tuple[int, int]:
            table = catalog.episodes.data
            file = catalog.episodes.data_file[row]
            if camera:
                table = catalog.videos(camera).files
                file = catalog.videos(camera).file[row]
            return int(table.chunk[file]), int(table.number[file])

        with suppress(DatasetError, IndexError):
            again = Catalog.open(self.root, self.files.options, pairing=self.episodes.pairing)
            if place(again) != place(self):
                problem = (
                    "the dataset changed while it was read: its recorder joined this file "
                    "with others"
                )
                return error.replaced(
                    what=problem, fix="start again, on a finished or a published dataset"
                )
        return error

    def videos(self, camera: str) -> Videos:
        """Video files of one camera, and the place of each episode in them."""
        if camera not in self.episodes.videos:
            cameras = ", ".join(self.episodes.videos) or "none"
            raise DatasetError(
                f"no video camera {camera!r}", where=self.root, fix=f"its video cameras: {cameras}"
            )
        return self.episodes.videos[camera]

    def __repr__(self) -> str:
        table = self.episodes
        size = f"{plural(len(table), 'episode')}, {plural(table.frames, 'frame')}, {self.fps} fps"
        return f"Catalog({self.root!r}: LeRobot {self.version}, {size})"

    def report(self) -> list[str]:
        """Irregularities of metadata and folder listings, one line each; [] for a clean dataset.

        Opens no data or video file. `EpisodeDataset` reports errors inside files when it reads
        them.
        """
        lines = self.metadata_notes()
        if self.version == "v2.1" and not self.files.exists(PER_EPISODE):
            lines.append(f"{PER_EPISODE} is not there")
        elif self.version != "v2.1" and not self.files.exists("meta/stats.json"):
            lines.append("meta/stats.json is not there")
        else:
            lines += self._odd_stats()
        try:
            gaps = self.missing_files()
        except DatasetError as error:  # a folder that may not be listed
            return [*lines, str(error)]
        return lines + [gap.line for gap in gaps or []]

    def missing_files(self, cameras: Iterable[str] | None = None) -> list[MissingFiles] | None:
        """Data files and video files of `cameras` (all by default) that listings show to be missing
        or unreadable.

        Returns:
            None where folders cannot be listed.

        Raises:
            DatasetError: a folder may not be read.
        """
        if cameras is None:
            cameras = self.episodes.videos
        return find_missing(self.files, self.episodes, cameras)

    def metadata_notes(self) -> list[str]:
        """Lines of `report` about info.json and the tables, without recorded statistics."""
        lines = list(self.oddities)
        kinds = {"data": self.episodes.data} | {
            key: videos.files for key, videos in self.episodes.videos.items()
        }
        for kind, table in kinds.items():
            for file in range(min(len(table), 64)):
                named = table.path(file)
                actual = table.find(self.files, file)
                if named != actual:
                    lines.append(
                        f"{kind}: the path template names {named}, the file is {actual}; files are "
                        "found by name"
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
            if (
                key in self.features
                and not self.features[key].is_camera
                and key not in INDEX_KEYS
                and "std" in entry
            ):
                flat = int((entry["std"] == 0).sum())
                size = int(entry["std"].size)
                if flat:
                    line = f"{key}: {flat} of {size} dimensions are constant (standard deviation 0)"
                    lines.append(
                        f"{line} according to the recorded statistics; the rows were not read"
                    )
        return lines

    def __getstate__(self) -> dict[str, Any]:
        return {key: value for key, value in self.__dict__.items() if key not in ("stats", "mark")}

    def __setstate__(self, state: dict[str, Any]) -> None:
        self.__dict__.update(state)


@storable
@dataclass(frozen=True)
class MetaTables:
    """Content of the tables of `meta/`.

    Attributes:
        tasks: text by task_index.
        texts: number of tasks with a text.
        episodes: fields of the episode table, by name.
        notes: irregularities, one line each.
    """

    tasks: tuple[str, ...]
    texts: int
    episodes: dict[str, Any]
    notes: list[str]


class Opening:
    """A dataset of which only info.json was read; arguments and errors are those of `Catalog.open`.

    Attributes:
        files: its files.
        tables: content of its tables; None: `finish` reads them.
    """

    def __init__(
        self,
        root: str | os.PathLike[str],
        remote: RemoteOptions | None = None,
        *,
        video_path: str | None = None,
        data_path: str | None = None,
        version: str | None = None,
        pairing: str | None = None,
    ) -> None:
        address, self._view = split_view(os.fspath(root))
        self._root = address if self._view else root
        check_pairing(pairing or "")
        self._remote = remote
        self._pairing = pairing
        self._layout = {"video_path": video_path, "data_path": data_path, "version": version}
        self.files, self._info = _read_info(self._root, remote)
        self._before = self._info_state()
        self._version = _override(self.files, self._info, video_path, data_path, version)
        features = parse_features(self._info.get("features"), self.files.where(INFO))
        self._skipped = {key: f.unreadable for key, f in features.items() if f.unreadable}
        self._features = {key: f for key, f in features.items() if key not in self._skipped}
        self._episode_files: list[str] = []
        self.tables: MetaTables | None = None

    def _info_state(self) -> tuple[str, tuple[int, int]]:
        return self.files.version(INFO), folder_of(self.files.root)

    def _list_episode_files(self) -> list[str]:
        self._episode_files = list(
            layouts.episode_files(self.files, layouts.LAYOUTS[self._version])
        )
        return self._episode_files

    def inputs(self) -> tuple[str, int]:
        """Return text that changes with each input of the tables of a local dataset, and their
        bytes.

        It has two states of info.json, that of the content which was read before and the present
        one.

        Raises:
            DatasetError: a folder may not be read.
        """
        layout = layouts.LAYOUTS[self._version]
        paths = [INFO, *layouts.task_files(layout), *self._list_episode_files()]
        states = [self.files.state(path) for path in paths]
        facts = [
            self.files.root,
            *folder_of(self.files.root),
            self._version,
            self._layout,
            self._before,
        ]
        text = json.dumps([facts, list(zip(paths, states, strict=True))])
        return text, sum(state[0] for state in states if state)

    def read_tables(self) -> MetaTables:
        """Read the tables of `meta/`."""
        files = self.files
        layout = layouts.LAYOUTS[self._version]
        notes = list[str]()
        cameras = [key for key, feature in self._features.items() if feature.is_video]
        paths, folders = layouts.asked_first(layout, self._info, cameras)
        files.look_ahead([*paths, *_MARKS[self._version]], folders)
        by_index = layouts.read_tasks(files, layout, notes)
        tasks = _list_tasks(by_index, files.where(INFO), notes)
        episodes = load_episode_table(
            files,
            self._info,
            self._list_episode_files,
            [self._version, cameras, sorted(by_index.items())],
            notes,
            partial(layouts.read_episodes, files, layout, self._info, self._features, by_index),
        )
        columns = {part.name: getattr(episodes, part.name) for part in fields(episodes)}
        return MetaTables(tasks, len(by_index), columns, notes)

    def finish(self) -> Catalog:
        """Return the catalog."""
        files = self.files
        info = self._info
        features = self._features
        tables = self.read_tables() if self.tables is None else self.tables
        episodes = EpisodeTable(**tables.episodes)
        oddities = list(tables.notes)
        if self._pairing:
            episodes = replace(episodes, pairing=self._pairing)
            by_columns = self._pairing == "columns" and episodes.own_files
            episodes = pair_by_columns(files, episodes) if by_columns else episodes
        lacking = {key: _why_no_video(files, v, features) for key, v in episodes.videos.items()}
        lacking = {key: why for key, why in lacking.items() if why}
        skipped = self._skipped | lacking
        features = {key: feature for key, feature in features.items() if key not in lacking}
        videos = {key: v for key, v in episodes.videos.items() if key not in lacking}
        episodes = replace(episodes, videos=videos) if lacking else episodes
        oddities[:0] = [f"{key} {why}: left out" for key, why in skipped.items()]
        robot = _robot_type(info, oddities)
        _check_totals(info, episodes, tables.texts, oddities)
        oddities += _feature_notes(features)
        sensors = read_sensors(files, {*features, *skipped})
        if self._info_state() != self._before:  # replaced meanwhile: tables of both would not fit
            layout: dict[str, Any] = {**self._layout, "pairing": self._pairing}
            return Catalog.open(f"{self._root}{self._view}", self._remote, **layout)
        of_episodes = self._episode_files or self._list_episode_files()
        files.pin_version([*of_episodes[:1], *of_episodes[1:][-1:], *_MARKS[self._version]])
        return Catalog(
            files,
            self._version,
            info["fps"],
            robot,
            features,
            tables.tasks,
            episodes,
            info,
            tuple(oddities),
            skipped,
            tuple(lacking),
            sensors=sensors,
        ).with_view(self._view)


def _read_info(
    root: str | os.PathLike[str], remote: RemoteOptions | None
) -> tuple[Files, dict[str, Any]]:
    """Open the files of a dataset and read its info.json. Errors name the thing at the path
    instead.
    """
    address = _hub_address(root)
    files = Files(address, remote)
    if files.is_local and not files.exists(INFO):
        fix = "give the folder of a LeRobot dataset, which holds meta/"
        if files.exists(""):
            if files.exists("order.json"):
                fix = "this is the folder of a run: its dataset is data.root of its config.yaml"
            raise DatasetError("there is no meta/info.json", where=files.root, fix=fix)
        if near := HubId.near_path(str(root)):
            fix = f"did you mean {near}? Otherwise {fix}"
        if isinstance(root, str) and _HUB_ID.fullmatch(root):
            fix += f", or hf://datasets/{root} for a dataset on the hub"
        raise DatasetError("there is no such folder", where=files.root, fix=fix)
    try:
        return files, read_json(files, INFO)
    except DataAccessError as error:
        if address is root:
            raise
        problem = f"there is no such folder, and as a dataset on the hub, {address}: {error.what}"
        # without the hub it is a path, and a later attempt would fail alike
        if error.where == address:
            raise DatasetError(problem, where=root, fix=error.fix) from error
        raise error.replaced(what=problem, where=root) from error


def _feature_notes(features: Mapping[str, Feature]) -> list[str]:
    """Lines about audio, color declared as depth, and numbers that look like images."""
    notes = [f"{key} {feature.audio}" for key, feature in features.items() if feature.audio]
    notes += [
        f"{key} is declared as depth and is {feature.color_declared_as_depth}: it is delivered as "
        "color, uint8"
        for key, feature in features.items()
        if feature.color_declared_as_depth
    ]
    return notes + [
        f"{key}: {feature.dtype} {feature.shape} looks like images; it is read as numbers, not as "
        "a camera"
        for key, feature in features.items()
        if feature.looks_like_images and not feature.is_camera
    ]


def _hub_address(root: str | os.PathLike[str]) -> str | os.PathLike[str]:
    """`hf://datasets/OWNER/NAME` for a hub id that is not a local path; the root itself otherwise.

    A path in a folder that exists is local: a typing error must not wait for the network.
    """
    repository = HubId.of_model(root) if isinstance(root, str) and _HUB_ID.fullmatch(root) else None
    if repository is None:
        return root
    address = f"hf://datasets/{root}"
    logger.info(
        "%s: there is no such folder, so it is read from the hub, as %s; a folder would be read "
        "first",
        root,
        address,
    )
    return address


def _override(
    files: Files,
    info: dict[str, Any],
    video_path: str | None,
    data_path: str | None,
    version: str | None,
) -> str:
    """Put the caller's values into the content of info.json; return the version. Checks both, and
    the frame rate.
    """
    overrides = {"video_path": video_path, "data_path": data_path, "codebase_version": version}
    info |= {name: value for name, value in overrides.items() if value is not None}
    source = files.where(INFO) if version is None else files.root
    version = _version(info, source)
    for name, template in (("video_path", video_path), ("data_path", data_path)):
        fields = layouts.LAYOUTS[version].fields
        if name == "video_path":
            fields = fields | {"video_key"}
        try:
            if template is not None:
                check_template(template, fields)
        except ValueError as error:
            fix = "as in video_path='videos/{video_key}/…', with the fields " + ", ".join(
                sorted(fields - {"video_key"})
            )
            raise DatasetError(
                f"{name} is {template!r}: {error}", where=files.root, fix=fix
            ) from error
    fps = info.get("fps")
    if isinstance(fps, bool) or not isinstance(fps, (int, float)) or not 1e-6 < fps < 1e6:
        problem = f"fps is {fps!r}, not within 0.000001 and 1,000,000"
        raise DatasetError(problem, where=files.where(INFO), fix="write the recording rate")
    return version


def _version(info: Mapping[str, Any], where: str) -> str:
    recorded = info.get("codebase_version")
    storage = info.get("storage_format", "parquet")
    if storage not in ("parquet", None):
        fix = "convert it to parquet files with LeRobot"
        raise DatasetError(
            f"storage_format is {storage!r}; only parquet is supported", where=where, fix=fix
        )
    version = f"v{str(recorded).removeprefix('v')}"
    if recorded is None or version not in layouts.LAYOUTS:
        fix = f"supported are {', '.join(layouts.LAYOUTS)}; convert the dataset with LeRobot"
        raise DatasetError(f"codebase_version is {recorded!r}", where=where, fix=fix)
    return version


def _robot_type(info: Mapping[str, Any], oddities: list[str]) -> str | None:
    robot = info.get("robot_type")
    if robot is None or (isinstance(robot, str) and robot.isprintable()):
        return robot
    oddities.append(
        f"robot_type is {repr(robot)[:80]}: left out, since it is not a name of printable letters"
    )
    return None


def _why_no_video(files: Files, videos: Videos, features: Mapping[str, Feature]) -> str:
    """Reason why a camera has no video file; "" where it has one."""
    if has_any_file(files, videos):
        return ""
    why = "is listed in info.json but has no video file"
    if not len(videos.files):
        return f"{why}: the episodes name none"
    path = videos.files.path(0)
    near = similar_folder(files, path, features)
    hint = f"; there is {near}/" if near else ""
    return f"{why}: {path} is not there{hint}"


def _list_tasks(by_index: dict[int, str], where: str, oddities: list[str]) -> tuple[str, ...]:
    """Task texts by index, "" for a skipped index."""
    last = max(by_index, default=-1)
    if last >= 10 * len(by_index) + 1000:
        fix = "number the tasks 0, 1, 2, ..."
        raise DatasetError(f"task_index {last} with {len(by_index)} tasks", where=where, fix=fix)
    if last + 1 != len(by_index):
        oddities.append(f"tasks: {last + 1 - len(by_index)} task indices below {last} have no text")
    return tuple(by_index.get(index, "") for index in range(last + 1))


def _check_totals(
    info: Mapping[str, Any], episodes: EpisodeTable, tasks: int, oddities: list[str]
) -> None:
    """Note totals in info.json that differ from the tables; the tables decide."""
    true = {"total_episodes": len(episodes), "total_frames": episodes.frames, "total_tasks": tasks}
    if "episode_chunk" in episodes.data.template or "total_chunks" in info:
        true["total_chunks"] = int(np.unique(episodes.data.chunk).size)
    if "total_videos" in info:
        true["total_videos"] = sum(
            int(np.count_nonzero(np.bincount(v.file[v.file >= 0])))
            for v in episodes.videos.values()
        )
    for key, value in true.items():
        if key in info and info[key] != value:
            oddities.append(f"info.json: {key} is {info[key]!r}, the tables hold {value}")
    if int(episodes.ids[-1]) != len(episodes) - 1 or int(episodes.ids[0]) != 0:
        oddities.append(
            f"episode ids have gaps: {plural(len(episodes), 'episode')} from "
            f"{int(episodes.ids[0])} to {int(episodes.ids[-1])}"
        )
    splits = info.get("splits")
    if isinstance(splits, dict) and splits.get("train") not in (None, f"0:{len(episodes)}"):
        oddities.append(
            f"info.json: splits {splits} do not match {plural(len(episodes), 'episode')}; splits "
            "are ignored"
        )
    empty = np.flatnonzero(episodes.lengths == 0)
    if len(empty):
        oddities.append(
            f"{plural(len(empty), 'episode has', 'episodes have')} no frame, first "
            f"{int(episodes.ids[empty[0]])}"
        )
