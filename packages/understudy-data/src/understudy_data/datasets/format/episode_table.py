"""The episode table: lengths, data files and video files of all episodes, a few integers each, in
numpy.

The readers of both formats fill these tables. Other modules do not know the format.

The table of a large dataset is parsed by one process of the host, and memory-mapped by the others.
Its key covers the metadata files, their versions and everything else that parsing depends on.

`find_missing` reads folder listings, and the first bytes of some files to detect git LFS pointers.
Where folders cannot be listed (plain HTTP), it checks a few names only.
"""

from __future__ import annotations

import hashlib
import json
import re
import zlib
from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass, field, fields, replace
from difflib import get_close_matches
from functools import cached_property, partial
from typing import Any, ClassVar

import numpy as np
import pyarrow as pa

from understudy_base import DatasetError, plural
from understudy_data.datasets.format.meta_files import fill_template
from understudy_data.plain_values import storable
from understudy_data.storage import mapped_tables
from understudy_data.storage.dataset_root import Files

_CHUNK = re.compile(r"chunk-\d+")
# a path by its parts before and in its chunk folder
_IN_CHUNK = re.compile(r"((?:[^/]*/)*?)chunk-\d+/(.+)")


@storable
@dataclass(frozen=True)
class FileTable:
    """Files of one kind (data, or one camera's videos), named by a template and two integers each.

    Attributes:
        template: path under the root, e.g.
            "data/chunk-{chunk_index:03d}/file-{file_index:03d}.parquet".
        chunk, number: int64 (F,), values of the template's chunk and file (or episode) fields.
        key: the camera, "" for data files.
    """

    template: str
    chunk: np.ndarray
    number: np.ndarray
    key: str = ""

    def __len__(self) -> int:
        return len(self.number)

    def path(self, file: int) -> str:
        """Path by the dataset's own template."""
        chunk = int(self.chunk[file])
        number = int(self.number[file])
        return fill_template(
            self.template,
            episode_chunk=chunk,
            chunk_index=chunk,
            episode_index=number,
            file_index=number,
            video_key=self.key,
        )

    @property
    def named_apart(self) -> bool:
        """Whether file names are unique: they hold the episode id instead of a number that restarts
        per chunk.
        """
        return "{episode_index" in self.template.rpartition("/")[2]

    def find(self, files: Files, file: int) -> str:
        """Find a file by the template, else by its unique name in another chunk folder.

        Real datasets name chunks that do not exist. Returns the template's path when the file is
        missing.
        """
        path = self.path(file)
        match = _IN_CHUNK.fullmatch(path)
        if not files.is_local or not self.named_apart or files.exists(path) or match is None:
            return path
        for chunk, is_folder in files.entries(match[1].rstrip("/")) or []:
            candidate = f"{match[1]}{chunk}/{match[2]}"
            if is_folder and _CHUNK.fullmatch(chunk) and files.exists(candidate):
                return candidate
        return path


@storable
@dataclass(frozen=True)
class Videos:
    """Video files of one camera, and the place of each episode in them.

    Attributes:
        files: the video files.
        file: int32 (N,), the file of each episode, -1 where the metadata names none.
        first: int64 (N,), frame number of the episode's first frame in that file, in display order.
        drift: float64 (F,), most frames by which the recorded `from_timestamp`s of a file differ
            from `first`; infinite where several episodes share a file and no time is recorded.
        expected: int64 (F,), frames that a file should hold: the sum of its episodes' lengths.
        first_by_time: int64 (N,), frame number by an episode's recorded time, in files whose times
            are whole frames, do not overlap and leave gaps; -1 for the episodes of other files.
            None where there is no such file.
        doubtful: bool (F,), files whose recorded times are far off and put the episodes into
            another order than their rows have; None where there is none.
    """

    files: FileTable
    file: np.ndarray
    first: np.ndarray
    drift: np.ndarray
    expected: np.ndarray
    first_by_time: np.ndarray | None = None
    doubtful: np.ndarray | None = None


