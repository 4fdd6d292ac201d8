"""`EpisodeDataset`: samples of a LeRobot dataset as dictionaries of tensors, one by one or in batches.

One implementation: a sample is a batch of one. Keys, dtypes and `<key>_is_pad` are LeRobot's; the shape rule is one for
all: a key in `delta_timestamps` has a leading T (also when T is 1), a key that is not has none.
"""

import os
import warnings
from collections.abc import Iterable, Mapping, Sequence
from functools import cached_property
from typing import Any, Literal

import numpy as np
import torch

from understudy.data.format.catalog import Catalog
from understudy.data.format.features import INDEX_KEYS
from understudy.data.format.rename import in_standard_keys
from understudy.data.read.image_column import StoredPictures
from understudy.data.read.rows import Rows
from understudy.data.read.video_frames import Pictures
from understudy.data.selection.select import Keep, select
from understudy.data.windows import frame_offsets, reach, window
from understudy.errors import DatasetError, SourceFailed
from understudy.storage.files import renamed
from understudy.storage.mapped import dumps, loads, shared

_TRIED = 64  # videos that are opened at most to find one that can be
_TABLES = ("segments", "_stop", "_begins", "_ends")  # large ones are mapped
_IN_ONE = np.int64(1) << 32  # one number for (episode, start): ids and frames are below 2**31


