"""Read a video file with one of two backends: `open_video(path).read([0, 7, 7, 3])`.

`PyavReader` runs bare PyAV decoders, without a container. RGB is 8-bit, by swscale's bilinear
chroma interpolation with the matrix and range that the stream names (BT.601 where it names none).
torchcodec and `VideoFrame.to_ndarray` do the same; the tests hold the three equal to the bit.
torchcodec needs FFmpeg's shared libraries of the system, so it is used only where it is named
explicitly.
"""

from __future__ import annotations

import os
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from typing import Any, Protocol, TypeAlias

import av
import numpy as np

from understudy_base import DatasetError
from understudy_data.storage.byte_source import ByteSource, LocalSource, as_file
from understudy_data.video.codec_pool import decoder_bytes, frame_bytes, pixel_bytes
from understudy_data.video.decoder import FrameDecoder
from understudy_data.video.depth import RGB, Pixels
from understudy_data.video.index import WHOLE_GOP, Mp4Index, VideoIndex
from understudy_data.video.packets import MOST_PIXELS, open_packets

DecodedImage: TypeAlias = av.VideoFrame | np.ndarray
"""A decoded frame whose RGB conversion is still to be done (`Converter`), or uint8 (H, W, 3) RGB.
"""


class VideoCursor(Protocol):
    """A decoder over one video that walks forward from any position. Use it from one thread at a
    time.

    Attributes:
        position: the display position at which `runs` continues without decoding a frame twice; -1:
            parked.
    """

    position: int

    @property
    def wait_seconds(self) -> float:
        """Seconds spent waiting for bytes so far; 0 where the backend does the reading."""

    def runs(self, positions: np.ndarray, run_length: int = 1) -> Iterator[Sequence[DecodedImage]]:
        """Decode the frames at `positions`, in lists of frames that came out together.

        A frame owns its memory: it may be kept for any time and read in any thread.

        Args:
            positions: int64 (n,), display positions: increasing, without repeats, inside the video.
            run_length: how many frames are decoded before the first is yielded. Longer runs are
                faster and take memory for as many frames.

        Raises:
            DatasetError: a frame cannot be decoded; the message names it.
            Stopped: this thread's work was cancelled (`storage/cancel.py`); checked before each run
                of packets.
        """

    def park(self) -> None:
        """Release the codec context. The next `runs` starts at a key frame."""


@dataclass(frozen=True)
class VideoFacts:
    """Facts about a video that `VideoReader` documents, without its index.

    Attributes:
        gop: typical key-frame distance.
        unmet: `Shown.unmet`.
    """

    count: int
    height: int
    width: int
    fps: float
    codec: str
    gop: int
    streams: int
    unmet: tuple[str, ...]
    index_bytes: int
    frame_bytes: int
    knows_frame_bytes: bool
    decoder_bytes: int


class VideoReader:
    """Facts about a video and access to its images, as `open_video` returns it.

    Use it from one thread at a time; `cursor` alone may be called from any thread.

    Attributes:
        path: name of the file, as errors name it.
        count: number of frames.
        height: height of an image as it is shown, in pixels.
        width: width of an image as it is shown, in pixels.
        shown: what the container says of how images are shown.
        streams: number of video streams in the file.
        fps: frames per second.
        codec: FFmpeg's name of the codec.
        gops: between key frames.
        index_bytes: memory of the index; 0 where an open video is more than its index, such as a
            file of its own.
        frame_bytes: memory of one `DecodedImage` of a cursor.
        knows_frame_bytes: whether the file names the format of its pixels; `frame_bytes` is a guess
            where not.
        decoder_bytes: memory of one cursor with a live decoder, an estimate.
    """

    frame_bytes: int
    knows_frame_bytes: bool
    decoder_bytes: int
    index_bytes = 0

    def __init__(self, path: str, index: VideoIndex) -> None:
        self.path = path
        self.count = index.count
        self.shown = index.shown
        self.streams = index.streams
        self.height, self.width = index.image_size
        self.fps = index.fps
        self.codec = index.codec
        self.gops = index.gops

    @property
    def unmet(self) -> tuple[str, ...]:
        """`Shown.unmet`."""
        return tuple(self.shown.unmet)

    @property
    def gop(self) -> int:
        """Typical key-frame distance."""
        return self.gops.median_length

    @property
    def facts(self) -> VideoFacts:
        """Facts that stay when the video is closed."""
        return VideoFacts(
            int(self.count),
            int(self.height),
            int(self.width),
            float(self.fps),
            self.codec,
            int(self.gop),
            int(self.streams),
            self.unmet,
            int(self.index_bytes),
            int(self.frame_bytes),
            bool(self.knows_frame_bytes),
            int(self.decoder_bytes),
        )

    def read(self, positions: np.ndarray) -> np.ndarray:
        """Read images as uint8 (n, height, width, 3) RGB; depth as uint16 or float32 (n, height,
        width, 1).

        The memory may be planar: `transpose(0, 3, 1, 2)` is then contiguous.

        Args:
            positions: int (n,), display positions in any order, repeats allowed.

        Raises:
            IndexError: a position is outside [0, count).
            DatasetError: a frame cannot be decoded.
        """
        raise NotImplementedError

    def cursor(self) -> VideoCursor:
        """Open a cursor over this video, with its own decoder. Index and file are shared."""
        raise NotImplementedError

    def prefetch(self, first: int, last: int, most: int) -> None:
        """Prefetch the bytes of the frames shown from `first` to `last`; see `ByteSource.prefetch`.

        The rest of a short GOP, which is decoded at once, is prefetched as well, up to frame
        `most`.
        """

    def park(self) -> None:
        """Release the decoder of `read`; the next read starts one."""

    def close(self) -> None:
        """Release decoder and file. The next read opens them again."""


