"""Decoded cache: images that stay in memory, each decoded when it is first needed, together with its neighbours.

Nothing is decoded up front, so the first batch is ready as soon as its own images are decoded. From the second epoch on
nothing is decoded at all. A run of frames begins at a key frame or where a decoder stopped, and ends where the next can
begin, so that each frame is decoded once. Runs are short, or early batches would wait for the frames of later ones.
Images of the recorded size stay as decoders return them, mostly in half the bytes of RGB; the conversion of a copy
costs no more than its copying.
"""

import copy
import threading
from collections.abc import Sequence
from itertools import chain
from time import perf_counter

import numpy as np

from understudy.data.dataset import EpisodeDataset
from understudy.data.read.video_frames import VideoFrames
from understudy.errors import DatasetError
from understudy.load.images.clip_reader import Timings
from understudy.load.images.cursors import Cursors, write
from understudy.video.depth.pixels import AnyConverter
from understudy.video.reader import DecodedImage, VideoReader

_NEAR = 8  # frames to the next key frame that a run extends for
IDLE_CURSORS = 8
"""Decoders that are kept for each dataset."""


def decoded_bytes(dataset: EpisodeDataset, image_size: tuple[int, int] | None = None) -> int:
    """Bytes of all decoded images of the episodes that a dataset selects, of all its cameras.

    Args:
        image_size: (height, width) to which images are resized.

    Raises:
        DatasetError: a video cannot be opened.
    """
    episodes = dataset.catalog.episodes
    rows = episodes.rows_of(np.unique(dataset.segments[:, 0]))
    total = 0
    for camera in dataset.video_keys:
        reader = dataset.video_frames.reader(camera, int(rows[0]))
        total += int(episodes.lengths[rows].sum()) * _image_bytes(dataset, camera, reader, image_size)
    return total


def _image_bytes(dataset: EpisodeDataset, camera: str, reader: VideoReader, image_size: tuple[int, int] | None) -> int:
    """Bytes of one image as it is kept."""
    height, width = image_size or (reader.height, reader.width)
    stays = _stays_frame(dataset, camera, reader, image_size)
    return reader.frame_bytes if stays else dataset.pixels(camera).nbytes(height, width)


def _stays_frame(dataset: EpisodeDataset, camera: str, reader: VideoReader, image_size: tuple[int, int] | None) -> bool:
    """Whether images stay frames of the decoder."""
    converted = dataset.pixels(camera).nbytes(reader.height, reader.width)
    return image_size is None and reader.knows_frame_bytes and reader.frame_bytes < converted


def keep_decoded(dataset: EpisodeDataset, image_size: tuple[int, int] | None = None) -> EpisodeDataset:
    """View of a dataset whose images are decoded once and kept, resized to `image_size` (height, width)."""
    view = copy.copy(dataset)
    view.video_frames = DecodedImages(dataset.video_frames, view, image_size)
    return view


class _Episode:
    """One camera's images of one episode, and which of them are decoded.

    Args:
        images: (n, C, H, W), of undefined content.
        frames: a list of n for frames of the decoder; `images` is then a single one, and gives the shape alone.
    """

    def __init__(self, images: np.ndarray, count: int, frames: list[DecodedImage | None] | None) -> None:
        self.images, self.frames = images, frames
        self.decoded = np.zeros(count, bool)
        self.filling = threading.Lock()


