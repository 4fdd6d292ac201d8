"""Decoded cache: images that are kept, each decoded when it is first needed, together with its
neighbours.

Nothing is decoded up front, so the first batch is ready as soon as its own images are decoded. From
the second epoch on nothing is decoded at all. A run of frames begins at a key frame or where a
decoder stopped, and ends where the next can begin, so that each frame is decoded once. Runs are
short, or early batches would wait for the frames of later ones.

In memory, images of the recorded size stay as decoders return them, mostly in half the bytes of
RGB; the conversion of a copy costs no more than its copying. On disk (`disk_cache.py`) all images
are as they are delivered.
"""

import copy
import threading
from collections.abc import Sequence
from itertools import chain
from time import perf_counter
from typing import Protocol, TypeVar

import numpy as np

from understudy_base import DataAccessError, DatasetError
from understudy_data.datasets.episode_arrays import EpisodeArrays
from understudy_data.datasets.read.video_frames import VideoFrames
from understudy_data.load.images.clip_reader import Cursors, Timings, write
from understudy_data.load.images.disk_cache import ImageFiles, StoredImages
from understudy_data.video.depth import AnyConverter
from understudy_data.video.reader import DecodedImage, VideoFacts

Dataset = TypeVar("Dataset", bound=EpisodeArrays)
_NEAR = 8  # frames to the next key frame that a run extends for
IDLE_CURSORS = 8
"""Decoders that are kept for each dataset."""


def decoded_bytes(dataset: EpisodeArrays, image_size: tuple[int, int] | None = None) -> int:
    """Bytes of all decoded images of the episodes that a dataset selects, of all its cameras.

    Args:
        image_size: (height, width) to which images are resized.

    Raises:
        DatasetError: a video cannot be opened.
    """
    rows = dataset.table_rows
    total = 0
    for camera in dataset.video_keys:
        facts = dataset.video_frames.facts(camera, int(rows[0]))
        total += int(dataset.catalog.episodes.lengths[rows].sum()) * _image_bytes(
            dataset, camera, facts, image_size
        )
    return total


def _image_bytes(
    dataset: EpisodeArrays, camera: str, facts: VideoFacts, image_size: tuple[int, int] | None
) -> int:
    """Bytes of one image as it is kept."""
    height, width = image_size or (facts.height, facts.width)
    stays = _stays_frame(dataset, camera, facts, image_size)
    return facts.frame_bytes if stays else dataset.pixels(camera).nbytes(height, width)


def _stays_frame(
    dataset: EpisodeArrays, camera: str, facts: VideoFacts, image_size: tuple[int, int] | None
) -> bool:
    """Whether images stay frames of the decoder."""
    converted = dataset.pixels(camera).nbytes(facts.height, facts.width)
    return image_size is None and facts.knows_frame_bytes and facts.frame_bytes < converted


def keep_decoded(
    dataset: Dataset, image_size: tuple[int, int] | None = None, files: ImageFiles | None = None
) -> Dataset:
    """View of a dataset whose images are decoded once and kept.

    Args:
        image_size: (height, width) to which images are resized.
        files: to keep them in; None keeps them in memory.
    """
    view = copy.copy(dataset)
    view.video_frames = DecodedImages(dataset.video_frames, view, image_size, files)
    return view


class _Episode(Protocol):
    """One camera's images of one episode, and which of them are decoded.

    Attributes:
        shape: (C, H, W) of an image.
        dtype: of a pixel.
        keeps: whether decoded images are kept.
        filling: held while images are decoded.
    """

    shape: tuple[int, ...]
    dtype: np.dtype
    keeps: bool
    filling: threading.Lock

    def decoded(self) -> np.ndarray:
        """Whether each frame is decoded, bool (n,)."""

    def read(self, frame: int, out: np.ndarray, converter: AnyConverter) -> bool:
        """Write an image into `out`, (C, H, W); returns False where it is not decoded."""

    def keep(
        self, frame: int, image: DecodedImage, converter: AnyConverter, out: np.ndarray | None
    ) -> None:
        """Keep an image, and write it into `out`, if it is given."""


