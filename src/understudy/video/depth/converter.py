"""From decoded frames of one channel to depth images: values as stored, or the distances of their codes.

Another size takes the nearest pixel: row i of h is row (2i + 1) * H // (2h) of H, and columns likewise. A mean over
the edge of an object would be the distance of nothing.
"""

from __future__ import annotations

from collections.abc import Sequence

import av
import numpy as np

from understudy.video.depth.codes import DepthCodes


class DepthConverter:
    """Depth images from frames whose first plane holds 16-bit numbers. Same interface as `Converter`.

    Args:
        dtype: "uint16" for the numbers, "float32" for the meters of `codes`.
        codes: scale of the numbers; None delivers them.
        size: (height, width) of the output; None: as decoded.
    """

    def __init__(self, dtype: str, codes: DepthCodes | None, size: tuple[int, int] | None = None) -> None:
        self.size, self._dtype = size, np.dtype(dtype)
        self._meters = codes.meters() if codes is not None else None

    def write(self, frame: av.VideoFrame, out: np.ndarray) -> None:
        """Write one frame into `out`, uint16 or float32 (1, H, W) of `size` or the frame's own.

        Raises:
            ValueError: `out` has another shape or dtype.
        """
        height, width = frame.height, frame.width
        if out.shape != (1, *(self.size or (height, width))) or out.dtype != self._dtype:
            raise ValueError(f"a frame of {width}x{height} does not fit {out.dtype} {out.shape}, size {self.size}")
        lines = np.frombuffer(memoryview(frame.planes[0]), "<u2").reshape(height, -1)[:, :width]
        numbers = nearest(lines, self.size) if self.size is not None else lines
        if self._meters is None:
            out[0] = numbers
        else:
            out[0] = self._meters[numbers]

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