class DecodedImages(VideoFrames):
    """The images of a dataset, kept once they are decoded."""

    def __init__(self, source: VideoFrames, dataset: EpisodeDataset, image_size: tuple[int, int] | None = None) -> None:
        super().__init__(source.catalog, 0, source.backend)
        self.dataset, self.image_size = dataset, image_size

    def _forget(self) -> None:
        super()._forget()
        self._episodes: dict[tuple[str, int], _Episode] = {}  # by camera and table row
        self._cursors, self._converters = Cursors(IDLE_CURSORS), threading.local()
        self._cursors_lock = threading.Lock()

    def take(self, camera: str, rows: np.ndarray, frames: np.ndarray) -> np.ndarray:
        """Images of one camera, (B, C, H, W) or (B, T, C, H, W); see `VideoFrames.take`."""
        flat = frames.reshape(len(rows), -1)
        out: np.ndarray | None = None
        for i, row in enumerate(rows.tolist()):
            episode = self._episode(camera, row)
            if out is None:
                out = np.empty((*flat.shape, *episode.images.shape[1:]), episode.images.dtype)
            if episode.images.shape[1:] != out.shape[2:]:
                sizes = " and ".join(f"{w}x{h}" for _, h, w in (out.shape[2:], episode.images.shape[1:]))
                what = f"images of {sizes} in one batch"
                raise DatasetError(what, where=self.where(camera, row), fix="select episodes of one size")
            self.read_into(camera, row, flat[i].tolist(), out[i], Timings())
        assert out is not None
        return out if frames.ndim == 2 else out[:, 0]

    def read_into(
        self, camera: str, row: int, frames: Sequence[int], out: np.ndarray, timings: Timings, ahead: bool = True
    ) -> None:
        """Write the images of T frames of an episode (by table row) into `out`, (T, C, H, W).

        Args:
            ahead: whether to decode frames behind the missing ones, too. False where the consumer waits for them.
        """
        episode = self._episode(camera, row)
        for t, frame in enumerate(frames):
            if not episode.decoded[frame]:
                self._fill(camera, row, episode, frame, timings, ahead)
            if episode.frames is None:
                out[t] = episode.images[frame]
            else:
                image = episode.frames[frame]
                assert image is not None
                write(image, self._converter(camera), out[t])

    def _episode(self, camera: str, row: int) -> _Episode:
        found = self._episodes.get((camera, row))
        if found is None:
            reader = self.reader(camera, row)  # outside the lock, which it takes
            height, width = self.image_size or (reader.height, reader.width)
            count = int(self.catalog.episodes.lengths[row])
            frames: list[DecodedImage | None] | None = None
            if _stays_frame(self.dataset, camera, reader, self.image_size):
                frames = [None] * count
            empty = self.dataset.pixels(camera).empty(1 if frames else count, height, width)
            found = self._episodes.setdefault((camera, row), _Episode(empty, count, frames))  # used as it is written
        return found

    def _fill(self, camera: str, row: int, episode: _Episode, frame: int, timings: Timings, ahead: bool) -> None:
        """Decode a run of missing frames that contains `frame`."""
        with episode.filling:
            if episode.decoded[frame]:
                return
            first = int(self.first_frame(camera, np.asarray([row]))[0])
            keys = self.reader(camera, row).gops.key_frames
            at = int(np.searchsorted(keys, first + frame, side="right"))
            begin = max(int(keys[at - 1]) - first, 0) if at else 0
            # The frames before it in its GOP are decoded on the way; as many again behind it, up to a key frame.
            end = min(frame + (frame - begin if ahead else 0) + 1, len(episode.decoded))
            after = int(np.searchsorted(keys, first + end))
            key = int(keys[after]) - first if after < len(keys) else len(episode.decoded)
            if ahead and key - end < _NEAR:
                end = min(key, len(episode.decoded))
            wanted = np.flatnonzero(~episode.decoded[begin:end]) + begin
            try:
                self._decode_into(camera, row, episode, first, wanted, timings)
            except DatasetError:
                if not episode.decoded[frame]:  # the requested frame may be readable: another one failed
                    self._decode_into(camera, row, episode, first, np.asarray([frame]), timings)

    def _decode_into(
        self, camera: str, row: int, episode: _Episode, first: int, wanted: np.ndarray, timings: Timings
    ) -> None:
        begin, converting = perf_counter(), 0.0
        with self._cursors_lock:
            cursor = self._cursors.take(self.dataset, camera, row, first + int(wanted[0]))
        waited = cursor.wait_seconds
        try:
            converter = self._converter(camera)
            decoded = chain.from_iterable(cursor.runs(first + wanted))
            for number, image in zip(wanted.tolist(), decoded, strict=True):
                out = perf_counter()
                if episode.frames is None:
                    write(image, converter, episode.images[number])
                else:
                    episode.frames[number] = image
                episode.decoded[number] = True
                converting += perf_counter() - out
                timings.frames += 1
        finally:
            fetched = cursor.wait_seconds - waited
            timings.convert += converting
            timings.fetch += fetched
            timings.decode += perf_counter() - begin - converting - fetched
            with self._cursors_lock:
                self._cursors.give(cursor)

    def _converter(self, camera: str) -> AnyConverter:
        own: dict[str, AnyConverter] = self._converters.__dict__
        if camera not in own:
            own[camera] = self.dataset.pixels(camera).converter(self.image_size)
        return own[camera]
