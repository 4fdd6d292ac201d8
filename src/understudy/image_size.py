"""Size of images together with a way of resizing to it, which a policy gives and a loader uses. No torch."""

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
