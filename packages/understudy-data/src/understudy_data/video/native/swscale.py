"""FFmpeg's RGB conversion straight into an array: planes of red, green and blue at the caller's
address.

PyAV converts into a frame that it allocates, which must then be copied. The copy costs as much as
the conversion or more: at 640x480 68 us instead of 160, at 224x224 14 instead of 28. So swscale
itself is called (`ffmpeg.py`; pointers and strides, no structures), without the GIL.

A pixel layout is converted this way only after noise in this layout came out as PyAV converts it,
to the bit, and nothing was written next to it. Where PyAV hides the symbols, or this trial fails,
`video/color.py` goes through PyAV.

`reformat` makes PyAV's color conversion equal in all its versions. PyAV 17 and later convert with
the matrix and the range that a frame names. PyAV 15 and 16 ignore both unless they are passed as
arguments: BT.709 video then comes out in the colors of BT.601, off by up to 30 of 255.

The bits of the result also depend on libswscale. For 8-bit 4:2:0 of even height, 4:2:2, 4:4:4,
4:1:1, grey and RGB they are the same in FFmpeg 7 and 8. For other formats they differ, and
`reformat` warns about that once per format.
"""

import warnings
import weakref
from collections.abc import Sequence
from ctypes import addressof, c_char
from functools import lru_cache
from typing import NamedTuple

import av
import numpy as np
from av.video.reformatter import VideoReformatter

from understudy_data.video.native.ffmpeg import load_swscale
from understudy_data.video.native.loops import convert_frames

# AVCOL_RANGE_MPEG, AVCOL_RANGE_JPEG
_LIMITED_RANGE = 1
_FULL_RANGE = 2
_RGB = ("rgb24", "bgr24", "rgb0", "bgr0", "rgba", "bgra", "gbrp")
# Formats whose 8-bit colors are the same in FFmpeg 7 and 8. So are those of 4:2:0 where the height
# is even.
_ALIKE = frozenset(
    ("yuv422p", "yuvj422p", "yuv444p", "yuvj444p", "yuv411p", "yuyv422", "gray", *_RGB)
)


def reformat(
    reformatter: VideoReformatter,
    frame: av.VideoFrame,
    pixel_format: str,
) -> av.VideoFrame:
    """Convert a frame to a pixel format, in the calling thread alone.

    Args:
        reformatter: PyAV's converter, which caches its tables.
        frame: the frame.
        pixel_format: "rgb24" or "gbrp".

    Raises:
        OSError: PyAV refuses the frame's matrix.
    """
    if _reads_color_tags():
        return reformatter.reformat(frame, format=pixel_format, threads=1)
    name = frame.format.name
    if _swscale_version() < 9:
        _warn(name, frame.height % 2 == 1)
    if frame.format.is_rgb:
        return reformatter.reformat(frame, format=pixel_format)
    full = frame.color_range == _FULL_RANGE or name.startswith(("yuvj", "gray"))
    source_range = _FULL_RANGE if full else _LIMITED_RANGE
    # RGB has no range, but swscale converts only where the two differ.
    rgb_range = _LIMITED_RANGE if full else _FULL_RANGE
    return reformatter.reformat(
        frame,
        format=pixel_format,
        src_colorspace=frame.colorspace,
        dst_colorspace=frame.colorspace,
        src_color_range=source_range,
        dst_color_range=rgb_range,
    )


@lru_cache(maxsize=1)
def _reads_color_tags() -> bool:
    """Whether this PyAV reads matrix and range from the frame. It accepts `threads` since the same
    version.
    """
    try:
        VideoReformatter().reformat(av.VideoFrame(16, 16, "yuv420p"), format="gbrp", threads=1)
    except TypeError:
        return False
    return True


@lru_cache(maxsize=1)
def _swscale_version() -> int:
    return av.library_versions["libswscale"][0]


@lru_cache(maxsize=64)
def _warn(name: str, odd: bool) -> None:
    if name in _ALIKE or (name in ("yuv420p", "yuvj420p") and not odd):
        return
    frames = f"frames in pixel format {name}"
    if odd:
        frames += " of odd height"
    fix = "train on one version, or install av>=16"
    warnings.warn(
        f"{frames} get slightly different colors from FFmpeg 7 than from FFmpeg 8; {fix}",
        stacklevel=2,
    )


_BILINEAR = 2  # SWS_BILINEAR, as PyAV sets
_ALIGNED = 16  # bytes; the alignment of PyAV's own frames
_GUARD = 64


class PixelLayout(NamedTuple):
    """Key of a conversion: pixel format, size, and the matrix and range that the stream names."""

    name: str
    height: int
    width: int
    matrix: int
    range: int


