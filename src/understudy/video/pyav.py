"""Video reader on bare PyAV decoders, without a container.

RGB is 8-bit, by swscale's bilinear chroma interpolation with the matrix and range that the stream names (BT.601 where
it names none). torchcodec and `VideoFrame.to_ndarray` do the same; the tests hold the three equal to the bit.
"""

from __future__ import annotations

import os

import numpy as np

from understudy.errors import DatasetError
from understudy.storage.byte_source import ByteSource
from understudy.video.codec_pool import decoder_bytes, frame_bytes
from understudy.video.decoder import FrameDecoder
from understudy.video.depth.pixels import RGB, Pixels
from understudy.video.packets import open_packets
from understudy.video.pixel_bytes import pixel_bytes
from understudy.video.reader import VideoFacts, check_positions

_RUN_LENGTH = 8  # frames decoded before the first is converted


class PyavReader(VideoFacts):
    """Images through bare PyAV decoders; see `VideoReader`."""

    def __init__(self, source: ByteSource, pixels: Pixels = RGB) -> None:
        self._source, self._pixels = source, pixels
        self._open(source.where)
        index = self._packets.index
        super().__init__(source.where, index)
        self.frame_bytes, self.decoder_bytes = frame_bytes(index), decoder_bytes(index)
        self.knows_frame_bytes = pixel_bytes(index.codec, index.extradata) is not None
        if pixels.is_depth and not self.knows_frame_bytes:  # two bytes a pixel
            self.frame_bytes, self.decoder_bytes = self.frame_bytes * 4 // 3, self.decoder_bytes * 4 // 3

    def _open(self, path: str) -> None:
        self._pid: int | None = os.getpid()
        self._packets = open_packets(self._source)
        self._decoder = FrameDecoder(self._packets, path, True, self._pixels.pixel_format)
        self._converter = self._pixels.converter()

    def read(self, positions: np.ndarray) -> np.ndarray:
        """See `VideoReader.read`."""
        wanted = place = check_positions(positions, self.count, self.path)
        if len(wanted) > 1:  # sorting a single one takes a twentieth of the time of a small frame
            wanted, place = np.unique(wanted, return_inverse=True)
        if self._pid != os.getpid():  # closed, or forked: the parent's decoder must not be used here
            self._open(self.path)
            if self._packets.index.count != self.count:
                what = f"had {self.count} frames, now has {self._packets.index.count}"
                raise DatasetError(what, where=self.path)
        in_order = len(wanted) == len(place) and bool((np.diff(place) > 0).all())
        images = self._pixels.empty(0, self.height, self.width)
        for row, (_, frame) in enumerate(self._decoder.frames(wanted, _RUN_LENGTH)):
            if row == 0:  # allocated only now: the first frame confirmed the size that the file declares
                images = self._pixels.empty(len(wanted), self.height, self.width)
            self._converter.write(frame, images[row])
        return (images if in_order else images[place]).transpose(0, 2, 3, 1)

    def cursor(self) -> FrameDecoder:
        """See `VideoReader.cursor`."""
        return FrameDecoder(self._packets.clone(), self.path, pixel_format=self._pixels.pixel_format)

    def prefetch(self, first: int, last: int) -> None:
        """See `VideoReader.prefetch`."""
        self._packets.prefetch(first, last)

    def close(self) -> None:
        """See `VideoReader.close`."""
        if self._pid is not None:
            self._packets.close()
            self._pid = None
            del self._decoder

    def __reduce__(self) -> tuple[object, ...]:
        return PyavReader, (self._source, self._pixels)
