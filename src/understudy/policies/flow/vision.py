"""Pictures -> where things are: a small convolutional network told by the instruction what to look for.

The instruction modulates every convolution block (FiLM, Perez et al. 2018, "Visual Reasoning with a General
Conditioning Layer") and the map is read out as keypoints, the expected place of each channel (spatial softmax, Levine
et al. 2016, "End-to-End Training of Deep Visuomotor Policies"). A few dozen coordinates is all that leaves this file: a
policy on top can learn where to go, but has little to recognise a training episode by.
"""

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from understudy.policies.common.layers import Conv2d, Linear, group_norm, layer_norm

SHARPNESS = (
    3.0  # deviation of a fresh keypoint's logits: at 1 every keypoint would start near the middle of the picture
)


def as_network_input(pictures: Tensor, size: tuple[int, int], dtype: torch.dtype) -> Tensor:
    """uint8 [B, 3, H, W] -> [B, 3, *size] in -1..1, area-averaged where the size differs."""
    x = pictures.float() / 127.5 - 1
    if x.shape[-2:] != size:
        x = F.interpolate(x, size=size, mode="area")
    return x.to(dtype)


def keypoints(maps: Tensor) -> Tensor:
    """Spatial softmax in float32: [B, K, h, w] logits -> [B, 2 K], the mean (y, x) of each, in -1..1 of the map."""
    _, _, height, width = maps.shape
    weight = maps.float().flatten(2).softmax(dim=-1).view(maps.shape)  # [B, K, h, w]
    y = torch.linspace(-1, 1, height, device=maps.device)
    x = torch.linspace(-1, 1, width, device=maps.device)
    along_y = (weight.sum(dim=3) * y).sum(dim=2)  # [B, K]
    along_x = (weight.sum(dim=2) * x).sum(dim=2)  # [B, K]
    return torch.cat([along_y, along_x], dim=1)


class FilmBlock(nn.Module):
    """x + relu(film(norm(conv(x)))): a 3 x 3 residual block whose channels the condition scales and shifts.

    The modulation starts at full strength (scale and shift of deviation 1 for a condition of deviation 1), so that the
    instruction changes what is seen from the first step on. Started small, as layers are by default, training spends a
    third of its steps, and a small dataset's worth of memory, on scenes without words.
    """

    def __init__(self, channels: int, condition: int) -> None:
        super().__init__()
        self.conv = Conv2d(channels, channels, 3, padding=1)
        self.film = Linear(condition, 2 * channels)
        nn.init.normal_(self.film.weight, std=condition**-0.5)

    def forward(self, x: Tensor, condition: Tensor) -> Tensor:
        scale, shift = self.film(condition)[:, :, None, None].chunk(2, dim=1)  # each [B, C, 1, 1]
        return x + F.relu(group_norm(self.conv(x), 8) * (1 + scale) + shift)


class PictureEncoder(nn.Module):
    """One network for all cameras, each camera known to it by a learned vector added to the condition.

    The instruction writes the filters that look for the keypoints: half of them on the network's maps, half on the
    plain colours at twice the resolution. So from the first step on, other words look at other things, and some of them
    at what they mean: without that a policy explains the demonstrations by the hand's way through each scene, and on a
    few hundred episodes it may never need the words again. The finer map is for precision: a hand must come within a
    pixel or two of what it takes.
    """

    def __init__(
        self, cameras: int, size: tuple[int, int], channels: int, blocks: int, points: int, condition: int
    ) -> None:
        super().__init__()
        self.size = size
        self.camera = nn.Parameter(torch.randn(cameras, condition) * 0.5)
        self.stem = Conv2d(3, channels, 6, stride=4, padding=1)
        self.blocks = nn.ModuleList(FilmBlock(channels, condition) for _ in range(blocks))
        self.filters = _filters(condition, points // 2, channels)
        self.colours = _filters(condition, points // 2, 3)

    def forward(self, pictures: list[Tensor], condition: Tensor, missing: list[Tensor | None] | None = None) -> Tensor:
        """What is seen, float32 [B, cameras * 2 * points].

        Args:
            pictures: uint8 [B, 3, H, W] per camera.
            condition: [B, condition].
            missing: bool [B] per camera, True where a sample has no such camera: nothing (0) is seen there, whatever
                stands in for the picture. None: all have it (or them).
        """
        # All cameras at once: a sharded block that is used twice in a step adds up its two gradients otherwise than a
        # whole one does.
        told = torch.cat([layer_norm(condition + camera.to(condition.dtype)) for camera in self.camera])  # [K B, ...]
        rgb = torch.cat([as_network_input(picture, self.size, condition.dtype) for picture in pictures])
        x = F.relu(self.stem(rgb))  # [K B, C, h, w], h = H / 4
        for block in self.blocks:
            x = block(x, told)
        colour = group_norm(F.avg_pool2d(rgb, 2), 3)  # [K B, 3, 2 h, 2 w], each channel by itself
        # [K B, 2 points]: points / 2 times y, x of the network's maps, then of the plain colours
        found = torch.cat(
            [keypoints(_apply(self.filters(told), group_norm(x, 8))), keypoints(_apply(self.colours(told), colour))],
            dim=1,
        )
        seen = list(found.chunk(len(pictures)))
        for number, lacks in enumerate(missing or ()):
            if lacks is not None:
                seen[number] = torch.where(lacks[:, None], 0.0, seen[number])
        return torch.cat(seen, dim=1)


def _filters(condition: int, points: int, channels: int) -> Linear:
    """Condition [B, condition] -> one filter of `channels` numbers per keypoint, [B, points * channels]."""
    filters = Linear(condition, points * channels)
    nn.init.normal_(filters.weight, std=SHARPNESS * (condition * channels) ** -0.5)
    return filters


def _apply(filters: Tensor, maps: Tensor) -> Tensor:
    """Each sample's own filters [B, K * C] on its maps [B, C, h, w] -> [B, K, h, w]."""
    batch, channels, height, width = maps.shape
    return (filters.view(batch, -1, channels) @ maps.flatten(2)).view(batch, -1, height, width)
