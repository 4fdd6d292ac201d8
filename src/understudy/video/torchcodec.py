"""Video reader on torchcodec: the same images as PyAV's; see `VideoReader` in `reader.py`.

torchcodec needs FFmpeg's shared libraries of the system, so it is used only where it is named explicitly.
"""

from __future__ import annotations

import os
from collections.abc import Iterator
from typing import Any

import numpy as np

from understudy.errors import DatasetError
from understudy.storage.byte_source import ByteSource, LocalSource, as_file
from understudy.video.packets import open_packets
from understudy.video.reader import VideoFacts, check_positions

_BUFFER = 1 << 20  # bytes read ahead in a file that is not local


def _decoder_class() -> Any:
    try:
        from torchcodec.decoders import VideoDecoder
    except (ImportError, RuntimeError, OSError) as error:
        first = (str(error).strip() or type(error).__name__).splitlines()[0]
        raise DatasetError(
            f"video_backend='torchcodec' does not load: {first}",
            fix="pip install 'understudy[torchcodec]' and FFmpeg's shared libraries, or use video_backend='pyav'",
        ) from None
    return VideoDecoder


class TorchcodecReader(VideoFacts):
    """Images through torchcodec. Facts come from the same index as the PyAV reader's."""

    def __init__(self, source: ByteSource) -> None:
        self._source = source
        packets = open_packets(source)
        packets.close()
        super().__init__(source.where, packets.index)
        self.frame_bytes, self.knows_frame_bytes = self.height * self.width * 3, True
        self.decoder_bytes = 4 * self.frame_bytes
        self._cursor = self.cursor()

    def read(self, positions: np.ndarray) -> np.ndarray:
        """See `VideoReader.read`."""
        wanted = check_positions(positions, self.count, self.path)
        if wanted.size == 0:
            return np.empty((0, self.height, self.width, 3), np.uint8)
        return self._cursor.read(wanted)

    def cursor(self) -> TorchcodecCursor:
        """See `VideoReader.cursor`."""
        return TorchcodecCursor(self._source, self.count)

    def prefetch(self, first: int, last: int) -> None:
        """Do nothing: torchcodec does its own reading."""

    def close(self) -> None:
        """See `VideoReader.close`."""
        self._cursor.park()

    def __reduce__(self) -> tuple[object, ...]:
        return TorchcodecReader, (self._source,)


class TorchcodecCursor:
    """A torchcodec decoder over one video, opened by the first read; see `VideoCursor`."""

    wait_seconds = 0.0

    def __init__(self, source: ByteSource, count: int) -> None:
        self.position, self._source, self._count = -1, source, count
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
                file = path if isinstance(self._source, LocalSource) else as_file(self._source, _BUFFER)
                self._decoder = self._class(file, dimension_order="NHWC", num_ffmpeg_threads=1, seek_mode="exact")
                self._pid = os.getpid()
            if len(self._decoder) != self._count:
                what = f"torchcodec counts {len(self._decoder)} frames, the file's index {self._count}"
                raise DatasetError(what, where=path, fix="use video_backend='pyav'")
            images: np.ndarray = self._decoder.get_frames_at(indices=positions.tolist()).data.numpy()
        except (RuntimeError, ValueError, IndexError) as error:
            if isinstance(error, DatasetError):
                raise
            what = f"frames {positions.min()}..{positions.max()} cannot be decoded: {str(error).splitlines()[0]}"
            raise DatasetError(what, where=path, fix="the file is damaged: copy or record it again") from None
        return images

    def park(self) -> None:
        """See `VideoCursor.park`."""
        self.position = -1
        if self._pid is not None:
            del self._decoder
            self._pid = None
