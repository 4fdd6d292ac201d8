"""Decoders of one thread, each somewhere in a video: taken where they stand well, given back to be used again.

Opening a video is done once for all threads (`Pictures.reader`); a cursor is a decoder of its own over it. Whoever goes
on where a cursor stands decodes nothing twice; anybody else's pictures start over at a key frame, with the same
decoder where the video is the same.
"""

import copy
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, field
from typing import TypeAlias

import av
import numpy as np

from understudy.data.dataset import EpisodeDataset
from understudy.errors import DatasetError
from understudy.video.color import Converter
from understudy.video.decoder import PictureDecoder
from understudy.video.mp4 import VideoIndex
from understudy.video.packets import ContainerPackets, Mp4Packets, Packets
from understudy.video.pyav import PyavReader
from understudy.video.reader import VideoReader

Picture: TypeAlias = av.VideoFrame | np.ndarray
"""As the decoder gives it, or colours uint8 (H, W, 3)."""


class Cursor:
    """One decoder over one video."""

    row = 0
    """Table row of the episode that it was taken for; the file may hold many."""

    def __init__(self, key: tuple[int, str, int], reader: VideoReader, where: Callable[[str, int], str]) -> None:
        self.key, self.at, self._where, self._reader = key, -1, where, reader
        self._packets = _packets(reader) if isinstance(reader, PyavReader) else None
        self._decoder = PictureDecoder(self._packets, reader.path) if self._packets is not None else None

    def runs(self, numbers: np.ndarray, at_once: int = 1) -> Iterator[Sequence[Picture]]:
        """The pictures at positions int64 (n,), increasing, in lists; see `PictureDecoder.runs`."""
        self.at = int(numbers[-1]) + 1
        try:
            if self._decoder is None:
                yield list(self._reader.read(numbers))
            else:
                yield from self._decoder.runs(numbers, at_once)
                self._decoder.forget()  # nobody here asks for a picture twice
        except DatasetError as error:
            raise type(error)(error.what, where=self._where(self.key[1], self.row), fix=error.fix) from error

    @property
    def waited(self) -> float:
        """Seconds of waiting for bytes so far."""
        return self._packets.waited if self._packets is not None else 0.0

    def park(self) -> None:
        """Let go of the codec context; the next picture starts over at a key frame."""
        self.at = -1
        if self._decoder is not None:
            self._decoder.park()


class Cursors:
    """The cursors of one thread that nobody holds; the longest unused are dropped beyond `most`."""

    def __init__(self, most: int) -> None:
        self._most = most
        self._idle: list[Cursor] = []  # the longest unused first

    def reader(self, dataset: EpisodeDataset, camera: str, row: int) -> VideoReader:
        """The open video of an episode."""
        return dataset.pictures.reader(camera, row)

    def take(self, dataset: EpisodeDataset, camera: str, row: int, number: int, held: Cursor | None = None) -> Cursor:
        """A cursor over the video of an episode (table row), best one that stands at picture `number` or before.

        `held` is what the caller still has of before: it is taken if it is of this video, and given back if not.
        """
        key = (id(dataset), camera, int(dataset.catalog.videos(camera).file[row]))
        cursor = held if held is not None and held.key == key else None
        if held is not None and cursor is None:
            self.give(held)
        if cursor is None:
            near = [
                (number - one.at >= 0, -abs(number - one.at), i) for i, one in enumerate(self._idle) if one.key == key
            ]
            cursor = self._idle.pop(max(near)[2]) if near else None
        if cursor is None:
            while len(self._idle) >= self._most:  # before the new one needs a codec context: it takes theirs
                self._idle.pop(0).park()
            cursor = Cursor(key, self.reader(dataset, camera, row), dataset.pictures.where)
        cursor.row = row
        return cursor

    def give(self, cursor: Cursor) -> None:
        self._idle.append(cursor)
        if len(self._idle) > self._most:
            self._idle.pop(0).park()


Pictures: TypeAlias = Picture | list[Picture]
"""Of one sample: T of them in windows, of which many wait; a list of one costs the garbage collector as much again."""


@dataclass(frozen=True)
class Jobs:
    """Pictures whose colours are wanted, and the place of each among those of a batch."""

    pictures: list[Picture] = field(default_factory=list)
    places: list[int] = field(default_factory=list)

    def add(self, pictures: Pictures, sample: int) -> None:
        """The pictures of one sample of a batch; each sample has as many."""
        if isinstance(pictures, list):
            count, first = len(pictures), sample * len(pictures)
            self.pictures.extend(pictures)
            self.places.extend(range(first, first + count))
        else:
            self.pictures.append(pictures)
            self.places.append(sample)


def write_all(jobs: Jobs, out: np.ndarray, converter: Converter) -> None:
    """Pictures into their places in `out`, uint8 (n, 3, H, W); one that follows itself is converted once. There are no
    jobs left then."""
    frames, places, again = _sorted(jobs, out)
    jobs.pictures.clear()  # who converts may use those again that nobody else refers to
    jobs.places.clear()
    converter.write_all(frames, places, out)
    for place, there in again:
        out[place] = out[there]


def _sorted(jobs: Jobs, out: np.ndarray) -> tuple[list[av.VideoFrame], list[int], list[tuple[int, int]]]:
    """(pictures to be converted, their places, places that are copies of others); colours are written at once."""
    last, there = None, 0
    frames, places, again = [], [], []
    for picture, place in zip(jobs.pictures, jobs.places, strict=True):
        if picture is last:
            again.append((place, there))
        elif isinstance(picture, np.ndarray):
            out[place] = picture.transpose(2, 0, 1)
        else:
            frames.append(picture)
            places.append(place)
        last, there = picture, place
    return frames, places, again


def write(picture: Picture, converter: Converter, out: np.ndarray) -> None:
    """A picture of a cursor into `out`, uint8 (3, H, W)."""
    if isinstance(picture, np.ndarray):
        out[...] = picture.transpose(2, 0, 1)
    else:
        converter.write(picture, out)


def index_of(reader: VideoReader) -> VideoIndex | None:
    """The index of an open video; None where torchcodec reads it."""
    return reader._packets.index if isinstance(reader, PyavReader) else None


def _packets(reader: PyavReader) -> Packets:
    """The packets of an open video once more, with a count of their own: index and file are shared."""
    packets = reader._packets
    if isinstance(packets, ContainerPackets):
        return ContainerPackets(reader._source)
    assert isinstance(packets, Mp4Packets)
    return copy.copy(packets)
