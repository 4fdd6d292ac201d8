"""Orientation that a file holds outside its pixels: EXIF of images, and the display matrix of
videos.

One rule for every reader, writer and page of this package:

- An image is shown as `datasets` of Hugging Face shows it: turned and mirrored by the orientation
  of its EXIF or XMP data (`PIL.ImageOps.exif_transpose`). Unreadable EXIF data counts as none.
- A video is shown as torchcodec 0.11 and later shows it: turned by the angle of the container's
  display matrix, rounded to quarter turns. A mirrored matrix is not mirrored, and pixels that are
  not square, and a clean aperture, change nothing; `check` names all three.

A turned frame is turned in its own pixel format where that is possible, as FFmpeg's `transpose`
does, and in RGB elsewhere. Decoding of a video without a matrix costs one comparison a run of
frames.
"""

import ctypes
import struct
from functools import lru_cache
from itertools import product

import av
import numpy as np
from av.video.reformatter import VideoReformatter
from PIL import Image, ImageOps

from understudy_data.video.native.swscale import reformat
from understudy_data.video.shown import turned_size

_ORIENTATION = 0x0112  # tag of EXIF
_UNREADABLE = (SyntaxError, ValueError, KeyError, TypeError, OSError, struct.error, OverflowError)


def upright(image: Image.Image) -> Image.Image:
    """Return an opened image as its EXIF orientation asks; the image itself where it asks nothing.

    The result has no orientation left, so that nobody applies it twice.

    Args:
        image: an image of Pillow, before or after `load`.
    """
    try:
        orientation = image.getexif().get(_ORIENTATION)
    except _UNREADABLE:
        return image
    if orientation is None or orientation == 1:
        return image
    return ImageOps.exif_transpose(image)


def turn_frame(frame: av.VideoFrame, turns: int) -> av.VideoFrame:
    """Return a decoded frame after quarter turns to the left, with its time and its colors.

    Frames whose planes cannot be turned alone, such as 4:2:2, become RGB.
    """
    name = frame.format.name
    height = frame.height
    width = frame.width
    item = _sample_bytes(name)
    if not item:
        packed = reformat(VideoReformatter(), frame, "rgb24")  # owns the memory of `pixels`
        pixels = _lines(packed.planes[0], height)[:, : 3 * width].reshape(height, width, 3)
        turned = av.VideoFrame.from_ndarray(
            np.ascontiguousarray(np.rot90(pixels, turns)), format="rgb24"
        )
    else:
        tall, wide = turned_size(height, width, turns)
        turned = av.VideoFrame(wide, tall, name)
        for number, (source, target) in enumerate(zip(frame.planes, turned.planes)):
            shift = 0 if number == 0 or name.startswith("gray") else _chroma_shift(name)
            samples = f"<u{item}"
            rows = -(-height >> shift)
            columns = -(-width >> shift)
            plane = _lines(source, rows).view(samples)[:, :columns]
            turned_rows = columns if turns % 2 else rows
            lines = np.zeros((turned_rows, target.line_size), np.uint8)
            image = np.rot90(plane, turns)
            lines.view(samples)[:, : image.shape[1]] = image
            target.update(lines.tobytes().ljust(target.buffer_size, b"\0"))
        turned.colorspace = frame.colorspace
        turned.color_range = frame.color_range
    turned.pts = frame.pts
    return turned


@lru_cache(maxsize=64)
def _sample_bytes(name: str) -> int:
    """Bytes of a sample in a pixel format whose planes are turned one by one; 0 for other
    formats.
    """
    if name in ("gray", "gbrp", "yuv420p", "yuvj420p", "yuv444p", "yuvj444p"):
        return 1
    kinds = ("gray", "yuv420p", "yuv444p")
    planar = {f"{kind}{bits}le" for kind, bits in product(kinds, (9, 10, 12, 14, 16))}
    return 2 if name in planar else 0


def _chroma_shift(name: str) -> int:
    return 1 if "420" in name else 0


def _lines(plane: av.video.plane.VideoPlane, height: int) -> np.ndarray:
    """View of a plane as uint8 (height, line); valid as long as its frame.

    By its address, because PyAV takes planes for empty that the compiled loops filled
    (`video/native`).
    """
    memory = (ctypes.c_uint8 * (plane.line_size * height)).from_address(plane.buffer_ptr)
    return np.ctypeslib.as_array(memory).reshape(height, plane.line_size)