def check_positions(positions: np.ndarray, count: int, path: str) -> np.ndarray:
    """Check that `positions` are integers in [0, count); returns them as int64 (n,)."""
    numbers = np.asarray(positions)
    if numbers.ndim != 1 or not (np.issubdtype(numbers.dtype, np.integer) or numbers.size == 0):
        raise ValueError(
            f"positions must be one row of integers, not {numbers.dtype} of shape {numbers.shape}"
        )
    numbers = numbers.astype(np.int64)
    if numbers.size and (numbers.min() < 0 or numbers.max() >= count):
        outside = numbers[(numbers < 0) | (numbers >= count)][0]
        raise IndexError(
            f"{path}: frame {outside} does not exist, the file holds frames 0..{count - 1}"
        )
    return numbers


_RUN_LENGTH = 8  # frames decoded before the first is converted


class PyavReader(VideoReader):
    """Images through bare PyAV decoders; see `VideoReader`."""

    def __init__(
        self, source: ByteSource, pixels: Pixels, frames: int = 0, most_pixels: int = MOST_PIXELS
    ) -> None:
        self._source = source
        self._pixels = pixels
        self._frames = frames
        self._most_pixels = most_pixels
        self._open(source.where)
        index = self._packets.index
        super().__init__(source.where, index)
        self.index_bytes = index.nbytes if isinstance(index, Mp4Index) else 0
        self.frame_bytes = frame_bytes(index)
        self.decoder_bytes = decoder_bytes(index)
        self.knows_frame_bytes = pixel_bytes(index.codec, index.extradata) is not None
        if pixels.is_depth and not self.knows_frame_bytes:  # two bytes a pixel
            self.frame_bytes = self.frame_bytes * 4 // 3
            self.decoder_bytes = self.decoder_bytes * 4 // 3

    def _open(self, path: str) -> None:
        self._pid: int | None = os.getpid()
        self._packets = open_packets(self._source, self._frames, self._most_pixels)
        self._decoder = FrameDecoder(self._packets, path, True, self._pixels.pixel_format)
        self._converter = self._pixels.converter()

    def read(self, positions: np.ndarray) -> np.ndarray:
        """See `VideoReader.read`."""
        numbers = place = check_positions(positions, self.count, self.path)
        if len(numbers) > 1:  # sorting a single one takes a twentieth of the time of a small frame
            numbers, place = np.unique(numbers, return_inverse=True)
        # closed, or forked: the parent's decoder must not be used here
        if self._pid != os.getpid():
            self._open(self.path)
            if self._packets.index.count != self.count:
                problem = f"had {self.count} frames, now has {self._packets.index.count}"
                raise DatasetError(problem, where=self.path)
        in_order = len(numbers) == len(place) and bool((np.diff(place) > 0).all())
        images = self._pixels.empty(0, self.height, self.width)
        for row, (_, frame) in enumerate(self._decoder.frames(numbers, _RUN_LENGTH)):
            # allocated only now: the first frame confirmed the size that the file declares
            if row == 0:
                images = self._pixels.empty(len(numbers), self.height, self.width)
            self._converter.write(frame, images[row])
        if not in_order:
            images = images[place]
        return images.transpose(0, 2, 3, 1)

    def cursor(self) -> FrameDecoder:
        """See `VideoReader.cursor`."""
        return FrameDecoder(
            self._packets.clone(), self.path, pixel_format=self._pixels.pixel_format
        )

    def prefetch(self, first: int, last: int, most: int) -> None:
        """See `VideoReader.prefetch`."""
        gops = self.gops
        if gops.median_length <= WHOLE_GOP:
            last = max(last, min(gops.last_frame(last), most))
        self._packets.prefetch(first, last)

    def park(self) -> None:
        """See `VideoReader.park`."""
        if self._pid is not None:
            self._decoder.park()

    def close(self) -> None:
        """See `VideoReader.close`."""
        if self._pid is not None:
            self._packets.close()
            self._pid = None
            del self._decoder

    def __reduce__(self) -> tuple[object, ...]:
        return PyavReader, (self._source, self._pixels, self._frames, self._most_pixels)


_BUFFER = 1 << 20  # bytes read ahead in a file that is not local