@dataclass(frozen=True, eq=False)
class EpisodeTable:
    """All episodes, in ascending order of their ids. A *row* is a position in this table.

    Attributes:
        ids: int64 (N,), unique, ascending, gaps allowed.
        lengths: int64 (N,), frames.
        index_from: int64 (N,), dataset-wide number of the first frame.
        data: the data files.
        data_file: int32 (N,), the data file of each episode.
        data_row: int64 (N,), the episode's first row there, if the file holds exactly the episodes
            listed for it.
        videos: camera key -> its video files.
        task_offsets, task_indices: int64 (N+1,), int32: row r has
            task_indices[task_offsets[r]:task_offsets[r+1]].
        own_files: each episode has its own data file, named after it.
        lists_places: meta/ lists the first row of each episode (`dataset_from_index`).
        pairing: side that decides which episode rows belong to (`pairing.py`).
    """

    MIXED: ClassVar = -1
    """Claim of a file whose columns name several episodes."""

    ids: np.ndarray
    lengths: np.ndarray
    index_from: np.ndarray
    data: FileTable
    data_file: np.ndarray
    data_row: np.ndarray
    videos: dict[str, Videos] = field(default_factory=dict)
    task_offsets: np.ndarray = field(default_factory=lambda: np.zeros(1, np.int64))
    task_indices: np.ndarray = field(default_factory=lambda: np.zeros(0, np.int32))
    own_files: bool = False
    lists_places: bool = False
    pairing: str = ""

    def __len__(self) -> int:
        return len(self.ids)

    def __getstate__(self) -> bytes:  # compresses to a quarter: many equal and rising numbers
        return zlib.compress(mapped_tables.dumps(dict(self.__dict__)), 1)

    def __setstate__(self, state: bytes) -> None:
        self.__dict__.update(mapped_tables.loads(zlib.decompress(state)))

    @cached_property
    def frames(self) -> int:
        """Frames of all episodes."""
        return int(self.lengths.sum())

    @cached_property
    def _is_range(self) -> bool:
        return bool(len(self.ids) == 0 or (self.ids[0] == 0 and self.ids[-1] == len(self.ids) - 1))

    def row_of(self, episode: int) -> int:
        """Row of an episode id. Raises DatasetError for an unknown id."""
        return int(self.rows_of(np.asarray([episode]))[0])

    def rows_of(self, episodes: np.ndarray | Iterable[int]) -> np.ndarray:
        """Rows int64 (B,) of episode ids (B,). Raises DatasetError with the first unknown id."""
        ids = np.asarray(episodes, dtype=np.int64)
        if len(self) == 0:
            rows = np.zeros(len(ids), np.int64)
            exists = np.zeros(len(ids), bool)
        elif self._is_range:
            rows = ids
            exists = (ids >= 0) & (ids < len(self))
        else:
            rows = np.minimum(np.searchsorted(self.ids, ids), len(self) - 1)
            exists = self.ids[rows] == ids
        if not exists.all():
            if len(self) == 1:
                listed = f"the only episode is {int(self.ids[0])}"
            else:
                listed = f"the {len(self)} episodes are {describe_ids(self.ids)}"
            raise DatasetError(f"there is no episode {int(ids[~exists][0])}", fix=listed)
        return rows

    @cached_property
    def _is_by_file(self) -> bool:
        return bool((self.data_file[1:] >= self.data_file[:-1]).all())

    def rows_in(self, file: int) -> np.ndarray:
        """Rows of the episodes in a data file, int64 (n,), ascending."""
        if not self._is_by_file:
            return np.flatnonzero(self.data_file == file)
        # of another dtype, the column would be converted
        limits = np.array([file, file + 1], self.data_file.dtype)
        begin, end = np.searchsorted(self.data_file, limits).tolist()
        return np.arange(begin, end)

    def tasks_of(self, row: int) -> np.ndarray:
        """Task indices of a row, int32; -1 for a text that is not in the task list."""
        return self.task_indices[int(self.task_offsets[row]) : int(self.task_offsets[row + 1])]

    def take(self, rows: np.ndarray) -> EpisodeTable:
        """Return the table of one or more of its rows, given in ascending order."""
        tasks = [self.tasks_of(row) for row in rows.tolist()]
        videos = {key: replace(table, **_take(table, rows)) for key, table in self.videos.items()}
        offsets = np.cumsum([0, *map(len, tasks)])
        parts = _take(self, rows)
        return replace(
            self, **parts, videos=videos, task_offsets=offsets, task_indices=np.concatenate(tasks)
        )

    def digest(self, last: int | None = None) -> str:
        """Return "LAST DIGEST" of the ids and lengths up to an id; None: of all."""
        last = int(self.ids[-1]) if last is None else last
        count = np.searchsorted(self.ids, last, side="right")
        columns = np.stack([self.ids[:count], self.lengths[:count]])
        return f"{last} {hashlib.blake2b(columns.data, digest_size=16).hexdigest()}"

    def claimed_episode(self, row: int, ids: np.ndarray | None, index: np.ndarray | None) -> int:
        """Return the id of the episode that the columns of a file of one episode name.

        Args:
            row: table row of the episode that the file is named after.
            ids: its column `episode_index`; None where it has none.
            index: its column `index`; it counts where there is no `episode_index`.

        Returns:
            The id; that of `row` where no column names another one; `MIXED` for several.
        """
        own = int(self.ids[row])
        if ids is not None:
            if not len(ids):
                return own
            return int(ids[0]) if (ids == ids[0]).all() else self.MIXED
        # else `index` is that of a larger set
        is_count = int(self.ids[0]) == 0 and int(self.ids[-1]) == len(self) - 1
        if index is None or not len(index) or not is_count or int(index[0]) == self.index_from[row]:
            return own
        starting = np.flatnonzero((self.index_from == int(index[0])) & (self.lengths > 0))
        return int(self.ids[starting[0]]) if len(starting) else own

    def doubtful_places(
        self,
        rows: np.ndarray,
        begins: np.ndarray,
        counts: np.ndarray,
        index: np.ndarray | None,
        total: int,
    ) -> np.ndarray:
        """Return which episodes of a file of several have rows elsewhere than listed, so that
        column and place disagree.

        An episode is free of doubt where `index` confirms its column, where meta/ lists no place,
        and where the file holds further rows and the order is that of the list.

        Args:
            rows: int64 (n,), table rows of the episodes of the file.
            begins: int64 (n,), first row in the file by the column `episode_index`.
            counts: int64 (n,), rows in the file by that column.
            index: the column `index` of the file; None where it has none.
            total: rows of the file.

        Returns:
            bool (n,).
        """
        none = np.zeros(len(rows), bool)
        if self.pairing or self.own_files or not len(rows):
            return none
        lengths = self.lengths[rows]
        places = self.data_row[rows]
        is_full = total == int(lengths.sum())
        absent = (counts == 0) & (lengths > 0) & is_full  # other rows are in its place
        if not self.lists_places:
            return np.asarray(absent)
        is_whole = (counts == lengths) & (lengths > 0)
        in_order = bool(
            (np.diff(begins[is_whole][np.argsort(places[is_whole], kind="stable")]) > 0).all()
        )
        if in_order and not is_full:
            return none
        is_moved = is_whole & (begins != places)
        if index is not None:
            is_moved &= index[np.minimum(begins, max(0, total - 1))] != self.index_from[rows]
        return np.asarray(is_moved | absent)


