"""RGB conversion into arrays: `Converter().write(frame, out)` fills uint8 (3, H, W), planes of red,
green, blue.

The result equals swscale's packed `rgb24` (bilinear chroma, the matrix and range that the stream
names), to the bit. There are three ways. The cheapest one that came out equal on noise is used,
tried once for each pixel layout on this machine. CPU time at 640x480:
- swscale writes planes straight into the array (`native/swscale.py`), 68 us. For widths that are a
  multiple of 16, in memory aligned to 16 bytes: the usual case for cameras and policies.
- PyAV converts into a frame of planes (`gbrp`), which are copied, 66 + 95 us. FFmpeg 8's x86 code
  leaves up to eight columns unwritten where the width modulo 16 is 1 to 8; the trial detects it.
- PyAV converts into packed RGB, which is split into planes, 96 + 270 us. Always right: odd sizes,
  other formats than 8-bit 4:2:0.
So images are contiguous (C, H, W) everywhere, which here is also the cheapest layout.

`Converter(size)` also resizes: full-size RGB, then area averaging (`AreaResize`). swscale could
scale and convert in one pass in a quarter of the time, but differs: on camera images by 2 steps of
255 in the mean, at hard edges by up to
50. Scaling while decoding is impossible: neither FFmpeg's H.264 and HEVC decoders nor dav1d can do
  it.

`AreaResize(480, 640, (224, 224))(planes, out)` averages areas in integer arithmetic. Each output
pixel is the mean over the input pixels that its window meets, from floor(i * H / h) to ceil((i + 1)
* H / h) in each direction. `torch.nn.functional.interpolate(mode="area")` computes the same, and
policies apply it to images of another size. Sums are exact and rounded once, so an image resized
here equals one that the policy resizes within half a step of brightness. It takes half the time of
the float computation: 0.3 ms from 640x480 to 64x64, 0.9 ms to 224x224. An `ImageSize` brings
another way of resizing, for a policy that resizes differently.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from functools import lru_cache
from itertools import groupby

import av
import numpy as np
from av.video.reformatter import VideoReformatter

from understudy_data.video.native.swscale import (
    PixelLayout,
    PlaneConverter,
    make_noise,
    matches_pyav,
    reformat,
)

Resize = Callable[[np.ndarray, np.ndarray], None]
"""(planes uint8 (3, H, W), out uint8 (3, height, width)) -> None: writes the resized planes into
`out`. Thread-safe.
"""


class ImageSize(tuple[int, int]):
    """(height, width) with its own way of resizing; a plain (height, width) means area
    averaging.
    """

    resize: Resize

    def __new__(cls, size: tuple[int, int], resize: Resize) -> ImageSize:
        """Join a size and a function that resizes images to it."""
        joined = super().__new__(cls, size)
        joined.resize = resize
        return joined

    def __getnewargs__(self) -> tuple[tuple[int, int], Resize]:
        """Return the arguments of `__new__`, for pickle."""
        return (self[0], self[1]), self.resize


def make_resize(height: int, width: int, size: tuple[int, int]) -> Resize:
    """Return the function that resizes images of (height, width) to `size`."""
    return size.resize if isinstance(size, ImageSize) else AreaResize(height, width, size)


class AreaResize:
    """Resize from uint8 (3, height, width) to uint8 (3, *size). Safe to use from several
    threads.
    """

    def __init__(self, height: int, width: int, size: tuple[int, int]) -> None:
        if min(size) < 1:
            raise ValueError(f"size={size}: height and width must be positive")
        self._rows = _Windows(height, size[0])
        self._columns = _Windows(width, size[1])
        # (w, h)
        self._pixels = (self._columns.length[:, None] * self._rows.length).astype(np.float64)

    def __call__(self, planes: np.ndarray, out: np.ndarray) -> None:
        """Write the resized `planes` into `out`."""
        dtype = np.uint32 if self._rows.length.max() > 257 else np.uint16
        sums = self._rows.sums(planes.astype(dtype))  # (3, h, W)
        # `sums` adds lines, so columns become lines
        turned = np.ascontiguousarray(sums.transpose(0, 2, 1), np.uint32)
        mean = self._columns.sums(turned) / self._pixels  # (3, w, h)
        out[...] = np.rint(mean, out=mean).transpose(0, 2, 1)


class _Windows:
    """Start and length of each output pixel's window, on a line of `given` pixels resized to
    `wanted`.
    """

    def __init__(self, length_in: int, length_out: int) -> None:
        place = np.arange(length_out)
        self.start = place * length_in // length_out
        self.length = -(-(place + 1) * length_in // length_out) - self.start
        # Lengths differ by two at most. Pixels that all windows have are added at once, the others
        # where they exist.
        self._longer = [
            (k, np.flatnonzero(self.length > k))
            for k in range(int(self.length.min()), int(self.length.max()))
        ]

    def sums(self, lines: np.ndarray) -> np.ndarray:
        """Sum over each window: (3, given, n) -> (3, wanted, n). The dtype must hold the sums."""
        total = lines[:, self.start]
        for k in range(1, int(self.length.min())):
            total += lines[:, self.start + k]
        for k, places in self._longer:
            total[:, places] += lines[:, self.start[places] + k]
        return total


PLANE_CHANNELS = (1, 2, 0)  # gbrp holds green, blue, red
_MAX_LAYOUTS = 16  # pixel layouts whose tables one converter keeps
# formats that swscale converts to planes and to packed RGB by the same routine
_PLANAR = ("yuv420p", "yuvj420p")


class Converter:
    """RGB conversion with its scratch memory. For one thread at a time; the work itself releases
    the GIL.

    Args:
        size: (height, width) of the output, or an `ImageSize`; None: as decoded.
    """

    def __init__(self, size: tuple[int, int] | None = None) -> None:
        self._reformatter = VideoReformatter()
        self.size = size
        self._plane_converters: dict[PixelLayout, PlaneConverter | None] = {}
        self._full = np.empty((3, 0, 0), np.uint8)  # an image before it is resized
        self._resize: Resize | None = None

    def write(self, frame: av.VideoFrame, out: np.ndarray) -> None:
        """Write one frame into `out`, uint8 (3, H, W) of `size` or the frame's own (contiguous
        memory is fastest).

        Raises:
            ValueError: `out` has another shape or dtype.
        """
        height = frame.height
        width = frame.width
        if out.shape != (3, *(self.size or (height, width))) or out.dtype != np.uint8:
            raise ValueError(
                f"a frame of {width}x{height} does not fit {out.dtype} {out.shape}, size "
                f"{self.size}"
            )
        if self.size is None or self.size == (height, width):
            self._write_rgb(frame, height, width, out)
        else:
            if self._resize is None or self._full.shape != (3, height, width):
                self._full = np.empty((3, height, width), np.uint8)
                self._resize = make_resize(height, width, self.size)
            self._write_rgb(frame, height, width, self._full)
            self._resize(self._full, out)

    def write_all(
        self, frames: Sequence[av.VideoFrame], places: Sequence[int], out: np.ndarray
    ) -> None:
        """Write frames into their places in `out`, uint8 (n, 3, H, W), as `write` does but faster.

        Frames that only the list refers to may be empty afterwards.
        """
        begin = 0
        for layout, group in groupby(map(_layout, frames)):
            end = begin + len(list(group))
            # a copied list would prevent recycling
            some = frames if end - begin == len(frames) else frames[begin:end]
            converter = self._plane_converter(PixelLayout(*layout)) if self.size is None else None
            if converter is None or (first := converter.address(out)) is None:
                for frame, place in zip(some, places[begin:end]):
                    self.write(frame, out[place])
            else:
                converter.write(
                    some, [first + place * converter.nbytes for place in places[begin:end]]
                )
            begin = end

    def _plane_converter(self, layout: PixelLayout) -> PlaneConverter | None:
        if layout not in self._plane_converters:
            self._plane_converters[layout] = (
                PlaneConverter(layout) if matches_pyav(layout) else None
            )
            while len(self._plane_converters) > _MAX_LAYOUTS:
                del self._plane_converters[next(iter(self._plane_converters))]
        return self._plane_converters[layout]

    def _write_rgb(self, frame: av.VideoFrame, height: int, width: int, out: np.ndarray) -> None:
        converter = self._plane_converter(PixelLayout(*_layout(frame)))
        if converter is not None and (first := converter.address(out)) is not None:
            converter.write([frame], [first])
        elif planes_match_packed(frame.format.name, height, width):
            for plane, channel in zip(
                reformat(self._reformatter, frame, "gbrp").planes, PLANE_CHANNELS
            ):
                out[channel] = _lines(plane, height)[:, :width]  # lines may be padded
        else:
            plane = reformat(self._reformatter, frame, "rgb24").planes[0]
            packed = _lines(plane, height)[:, : width * 3].reshape(height, width, 3)
            out[...] = packed.transpose(2, 0, 1)


def _layout(frame: av.VideoFrame) -> tuple[str, int, int, int, int]:
    """Fields of the frame's `PixelLayout`; a bare tuple is made faster."""
    return frame.format.name, frame.height, frame.width, frame.colorspace, frame.color_range


@lru_cache(maxsize=64)
def planes_match_packed(name: str, height: int, width: int) -> bool:
    """Whether swscale converts this pixel format and size to the same RGB as planes and packed,
    tried on noise.
    """
    if name not in _PLANAR or height % 2 or width % 2:
        return False
    height = min(height, 32)  # all lines are converted alike
    frame = make_noise(name, height, width)
    planes = reformat(VideoReformatter(), frame, "gbrp").planes
    packed = reformat(VideoReformatter(), frame, "rgb24").planes[0]
    expected = _lines(packed, height)[:, : width * 3].reshape(height, width, 3)
    return all(
        np.array_equal(_lines(plane, height)[:, :width], expected[:, :, channel])
        for plane, channel in zip(planes, PLANE_CHANNELS)
    )


def _lines(plane: av.video.plane.VideoPlane, height: int) -> np.ndarray:
    """View of a plane as uint8 (height, line), with the padding at the end of each line."""
    return np.frombuffer(memoryview(plane), np.uint8).reshape(height, -1)