def _decoder_class() -> Any:
    try:
        from torchcodec.decoders import VideoDecoder
    except (ImportError, RuntimeError, OSError) as error:
        first = (str(error).strip() or type(error).__name__).splitlines()[0]
        raise DatasetError(
            f"video_backend='torchcodec' does not load: {first}",
            fix="pip install 'understudy-data[torchcodec]' and FFmpeg's shared libraries, or use "
            "video_backend='pyav'",
        ) from None
    return VideoDecoder


class TorchcodecReader(VideoReader):
    """Images through torchcodec. Facts come from the same index as the PyAV reader's."""

    def __init__(self, source: ByteSource, frames: int = 0, most_pixels: int = MOST_PIXELS) -> None:
        self._source = source
        self._frames = frames
        self._most_pixels = most_pixels
        packets = open_packets(source, frames, most_pixels)
        packets.close()
        super().__init__(source.where, packets.index)
        self.frame_bytes = self.height * self.width * 3
        self.knows_frame_bytes = True
        self.decoder_bytes = 4 * self.frame_bytes
        self._cursor = self.cursor()

    def read(self, positions: np.ndarray) -> np.ndarray:
        """See `VideoReader.read`."""
        numbers = check_positions(positions, self.count, self.path)
        if numbers.size == 0:
            return np.empty((0, self.height, self.width, 3), np.uint8)
        return self._cursor.read(numbers)

    def cursor(self) -> TorchcodecCursor:
        """See `VideoReader.cursor`."""
        return TorchcodecCursor(self._source, self.count, self.shown.turns)

    def close(self) -> None:
        """See `VideoReader.close`."""
        self._cursor.park()

    def __reduce__(self) -> tuple[object, ...]:
        return TorchcodecReader, (self._source, self._frames, self._most_pixels)


class TorchcodecCursor:
    """A torchcodec decoder over one video, opened by the first read; see `VideoCursor`."""

    wait_seconds = 0.0

    def __init__(self, source: ByteSource, count: int, turns: int) -> None:
        self.position = -1
        self._source = source
        self._count = count
        self._turns = turns
        self._class = _decoder_class()
        self._pid: int | None = None

    def runs(self, positions: np.ndarray, run_length: int = 1) -> Iterator[list[np.ndarray]]:
        """See `VideoCursor.runs`. All images come out together."""
        self.position = int(positions[-1]) + 1
        yield list(self.read(positions))

    def read(self, positions: np.ndarray) -> np.ndarray:
        """Read images as uint8 (n, height, width, 3) RGB, at `positions` inside the video."""
        path = self._source.where
        try:
            if self._pid != os.getpid():
                file: Any = path
                if not isinstance(self._source, LocalSource):
                    file = as_file(self._source, _BUFFER)
                self._decoder = self._class(
                    file, dimension_order="NHWC", num_ffmpeg_threads=1, seek_mode="exact"
                )
                self._pid = os.getpid()
            if len(self._decoder) != self._count:
                problem = (
                    f"torchcodec counts {len(self._decoder)} frames, the file's index {self._count}"
                )
                raise DatasetError(problem, where=path, fix="use video_backend='pyav'")
            images: np.ndarray = self._decoder.get_frames_at(
                indices=positions.tolist()
            ).data.numpy()
            # before torchcodec 0.11
            if self._turns and not hasattr(self._decoder.metadata, "rotation"):
                images = np.rot90(images, self._turns, (1, 2))
        except (RuntimeError, ValueError, IndexError) as error:
            if isinstance(error, DatasetError):
                raise
            problem = (
                f"frames {positions.min()}..{positions.max()} cannot be decoded: "
                f"{str(error).splitlines()[0]}"
            )
            raise DatasetError(
                problem, where=path, fix="the file is damaged: copy or record it again"
            ) from None
        return images

    def park(self) -> None:
        """See `VideoCursor.park`."""
        self.position = -1
        if self._pid is not None:
            del self._decoder
            self._pid = None


def open_video(
    file: str | os.PathLike[str] | ByteSource,
    backend: str = "pyav",
    pixels: Pixels = RGB,
    frames: int = 0,
    most_pixels: int = MOST_PIXELS,
) -> VideoReader:
    """Open a video for reading images.

    Opening parses the index and decodes nothing. The reader pickles as its address and may be used
    after a fork: the child opens its own decoder.

    Args:
        file: a path, or a source.
        backend: "pyav" or "torchcodec". Both give the same images. Depth is always read by "pyav".
        pixels: color, or a kind of depth.
        frames: wanted number of frames, which decides among several video streams of the file; 0:
            any.
        most_pixels: larger frames are not decoded when a container is opened.

    Raises:
        DatasetError: the file cannot be read as a video.
    """
    if backend not in ("pyav", "torchcodec"):
        raise ValueError(f"backend={backend!r}: it must be 'pyav' or 'torchcodec'")
    source = LocalSource(os.fspath(file)) if isinstance(file, (str, os.PathLike)) else file
    if backend == "pyav" or pixels.is_depth:
        return PyavReader(source, pixels, frames, most_pixels)
    return TorchcodecReader(source, frames, most_pixels)
