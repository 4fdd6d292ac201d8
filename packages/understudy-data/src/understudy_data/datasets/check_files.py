"""Episodes whose files are missing or cannot be used, and files of no episode."""

import warnings
from collections.abc import Iterable, Sequence
from contextlib import suppress
from itertools import chain

import numpy as np

from understudy_base import DatasetError, plural
from understudy_data.datasets.format.catalog import Catalog
from understudy_data.datasets.format.episode_table import MissingFiles, describe_ids, spread_evenly
from understudy_data.datasets.read.row_lengths import with_lengths_of_rows
from understudy_data.datasets.read.rows import Rows
from understudy_data.datasets.read.video_frames import VideoFrames
from understudy_data.datasets.write.dataset_files import is_recorded_here

_READ = 16  # unlisted data files that are read to describe them
_NAMED = 5  # ranges of absent ids
# data files whose rows are compared with the metadata where reading all of them takes too long
_SAMPLED = 64
CAUSES = (
    "as after a recorder that was killed, of files of two recordings, or after lines of meta/ "
    "were removed"
)
"""What may have made the contradictions of `FileCheck.unfinished`: nothing tells which."""


class FileCheck:
    """Files of a dataset against its episodes.

    Args:
        catalog: the dataset.
    """

    def __init__(self, catalog: Catalog) -> None:
        self._catalog = catalog

    @property
    def is_recorded_here(self) -> bool:
        """Whether `EpisodeWriter` recorded the dataset, which has unlisted files while it goes
        on.
        """
        return is_recorded_here(self._catalog.files)

    def absent_rows(self) -> dict[str, np.ndarray]:
        """Find table rows whose files are missing, as far as folders can be listed.

        Returns:
            "data" and each video camera -> bool (N,), True for a row without its file.
        """
        catalog = self._catalog
        absent = {
            kind: np.zeros(len(catalog.episodes), bool)
            for kind in ("data", *catalog.episodes.videos)
        }
        with suppress(DatasetError):  # an unreadable folder is in the report
            for gap in catalog.missing_files() or []:
                absent[gap.kind][gap.rows] = True
        return absent

    def counted(self) -> Catalog:
        """Return the catalog with the lengths of its rows where meta/ records others and all else
        confirms the rows (`read/row_lengths.py`).

        Raises:
            SourceError: the source of the dataset gives no answer.
        """
        return with_lengths_of_rows(self._catalog)

    def broken_episodes(
        self, cameras: Iterable[str], keys: Sequence[str], rows: np.ndarray
    ) -> list[MissingFiles]:
        """Find episodes whose files are there and cannot be used: unreadable ones, and those that
        contradict the metadata.

        Reads all rows of `keys`, and the index of each video; decodes no image.

        Args:
            cameras: cameras whose videos to open.
            keys: columns of numbers to read.
            rows: int64 (n,), table rows of the episodes to look at. Those without a file are left
                out.

        Raises:
            SourceError: the source of the dataset gives no answer.
        """
        catalog = self._catalog
        absent = self.absent_rows()
        chosen = np.zeros(len(catalog.episodes), bool)
        chosen[rows] = catalog.episodes.lengths[rows] > 0
        data = Rows(catalog, keys, cache_bytes=0)
        videos = VideoFrames(catalog, cache_bytes=0, backend="pyav")
        broken: list[MissingFiles] = []
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")
            for row in _first_rows(catalog.episodes.data_file, chosen & ~absent["data"]):
                of_file = np.flatnonzero(
                    chosen & (catalog.episodes.data_file == catalog.episodes.data_file[row])
                )
                try:
                    bad = data.bad_rows(row)
                except DatasetError as error:
                    broken.append(MissingFiles("data", str(error), of_file))
                else:
                    where = catalog.files.where(catalog.data_path(row))
                    broken += [
                        MissingFiles(
                            "data", f"{where}: {bad[row_of_file]}", np.array([row_of_file])
                        )
                        for row_of_file in of_file.tolist()
                        if row_of_file in bad
                    ]
            for camera in cameras:
                file = catalog.videos(camera).file
                for row in _first_rows(file, chosen & (file >= 0) & ~absent[camera]):
                    try:
                        videos.reader(camera, row)
                    except DatasetError as error:
                        broken.append(
                            MissingFiles(
                                camera, str(error), np.flatnonzero(chosen & (file == file[row]))
                            )
                        )
                    videos.close()
        return broken

    def sample(self) -> list[MissingFiles]:
        """Return `broken_episodes` of some data files of a local dataset, without videos."""
        catalog = self._catalog
        if not catalog.files.is_local:
            return []
        file = catalog.episodes.data_file
        chosen = spread_evenly(len(catalog.episodes.data), _SAMPLED)
        return self.broken_episodes((), (), np.flatnonzero(np.isin(file, chosen)))

    def unlisted(self) -> dict[str, list[str]]:
        """Find files with the suffix of data or videos in the folders of the tables that no episode
        names.

        Returns:
            "" for data files and each video camera -> paths under the root; {} where folders cannot
            be listed.
        """
        catalog = self._catalog
        table = catalog.episodes
        named: dict[str, set[str]] = {}
        camera_of: dict[str, str] = {}
        kinds = {"": table.data} | {key: videos.files for key, videos in table.videos.items()}
        for camera, places in kinds.items():
            for file in range(len(places)):
                folder, _, name = places.find(catalog.files, file).rpartition("/")
                named.setdefault(folder, set()).add(name)
                camera_of.setdefault(folder, camera)
        for folder in list(named):  # other chunks next to those in use
            parent, _, last = folder.rpartition("/")
            if not last.startswith("chunk-"):
                continue
            for name, is_folder in catalog.files.entries(parent) or []:
                if is_folder and name.startswith("chunk-") and f"{parent}/{name}" not in named:
                    named[f"{parent}/{name}"] = set()
                    camera_of[f"{parent}/{name}"] = camera_of[folder]
        unlisted: dict[str, list[str]] = {}
        for folder, names in named.items():
            suffixes = {name.rpartition(".")[2] for name in names}
            if not names:
                suffixes = {"mp4"} if camera_of[folder] else {"parquet"}
            for name, is_folder in catalog.files.entries(folder) or []:
                is_foreign = (
                    is_folder or name.startswith(".") or name.rpartition(".")[2] not in suffixes
                )
                if not is_foreign and name not in names:
                    unlisted.setdefault(camera_of[folder], []).append(f"{folder}/{name}")
        return unlisted

    def describe_unlisted(self, paths: Sequence[str]) -> str:
        """Describe the first unlisted data files: episodes of their rows, or why they cannot be
        read; "" for nothing.
        """
        catalog = self._catalog
        parts = []
        for path in paths[:_READ]:
            name = path.rpartition("/")[2]
            try:
                table = catalog.files.table(path, ["episode_index"])
            except DatasetError as error:
                parts.append(f"{name}: {error.what}")
                continue
            ids = (
                np.unique(table.column(0).to_numpy())
                if table.num_columns
                else np.empty(0, np.int64)
            )
            if len(ids) and ids.dtype.kind in "iu":
                listed = np.flatnonzero(np.isin(catalog.episodes.ids, ids))
                noun = "episode" if len(ids) == 1 else "episodes"
                part = f"{name} holds rows of {noun} {describe_ids(ids)}"
                if len(listed):
                    files = np.unique(catalog.episodes.data_file[listed])
                    part += (
                        ", which meta/ lists in "
                        f"{catalog.episodes.data.path(int(files[0])).rpartition('/')[2]}"
                    )
                    part += ": file numbers are off"
                parts.append(part)
        return "; ".join(parts)

    def unfinished(self) -> tuple[str, str]:
        """Describe files beside a table that lacks them: (contradictions, further irregularities),
        "" each for nothing.

        Ids that are absent beside files that no episode names, or such a file that is cut,
        contradict the table. Absent ids alone are those of a part of a dataset, and a sound file
        that no episode names is ignored by all readers.
        """
        ids = self._catalog.episodes.ids
        gap_places = np.flatnonzero(np.diff(ids) > 1)
        gaps = [_describe_range(first, last) for first, last in _between(ids, gap_places[:_NAMED])]
        more = f" and {len(gap_places) - _NAMED} more ranges" if len(gap_places) > _NAMED else ""
        gap = f"episodes {', '.join(gaps)}{more} are not listed" if gaps else ""
        unlisted = self.unlisted()
        paths = list(chain.from_iterable(unlisted.values()))
        extra = ""
        if paths:
            files = plural(len(paths), "file is", "files are")
            extra = f"{files} named by no episode, first {paths[0]}"
        described = self.describe_unlisted(unlisted.get("", []))
        facts = "; ".join(part for part in (gap, extra, described) if part)
        contradicts = bool(paths) and (bool(gap) or "is cut" in described)
        return (f"{facts}: {CAUSES}", "") if contradicts else ("", facts)

    def doubt(self, most_files: int | None = None) -> str:
        """Return the contradictions of `unfinished` as a line for readers; "" for nothing.

        Folders of a remote dataset are not listed, and an `EpisodeWriter` has unlisted files while
        it records.

        Args:
            most_files: of a dataset with more files none is listed; None: no limit.
        """
        catalog = self._catalog
        table = catalog.episodes
        count = len(table.data) + sum(len(videos.files) for videos in table.videos.values())
        if not catalog.files.is_local or (most_files is not None and count > most_files):
            return ""
        contradiction, _ = self.unfinished()
        if not contradiction or self.is_recorded_here:
            return ""
        return (
            f"{contradiction}; the listed episodes are read, and `understudy check {catalog.root}` "
            "says more"
        )


def _describe_range(first: int, last: int) -> str:
    return str(first) if first == last else f"{first}-{last}"


def _between(ids: np.ndarray, gap_places: np.ndarray) -> list[tuple[int, int]]:
    """Return the first and the last id that is absent behind each of the places `gap_places`."""
    return list(zip((ids[gap_places] + 1).tolist(), (ids[gap_places + 1] - 1).tolist()))


def _first_rows(file: np.ndarray, chosen: np.ndarray) -> list[int]:
    """First chosen table row of each file."""
    rows = np.flatnonzero(chosen)
    return [int(row) for row in rows[np.unique(file[rows], return_index=True)[1]]]
