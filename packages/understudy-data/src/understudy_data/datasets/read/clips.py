"""Clips: frames of a video file, copied by their packets, or encoded again.

A clip of consecutive frames is copied where it begins at a key frame and its packets depend on no
other ones (`encode.find_span`).
"""

from __future__ import annotations

import os
from collections.abc import Iterator, Sequence
from contextlib import closing
from dataclasses import dataclass, replace
from pathlib import Path

import av
import numpy as np

from understudy_base import DataAccessError, DatasetError
from understudy_data.datasets.format.catalog import Catalog
from understudy_data.datasets.read.video_frames import VideoFrames
from understudy_data.storage.byte_source import ByteSource, LocalSource
from understudy_data.video.color import AreaResize
from understudy_data.video.encode import (
    PacketSpan,
    VideoEncoder,
    check_size,
    copy_spans,
    default_crf,
    find_span,
    stream_settings,
)
from understudy_data.video.index import VideoIndex
from understudy_data.video.packets import open_packets
from understudy_data.video.quality import Quality, compare_images
from understudy_data.video.reader import VideoReader, open_video

_ENCODER = {"h264": "libx264", "hevc": "libx265", "av1": "libsvtav1"}
# Without arithmetic coding and deblocking, H.264 of 224x168 decodes in 0.14 ms instead of 0.25, for
# 4 % more bytes and 0.3 dB (crf 22, GOP 2).
_OPTIONS = {"libx264": {"tune": "fastdecode"}}
# steps of crf by which images that are encoded again are better than the encoder's default
_BETTER = 6
_BATCH = 16  # images in memory
_SAMPLES = 8  # images per encoded clip whose quality is measured
_OPENED = 16  # files


@dataclass(frozen=True)
class Encoding:
    """Settings of the videos to encode; see `VideoEncoder`.

    Attributes:
        size: (height, width) of the images; None keeps theirs.
        codec: encoder; None takes the one of the source's codec.
        gop: frames from key frame to key frame; None keeps the source's.
        crf: quality on the encoder's own scale; None is 6 steps better than the encoder's default
            where frames of the same size and codec are encoded again, and that default otherwise.
    """

    size: tuple[int, int] | None = None
    codec: str | None = None
    gop: int | None = None
    crf: int | None = None

    @staticmethod
    def default_crf(codec: str) -> int:
        """Return the default quality of an encoder, on its own scale. Raises ValueError for an
        unknown encoder.
        """
        return default_crf(codec)


