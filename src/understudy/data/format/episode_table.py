"""The episode table: lengths, data files and video files of all episodes, a few integers each, in numpy.

The readers of both formats fill these tables. Other modules do not know the format.
"""

import re
import zlib
from collections.abc import Iterable
from dataclasses import dataclass, field
from functools import cached_property

import numpy as np

from understudy.data.format.path_templates import fill_template
from understudy.errors import DatasetError
from understudy.storage import mapped_tables
from understudy.storage.dataset_root import Files

_CHUNK = re.compile(r"chunk-\d+")


@dataclass(frozen=True)
class FileTable:
    """Files of one kind (data, or one camera's videos), named by a template and two integers each.

    Attributes:
        template: path under the root, e.g. "data/chunk-{chunk_index:03d}/file-{file_index:03d}.parquet".
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
        chunk, number = int(self.chunk[file]), int(self.number[file])
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
        """Whether file names are unique: they hold the episode id instead of a number that restarts per chunk."""
        return "{episode_index" in self.template.rpartition("/")[2]

    def find(self, files: Files, file: int) -> str:
        """Find a file by the template, else by its unique name in another chunk folder.

        Real datasets name chunks that do not exist. Returns the template's path when the file is missing.
        """
        path = self.path(file)
        if not files.is_local or not self.named_apart or files.exists(path):
            return path
        parts = path.split("/")
        at = next((i for i, part in enumerate(parts[:-1]) if _CHUNK.fullmatch(part)), None)
        if at is None:
            return path
        head, tail = "/".join(parts[:at]), "/".join(parts[at + 1 :])
        for chunk, is_folder in files.entries(head) or []:
            candidate = f"{head}/{chunk}/{tail}" if head else f"{chunk}/{tail}"
            if is_folder and _CHUNK.fullmatch(chunk) and files.exists(candidate):
                return candidate
        return path


@dataclass(frozen=True)
class Videos:
    """Video files of one camera, and the place of each episode in them.

    Attributes:
        files: the video files.
        file: int32 (N,), the file of each episode, -1 where the metadata names none.
        first: int64 (N,), frame number of the episode's first frame in that file, in display order.
        drift: float64 (F,), most frames by which the recorded `from_timestamp`s of a file differ from `first`;
            infinite where several episodes share a file and no time is recorded.
        expected: int64 (F,), frames that a file should hold: the sum of its episodes' lengths.
        first_by_time: int64 (N,), frame number by an episode's recorded time, in files whose times are whole frames,
            do not overlap and leave gaps; -1 for the episodes of other files. None where there is no such file.
    """

    files: FileTable
    file: np.ndarray
    first: np.ndarray
    drift: np.ndarray
    expected: np.ndarray
    first_by_time: np.ndarray | None = None


@dataclass(frozen=True, eq=False)
class EpisodeTable:
    """All episodes, in ascending order of their ids. A *row* is a position in this table.

    Attributes:
        ids: int64 (N,), unique, ascending, gaps allowed.
        lengths: int64 (N,), frames.
        index_from: int64 (N,), dataset-wide number of the first frame.
        data: the data files.
        data_file: int32 (N,), the data file of each episode.
        data_row: int64 (N,), the episode's first row there, if the file holds exactly the episodes listed for it.
        videos: camera key -> its video files.
        task_offsets, task_indices: int64 (N+1,), int32: row r has task_indices[task_offsets[r]:task_offsets[r+1]].
        own_files: each episode has its own data file, named after it.
    """

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
            rows, known = np.zeros(len(ids), np.int64), np.zeros(len(ids), bool)
        elif self._is_range:
            rows, known = ids, (ids >= 0) & (ids < len(self))
        else:
            rows = np.minimum(np.searchsorted(self.ids, ids), len(self) - 1)
            known = self.ids[rows] == ids
        if not known.all():
            raise DatasetError(
                f"there is no episode {int(ids[~known][0])}",
                fix=f"the only episode is {int(self.ids[0])}"
                if len(self) == 1
                else f"the {len(self)} episodes are {describe_ids(self.ids)}",
            )
        return rows

    def tasks_of(self, row: int) -> np.ndarray:
        """Task indices of a row, int32; -1 for a text that is not in the task list."""
        return self.task_indices[int(self.task_offsets[row]) : int(self.task_offsets[row + 1])]


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