_BY_EPISODE = (
    "ids",
    "lengths",
    "index_from",
    "data_file",
    "data_row",
    "file",
    "first",
    "first_by_time",
)


def _take(table: object, rows: np.ndarray) -> dict[str, Any]:
    columns = {}
    for name in _BY_EPISODE:
        column = getattr(table, name, None)
        if column is not None:
            columns[name] = column[rows]
    return columns


def describe_ids(ids: np.ndarray) -> str:
    """Format a list of ids briefly: "0-7", "0, 2, 5, ... 90"."""
    if len(ids) == 0:
        return "none"
    if len(ids) > 2 and int(ids[-1]) - int(ids[0]) == len(ids) - 1:
        return f"{int(ids[0])}-{int(ids[-1])}"
    shown = ", ".join(str(int(i)) for i in ids[:5])
    return shown if len(ids) <= 5 else f"{shown}, ... {int(ids[-1])}"


def starts_within(file: np.ndarray, order: np.ndarray, lengths: np.ndarray) -> np.ndarray:
    """Start of each episode in its file, int64 (N,): the lengths of the episodes before it there.

    Args:
        file: int (N,), the file of each episode.
        order: (N,), sort key of the episodes in a file. Ties keep the row order.
        lengths: int64 (N,).
    """
    by_file = np.lexsort((order, file))
    ends = np.cumsum(lengths[by_file])
    starts = ends - lengths[by_file]
    files = file[by_file]
    fresh = np.concatenate([[True], files[1:] != files[:-1]]) if len(files) else np.zeros(0, bool)
    base = starts[fresh][np.cumsum(fresh) - 1] if len(files) else starts
    result = np.empty_like(starts)
    result[by_file] = starts - base
    return result


