"""Augmentations as pure functions of explicit draws: equal draws give equal results, on any rank, in any order.

A run keys the draws by (seed, purpose, position) and augments a batch before the policy gets it. Nothing here reads a
random generator. Validation and rollouts apply no augmentation.
"""

from collections.abc import Sequence

import torch
from torch import Tensor


def shift_images(images: Tensor, draws: Tensor, reach: int) -> Tensor:
    """Shift each image by a whole number of pixels, edges repeated ("random shift", Yarats et al. 2021, DrQ-v2).

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
    columns = (torch.arange(width, device=images.device) + move[:, 1:]).clamp(0, width - 1)  # [B, W]
    # One flat gather: five times faster than indexing rows and columns apart.
    source = (rows[:, :, None] * width + columns[:, None, :]).view(batch, 1, -1).expand(-1, channels, -1)  # [B, C, H*W]
    return images.flatten(2).gather(2, source).view_as(images)


def drop_texts(texts: Sequence[str], draws: Tensor, share: float) -> list[str]:
    """Replace a `share` of the texts by "" (no instruction): text b where draws[b] < share, draws float32 [B]."""
    if len(texts) != len(draws):
        raise ValueError(f"{len(texts)} texts and {len(draws)} draws: one draw per text")
    return ["" if draw < share else text for text, draw in zip(texts, draws.tolist())]
