"""`Pixels`: channels and dtype of a camera's images, and the converter that makes them from decoded frames."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TypeAlias

import numpy as np

from understudy.errors import DatasetError
from understudy.video.color import Converter
from understudy.video.depth.codes import DepthCodes
from understudy.video.depth.converter import DepthConverter
from understudy.video.resize import ImageSize

AnyConverter: TypeAlias = Converter | DepthConverter


@dataclass(frozen=True)
class Pixels:
    """Values of one image.

    Attributes:
        channels: 3 for color, 1 for depth.
        dtype: "uint8" for color; "uint16" for depth as stored, "float32" for depth in a unit.
        codes: scale of a quantized depth video.
        pixel_format: the only format, by FFmpeg's name, in which frames may be decoded; "": any.
        stored_unit: recorded unit of depth numbers, "m" or "mm"; "" for color, codes and numbers without a unit.
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
        """Return an array (*shape, C, H, W) of undefined content; the last two of `shape` are H and W."""
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
            fix = "give a plain (height, width), which takes the nearest pixels, or leave the depth camera out"
            raise DatasetError("depth images cannot be resized as a policy resizes colors", fix=fix)
        return DepthConverter(self.dtype, self.convert, size)


RGB = Pixels()
"""Color images."""