def load_episode_table(
    files: Files,
    info: Mapping[str, Any],
    meta_files: Callable[[], Iterable[str]],
    depends_on: Any,
    oddities: list[str],
    read: Callable[[list[str]], EpisodeTable],
) -> EpisodeTable:
    """Return `read(oddities)`, shared with other processes of the host if info.json declares a
    large dataset.

    Args:
        files: the dataset's files.
        info: content of info.json.
        meta_files: lists the files that `read` parses.
        depends_on: plain values that the table also depends on.
        oddities: receives irregularities of the metadata.
        read: parses the table.
    """
    total = info.get("total_episodes")
    if isinstance(total, bool) or not isinstance(total, int) or total < mapped_tables.MIN_ROWS:
        return read(oddities)

    def versions() -> list[tuple[str, str]]:
        return [(path, files.version(path)) for path in meta_files()]

    versions_before = versions()
    inputs = [mapped_tables.code_version(), files.root, versions_before, info, depends_on]
    key = hashlib.sha256(json.dumps(inputs, sort_keys=True, default=str).encode()).hexdigest()

    def make() -> tuple[tuple[dict[str, Any], list[str]], bool]:
        notes: list[str] = []
        table = read(notes)
        pa.default_memory_pool().release_unused()  # more than the table itself
        is_large = len(table) >= mapped_tables.MIN_ROWS and versions() == versions_before
        return ({part.name: getattr(table, part.name) for part in fields(table)}, notes), is_large

    parts, notes = mapped_tables.once_per_host(key, make, files.cache)
    oddities += notes
    return EpisodeTable(**parts)


_REMOTE_CHECKS = 8  # files of a remote camera whose existence is checked
_MAX_LISTINGS = 100  # remote folders that are listed, one request each
_LISTED = 4  # paths in a message
# files of a kind whose first bytes are read; all of them where one is a git LFS pointer
_MAX_OPENED = 64


def spread_evenly(count: int, limit: int | None) -> list[int]:
    """Choose at most `limit` numbers of range(count), evenly from the first to the last."""
    if limit is None or count <= limit:
        return list(range(count))
    return sorted(set(np.linspace(0, count - 1, limit).round().astype(int).tolist()))


@dataclass(frozen=True)
class MissingFiles:
    """Files of one kind that are missing for the same reason.

    Attributes:
        kind: "data" or the camera.
        line: message with the count, the reason, the first file and the remedy.
        rows: int64 (K,), table rows of the incomplete episodes, ascending.
    """

    kind: str
    line: str
    rows: np.ndarray


def find_missing(
    files: Files, table: EpisodeTable, cameras: Iterable[str]
) -> list[MissingFiles] | None:
    """Find missing data files and missing video files of `cameras`; None where folders cannot be
    listed.

    Raises:
        DatasetError: a folder may not be read.
    """
    missing: list[MissingFiles] = []
    kinds: list[tuple[str, FileTable, np.ndarray]] = [("data", table.data, table.data_file)]
    kinds += [
        (key, table.videos[key].files, table.videos[key].file)
        for key in cameras
        if key in table.videos
    ]
    listing = _Listing(files)
    for kind, places, file_of in kinds:
        find = partial(_needed_files, table.lengths, file_of)
        needed, unnamed = mapped_tables.share(find, table.lengths, file_of, cache=files.cache)
        paths: dict[int, str] = {}
        for file in needed.tolist():
            path = listing.find(places, file)
            if path is None:
                return None
            paths[file] = path
        lost = [file for file, path in paths.items() if not path and places.number[file] >= 0]
        bad = {_MISSING: lost, _LFS: _find_pointers(files, paths)}
        if kind == "data":  # files of the number -1: meta/ names none
            unnamed = np.flatnonzero(
                (table.lengths > 0) & (places.number[np.maximum(file_of, 0)] < 0)
            )
        for why, numbers in bad.items():
            if not numbers:
                continue
            rows = np.flatnonzero((table.lengths > 0) & np.isin(file_of, numbers))
            line = f"{kind}: {len(numbers)} of {len(needed)} files {why}: "
            line += ", ".join(places.path(number) for number in numbers[:_LISTED])
            line += f" and {len(numbers) - _LISTED} more" * (len(numbers) > _LISTED)
            line += f" (episode{'s' * (len(rows) > 1)} {describe_ids(table.ids[rows])})"
            line += f": run `git lfs pull` in {files.root}" * (why == _LFS)
            missing.append(MissingFiles(kind, line, rows))
        if len(unnamed):
            what = "no data file" if kind == "data" else "no video"
            line = (
                f"{kind}: {plural(len(unnamed), 'episode names', 'episodes name')} {what}, first "
            )
            line += str(int(table.ids[unnamed[0]]))
            missing.append(MissingFiles(kind, line, unnamed))
    return missing