class VideoClip:
    """Frames of a video file, usually consecutive ones. Use it from one thread at a time.

    Args:
        source: the file.
        index: its tables.
        positions: int64 (n,), their display positions; they may repeat.
        name: what errors call the clip beside the file; "" for nothing.
    """

    def __init__(
        self, source: ByteSource, index: VideoIndex, positions: np.ndarray, name: str = ""
    ) -> None:
        self._source = source
        self._index = index
        self._positions = positions
        self._name = name
        self._reader: VideoReader | None = None

    @classmethod
    def of_file(cls, path: str | os.PathLike[str]) -> VideoClip:
        """Return all frames of a file of this machine."""
        source = LocalSource(os.fspath(path))
        index = _read_index(source)
        return cls(source, index, np.arange(index.count))

    def __len__(self) -> int:
        return len(self._positions)

    @property
    def where(self) -> str:
        """Name of the file, and of the clip."""
        return f"{self._source.where} ({self._name})" if self._name else self._source.where

    @property
    def settings(self) -> tuple[object, ...]:
        """Settings that all clips of a joined file share (`stream_settings`)."""
        return stream_settings(self._index)

    @property
    def bytes(self) -> int:
        """Size of the packets of these frames."""
        packets = self._index.decode_position[np.unique(self._positions)]
        return int(self._index.size[packets].sum())

    @property
    def encoding(self) -> Encoding:
        """Settings of such a video: size, encoder, None where there is none of its codec, and
        median distance of key frames.
        """
        codec = _ENCODER.get(self._index.codec)
        return Encoding(self._index.image_size, codec, self._index.gops.median_length)

    @property
    def is_encodable(self) -> bool:
        """Whether an encoder writes videos of this codec and size."""
        try:
            check_size(_ENCODER.get(self._index.codec, ""), *self._index.image_size)
        except ValueError:
            return False
        return True

    def has_own_packets(self) -> bool:
        """Return whether the frames are consecutive and their packets depend on no others, so that
        they can be copied.
        """
        return self._span() is not None

    def _span(self) -> PacketSpan | None:
        if not len(self) or (np.diff(self._positions) != 1).any():
            return None
        first = int(self._positions[0])
        span = find_span(self._source, self._index, first, first + len(self))
        self._source.close()  # opens again when it is read
        return span

    def read(self, positions: np.ndarray) -> np.ndarray:
        """Read images as `VideoReader.read` does.

        Args:
            positions: int64 (n,), numbers of frames, 0 for the first one of the clip.

        Raises:
            DatasetError: an image cannot be decoded; it has the name of the clip.
        """
        try:
            if self._reader is None:
                self._reader = open_video(self._source, frames=self._index.count)
            return self._reader.read(self._positions[positions])
        except DataAccessError as error:
            if not self._name:
                raise
            raise error.replaced(where=f"{error.where} ({self._name})") from error

    def images(self) -> Iterator[np.ndarray]:
        """Yield all images, uint8 (H, W, 3)."""
        for first in range(0, len(self), _BATCH):
            yield from self.read(np.arange(first, min(first + _BATCH, len(self))))

    def close(self) -> None:
        """Close the file; a later read opens it again."""
        if self._reader is not None:
            self._reader.close()
            self._reader = None

    def encode(self, path: Path, encoding: Encoding, fps: float) -> Quality:
        """Encode the frames into a file, and compare some of them with the images that were
        encoded.

        Args:
            path: the file to write.
            encoding: settings; those that are None follow from this video.
            fps: frames per second.

        Raises:
            DatasetError: no encoder writes such images, or one cannot be decoded.
        """
        settings = self._complete(encoding)
        codec = settings.codec or ""
        own_height, own_width = self._index.image_size
        height, width = settings.size or (own_height, own_width)
        try:
            check_size(codec, height, width)
        except ValueError as error:
            fix = "give an even --size, or another --codec"
            raise DatasetError(
                f"cannot be encoded as {error}", where=self._source.where, fix=fix
            ) from None
        resize = None
        if (height, width) != (own_height, own_width):
            resize = AreaResize(own_height, own_width, (height, width))
        last = len(self) - 1
        sampled = np.linspace(0, last, min(_SAMPLES, len(self))).round().astype(int)
        sampled_frames = set(sampled.tolist())
        samples: list[np.ndarray] = []
        encoder = VideoEncoder(
            path, fps, height, width, codec, settings.gop or 1, settings.crf, _OPTIONS.get(codec)
        )
        try:
            for image in self.images():
                if resize is not None:
                    planes = np.empty((3, height, width), np.uint8)
                    resize(image.transpose(2, 0, 1), planes)
                    image = planes.transpose(1, 2, 0)
                if encoder.count in sampled_frames:
                    samples.append(np.ascontiguousarray(image))
                encoder.add(image)
        except BaseException:
            encoder.abandon()
            raise
        finally:
            self.close()
        encoder.close()
        with closing(VideoClip.of_file(path)) as written:
            return compare_images(np.stack(samples), written.read(np.array(sorted(sampled_frames))))

    def _complete(self, encoding: Encoding) -> Encoding:
        """Fill in the settings that are not given from this video."""
        own = self.encoding
        codec = encoding.codec
        if not codec:
            codec = own.codec if own.codec and self.is_encodable else "libx264"
        is_same = encoding.size in (None, own.size) and own.codec == codec
        crf = encoding.crf
        if crf is None:
            crf = default_crf(codec)
            if is_same:
                crf -= _BETTER
        return replace(encoding, codec=codec, gop=encoding.gop or own.gop, crf=crf)

    @staticmethod
    def join(
        clips: Sequence[VideoClip], path: Path, fps: float
    ) -> tuple[int, tuple[int, int, str, str | None, int]]:
        """Copy the packets of clips with equal `settings` into one file, in order.

        Args:
            clips: the clips, each of which has its own packets.
            path: the file to write.
            fps: frames per second.

        Returns:
            Bytes of the file; and height, width, codec, FFmpeg's pixel format and median distance
            of its key frames.
        """
        spans = [span for span in map(VideoClip._span, clips) if span]
        assert len(spans) == len(clips)
        copy_spans(spans, path, fps)
        index = _read_index(LocalSource(os.fspath(path)))
        with av.open(str(path)) as container:
            pix_fmt = container.streams.video[0].pix_fmt
        stream = *index.image_size, index.codec, pix_fmt, index.gops.median_length
        return path.stat().st_size, stream


def _read_index(source: ByteSource, frames: int = 0) -> VideoIndex:
    """Read the tables of a file; `frames`: as many as it should hold, 0 for unknown."""
    with closing(open_packets(source, frames)) as packets:
        return packets.index


class EpisodeClips:
    """Clips of one camera of several datasets. A few files are open at a time.

    Args:
        catalogs: the datasets.
        camera: key of the camera, which all of them have.
    """

    def __init__(self, catalogs: Sequence[Catalog], camera: str) -> None:
        self._catalogs = catalogs
        self._camera = camera
        self._frames = [VideoFrames(catalog, 0, "pyav") for catalog in catalogs]
        self._opened: dict[tuple[int, int], tuple[ByteSource, VideoIndex]] = {}

    def clip(self, dataset: int, row: int, start: int, stop: int) -> VideoClip:
        """Return frames [start, stop) of an episode.

        Args:
            dataset: number of the dataset.
            row: table row of the episode.
            start: first frame in the episode.
            stop: frame after the last one.

        Raises:
            DatasetError: the file is missing or broken, or its frames do not match the rows.
        """
        source, index = self._open(dataset, row)
        rows = np.array([row])
        first = int(self._frames[dataset].first_frame(self._camera, rows)[0])
        name = f"episode {int(self._catalogs[dataset].episodes.ids[row])}"
        return VideoClip(source, index, first + np.arange(start, stop), name)

    def video(self, dataset: int, row: int) -> VideoClip:
        """Return all frames of the file of an episode. Raises as `clip` does."""
        source, index = self._open(dataset, row)
        return VideoClip(source, index, np.arange(index.count))

    def _open(self, dataset: int, row: int) -> tuple[ByteSource, VideoIndex]:
        catalog = self._catalogs[dataset]
        frames = self._frames[dataset]
        place = dataset, int(catalog.videos(self._camera).file[row])
        if place not in self._opened:
            count = frames.reader(self._camera, row).count  # checks size and number of frames
            frames.close()
            file = catalog.files.source(catalog.video_path(self._camera, row))
            if len(self._opened) == _OPENED:
                self._opened.pop(next(iter(self._opened)))[0].close()
            self._opened[place] = file, _read_index(file, count)
        return self._opened[place]
