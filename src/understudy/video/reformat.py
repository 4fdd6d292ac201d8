"""PyAV's color conversion, made equal in all its versions.

PyAV 17 and later convert with the matrix and the range that a frame names. PyAV 15 and 16 ignore both unless they are
passed as arguments: BT.709 video then comes out in the colors of BT.601, off by up to 30 of 255. `reformat` does so.

The bits of the result also depend on libswscale. For 8-bit 4:2:0 of even height, 4:2:2, 4:4:4, 4:1:1, grey and RGB
they are the same in FFmpeg 7 and 8. For other formats they differ, and `reformat` warns about that once per format.
"""

from __future__ import annotations

import warnings
from functools import lru_cache

import av
from av.video.reformatter import Interpolation, VideoReformatter

_LIMITED, _FULL = 1, 2  # AVCOL_RANGE_MPEG, AVCOL_RANGE_JPEG
_RGB = ("rgb24", "bgr24", "rgb0", "bgr0", "rgba", "bgra", "gbrp")
# Formats whose 8-bit colors are the same in FFmpeg 7 and 8. So are those of 4:2:0 where the height is even.
_ALIKE = frozenset(("yuv422p", "yuvj422p", "yuv444p", "yuvj444p", "yuv411p", "yuyv422", "gray", *_RGB))


def reformat(
    reformatter: VideoReformatter,
    frame: av.VideoFrame,
    pixel_format: str,
    size: tuple[int, int] | None = None,
    interpolation: Interpolation | None = None,
) -> av.VideoFrame:
    """Convert a frame to a pixel format, in the calling thread alone.

    Args:
        reformatter: PyAV's converter, which caches its tables.
        frame: the frame.
        pixel_format: "rgb24" or "gbrp".
        size: (height, width) of the result; None: the frame's own.
        interpolation: for another size.

    Raises:
        OSError: PyAV refuses the frame's matrix.
    """
    height, width = size or (None, None)
    if _reads_color_tags():
        return reformatter.reformat(frame, width, height, pixel_format, interpolation=interpolation, threads=1)
    name = frame.format.name
    if _swscale_version() < 9:
        _warn(name, frame.height % 2 == 1)
    if frame.format.is_rgb:
        return reformatter.reformat(frame, width, height, pixel_format, interpolation=interpolation)
    full = frame.color_range == _FULL or name.startswith(("yuvj", "gray"))
    return reformatter.reformat(
        frame,
        width,
        height,
        pixel_format,
        src_colorspace=frame.colorspace,
        dst_colorspace=frame.colorspace,
        interpolation=interpolation,
        src_color_range=_FULL if full else _LIMITED,
        dst_color_range=_LIMITED if full else _FULL,  # RGB has no range, but swscale converts only where the two differ
    )


@lru_cache(maxsize=1)
def _reads_color_tags() -> bool:
    """Whether this PyAV reads matrix and range from the frame. It accepts `threads` since the same version."""
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
    what = f"frames in pixel format {name}" + (" of odd height" if odd else "")
    fix = "train on one version, or install av>=16"
    warnings.warn(f"{what} get slightly different colors from FFmpeg 7 than from FFmpeg 8; {fix}", stacklevel=2)
