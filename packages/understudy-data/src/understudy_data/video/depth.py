"""Depth images: one channel of distances, without color conversion.

LeRobot stores distances as 12-bit codes in a video, on a logarithmic or a linear scale. Images have
values as stored, or the distances of their codes. Another size takes the nearest pixel: row i of h
is row (2i + 1) * H // (2h) of H, and columns likewise. A mean over the edge of an object would be
the distance of nothing.
"""

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from functools import lru_cache
from typing import TypeAlias

import av
import numpy as np

from understudy_base import DatasetError
from understudy_data.video.color import Converter, ImageSize

LARGEST = 4095
"""Largest code."""


@dataclass(frozen=True)
class DepthCodes:
    """Scale of the codes 0 to 4095.

    Attributes:
        minimum: distance of code 0, in meters.
        maximum: distance of code 4095, in meters.
        shift: meters that are added before the logarithm.
        log: whether the scale is logarithmic.
    """

    minimum: float
    maximum: float
    shift: float
    log: bool

    def distances(self, unit: str = "m") -> np.ndarray:
        """Distance of each code, float32 (4096,), read-only; computed in float64 and rounded once.

        Args:
            unit: "m", or "mm" for whole millimeters up to 65535, as LeRobot delivers them.
        """
        return _table(self, unit)


@lru_cache(maxsize=64)
def _table(codes: DepthCodes, unit: str) -> np.ndarray:
    share = np.arange(LARGEST + 1) / LARGEST
    if codes.log:
        low = np.log(codes.minimum + codes.shift)
        high = np.log(codes.maximum + codes.shift)
        exact = np.exp(low + share * (high - low)) - codes.shift
    else:
        exact = codes.minimum + share * (codes.maximum - codes.minimum)
    exact = np.clip(exact, codes.minimum, codes.maximum)
    if unit == "mm":
        exact = np.clip(np.rint(exact * 1000), 0, 65535)
    table: np.ndarray = exact.astype(np.float32)
    table.flags.writeable = False
    return table


class DepthConverter:
    """Depth images from frames whose first plane holds 16-bit numbers. Same interface as
    `Converter`.

    Args:
        dtype: "uint16" or "float32", of the images.
        convert: function from the numbers of a frame, uint16 (H, W), to values of that dtype
            (`Pixels.convert`).
        size: (height, width) of the output; None: as decoded.
    """

    def __init__(
        self, dtype: str, convert: Callable[[np.ndarray], np.ndarray], size: tuple[int, int] | None
    ) -> None:
        self.size = size
        self._dtype = np.dtype(dtype)
        self._convert = convert

    def write(self, frame: av.VideoFrame, out: np.ndarray) -> None:
        """Write one frame into `out`, uint16 or float32 (1, H, W) of `size` or the frame's own.

        Raises:
            ValueError: `out` has another shape or dtype.
        """
        height = frame.height
        width = frame.width
        if out.shape != (1, *(self.size or (height, width))) or out.dtype != self._dtype:
            raise ValueError(
                f"a frame of {width}x{height} does not fit {out.dtype} {out.shape}, size "
                f"{self.size}"
            )
        lines = np.frombuffer(memoryview(frame.planes[0]), "<u2").reshape(height, -1)[:, :width]
        if self.size is not None:
            lines = nearest(lines, self.size)
        out[0] = self._convert(lines)

    def write_all(
        self, frames: Sequence[av.VideoFrame], places: Sequence[int], out: np.ndarray
    ) -> None:
        """Write frames into their places in `out`, (n, 1, H, W), as `write` does."""
        for frame, place in zip(frames, places):
            self.write(frame, out[place])


def nearest(image: np.ndarray, size: tuple[int, int]) -> np.ndarray:
    """Resize an image (..., H, W) to `size` (height, width) by its nearest pixels; its own size
    returns it.
    """
    height, width = image.shape[-2:]
    if size == (height, width):
        return image
    rows, columns = (
        (2 * np.arange(want) + 1) * have // (2 * want) for want, have in zip(size, (height, width))
    )
    return image[..., rows[:, None], columns]


AnyConverter: TypeAlias = Converter | DepthConverter


@dataclass(frozen=True)
class Pixels:
    """Values of one image.

    Attributes:
        channels: 3 for color, 1 for depth.
        dtype: "uint8" for color; "uint16" for depth as stored, "float32" for depth in a unit.
        codes: scale of a quantized depth video.
        pixel_format: the only format, by FFmpeg's name, in which frames may be decoded; "": any.
        stored_unit: recorded unit of depth numbers, "m" or "mm"; "" for color, codes and numbers
            without a unit.
        unit: unit of delivered depth, "m" or "mm"; "" for color and for numbers as stored.
    """

    channels: int = 3
    dtype: str = "uint8"
    codes: DepthCodes | None = None
    pixel_format: str = ""
    stored_unit: str = ""
    unit: str = ""

    @property
    def is_depth(self) -> bool:
        """Whether images are depth."""
        return self.channels == 1

    def nbytes(self, height: int, width: int) -> int:
        """Bytes of one image."""
        return self.channels * height * width * np.dtype(self.dtype).itemsize

    def empty(self, *shape: int) -> np.ndarray:
        """Return an array (*shape, C, H, W) of undefined content; the last two of `shape` are H and
        W.
        """
        return np.empty((*shape[:-2], self.channels, *shape[-2:]), self.dtype)

    def convert(self, numbers: np.ndarray) -> np.ndarray:
        """Convert stored depth numbers of any shape to delivered values of `dtype`."""
        if self.codes is not None:
            return self.codes.distances(self.unit)[numbers]
        if self.stored_unit == self.unit or not self.unit:
            return numbers.astype(self.dtype, copy=False)
        values = numbers.astype(np.float32)
        return values * 1000 if self.unit == "mm" else values / 1000

    def converter(self, size: tuple[int, int] | None = None) -> AnyConverter:
        """Return a converter for one thread, to `size` (height, width), or to the frames' own.

        Raises:
            DatasetError: `size` brings a policy's own way to resize, which is not for depth.
        """
        if not self.is_depth:
            return Converter(size)
        if isinstance(size, ImageSize):
            fix = (
                "give a plain (height, width), which takes the nearest pixels, or leave the "
                "depth camera out"
            )
            raise DatasetError("depth images cannot be resized as a policy resizes colors", fix=fix)
        return DepthConverter(self.dtype, self.convert, size)


RGB = Pixels()
"""Color images."""