class _InMemory(_Episode):
    """An episode in memory.

    Args:
        images: (n, C, H, W), of undefined content.
        frames: a list of n for frames of the decoder; `images` is then a single one, and gives the
            shape alone.
    """

    keeps = True

    def __init__(
        self, images: np.ndarray, count: int, frames: list[DecodedImage | None] | None
    ) -> None:
        self._images = images
        self._frames = frames
        self.shape = images.shape[1:]
        self.dtype = images.dtype
        self._decoded = np.zeros(count, bool)
        self.filling = threading.Lock()

    def decoded(self) -> np.ndarray:
        return self._decoded

    def read(self, frame: int, out: np.ndarray, converter: AnyConverter) -> bool:
        if not self._decoded[frame]:
            return False
        if self._frames is None:
            out[...] = self._images[frame]
        else:
            image = self._frames[frame]
            assert image is not None
            write(image, converter, out)
        return True

    def keep(
        self, frame: int, image: DecodedImage, converter: AnyConverter, out: np.ndarray | None
    ) -> None:
        if self._frames is None:
            write(image, converter, self._images[frame])
        else:
            self._frames[frame] = image
        self._decoded[frame] = True
        if out is not None:
            self.read(frame, out, converter)


class _OnDisk(_Episode):
    """An episode in a file."""

    def __init__(self, files: ImageFiles, images: StoredImages) -> None:
        self._files = files
        self._images = images
        self.shape = images.shape
        self.dtype = images.dtype
        self.filling = threading.Lock()

    @property
    def keeps(self) -> bool:  # type: ignore[override]
        return self._files.is_writable

    def decoded(self) -> np.ndarray:
        return self._images.decoded()

    def read(self, frame: int, out: np.ndarray, converter: AnyConverter) -> bool:
        return self._images.read(frame, out)

    def keep(
        self, frame: int, image: DecodedImage, converter: AnyConverter, out: np.ndarray | None
    ) -> None:
        converted = np.empty(self.shape, self.dtype) if out is None else out
        write(image, converter, converted)
        self._files.store(self._images, frame, converted)