def _needed_files(lengths: np.ndarray, file_of: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
    """Files of episodes with frames, and rows of those that name none; an episode without frames
    needs no file.
    """
    has_frames = lengths > 0
    needed = np.flatnonzero(np.bincount(file_of[has_frames & (file_of >= 0)]))
    return needed, np.flatnonzero(has_frames & (file_of < 0))


def has_any_file(files: Files, videos: Videos) -> bool:
    """Check whether a camera has any video file, by its path template or by name in another chunk
    folder.

    For a remote dataset this checks a few evenly spread files first, then lists folders if
    possible.
    """
    table = videos.files
    if not files.is_local and any(
        files.exists(table.path(file)) for file in spread_evenly(len(table), _REMOTE_CHECKS)
    ):
        return True
    listing = _Listing(files)
    for file in range(len(table)):
        path = listing.find(table, file)
        if path or path is None:
            return path is not None
    return False


def similar_folder(files: Files, path: str, others: Iterable[str] = ()) -> str:
    """Find a folder with almost the name of the first missing folder of `path`; "" for none.

    Args:
        others: names to ignore.
    """
    parts: list[str] = []
    for part in path.split("/")[:-1]:
        folders = [name for name, is_folder in files.entries("/".join(parts)) or [] if is_folder]
        if part in folders:
            parts.append(part)
        elif _CHUNK.fullmatch(part) and (
            chunks := [name for name in folders if _CHUNK.fullmatch(name)]
        ):
            parts.append(chunks[0])
        else:
            folders = [name for name in folders if name not in set(others)]
            near = get_close_matches(part, folders, n=1) or [
                name for name in folders if part.endswith(name)
            ]
            return "/".join([*parts, near[0]]) if near else ""
    return ""


_MISSING = "are not there"
_LFS = "are git LFS pointers"


def _find_pointers(files: Files, paths: Mapping[int, str]) -> list[int]:
    """Numbers of the files (number -> path, "" for a missing one) that are git LFS pointers."""
    present = [file for file, path in paths.items() if path] if files.is_local else []
    sample = [present[place] for place in spread_evenly(len(present), _MAX_OPENED)]
    if not any(files.is_pointer(paths[file]) for file in sample):
        return []
    return [file for file in present if files.is_pointer(paths[file])]


class _Listing:
    """Folder listings, each read once."""

    def __init__(self, files: Files) -> None:
        self._files = files
        self._names: dict[str, frozenset[str] | None] = {}
        self._chunks: dict[tuple[str, str], dict[str, str]] = {}

    def find(self, table: FileTable, file: int) -> str | None:
        """Path of a file (see `FileTable.find`); "" when missing, None when unknown."""
        path = table.path(file)
        folder, _, name = path.rpartition("/")
        if (
            folder not in self._names
            and not self._files.is_local
            and len(self._names) >= _MAX_LISTINGS
        ):
            return None
        names = self._listed(folder)
        if names is None or name in names:
            return None if names is None else path
        return self._in_another_chunk(path) if table.named_apart and self._files.is_local else ""

    def _listed(self, folder: str) -> frozenset[str] | None:
        if folder not in self._names:
            listed = self._files.entries(folder)
            self._names[folder] = (
                None if listed is None else frozenset(n for n, is_folder in listed if not is_folder)
            )
        return self._names[folder]

    def _in_another_chunk(self, path: str) -> str:
        """Path of the same name in another chunk folder; "" for none."""
        match = _IN_CHUNK.fullmatch(path)
        if match is None:
            return ""
        head = match[1]
        under, _, name = match[2].rpartition("/")
        # once: an interrupted download lacks most of its files
        if (head, under) not in self._chunks:
            chunk_of: dict[str, str] = {}
            for chunk, is_folder in self._files.entries(head.rstrip("/")) or []:
                if is_folder and _CHUNK.fullmatch(chunk):
                    for listed in self._listed(f"{head}{chunk}/{under}".rstrip("/")) or ():
                        chunk_of.setdefault(listed, chunk)
            self._chunks[head, under] = chunk_of
        chunk = self._chunks[head, under].get(name, "")
        return f"{head}{chunk}/{match[2]}" if chunk else ""
