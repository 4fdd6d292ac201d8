"""Result of `Policy.imagine`: the predicted consequences of a chunk of actions."""

from typing import NamedTuple

from torch import Tensor


class Imagined(NamedTuple):
    """Predicted consequences of actions."""

    actions: Tensor
    """float32 [B, T, A] in the robot's units: the given actions, or the policy's own."""
    states: Tensor
    """float32 [B, T, S] in the robot's units, after each action."""
    images: Tensor | None
    """uint8 [B, K, cameras, 3, H, W] of the network's size, K frames of `images_ahead`; None without future images."""
