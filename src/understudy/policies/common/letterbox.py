"""Images of any size, resized to a square with their aspect ratio kept, between black bars."""

import numpy as np
import torch
import torch.nn.functional as F
from torch import Tensor


def letterbox(images: Tensor, side: int) -> Tensor:
    """Resize images to the inside of a square and centre them on black.

    Bilinear with antialiasing, then rounded to whole numbers, as in the data path of openpi. Without antialiasing,
    thin structures of a 480-line image disappear at 224.

    Args:
        images: uint8 [B, 3, H, W].
        side: height and width of the result.

    Returns:
        float32 [B, 3, side, side] in -1..1; black is -1.
    """
    return _fit(images, side) / 127.5 - 1


def write_letterbox(image: np.ndarray, out: np.ndarray) -> None:
    """Write an image, resized and centred as by `letterbox`, into a square; `letterbox` then changes no value of it.

    Args:
        image: uint8 [3, H, W].
        out: uint8 [3, side, side].

    Raises:
        ValueError: `out` is no square.
    """
    if out.shape[-2] != out.shape[-1]:
        raise ValueError(f"out is {out.shape}; give a square, [3, side, side]")
    out[...] = _fit(torch.from_numpy(image)[None], out.shape[-1])[0].numpy()


def _fit(images: Tensor, side: int) -> Tensor:
    """Resize and centre images [B, 3, H, W]: whole numbers from 0 to 255, float32 [B, 3, side, side]."""
    height, width = images.shape[-2:]
    x = images.float()
    if (height, width) != (side, side):
        scale = max(height, width) / side
        inner = max(1, int(height / scale)), max(1, int(width / scale))
        if inner != (height, width):
            x = F.interpolate(x, size=inner, mode="bilinear", antialias=True).round().clamp(0, 255)
        top, left = (side - inner[0]) // 2, (side - inner[1]) // 2
        x = F.pad(x, (left, side - inner[1] - left, top, side - inner[0] - top))
    return x


def blank(count: int, side: int, device: torch.device) -> Tensor:
    """Return black images, float32 [count, 3, side, side]."""
    return torch.full((count, 3, side, side), -1.0, device=device)
