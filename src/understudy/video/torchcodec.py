"""The same pictures through torchcodec, for those who have it; see `VideoReader` in `reader.py`.

torchcodec needs FFmpeg's shared libraries of the system, so it is asked for by name and never chosen silently.
"""

from __future__ import annotations

import os
from typing import Any

import numpy as np

from understudy.errors import DatasetError
from understudy.storage.source import ByteSource, LocalSource, as_file
from understudy.video.packets import open_packets
from understudy.video.reader import check_positions, key_positions, median_gop

_BUFFER = 1 << 20  # of a file that is not local


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


class TorchcodecReader:
    """Pictures through torchcodec; facts come from the same index as the PyAV reader's."""

    def __init__(self, source: ByteSource) -> None:
        self.path, self._source = source.where, source
        self._pid: int | None = None
        self._class = _decoder_class()
        packets = open_packets(source)
        index = packets.index
        packets.close()
        self.count, self.height, self.width = int((index.display >= 0).sum()), index.height, index.width
        self.fps, self.codec, self.gop, self.key_frames = (
            index.fps,
            index.codec,
            median_gop(index),
            key_positions(index),
        )

    def read(self, indices: np.ndarray) -> np.ndarray:
        wanted = check_positions(indices, self.count, self.path)
        if wanted.size == 0:
            return np.empty((0, self.height, self.width, 3), np.uint8)
        try:
            if self._pid != os.getpid():
                file = self.path if isinstance(self._source, LocalSource) else as_file(self._source, _BUFFER)
                self._decoder = self._class(file, dimension_order="NHWC", num_ffmpeg_threads=1, seek_mode="exact")
                self._pid = os.getpid()
            if len(self._decoder) != self.count:
                what = f"torchcodec counts {len(self._decoder)} pictures, the file's index {self.count}"
                raise DatasetError(what, where=self.path, fix="use video_backend='pyav'")
            pictures: np.ndarray = self._decoder.get_frames_at(indices=wanted.tolist()).data.numpy()
        except (RuntimeError, ValueError, IndexError) as error:
            if isinstance(error, DatasetError):
                raise
            what = f"pictures {wanted.min()}..{wanted.max()} cannot be decoded: {str(error).splitlines()[0]}"
            raise DatasetError(what, where=self.path, fix="the file is damaged: copy or record it again") from None
        return pictures

    def prefetch(self, first: int, last: int) -> None:
        return None  # torchcodec reads where it likes

    def close(self) -> None:
        if self._pid is not None:
            del self._decoder
            self._pid = None

    def __reduce__(self) -> tuple[object, ...]:
        return TorchcodecReader, (self._source,)
