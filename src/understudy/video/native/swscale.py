"""FFmpeg's colour conversion straight into memory of ours: planes of red, green and blue where they shall lie.

PyAV converts into a frame that it allocates, from where the picture is copied; that copy costs as much as the
conversion, or more (at 640x480: 68 us instead of 160, at 224x224 14 instead of 28). So swscale itself is called
(`ffmpeg.py`; pointers and strides, no structures of its own), without the GIL. Nothing is believed: a format is
converted this way only after noise of this format, width, matrix and range came out as PyAV converts it, to the bit,
and nothing was written beside it. Where PyAV hides the symbols, or the trial fails, `video/color.py` goes through PyAV.
"""

from __future__ import annotations

import weakref
from collections.abc import Sequence
from ctypes import addressof, c_char
from functools import lru_cache
from typing import NamedTuple

import av
import numpy as np
from av.video.reformatter import VideoReformatter

from understudy.video.native.ffmpeg import swscale
from understudy.video.native.loops import convert
from understudy.video.reformat import reformat

_BILINEAR = 2  # SWS_BILINEAR, what PyAV asks for
_FULL = 2  # AVCOL_RANGE_JPEG
_ALIGNED = 16  # bytes; what PyAV gives its own frames
_GUARD = 64


class Kind(NamedTuple):
    """What a conversion is made for: pixel format, size, and the matrix and range that the stream names."""

    name: str
    height: int
    width: int
    matrix: int
    range: int


class Scaler:
    """A conversion of one kind, with its tables. For one thread at a time."""

    def __init__(self, kind: Kind) -> None:
        found = swscale()
        if found is None:
            raise RuntimeError("PyAV's swscale cannot be reached")
        given, wanted = found.av_get_pix_fmt(kind.name.encode()), found.av_get_pix_fmt(b"gbrp")
        size = kind.width, kind.height
        self._context = found.sws_getContext(*size, given, *size, wanted, _BILINEAR, None, None, None)
        if not self._context:
            raise RuntimeError(f"swscale does not convert {kind}")
        weakref.finalize(self, found.sws_freeContext, self._context)
        table = found.sws_getCoefficients(kind.matrix)
        found.sws_setColorspaceDetails(self._context, table, int(kind.range == _FULL), table, 1, 0, 1 << 16, 1 << 16)
        self._shape = 3, kind.height, kind.width
        self._strides = kind.height * kind.width, kind.width, 1
        self.nbytes = 3 * kind.height * kind.width
        """Of one picture that is written."""

    def address(self, out: np.ndarray) -> int | None:
        """Where pictures begin in `out`, uint8 (n, 3, H, W) or one (3, H, W), each `nbytes` behind the other; None
        where its shape or its memory is not what `write` can fill."""
        shape: tuple[int, ...] = self._shape
        strides: tuple[int, ...] = self._strides
        if out.ndim == 4:
            shape, strides = (len(out), *shape), (self.nbytes, *strides)
        if out.shape != shape or out.strides != strides or out.dtype != np.uint8 or not out.flags.writeable:
            return None
        first = addressof(c_char.from_buffer(out))  # type: ignore[arg-type]  # arrays are buffers
        return None if (first | self._strides[0] | self._strides[1]) % _ALIGNED else first

    def write(self, frames: Sequence[av.VideoFrame], to: Sequence[int]) -> None:
        """Fill the memory of pictures, each from its address on: multiples of `nbytes` behind what `address` gave.
        Pictures that nobody but the list refers to may be empty then."""
        _, height, width = self._shape
        if not convert(self._context, frames, to, height, width):
            raise RuntimeError(f"swscale did not write all lines of {len(frames)} pictures of {width}x{height}")


@lru_cache(maxsize=64)
def is_equal(kind: Kind) -> bool:
    """Whether a `Scaler` of this kind may be used: tried on noise against PyAV, within guarded memory."""
    if kind.name != "yuv420p" or kind.height % 2 or kind.width % _ALIGNED or swscale() is None:
        return False
    height = min(kind.height, 32)  # lines are converted one like the other
    frame = noise(kind.name, height, kind.width)
    frame.colorspace, frame.color_range = kind.matrix, kind.range
    flat = np.full(3 * height * kind.width + 2 * _GUARD, 171, np.uint8)
    shift = -flat.__array_interface__["data"][0] % _ALIGNED + 2 * _ALIGNED
    out = flat[shift : shift + 3 * height * kind.width].reshape(3, height, kind.width)
    try:
        scaler = Scaler(kind._replace(height=height))
        address = scaler.address(out)
        if address is not None:
            scaler.write([frame, frame], [address, address])  # in a loop, as it is used
        packed = reformat(VideoReformatter(), frame, "rgb24").planes[0]
    except (RuntimeError, OSError):  # PyAV refuses some matrices
        return False
    lines = np.frombuffer(memoryview(packed), np.uint8).reshape(height, -1)[:, : kind.width * 3]
    expected = lines.reshape(height, kind.width, 3).transpose(2, 0, 1)
    untouched = (flat[:shift] == 171).all() and (flat[shift + out.size :] == 171).all()
    return bool(address is not None and untouched and np.array_equal(out, expected))


def noise(name: str, height: int, width: int) -> av.VideoFrame:
    """A frame of 8-bit samples that look like chance and are the same each time."""
    frame = av.VideoFrame(width, height, name)
    for number, plane in enumerate(frame.planes):
        count = np.arange(plane.buffer_size, dtype=np.uint32) + number
        plane.update((count * np.uint32(2654435761) >> np.uint32(13)).astype(np.uint8).tobytes())
    return frame
