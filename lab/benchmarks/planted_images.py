"""Changes of images that `planted_faults.py` plants: functions of uint8 (n, H, W, 3)."""

from collections.abc import Callable

import numpy as np
import torch
from torch.nn import functional

Change = Callable[[np.ndarray], np.ndarray]


def late(frames: int) -> Change:
    """Show each image some frames later; earlier for a negative number."""

    def change(images: np.ndarray) -> np.ndarray:
        return images[np.clip(np.arange(len(images)) - frames, 0, len(images) - 1)]

    return change


def reverse(images: np.ndarray) -> np.ndarray:
    """Play backwards."""
    return images[::-1]


def hold(frames: int) -> Change:
    """Show every n-th image n times."""
    return lambda images: images[np.arange(len(images)) // frames * frames]


def blur(radius: int, passes: int = 1) -> Change:
    """Average over a square of 2 * radius + 1 pixels, `passes` times."""

    def one(image: torch.Tensor) -> torch.Tensor:
        for _ in range(passes):
            padded = functional.pad(image, [radius] * 4, mode="replicate")
            image = functional.avg_pool2d(padded, 2 * radius + 1, stride=1)
        return image

    return lambda images: _each(images, one)


def zoom(factor: float) -> Change:
    """Enlarge about the center; below 1, reduce beside a repeated border."""

    def one(image: torch.Tensor) -> torch.Tensor:
        return _warp(image, 1 / factor, 0.0, 0.0, 0.0)

    return lambda images: _each(images, one)


def move(down: float, right: float, begin: int = 0, degrees: float = 0.0) -> Change:
    """Move the camera from a frame on, by shares of the image, and turn it."""

    def change(images: np.ndarray) -> np.ndarray:
        moved = _each(images[begin:], lambda image: _warp(image, 1.0, down, right, degrees))
        return np.concatenate([images[:begin], moved])

    return change


def tint(*gains: float) -> Change:
    """Multiply the channels."""
    return lambda images: np.clip(images * np.array(gains, np.float32), 0, 255).astype(np.uint8)


def saturate(share: float) -> Change:
    """Keep a share of the distance to gray: 0 is a gray image."""

    def change(images: np.ndarray) -> np.ndarray:
        gray = images.mean(axis=3, keepdims=True, dtype=np.float32)
        return np.clip(gray + share * (images - gray), 0, 255).astype(np.uint8)

    return change


def tear(age: int, every: int, bottom: bool = True) -> Change:
    """Fill half of every n-th image from an older one."""

    def change(images: np.ndarray) -> np.ndarray:
        torn = images.copy()
        half = images.shape[1] // 2
        part = slice(half, None) if bottom else slice(half)
        for frame in range(age, len(images), every):
            torn[frame, part] = images[frame - age, part]
        return torn

    return change


def flicker(share: float, age: int) -> Change:
    """Replace a random share of the images by older ones: frames out of order."""

    def change(images: np.ndarray) -> np.ndarray:
        frames = np.arange(len(images))
        old = (np.random.default_rng(21).random(len(images)) < share) & (frames >= age)
        return images[np.where(old, frames - age, frames)]

    return change


def bgr(images: np.ndarray) -> np.ndarray:
    """Exchange red and blue."""
    return images[..., ::-1]


def _each(images: np.ndarray, one: Callable[[torch.Tensor], torch.Tensor]) -> np.ndarray:
    """Apply a function of float32 (1, 3, H, W) to each image."""
    changed = [
        one(torch.from_numpy(image.copy()).permute(2, 0, 1)[None].float()) for image in images
    ]
    return np.stack([part[0].permute(1, 2, 0).clamp(0, 255).byte().numpy() for part in changed])


def _warp(
    image: torch.Tensor, scale: float, down: float, right: float, degrees: float
) -> torch.Tensor:
    cos = scale * np.cos(np.radians(degrees))
    sin = scale * np.sin(np.radians(degrees))
    theta = torch.tensor([[[cos, -sin, -2 * right], [sin, cos, -2 * down]]], dtype=torch.float32)
    grid = functional.affine_grid(theta, list(image.shape), align_corners=False)
    return functional.grid_sample(image, grid, padding_mode="border", align_corners=False)


UNDECIDED = {
    # the objects of each episode hide the scene
    *("v2.1_zoomed", "v2.1_camera_moved_midway", "v2.1_camera_moved"),
    *("g1_zoomed", "g1_camera_moved"),  # three of eight episodes show another pose
    "g1_colors_exchanged_in_half",  # the scene is gray
    "gr1_videos_exchanged",  # both episodes move alike
}
"""Known faults that the rules cannot see in their dataset, and list as undecided."""