class PlaneConverter:
    """Conversion of one pixel layout to RGB planes, with its tables. For one thread at a time.

    Attributes:
        nbytes: bytes of one written image.
    """

    def __init__(self, layout: PixelLayout) -> None:
        library = load_swscale()
        if library is None:
            raise RuntimeError("PyAV's swscale cannot be reached")
        source = library.av_get_pix_fmt(layout.name.encode())
        target = library.av_get_pix_fmt(b"gbrp")
        size = layout.width, layout.height
        self._context = library.sws_getContext(
            *size, source, *size, target, _BILINEAR, None, None, None
        )
        if not self._context:
            raise RuntimeError(f"swscale does not convert {layout}")
        weakref.finalize(self, library.sws_freeContext, self._context)
        table = library.sws_getCoefficients(layout.matrix)
        full = int(layout.range == _FULL_RANGE)
        library.sws_setColorspaceDetails(self._context, table, full, table, 1, 0, 1 << 16, 1 << 16)
        self._shape = 3, layout.height, layout.width
        self._strides = layout.height * layout.width, layout.width, 1
        self.nbytes = 3 * layout.height * layout.width

    def address(self, out: np.ndarray) -> int | None:
        """Address of the first image in `out`; None where `write` cannot fill its shape or its
        memory.

        Args:
            out: uint8 (n, 3, H, W), each image `nbytes` after the one before, or one image (3, H,
                W).
        """
        shape: tuple[int, ...] = self._shape
        strides: tuple[int, ...] = self._strides
        if out.ndim == 4:
            shape = (len(out), *shape)
            strides = (self.nbytes, *strides)
        if (
            out.shape != shape
            or out.strides != strides
            or out.dtype != np.uint8
            or not out.flags.writeable
        ):
            return None
        # arrays are buffers
        first = addressof(c_char.from_buffer(out))  # type: ignore[arg-type, unused-ignore]
        return None if (first | self._strides[0] | self._strides[1]) % _ALIGNED else first

    def write(self, frames: Sequence[av.VideoFrame], to: Sequence[int]) -> None:
        """Convert each frame into the memory at its address in `to`.

        Frames that only the list refers to may be empty afterwards.

        Args:
            frames: all of this pixel layout.
            to: addresses, each a multiple of `nbytes` after the one that `address` returned.
        """
        _, height, width = self._shape
        if not convert_frames(self._context, frames, to, height, width):
            raise RuntimeError(
                f"swscale did not write all lines of {len(frames)} frames of {width}x{height}"
            )


@lru_cache(maxsize=64)
def matches_pyav(layout: PixelLayout) -> bool:
    """Whether a `PlaneConverter` equals PyAV for this layout, tried on noise within guarded
    memory.
    """
    if (
        layout.name != "yuv420p"
        or layout.height % 2
        or layout.width % _ALIGNED
        or load_swscale() is None
    ):
        return False
    height = min(layout.height, 32)  # all lines are converted alike
    frame = make_noise(layout.name, height, layout.width)
    frame.colorspace = layout.matrix
    frame.color_range = layout.range
    flat = np.full(3 * height * layout.width + 2 * _GUARD, 171, np.uint8)
    shift = -flat.__array_interface__["data"][0] % _ALIGNED + 2 * _ALIGNED
    out = flat[shift : shift + 3 * height * layout.width].reshape(3, height, layout.width)
    try:
        converter = PlaneConverter(layout._replace(height=height))
        address = converter.address(out)
        if address is not None:
            converter.write([frame, frame], [address, address])  # in a loop, as it is used
        packed = reformat(VideoReformatter(), frame, "rgb24").planes[0]
    except (RuntimeError, OSError):  # PyAV refuses some matrices
        return False
    lines = np.frombuffer(memoryview(packed), np.uint8).reshape(height, -1)[:, : layout.width * 3]
    expected = lines.reshape(height, layout.width, 3).transpose(2, 0, 1)
    untouched = (flat[:shift] == 171).all() and (flat[shift + out.size :] == 171).all()
    return bool(address is not None and untouched and np.array_equal(out, expected))


def make_noise(name: str, height: int, width: int) -> av.VideoFrame:
    """Make a frame of 8-bit pseudo-random samples, the same each time."""
    frame = av.VideoFrame(width, height, name)
    for number, plane in enumerate(frame.planes):
        count = np.arange(plane.buffer_size, dtype=np.uint32) + number
        plane.update((count * np.uint32(2654435761) >> np.uint32(13)).astype(np.uint8).tobytes())
    return frame
