"""From decoded frames of one channel to depth images: values as stored, or the distances of their codes.

Another size takes the nearest pixel: row i of h is row (2i + 1) * H // (2h) of H, and columns likewise. A mean over
the edge of an object would be the distance of nothing.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence

import av
import numpy as np


class DepthConverter:
    """Depth images from frames whose first plane holds 16-bit numbers. Same interface as `Converter`.

    Args:
        dtype: "uint16" or "float32", of the images.
        convert: function from the numbers of a frame, uint16 (H, W), to values of that dtype (`Pixels.convert`).
        size: (height, width) of the output; None: as decoded.
    """

    def __init__(
        self, dtype: str, convert: Callable[[np.ndarray], np.ndarray], size: tuple[int, int] | None = None
    ) -> None:
        self.size, self._dtype, self._convert = size, np.dtype(dtype), convert

    def write(self, frame: av.VideoFrame, out: np.ndarray) -> None:
        """Write one frame into `out`, uint16 or float32 (1, H, W) of `size` or the frame's own.

        Raises:
            ValueError: `out` has another shape or dtype.
        """
        height, width = frame.height, frame.width
        if out.shape != (1, *(self.size or (height, width))) or out.dtype != self._dtype:
            raise ValueError(f"a frame of {width}x{height} does not fit {out.dtype} {out.shape}, size {self.size}")
        lines = np.frombuffer(memoryview(frame.planes[0]), "<u2").reshape(height, -1)[:, :width]
        out[0] = self._convert(nearest(lines, self.size) if self.size is not None else lines)

    def write_all(self, frames: Sequence[av.VideoFrame], places: Sequence[int], out: np.ndarray) -> None:
        """Write frames into their places in `out`, (n, 1, H, W), as `write` does."""
        for frame, place in zip(frames, places):
            self.write(frame, out[place])


def nearest(image: np.ndarray, size: tuple[int, int]) -> np.ndarray:
    """Resize an image (..., H, W) to `size` (height, width) by its nearest pixels; its own size returns it."""
    height, width = image.shape[-2:]
    if size == (height, width):
        return image
    rows, columns = ((2 * np.arange(want) + 1) * have // (2 * want) for want, have in zip(size, (height, width)))
    return image[..., rows[:, None], columns]
