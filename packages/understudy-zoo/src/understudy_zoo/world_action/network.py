"""Streams of the future in the action expert of pi0.5, and future images as their tokens.

                images, prompt -> language tower of pi0.5 --- keys, values of each layer
                                                                    |
    the policy  noisy actions                         -> expert <---+--> velocity
    the world   noisy actions | states | images ahead -> expert <---+--> velocities, images

Both lines are blocks of one suffix, and neither sees the other. So the policy computes as pi0.5
does, whatever the future adds, and acts without it. In the second block each stream has its own
flow time, and 0 where it is given (Zhu et al. 2025, "Unified World Models").

A future image is a row of patches. A patch is the lower half, in each axis, of the discrete cosine
transform of its change against the present (Ning et al. 2024, "DCTdiff: Intriguing Properties of
Image Generative Modeling in the DCT Space"). This tokenizer is orthonormal: it has no weights,
every size of the network and every camera has it, and its transpose makes pixels. Features of the
vision encoder would have none of that: the encoder is trained, so that they move, and a second
network would have to decode them. The expert predicts clean patches instead of velocities: a patch
may have more numbers than a token, so that a token cannot hold its noise (Li & He 2025, "Back to
Basics: Let Denoising Generative Models Denoise").
"""

import math
from collections.abc import Mapping
from typing import cast

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from understudy import Linear, LossTerm, Pi05Policy, Suffix
from understudy_zoo.world_action.config import WorldActionConfig

CHANGE = 0.25
"""Unit of a change of a pixel in the stream of images; pixels are in -1..1."""


def to_patches(images: Tensor, side: int) -> Tensor:
    """Transform images [..., 3, H, W] into patches [..., P, 3 * (side / 2)^2], row by row; `side`
    divides H and W.
    """
    # [..., 3, h, side, w, side]
    pixels = images.unflatten(-1, (-1, side)).unflatten(-3, (-1, side))
    basis = _basis(side, images.device)
    return (
        torch.einsum("...chywx,ky,lx->...hwckl", pixels, basis, basis).flatten(-3).flatten(-3, -2)
    )