class EpisodeDataset(torch.utils.data.Dataset[dict[str, Any]]):
    """A map-style dataset: `len(data)`, `data[i]`; also `sample(episode, frame)` and `batch(episodes, frames)`.

    Args: root: path, fsspec URL, or an open `Catalog`. delta_timestamps: key -> seconds around the frame, multiples of
    1/fps within 1e-4 s. A window that leaves its episode repeats the episode's first or last frame, and `<key>_is_pad`
    (bool, T) is True there; dropped frames and those outside keep-ranges are still seen by the windows of others (but
    see `keep_rule`). episodes: ids of the episodes to use; exclude_episodes: ids to leave out. keep: keep-ranges, a
    JSON file or its content (see `data/selection/select.py`). keep_rule: "window" keeps a frame when its whole window
    lies inside a range; "start" when the frame itself does: the window's tail then pads from the range's end on, its
    history reaches back in the episode. drop_n_first_frames, drop_n_last_frames: frames of each episode that are no
    samples. keys: the features to deliver, all declared ones by default, where a camera without any video file is left
    out with a warning; named, it is an error. Columns that info.json does not declare are left out unless named here.
    The index keys and `task` are always there. names: standard key -> this dataset's own key, of features that are
    called otherwise here (see `data/format/rename.py`). Everything given and handed out bears the standard keys:
    `keys`, `delta_timestamps`, samples, `catalog`. absent: camera -> (height, width), of cameras that other datasets of
    a mixture have and this one lacks. They are delivered black, their windows all padding, and `<camera>_is_missing` is
    True. name: what it is called in an order and in messages; by default as its folder is. video_backend: see
    `open_video`. row_cache_bytes: memory for loaded rows, and as much again for encoded pictures that lie in the rows.
    picture_cache_bytes: memory for pictures decoded from video.

    A sample holds `index`, `episode_index`, `frame_index`, `task_index` (int64 scalars), `timestamp`, `task` (str) and
    the features: tensors of the dtype that info.json declares (float64 stays float64, whatever the file stores) and of
    the declared shape ((1,) is a scalar), strings as str, pictures as uint8 (C, H, W); of absent cameras
    `<camera>_is_missing` (bool scalar) as well.

    Raises: DatasetError: the dataset cannot be read, or not as asked.
    """

    def __init__(
        self,
        root: str | os.PathLike[str] | Catalog,
        delta_timestamps: Mapping[str, Sequence[float]] | None = None,
        episodes: Iterable[int] | None = None,
        keep: Keep | None = None,
        *,
        exclude_episodes: Iterable[int] | None = None,
        keep_rule: Literal["window", "start"] = "window",
        drop_n_first_frames: int = 0,
        drop_n_last_frames: int = 0,
        keys: Sequence[str] | None = None,
        names: Mapping[str, str] | None = None,
        absent: Mapping[str, tuple[int, int]] | None = None,
        name: str | None = None,
        video_backend: str = "pyav",
        row_cache_bytes: int = 1 << 30,
        picture_cache_bytes: int = 128 << 20,
    ) -> None:
        if video_backend not in ("pyav", "torchcodec"):
            raise DatasetError(f"video_backend is {video_backend!r}", fix="it is 'pyav' or 'torchcodec'")
        self.catalog = in_standard_keys(Catalog.open(root), names or {}, absent)
        self._name = name
        self.absent = {camera: (int(size[0]), int(size[1])) for camera, size in (absent or {}).items()}
        self.keys = self._chosen(keys)
        known = tuple(dict.fromkeys([*self.keys, *INDEX_KEYS]))
        self._offsets = frame_offsets(delta_timestamps, float(self.catalog.fps), known)
        selection = select(
            self.catalog,
            episodes=episodes,
            exclude=exclude_episodes,
            drop_first=drop_n_first_frames,
            drop_last=drop_n_last_frames,
            keep=keep,
            keep_rule=keep_rule,
            reach=reach(list(self._offsets.values())),
        )
        rows = selection.segments
        begins, ends = rows[:, 0] * _IN_ONE + rows[:, 1], np.cumsum(rows[:, 2] - rows[:, 1])
        remote = self.catalog.files.remote
        tables = {"segments": rows, "_stop": selection.stop, "_begins": begins, "_ends": ends}
        tables = dict(shared(tables, remote.cache if remote is not None else ""))
        self.segments, self._stop, self._begins, self._ends = (tables[name] for name in _TABLES)
        self._notes = selection.notes
        self.keep_report = selection.keep
        """What keep-ranges did; None without them."""
        features = self.catalog.features
        self._videos = tuple(k for k in self.keys if k in features and features[k].is_video)
        self._images = tuple(k for k in self.keys if k in features and features[k].is_picture and k not in self._videos)
        self._columns = tuple(k for k in known if k not in (*self._videos, *self._images, *self.absent))
        self._look_for([k for k in self._columns if k not in features and k not in INDEX_KEYS])
        self.row_cache_bytes = row_cache_bytes
        self._rows = Rows(self.catalog, [k for k in self._columns if k not in INDEX_KEYS], row_cache_bytes)
        self._stored = StoredPictures(self.catalog, self._images, row_cache_bytes)
        self.pictures = Pictures(self.catalog, picture_cache_bytes, video_backend)

    def __getstate__(self) -> dict[str, Any]:
        state = dict(self.__dict__)
        return state | {"tables": dumps({name: state.pop(name) for name in _TABLES})}

    def __setstate__(self, state: dict[str, Any]) -> None:
        self.__dict__.update(loads(state.pop("tables")) | state)

    def _chosen(self, keys: Sequence[str] | None) -> tuple[str, ...]:
        features = self.catalog.features
        left_out = {key: why for key, why in self.catalog.left_out.items() if key not in self.absent}
        if keys is None:
            for key, why in left_out.items():
                warnings.warn(f"{self.catalog.root}: {key} {why}: left out", stacklevel=3)
            return (*features, *self.absent)
        if isinstance(keys, str):
            raise DatasetError(f"keys is {keys!r}", fix="give a list of keys")
        for key, why in left_out.items():
            if key in keys:
                raise DatasetError(f"{key} {why}", where=self.catalog.root, fix="leave it out of keys")
        for key, own in self.catalog.stored.items():
            if own in keys and own not in features:
                what = f"keys names {own!r}, which is mapped to {key!r}"
                raise DatasetError(what, where=self.catalog.root, fix=f"give {key!r}, its standard key")
        return tuple(dict.fromkeys([*keys, *self.absent]))

    def _look_for(self, keys: Sequence[str]) -> None:
        """Refuse keys that are neither declared nor columns of the first file that is used."""
        if not keys:
            return
        first = self.catalog.episodes.row_of(int(self.segments[0, 0]))
        path = self.catalog.data_path(first)
        where = f"{self.catalog.files.where(path)} (episode {int(self.segments[0, 0])})"
        with renamed(where), self.catalog.files.parquet(path) as file:
            there = file.schema_arrow.names
        for key in keys:
            if key not in there:
                known = ", ".join(dict.fromkeys([*self.catalog.features, *INDEX_KEYS, *there]))
                raise DatasetError(f"keys names {key!r}", where=self.catalog.root, fix=f"the keys are {known}")

    @property
    def name(self) -> str:
        return self._name or self.catalog.name

    @property
    def fps(self) -> float:
        return self.catalog.fps

    @property
    def reach(self) -> tuple[int, int]:
        """How many pictures windows reach (back, ahead) of their frame; (0, 0) when pictures have no windows."""
        return reach([self._offsets[k] for k in (*self._videos, *self._images) if k in self._offsets])

    @property
    def window_stops(self) -> np.ndarray:
        """int64 (K,): before which frame of its episode the windows of each of `segments` end (see `Selection`)."""
        return self._stop

    @property
    def windows(self) -> dict[str, int]:
        """Key -> T, of the keys that are delivered as windows."""
        return {key: len(offsets) for key, offsets in self._offsets.items()}

    @cached_property
    def gop(self) -> int:
        """Pictures from one key frame to the next: the most of any camera, each judged by its first selected video that
        can be opened. 1 where no video is read. Raises DatasetError where none of a camera's videos can be opened."""
        rows = self.catalog.episodes.rows_of(np.unique(self.segments[:, 0]))
        return max([1, *(self._gop_of(camera, rows) for camera in self._videos)])

    def _gop_of(self, camera: str, rows: np.ndarray) -> int:
        file = self.catalog.videos(camera).file[rows]
        firsts = rows[np.unique(file, return_index=True)[1]]
        error: DatasetError | None = None
        for row in np.sort(firsts)[:_TRIED].tolist():
            if self.catalog.videos(camera).file[row] < 0:
                continue
            try:
                return int(self.pictures.reader(camera, row).gop)
            except SourceFailed:
                raise
            except DatasetError as wrong:
                error = error or wrong
        if error is not None:
            raise error
        return 1

    @property
    def notes(self) -> tuple[str, ...]:
        """What was odd in the selection and in the files read so far; see `Catalog.report` for the metadata."""
        return (*self._notes, *self._rows.notes, *self.pictures.notes)

    def __repr__(self) -> str:
        episodes = len(np.unique(self.segments[:, 0]))
        return (
            f"EpisodeDataset({self.catalog.root!r}: {len(self)} samples of {episodes} episodes, {', '.join(self.keys)})"
        )

    def __len__(self) -> int:
        return int(self._ends[-1])

    def __getitem__(self, index: int) -> dict[str, Any]:
        """The sample number `index` of those selected, in storage order; negative counts from the end."""
        return self.__getitems__([index])[0]

    def __getitems__(self, indices: Sequence[int]) -> list[dict[str, Any]]:
        """Several samples at once, which is how torch's DataLoader asks: each file is met once."""
        batch = self.batch(*self.locate(indices))
        return [{key: value[i] for key, value in batch.items()} for i in range(len(indices))]

    def locate(self, indices: Sequence[int] | np.ndarray) -> tuple[np.ndarray, np.ndarray]:
        """(episode ids, frames), int64 (B,), of samples by their number; negative counts from the end."""
        asked = _whole(indices, "sample numbers")
        at = np.where(asked < 0, asked + len(self), asked)
        wrong = (at < 0) | (at >= len(self))
        if wrong.any():
            raise IndexError(f"sample {int(asked[wrong][0])} of {len(self)}")
        segment = np.searchsorted(self._ends, at, side="right")
        return self.segments[segment, 0], self.segments[segment, 2] - (self._ends[segment] - at)

    def sample(self, episode: int, frame: int) -> dict[str, Any]:
        """The sample at one frame of an episode (see `batch`)."""
        batch = self.batch(np.asarray([episode]), np.asarray([frame]))
        return {key: value[0] for key, value in batch.items()}

    def batch(self, episodes: np.ndarray, frames: np.ndarray) -> dict[str, Any]:
        """Samples stacked along a leading dimension B; strings as lists.

        Args:
            episodes: int (B,), episode ids; frames: int (B,), frame numbers inside them. Each must be selected.

        Raises:
            DatasetError: a frame is not among those selected, or cannot be read.
        """
        out = self.tables(episodes, frames)
        rows, pictures = self.video_frames(episodes, frames)
        for key, wanted in pictures.items():
            out[key] = torch.from_numpy(self.pictures.take(key, rows, wanted))
        for camera in self.absent:
            out[camera] = self.black(camera, len(rows))
        return out

    def black(self, camera: str, count: int) -> torch.Tensor:
        """What is delivered of an absent camera: zeros uint8 (count, 3, H, W), or (count, T, 3, H, W) in windows."""
        window = [len(self._offsets[camera])] if camera in self._offsets else []
        return torch.zeros((count, *window, 3, *self.absent[camera]), dtype=torch.uint8)

    def _flags(self, camera: str, count: int) -> dict[str, torch.Tensor]:
        """What tells that a camera is absent, for `count` samples."""
        flags = {f"{camera}_is_missing": torch.ones(count, dtype=torch.bool)}
        if camera in self._offsets:
            flags[f"{camera}_is_pad"] = torch.ones((count, len(self._offsets[camera])), dtype=torch.bool)
        return flags

    def tables(self, episodes: np.ndarray, frames: np.ndarray) -> dict[str, Any]:
        """What `batch` gives, without the pictures that come from video (whose `<key>_is_pad` are there)."""
        rows, frames, stop = self._located(episodes, frames)
        at: dict[str, np.ndarray] = {}
        out: dict[str, Any] = {}
        for camera in self.absent:
            out |= self._flags(camera, len(rows))
        for key in (*self._columns, *self._videos, *self._images):
            at[key] = frames
            if key in self._offsets:
                at[key], pad = window(frames, self._offsets[key], np.zeros_like(frames), stop)
                out[f"{key}_is_pad"] = torch.from_numpy(pad)
        taken = self._rows.take(rows, {key: at[key] for key in self._columns})
        for key, value in taken.items():
            out[key] = torch.from_numpy(value) if isinstance(value, np.ndarray) else value
        for key in self._images:
            out[key] = torch.from_numpy(self._stored.take(key, rows, self._rows.places(rows, at[key])))
        now = (
            taken["task_index"]
            if "task_index" not in self._offsets
            else self._rows.take(rows, {"task_index": frames})["task_index"]
        )
        out["task"] = [self.catalog.tasks[int(task)] for task in np.asarray(now).tolist()]
        return out

    def video_frames(self, episodes: np.ndarray, frames: np.ndarray) -> tuple[np.ndarray, dict[str, np.ndarray]]:
        """Which pictures `batch` takes from video: (table rows int64 (B,), key -> frame numbers int64 (B,) or (B, T)).

        Each frame number counts inside the episode of its row and is clamped as the windows are.
        """
        rows, frames, stop = self._located(episodes, frames)
        wanted = {}
        for key in self._videos:
            wanted[key] = frames
            if key in self._offsets:
                wanted[key] = window(frames, self._offsets[key], np.zeros_like(frames), stop)[0]
        return rows, wanted

    @property
    def cameras(self) -> tuple[str, ...]:
        """The keys whose pictures come from video."""
        return self._videos

    @property
    def stored(self) -> tuple[str, ...]:
        """The keys whose pictures come from the data files, with the rows."""
        return self._images

    def _located(self, episodes: np.ndarray, frames: np.ndarray) -> tuple[np.ndarray, np.ndarray, np.ndarray]:
        """(table rows, frames, where the windows of each sample end), int64 (B,) each."""
        episodes, frames = _whole(episodes, "episodes"), _whole(frames, "frames")
        stop = self._stop[self._segments_of(episodes, frames)]
        return self.catalog.episodes.rows_of(episodes), frames, stop

    def _segments_of(self, episodes: np.ndarray, frames: np.ndarray) -> np.ndarray:
        """Which segment (B,) holds each frame."""
        if episodes.ndim != 1 or episodes.shape != frames.shape or len(episodes) == 0:
            raise DatasetError(
                f"episodes {episodes.shape} and frames {frames.shape}", fix="give one row of each, same length"
            )
        asked = episodes * _IN_ONE + np.clip(frames, -1, _IN_ONE - 1)
        found = np.searchsorted(self._begins, asked, side="right") - 1
        held = self.segments[np.maximum(found, 0)]
        good = (found >= 0) & (held[:, 0] == episodes) & (frames >= held[:, 1]) & (frames < held[:, 2])
        if not good.all():
            bad = int(np.flatnonzero(~good)[0])
            own = self.segments[self.segments[:, 0] == episodes[bad]]
            kept = ", ".join(f"[{a}, {b})" for _, a, b in own[:4].tolist()) or "none"
            what = f"frame {int(frames[bad])} of episode {int(episodes[bad])} is not selected"
            raise DatasetError(what, where=self.catalog.root, fix=f"selected of that episode: {kept}")
        return found


def _whole(numbers: Sequence[int] | np.ndarray, what: str) -> np.ndarray:
    """Whole numbers as int64; others are refused, where numpy would cut them down to whole ones."""
    array = np.asarray(numbers)
    if array.size and array.dtype.kind not in "iu":
        raise TypeError(f"{what} are whole numbers, not {array.reshape(-1)[0]!r}")
    return array.astype(np.int64)
