"""Images of any size, resized to a square with their aspect ratio kept, between black bars."""

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
    height, width = images.shape[-2:]
    x = images.float()
    if (height, width) != (side, side):
        scale = max(height, width) / side
        inner = max(1, int(height / scale)), max(1, int(width / scale))
        if inner != (height, width):
            x = F.interpolate(x, size=inner, mode="bilinear", antialias=True).round().clamp(0, 255)
        top, left = (side - inner[0]) // 2, (side - inner[1]) // 2
        x = F.pad(x, (left, side - inner[1] - left, top, side - inner[0] - top))
    return x / 127.5 - 1


def blank(count: int, side: int, device: torch.device) -> Tensor:
    """Return black images, float32 [count, 3, side, side]."""
    return torch.full((count, 3, side, side), -1.0, device=device)
