"""Residency: pictures that stay decoded. Each is decoded when first needed, together with its neighbours, and kept.

Nothing is decoded up front, so the first batch comes as soon as its own pictures are out; from the second epoch on
nothing is decoded at all. A run of pictures begins where a decoder must begin anyway (at a key frame) or goes on where
one stands, and ends where the next can begin, so that each picture is decoded once.
"""

import copy
import threading
from collections.abc import Sequence
from itertools import chain
from time import perf_counter

import numpy as np

from understudy.data.dataset import EpisodeDataset
from understudy.data.read.video_frames import Pictures
from understudy.errors import DatasetError
from understudy.load.images.clip_reader import Spent
from understudy.load.images.cursors import Cursors, write
from understudy.video.color import Converter

_RUN = 8  # pictures decoded in one go
IDLE = 8
"""Decoders that stand somewhere in a video, of each dataset."""


def picture_bytes(dataset: EpisodeDataset, size: tuple[int, int] | None = None) -> int:
    """Bytes of all pictures, decoded, of the episodes that a dataset selects, of all its cameras.

    size: (height, width) to which they are resized.

    Raises:
        DatasetError: a video cannot be opened.
    """
    episodes = dataset.catalog.episodes
    rows = episodes.rows_of(np.unique(dataset.segments[:, 0]))
    total = 0
    for camera in dataset.cameras:
        reader = dataset.pictures.reader(camera, int(rows[0]))
        height, width = size or (reader.height, reader.width)
        total += int(episodes.lengths[rows].sum()) * height * width * 3
    return total


def kept(dataset: EpisodeDataset, size: tuple[int, int] | None = None) -> EpisodeDataset:
    """The same samples from pictures that are decoded once and kept, resized to `size` (height, width)."""
    view = copy.copy(dataset)
    view.pictures = KeptPictures(dataset.pictures, view, size)
    return view


def resident(dataset: EpisodeDataset, budget: int) -> tuple[EpisodeDataset, int]:
    """`kept(dataset)` and the bytes that takes once all pictures have been met, where these fit `budget` (bytes).

    Where they do not, or there is no video: the dataset as it is, and 0.

    Raises:
        DatasetError: a video cannot be opened.
    """
    needed = picture_bytes(dataset)
    return (kept(dataset), needed) if 0 < needed <= budget else (dataset, 0)


class _Episode:
    """One camera's pictures of one episode, and which of them are there."""

    def __init__(self, pictures: np.ndarray) -> None:
        self.pictures = pictures  # uint8 (n, 3, H, W)
        self.there = np.zeros(len(pictures), bool)
        self.filling = threading.Lock()


class KeptPictures(Pictures):
    """`Pictures` that keeps all that it decodes."""

    def __init__(self, source: Pictures, dataset: EpisodeDataset, size: tuple[int, int] | None = None) -> None:
        super().__init__(source.catalog, 0, source.backend)
        self.dataset, self.size = dataset, size

    def _forget(self) -> None:
        super()._forget()
        self._episodes: dict[tuple[str, int], _Episode] = {}  # by camera and table row
        self._cursors, self._converters = Cursors(IDLE), threading.local()
        self._taking = threading.Lock()  # of the cursors

    def take(self, camera: str, rows: np.ndarray, frames: np.ndarray) -> np.ndarray:
        flat = frames.reshape(len(rows), -1)
        out: np.ndarray | None = None
        for i, row in enumerate(rows.tolist()):
            episode = self._episode(camera, row)
            if out is None:
                out = np.empty((*flat.shape, *episode.pictures.shape[1:]), np.uint8)
            if episode.pictures.shape[1:] != out.shape[2:]:
                sizes = " and ".join(f"{w}x{h}" for _, h, w in (out.shape[2:], episode.pictures.shape[1:]))
                what = f"pictures of {sizes} in one batch"
                raise DatasetError(what, where=self.where(camera, row), fix="select episodes of one size")
            self.into(camera, row, flat[i].tolist(), out[i], Spent())
        assert out is not None
        return out if frames.ndim == 2 else out[:, 0]

    def into(self, camera: str, row: int, frames: Sequence[int], out: np.ndarray, spent: Spent) -> None:
        """Write the pictures of `frames` (T numbers inside an episode, by table row) into `out`, uint8 (T, 3, H, W)."""
        episode = self._episode(camera, row)
        for t, frame in enumerate(frames):
            if not episode.there[frame]:
                self._fill(camera, row, episode, frame, spent)
            out[t] = episode.pictures[frame]

    def _episode(self, camera: str, row: int) -> _Episode:
        found = self._episodes.get((camera, row))
        if found is None:
            reader = self.reader(camera, row)  # outside the lock, which it takes
            height, width = self.size or (reader.height, reader.width)
            empty = np.empty((int(self.catalog.episodes.lengths[row]), 3, height, width), np.uint8)
            found = self._episodes.setdefault((camera, row), _Episode(empty))  # memory is taken where it is written
        return found

    def _fill(self, camera: str, row: int, episode: _Episode, frame: int, spent: Spent) -> None:
        """Decode a run of pictures that are not there, one of which is `frame`."""
        with episode.filling:
            if episode.there[frame]:
                return
            first = int(self.first(camera, np.asarray([row]))[0])
            keys = self.reader(camera, row).key_frames
            at = int(np.searchsorted(keys, first + frame, side="right"))
            begin = max(int(keys[at - 1]) - first, 0) if at else 0
            # What lies before it in its group is decoded on the way; as much again behind it, up to a key frame.
            end = min(frame + max(_RUN, frame - begin), len(episode.there))
            after = int(np.searchsorted(keys, first + end))
            key = int(keys[after]) - first if after < len(keys) else len(episode.there)
            if key - end < _RUN:
                end = min(key, len(episode.there))
            wanted = np.flatnonzero(~episode.there[begin:end]) + begin
            try:
                self._decode_into(camera, row, episode, first, wanted, spent)
            except DatasetError:
                if not episode.there[frame]:  # is it this one, or one that nobody asked for?
                    self._decode_into(camera, row, episode, first, np.asarray([frame]), spent)

    def _decode_into(
        self, camera: str, row: int, episode: _Episode, first: int, wanted: np.ndarray, spent: Spent
    ) -> None:
        begin, converting = perf_counter(), 0.0
        with self._taking:
            cursor = self._cursors.take(self.dataset, camera, row, first + int(wanted[0]))
        waited = cursor.waited
        try:
            converter = self._converter()
            decoded = chain.from_iterable(cursor.runs(first + wanted))
            for number, picture in zip(wanted.tolist(), decoded, strict=True):
                out = perf_counter()
                write(picture, converter, episode.pictures[number])
                episode.there[number] = True
                converting += perf_counter() - out
                spent.pictures += 1
        finally:
            fetched = cursor.waited - waited
            spent.convert += converting
            spent.fetch += fetched
            spent.decode += perf_counter() - begin - converting - fetched
            with self._taking:
                self._cursors.give(cursor)

    def _converter(self) -> Converter:
        if not hasattr(self._converters, "own"):
            self._converters.own = Converter(self.size)
        return self._converters.own