def to_images(patches: Tensor, height: int, side: int) -> Tensor:
    """Join patches [..., P, 3 * (side / 2)^2] to images [..., 3, height, W], the transpose of
    `to_patches`.
    """
    # [..., h, w, 3, k, l]
    parts = patches.unflatten(-1, (3, side // 2, side // 2)).unflatten(-4, (height // side, -1))
    basis = _basis(side, patches.device)
    return torch.einsum("...hwckl,ky,lx->...chywx", parts, basis, basis).flatten(-2).flatten(-3, -2)


def _basis(side: int, device: torch.device) -> Tensor:
    """First half of the orthonormal cosines (DCT-II), float32 [side / 2, side]."""
    number, place = (
        torch.arange(count, dtype=torch.float64, device=device) for count in (side // 2, side)
    )
    cosines = torch.cos(math.pi / side * (place + 0.5) * number[:, None]) * math.sqrt(2 / side)
    return torch.where(number[:, None] == 0, math.sqrt(0.5) * cosines, cosines).float()


class Future(nn.Module):
    """Layers of the streams of the future; the rest is pi0.5's. They compute in float32."""

    def __init__(self, config: WorldActionConfig) -> None:
        """Build the layers with fresh weights: the expert first imagines a copy of the present."""
        super().__init__()
        sizes = config.sizes
        width = config.sizes.expert.width
        self.streams = {
            LossTerm.FLOW: (config.chunk, sizes.dim),
            LossTerm.DYNAMICS: (config.chunk, sizes.dim),
        }
        if config.imagined:
            count = config.imagined * len(config.cameras) * config.patches
            self.streams[LossTerm.IMAGES] = (count, 3 * (config.patch_side // 2) ** 2)
        ahead = {name: dim for name, (_, dim) in self.streams.items() if name != LossTerm.FLOW}
        self.in_proj = nn.ModuleDict({name: Linear(dim, width) for name, dim in ahead.items()})
        self.out_proj = nn.ModuleDict(
            {name: Linear(width, dim).zeroed() for name, dim in ahead.items()}
        )
        self.slots = nn.ParameterDict(
            {
                name: nn.Parameter(torch.randn(count, width) * width**-0.5)
                for name, (count, _) in self.streams.items()
            }
        )
        if config.imagined:
            self.now_proj = Linear(self.streams[LossTerm.IMAGES][1], width)

    def suffix(
        self,
        network: Pi05Policy,
        points: Mapping[str, Tensor],
        times: Mapping[str, Tensor],
        now: Tensor | None,
        alone: Tensor | None = None,
        alone_time: Tensor | None = None,
    ) -> Suffix:
        """Embed points of the streams.

        Args:
            network: the network, with the layers of actions and times.
            points: float32 [B, N, tokens, dim] of each stream.
            times: float32 [B, N] of each stream.
            now: patches of the present images, float32 [B, cameras * P, dim]; None without future
                images.
            alone: noisy actions of the policy's block, float32 [B, N, chunk, dim]; None: there is
                no such block.
            alone_time: their times, float32 [B, N].
        """
        # One call of each layer: a sharded one adds up the gradients of two calls in another
        # sequence.
        before = alone.shape[2] if alone is not None else 0
        actions = points[LossTerm.FLOW]
        if alone is not None:
            actions = torch.cat([alone, actions], dim=2)
        tokens = []
        spread = [times[name] for name in self.streams]
        for name in self.streams:
            padding = before if name == LossTerm.FLOW else 0
            slots = F.pad(self.slots[name].float(), (0, 0, padding, 0))
            if name == LossTerm.FLOW:
                embedded = network.action_in_proj.rows(actions.float())
            else:
                embedded = _layer(self.in_proj, name).rows(points[name].float())
            tokens.append(embedded + slots)
        if now is not None:
            count = tokens[-1].shape[2] // now.shape[1]
            tokens[-1] = tokens[-1] + self.now_proj.rows(now).repeat(1, count, 1)[:, None]
        groups: tuple[int, ...] = tuple(count for count, _ in self.streams.values())
        if alone_time is not None:
            spread = [alone_time, *spread]
            groups = (before, *groups)
        condition = network.condition(torch.stack(spread, dim=2).flatten(0, 1))
        blocks: tuple[tuple[int, int], ...] = ((0, 0),)
        if before:
            blocks = (*blocks, (before, before))
        joined = torch.cat(tokens, dim=2).flatten(0, 1).to(network.dtype)
        return Suffix(joined, condition, points[LossTerm.FLOW].shape[1], blocks, groups)

    def read(
        self, network: Pi05Policy, result: Tensor, count: int
    ) -> tuple[dict[str, Tensor], Tensor | None]:
        """Read the predictions of N rows of each sample from the expert's result.

        Returns:
            float32 [B, N, tokens, dim] of each stream: velocities, and of the images clean patches.
            And the velocity of the policy's block, where there is one.
        """
        whole = result.unflatten(0, (-1, count))
        ahead = [tokens for name, (tokens, _) in self.streams.items() if name != LossTerm.FLOW]
        actions, *parts = whole.split([whole.shape[2] - sum(ahead), *ahead], dim=2)
        moves = network.action_out_proj.rows(actions)
        joint_count = self.streams[LossTerm.FLOW][0]
        alone_count = moves.shape[2] - joint_count
        alone, joint = moves.split([alone_count, joint_count], dim=2)
        names = (name for name in self.streams if name != LossTerm.FLOW)
        predicted = {
            name: _layer(self.out_proj, name).rows(part)
            for name, part in zip(names, parts, strict=True)
        }
        own_velocity = alone if alone_count else None
        return {LossTerm.FLOW: joint, **predicted}, own_velocity


def _layer(layers: nn.ModuleDict, name: str) -> Linear:
    return cast(Linear, layers[name])
