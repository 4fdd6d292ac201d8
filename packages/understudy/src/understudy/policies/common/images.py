"""Images between black bars, and augmentations as pure functions of explicit draws.

A run keys the draws by (seed, purpose, position) and augments a batch before the policy gets it.
Equal draws give equal results, on any rank, in any order. Validation and rollouts apply no
augmentation.
"""

from collections.abc import Sequence

import numpy as np
import torch
import torch.nn.functional as F
from torch import Tensor


def letterbox(images: Tensor, side: int) -> Tensor:
    """Resize images to the inside of a square and centre them on black.

    Bilinear with antialiasing, then rounded to whole numbers, as in the data path of openpi.
    Without antialiasing, thin structures of a 480-line image disappear at 224.

    Args:
        images: uint8 [B, 3, H, W].
        side: height and width of the result.

    Returns:
        float32 [B, 3, side, side] in -1..1; black is -1.
    """
    return _fit(images, side) / 127.5 - 1


def write_letterbox(image: np.ndarray, out: np.ndarray) -> None:
    """Write an image, resized and centred as by `letterbox`, into a square; `letterbox` then
    changes no value of it.

    Args:
        image: uint8 [3, H, W].
        out: uint8 [3, side, side].

    Raises:
        ValueError: `out` is not a square.
    """
    if out.shape[-2] != out.shape[-1]:
        raise ValueError(f"out is {out.shape}; give a square, [3, side, side]")
    out[...] = _fit(torch.from_numpy(image)[None], out.shape[-1])[0].numpy()


def _fit(images: Tensor, side: int) -> Tensor:
    """Resize and centre images [B, 3, H, W]: whole numbers from 0 to 255, float32 [B, 3, side,
    side].
    """
    height, width = images.shape[-2:]
    x = images.float()
    if (height, width) != (side, side):
        scale = max(height, width) / side
        inner = max(1, int(height / scale)), max(1, int(width / scale))
        if inner != (height, width):
            x = F.interpolate(x, size=inner, mode="bilinear", antialias=True).round().clamp(0, 255)
        top = (side - inner[0]) // 2
        left = (side - inner[1]) // 2
        x = F.pad(x, (left, side - inner[1] - left, top, side - inner[0] - top))
    return x


def blank(count: int, side: int, device: torch.device) -> Tensor:
    """Return black images, float32 [count, 3, side, side]."""
    return torch.full((count, 3, side, side), -1.0, device=device)


def shift_images(images: Tensor, draws: Tensor, reach: int) -> Tensor:
    """Shift each image by a whole number of pixels, edges repeated ("random shift", Yarats et al.
    2021, DrQ-v2).

    Args:
        images: [B, C, H, W], any dtype (uint8 stays uint8).
        draws: float32 [B, 2] in [0, 1): vertical, horizontal.
        reach: largest shift in pixels; shifts are uniform on -reach..reach in each direction.

    Returns:
        Same shape and dtype.
    """
    if reach < 0:
        raise ValueError(f"reach={reach}: the largest shift must be 0 or more pixels")
    batch, channels, height, width = images.shape
    if draws.shape != (batch, 2):
        raise ValueError(f"draws have shape {tuple(draws.shape)}, {batch} images need ({batch}, 2)")
    move = (draws.to(images.device) * (2 * reach + 1)).long().clamp(max=2 * reach) - reach  # [B, 2]
    rows = (torch.arange(height, device=images.device) + move[:, :1]).clamp(0, height - 1)  # [B, H]
    # [B, W]
    columns = (torch.arange(width, device=images.device) + move[:, 1:]).clamp(0, width - 1)
    # One flat gather: five times faster than indexing rows and columns apart.
    # [B, C, H*W]
    source = (
        (rows[:, :, None] * width + columns[:, None, :]).view(batch, 1, -1).expand(-1, channels, -1)
    )
    return images.flatten(2).gather(2, source).view_as(images)


def drop_texts(texts: Sequence[str], draws: Tensor, share: float) -> list[str]:
    """Replace a `share` of the texts by "" (no instruction): text b where draws[b] < share, draws
    float32 [B].
    """
    if len(texts) != len(draws):
        raise ValueError(f"{len(texts)} texts and {len(draws)} draws: one draw per text")
    kept = list(texts)
    for row, draw in enumerate(draws.tolist()):
        if draw < share:
            kept[row] = ""
    return kept
