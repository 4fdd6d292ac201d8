"""Decoded pictures into arrays: `Converter().write(frame, out)` fills uint8 (3, H, W), planes of red, green, blue.

Colours are those of swscale's packed `rgb24` (bilinear chroma, the matrix and range that the stream names), to the bit.
How they get there is chosen by measurement, the cheapest way first that was tried equal on noise, once per kind of
picture, on this very machine; CPU time at 640x480:
- swscale writes planes straight into the array (`native/swscale.py`), 68 us. Widths that are a multiple of 16, in
  memory aligned to 16 bytes: the usual case for cameras and policies.
- PyAV converts into a frame of planes (`gbrp`), which are copied as they lie, 66 + 95 us. FFmpeg 8's x86 code leaves up
  to eight columns unwritten where the width modulo 16 is 1 to 8: the trial shows it.
- PyAV converts into packed colours, which are taken apart, 96 + 270 us. Always right: odd sizes, other formats than
  8-bit 4:2:0.
So pictures are contiguous (C, H, W) everywhere, which here is also the cheapest layout.

Pictures of another size than the policy eats are made smaller on the way (`Converter(size)`). By default that is exact:
full-size colours, then area averaging in whole numbers (`resize.py`). `exact=False` lets swscale scale and convert in
one pass, which differs (on camera pictures by 2 steps of 255 in the mean, at hard edges by up to 50) and saves most of
the time: from 640x480 to 64x64 94 us instead of 380, to 224x224 190 us instead of 980. Scaling while decoding is not
there: neither FFmpeg's H.264 and HEVC decoders nor dav1d can.
"""

from __future__ import annotations

from collections.abc import Sequence
from functools import lru_cache
from itertools import groupby

import av
import numpy as np
from av.video.reformatter import Interpolation, VideoReformatter

from understudy.video.native.swscale import Kind, Scaler, is_equal, noise
from understudy.video.reformat import reformat
from understudy.video.resize import AreaResize

_PLANES = (1, 2, 0)  # gbrp holds green, blue, red
_AREA = Interpolation.AREA
_KINDS = 16  # of pictures whose tables one converter keeps
_PLANAR = ("yuv420p", "yuvj420p")  # formats with one and the same routine behind both forms


class Converter:
    """Colour conversion with its scratch memory. For one thread at a time; the work itself releases the GIL.

    Args:
        size: (height, width) of what is written; None: as decoded.
        exact: see the head of this file; without `size` there is only one way.
    """

    def __init__(self, size: tuple[int, int] | None = None, exact: bool = True) -> None:
        self._reformatter = VideoReformatter()
        self.size, self._exact = size, exact
        self._scalers: dict[Kind, Scaler | None] = {}
        self._full = np.empty((3, 0, 0), np.uint8)  # a picture before it is resized
        self._resize: AreaResize | None = None

    def write(self, frame: av.VideoFrame, out: np.ndarray) -> None:
        """Write one picture into `out`, uint8 (3, H, W) of `size` or the frame's own (contiguous memory is fastest).

        Raises ValueError where `out` is of another shape or dtype.
        """
        height, width = frame.height, frame.width
        if out.shape != (3, *(self.size or (height, width))) or out.dtype != np.uint8:
            raise ValueError(f"a picture of {width}x{height} does not fit {out.dtype} {out.shape}, size {self.size}")
        if self.size is None or self.size == (height, width):
            self._colours(frame, height, width, out)
        elif self._exact:
            if self._resize is None or self._full.shape != (3, height, width):
                self._full = np.empty((3, height, width), np.uint8)
                self._resize = AreaResize(height, width, self.size)
            self._colours(frame, height, width, self._full)
            self._resize(self._full, out)
        else:
            high, wide = self.size
            scaled = reformat(self._reformatter, frame, "gbrp", self.size, _AREA)
            for plane, channel in zip(scaled.planes, _PLANES):
                out[channel] = _lines(plane, high)[:, :wide]

    def write_all(self, frames: Sequence[av.VideoFrame], places: Sequence[int], out: np.ndarray) -> None:
        """Write pictures into their places in `out`, uint8 (n, 3, H, W): as `write`, and quicker than one by one.
        Those that nobody but the list refers to may be empty then."""
        begin = 0
        for kind, group in groupby(map(_kind, frames)):
            end = begin + len(list(group))
            some = frames if end - begin == len(frames) else frames[begin:end]  # in two lists they would not be emptied
            scaler = self._scaler_of(Kind(*kind)) if self.size is None else None
            if scaler is None or (first := scaler.address(out)) is None:
                for frame, place in zip(some, places[begin:end]):
                    self.write(frame, out[place])
            else:
                scaler.write(some, [first + place * scaler.nbytes for place in places[begin:end]])
            begin = end

    def _scaler_of(self, kind: Kind) -> Scaler | None:
        if kind not in self._scalers:
            self._scalers[kind] = Scaler(kind) if is_equal(kind) else None
            while len(self._scalers) > _KINDS:
                del self._scalers[next(iter(self._scalers))]
        return self._scalers[kind]

    def _colours(self, frame: av.VideoFrame, height: int, width: int, out: np.ndarray) -> None:
        scaler = self._scaler_of(Kind(*_kind(frame)))
        if scaler is not None and (first := scaler.address(out)) is not None:
            scaler.write([frame], [first])
        elif planar_is_equal(frame.format.name, height, width):
            for plane, channel in zip(reformat(self._reformatter, frame, "gbrp").planes, _PLANES):
                out[channel] = _lines(plane, height)[:, :width]  # lines may be padded
        else:
            plane = reformat(self._reformatter, frame, "rgb24").planes[0]
            packed = _lines(plane, height)[:, : width * 3].reshape(height, width, 3)
            out[...] = packed.transpose(2, 0, 1)


def _kind(frame: av.VideoFrame) -> tuple[str, int, int, int, int]:
    """The fields of its `Kind`; a bare tuple is made faster."""
    return frame.format.name, frame.height, frame.width, frame.colorspace, frame.color_range


@lru_cache(maxsize=64)
def planar_is_equal(name: str, height: int, width: int) -> bool:
    """Whether swscale converts this pixel format and size to the same colours as planes and packed; tried on noise."""
    if name not in _PLANAR or height % 2 or width % 2:
        return False
    height = min(height, 32)  # lines are converted one like the other
    frame = noise(name, height, width)
    planes = reformat(VideoReformatter(), frame, "gbrp").planes
    packed = reformat(VideoReformatter(), frame, "rgb24").planes[0]
    expected = _lines(packed, height)[:, : width * 3].reshape(height, width, 3)
    return all(
        np.array_equal(_lines(plane, height)[:, :width], expected[:, :, channel])
        for plane, channel in zip(planes, _PLANES)
    )


def _lines(plane: av.video.plane.VideoPlane, height: int) -> np.ndarray:
    """uint8 (height, line) of a plane, padding at the end of each line included; a view."""
    return np.frombuffer(memoryview(plane), np.uint8).reshape(height, -1)
