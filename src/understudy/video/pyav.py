"""Video reader on bare PyAV decoders, without a container.

Positions count pictures in display order from the first of the file. Colours: 8-bit RGB by swscale's bilinear chroma
interpolation with the matrix and range the stream names (BT.601 where it names none), which is what torchcodec and
`VideoFrame.to_ndarray` do; the tests hold the three equal to the bit.
"""

from __future__ import annotations

import os

import numpy as np

from understudy.errors import DatasetError
from understudy.storage.source import ByteSource
from understudy.video.color import Converter
from understudy.video.decoder import PictureDecoder
from understudy.video.packets import open_packets
from understudy.video.reader import check_positions, key_positions, median_gop

_AT_ONCE = 8  # pictures that are decoded before the first is converted


class PyavReader:
    """Pictures through bare PyAV decoders; see `VideoReader`."""

    def __init__(self, source: ByteSource) -> None:
        self.path, self._source = source.where, source
        self._open()
        index = self._packets.index
        self.count, self.height, self.width = self._decoder.count, index.height, index.width
        self.fps, self.codec, self.gop, self.key_frames = (
            index.fps,
            index.codec,
            median_gop(index),
            key_positions(index),
        )

    def _open(self) -> None:
        self._pid: int | None = os.getpid()
        self._packets = open_packets(self._source)
        self._decoder = PictureDecoder(self._packets, self.path)
        self._converter = Converter()

    def read(self, indices: np.ndarray) -> np.ndarray:
        wanted, place = np.unique(check_positions(indices, self.count, self.path), return_inverse=True)
        if self._pid != os.getpid():  # forked, or closed: what the parent holds is the parent's
            self._open()
            if self._decoder.count != self.count:
                raise DatasetError(f"had {self.count} pictures, now has {self._decoder.count}", where=self.path)
        in_order = len(wanted) == len(place) and bool((np.diff(place) > 0).all())
        pictures = np.empty((0, 3, self.height, self.width), np.uint8)
        for row, (_, frame) in enumerate(self._decoder.pictures(wanted, _AT_ONCE)):
            if row == 0:  # now its size is known to be what the file says
                pictures = np.empty((len(wanted), *pictures.shape[1:]), np.uint8)
            self._converter.write(frame, pictures[row])
        return (pictures if in_order else pictures[place]).transpose(0, 2, 3, 1)

    def prefetch(self, first: int, last: int) -> None:
        self._packets.prefetch(first, last)

    def close(self) -> None:
        if self._pid is not None:
            self._packets.close()
            self._pid = None
            del self._decoder

    def __reduce__(self) -> tuple[object, ...]:
        return PyavReader, (self._source,)
