"""Images as rows of patches, and back."""

from torch import Tensor


def to_patches(images: Tensor, side: int) -> Tensor:
    """Cut images [..., 3, H, W] into patches [..., P, 3 * side * side], row by row; `side` divides H and W."""
    rows = images.unflatten(-1, (-1, side)).unflatten(-3, (-1, side))  # [..., 3, h, side, w, side]
    front = tuple(range(rows.ndim - 5))
    color, high, y, wide, x = range(rows.ndim - 5, rows.ndim)
    return rows.permute(*front, high, wide, color, y, x).flatten(-3).flatten(-3, -2)


def to_images(patches: Tensor, height: int, side: int) -> Tensor:
    """Join patches [..., P, 3 * side * side] to images [..., 3, height, W], the inverse of `to_patches`."""
    rows = patches.unflatten(-1, (3, side, side)).unflatten(-4, (height // side, -1))  # [..., h, w, 3, side, side]
    front = tuple(range(rows.ndim - 5))
    high, wide, color, y, x = range(rows.ndim - 5, rows.ndim)
    return rows.permute(*front, color, high, y, wide, x).flatten(-2).flatten(-3, -2)
