"""Cursors over open videos, per thread: taken where they continue best, returned to be used again.

A video is opened once for all threads (`VideoFrames.reader`). Each cursor has a decoder of its own over it. A clip that
continues at a cursor's position decodes nothing twice. Any other position starts over at a key frame, with the same
decoder where the video is the same.
"""

from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, field
from typing import TypeAlias

import av
import numpy as np

from understudy.data.dataset import EpisodeDataset
from understudy.errors import DatasetError
from understudy.load.images.planes import PlanePacker
from understudy.video.depth import AnyConverter
from understudy.video.reader import DecodedImage, VideoReader


class Cursor:
    """Cursor over one video of a dataset, with errors that name the episode.

    Attributes:
        key: dataset, camera and file.
        row: table row of the episode that it was taken for; the file may hold many.
    """

    row = 0

    def __init__(self, key: tuple[int, str, int], reader: VideoReader, where: Callable[[str, int], str]) -> None:
        self.key, self._where, self._cursor = key, where, reader.cursor()

    def runs(self, positions: np.ndarray, run_length: int = 1) -> Iterator[Sequence[DecodedImage]]:
        """See `VideoCursor.runs`."""
        try:
            yield from self._cursor.runs(positions, run_length)
        except DatasetError as error:
            raise error.replaced(where=self._where(self.key[1], self.row)) from error

    @property
    def position(self) -> int:
        """See `VideoCursor.position`."""
        return self._cursor.position

    @property
    def wait_seconds(self) -> float:
        """See `VideoCursor.wait_seconds`."""
        return self._cursor.wait_seconds

    def park(self) -> None:
        """See `VideoCursor.park`."""
        self._cursor.park()


class Cursors:
    """Idle cursors of one thread. Beyond `most`, the least recently used ones are dropped."""

    def __init__(self, most: int) -> None:
        self._most = most
        self._idle: list[Cursor] = []  # the least recently used first

    def reader(self, dataset: EpisodeDataset, camera: str, row: int) -> VideoReader:
        """Open the video of an episode, or return it where it is open."""
        return dataset.video_frames.reader(camera, row)

    def take(self, dataset: EpisodeDataset, camera: str, row: int, position: int, held: Cursor | None = None) -> Cursor:
        """Take a cursor over the video of an episode, preferably one that is at `position` or shortly before it.

        Args:
            dataset: source of the episode.
            camera: key of the camera.
            row: table row of the episode.
            position: display position of the first frame to decode.
            own: the cursor that the caller already holds. It is taken if it is over this video, and returned if not.
        """
        key = (id(dataset), camera, int(dataset.catalog.videos(camera).file[row]))
        cursor = held if held is not None and held.key == key else None
        if held is not None and cursor is None:
            self.give(held)
        if cursor is None:
            near = [
                (position - idle.position >= 0, -abs(position - idle.position), i)
                for i, idle in enumerate(self._idle)
                if idle.key == key
            ]
            cursor = self._idle.pop(max(near)[2]) if near else None
        if cursor is None:
            while len(self._idle) >= self._most:  # before the new one needs a codec context, so that it reuses theirs
                self._idle.pop(0).park()
            cursor = Cursor(key, self.reader(dataset, camera, row), dataset.video_frames.where)
        cursor.row = row
        return cursor

    def give(self, cursor: Cursor) -> None:
        """Return a cursor."""
        self._idle.append(cursor)
        if len(self._idle) > self._most:
            self._idle.pop(0).park()


SampleImages: TypeAlias = DecodedImage | list[DecodedImage]
"""Images of one sample. Many samples wait; a list of one image would cost the garbage collector twice as much."""


@dataclass(frozen=True)
class ConversionJobs:
    """Images to be converted, and the place of each in a batch."""

    images: list[DecodedImage] = field(default_factory=list)
    places: list[int] = field(default_factory=list)

    def add(self, images: SampleImages, sample: int) -> None:
        """Add the images of one sample of a batch. All samples have the same number of images."""
        if isinstance(images, list):
            count, first = len(images), sample * len(images)
            self.images.extend(images)
            self.places.extend(range(first, first + count))
        else:
            self.images.append(images)
            self.places.append(sample)


def write_all(jobs: ConversionJobs, out: np.ndarray, converter: AnyConverter | PlanePacker) -> None:
    """Convert all jobs into their places in `out`, (n, C, H, W) of the converter's dtype, and clear the jobs.

    An image that directly follows itself is converted once.
    """
    frames, places, copies = _split(jobs, out)
    jobs.images.clear()  # the converter recycles frames that nothing else refers to
    jobs.places.clear()
    converter.write_all(frames, places, out)
    for place, source in copies:
        out[place] = out[source]


def _split(jobs: ConversionJobs, out: np.ndarray) -> tuple[list[av.VideoFrame], list[int], list[tuple[int, int]]]:
    """Write RGB images at once; returns (frames to convert, their places, (place, source) of repeated images)."""
    last, source = None, 0
    frames, places, copies = [], [], []
    for image, place in zip(jobs.images, jobs.places, strict=True):
        if image is last:
            copies.append((place, source))
        elif isinstance(image, np.ndarray):
            out[place] = image.transpose(2, 0, 1)
        else:
            frames.append(image)
            places.append(place)
        last, source = image, place
    return frames, places, copies


def write(image: DecodedImage, converter: AnyConverter | PlanePacker, out: np.ndarray) -> None:
    """Write a cursor's image into `out`, (C, H, W) of the converter's dtype."""
    if isinstance(image, np.ndarray):
        out[...] = image.transpose(2, 0, 1)
    else:
        converter.write(image, out)