class DecodedImages(VideoFrames):
    """The images of a dataset, kept once they are decoded; arguments as for `keep_decoded`."""

    def __init__(
        self,
        source: VideoFrames,
        dataset: EpisodeArrays,
        image_size: tuple[int, int] | None = None,
        files: ImageFiles | None = None,
    ) -> None:
        self.source = source
        super().__init__(source.catalog, 0, source.backend)
        self.dataset = dataset
        self.image_size = image_size
        self.files = files

    def _forget(self) -> None:
        super()._forget()
        self.share_open_files(self.source)
        self._episodes: dict[tuple[str, int], _Episode] = {}  # by camera and table row
        self._cursors = Cursors(IDLE_CURSORS)
        self._converters = threading.local()
        self._cursors_lock = threading.Lock()

    def take(self, camera: str, rows: np.ndarray, frames: np.ndarray) -> np.ndarray:
        """Images of one camera, (B, C, H, W) or (B, T, C, H, W); see `VideoFrames.take`."""
        flat = frames.reshape(len(rows), -1)
        out: np.ndarray | None = None
        for i, row in enumerate(rows.tolist()):
            episode = self._episode(camera, row)
            if out is None:
                out = np.empty((*flat.shape, *episode.shape), episode.dtype)
            if episode.shape != out.shape[2:]:
                sizes = " and ".join(f"{w}x{h}" for _, h, w in (out.shape[2:], episode.shape))
                problem = f"images of {sizes} in one batch"
                raise DatasetError(
                    problem, where=self.where(camera, row), fix="select episodes of one size"
                )
            self.read_into(camera, row, flat[i].tolist(), out[i], Timings())
        assert out is not None
        return out if frames.ndim == 2 else out[:, 0]

    def read_into(
        self,
        camera: str,
        row: int,
        frames: Sequence[int],
        out: np.ndarray,
        timings: Timings,
        ahead: bool = True,
    ) -> None:
        """Write the images of T frames of an episode (by table row) into `out`, contiguous (T, C,
        H, W).

        Args:
            ahead: whether to decode frames behind the missing ones, too. False where the consumer
                waits for them.
        """
        episode = self._episode(camera, row)
        converter = self._converter(camera)
        for frame, image in zip(frames, out, strict=True):
            if not episode.read(frame, image, converter):
                self._fill(camera, row, episode, frame, image, timings, ahead)

    def prefetch(self, camera: str, row: int, first: int, last: int, most: int) -> None:
        """See `VideoFrames.prefetch`; decoded frames need no bytes."""
        episode = self._episodes.get((camera, row))
        if episode is None or not episode.decoded()[first : last + 1].all():
            super().prefetch(camera, row, first, last, most)

    def _episode(self, camera: str, row: int) -> _Episode:
        episode = self._episodes.get((camera, row))
        if episode is None:
            if self.files is not None:
                self.files.pin(self.dataset, camera, row)  # before the video is opened
            facts = self.reader(camera, row).facts  # outside the lock, which it takes
            height, width = self.image_size or (facts.height, facts.width)
            if self.files is None:
                episode = self._in_memory(camera, row, facts, height, width)
            else:
                first = int(self.first_frame(camera, np.asarray([row]))[0])
                images = self.files.images(self.dataset, camera, row, first, (height, width))
                episode = _OnDisk(self.files, images)
            episode = self._episodes.setdefault((camera, row), episode)
        return episode

    def _in_memory(
        self, camera: str, row: int, facts: VideoFacts, height: int, width: int
    ) -> _InMemory:
        count = int(self.catalog.episodes.lengths[row])
        frames: list[DecodedImage | None] | None = None
        if _stays_frame(self.dataset, camera, facts, self.image_size):
            frames = [None] * count
        images = 1 if frames else count
        empty = self.dataset.pixels(camera).empty(images, height, width)
        return _InMemory(empty, count, frames)  # memory is used as it is written

    def _fill(
        self,
        camera: str,
        row: int,
        episode: _Episode,
        frame: int,
        out: np.ndarray,
        timings: Timings,
        ahead: bool,
    ) -> None:
        """Decode a run of missing frames that contains `frame`, and write its image into `out`."""
        with episode.filling:
            if episode.read(frame, out, self._converter(camera)):  # another thread has decoded it
                return
            decoded = episode.decoded()
            first = int(self.first_frame(camera, np.asarray([row]))[0])
            keys = self.reader(camera, row).gops.key_frames
            next_key = int(np.searchsorted(keys, first + frame, side="right"))
            begin = max(int(keys[next_key - 1]) - first, 0) if next_key else 0
            # The frames before it in its GOP are decoded on the way; as many again behind it, up to
            # a key frame.
            behind = frame - begin if ahead else 0
            end = min(frame + behind + 1, len(decoded))
            key_behind = int(np.searchsorted(keys, first + end))
            key = int(keys[key_behind]) - first if key_behind < len(keys) else len(decoded)
            if ahead and key - end < _NEAR:
                end = min(key, len(decoded))
            alone = np.asarray([frame])
            absent = ~decoded[begin:end]
            absent[frame - begin] = True  # another process may just have written it
            missing = np.flatnonzero(absent) + begin if episode.keeps else alone
            try:
                self._decode_into(camera, row, episode, first, missing, frame, out, timings)
            except DataAccessError:
                # perhaps only another one is unreadable
                if not episode.read(frame, out, self._converter(camera)):
                    self._decode_into(camera, row, episode, first, alone, frame, out, timings)

    def _decode_into(
        self,
        camera: str,
        row: int,
        episode: _Episode,
        first: int,
        numbers: np.ndarray,
        frame: int,
        out: np.ndarray,
        timings: Timings,
    ) -> None:
        """Decode the frames `wanted`, keep them, and write the image of `frame`, one of them, into
        `out`.
        """
        begin = perf_counter()
        converting = 0.0
        with self._cursors_lock:
            cursor = self._cursors.take(self.dataset, camera, row, first + int(numbers[0]))
        waited = cursor.wait_seconds
        try:
            converter = self._converter(camera)
            decoded = chain.from_iterable(cursor.runs(first + numbers))
            for number, image in zip(numbers.tolist(), decoded, strict=True):
                since = perf_counter()
                wanted = out if number == frame else None
                episode.keep(number, image, converter, wanted)
                converting += perf_counter() - since
                timings.frames += 1
        finally:
            fetched = cursor.wait_seconds - waited
            timings.convert += converting
            timings.fetch += fetched
            timings.decode += perf_counter() - begin - converting - fetched
            with self._cursors_lock:
                self._cursors.give(cursor)

    def _converter(self, camera: str) -> AnyConverter:
        converters: dict[str, AnyConverter] = self._converters.__dict__
        if camera not in converters:
            converters[camera] = self.dataset.pixels(camera).converter(self.image_size)
        return converters[camera]
