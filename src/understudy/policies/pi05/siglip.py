"""SigLIP vision encoder (Zhai et al. 2023, "Sigmoid Loss for Language Image Pre-Training"): an image, a row of tokens.

The patch convolution and the table of positions compute in float32, whatever the precision of the rest, as in the
released JAX code. The parameter names are those of the released files.

With past frames the encoder is that of MEM (2026, arXiv 2603.03596), with the same weights. In every
`temporal_every`-th layer each patch also attends to itself in earlier frames, with the queries and keys of the layer:

    u  = h + e(t)                   t <= 0: seconds from the present, e(0) = 0; q, k, v are those of u
    v' = attend(q, k, v)            of each patch, over the frames up to each one's own
    h  = h + out(attend(q, k, v'))  of each frame, over its patches

The present frame alone has tokens for later layers, so its features are as long as those of one image. A single frame
takes the plain path, to the bit. A present frame whose whole past is masked has the bits of a batch of as many images:
its only key has the weight 1. A batch of fewer images rounds matrix products differently in some shapes.
"""

from collections.abc import Sequence
from typing import NamedTuple

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from understudy.policies.batch import check_shape, to_device
from understudy.policies.common.layers import Conv2d, Linear
from understudy.policies.common.towers.attention import attend
from understudy.policies.pi05.sizes import VisionSizes

EPS = 1e-6


class Frames(NamedTuple):
    """Times and marks of the frames of videos."""

    times: Sequence[float]
    """Seconds from the present, ascending; the last is 0, the present."""
    valid: Tensor | None = None
    """bool [..., T], False where the episode has no such frame; None: all are valid. The present is always valid."""


class Past(NamedTuple):
    """Frames of videos, as a temporal layer takes them."""

    encoding: Tensor
    """[T, 1, width], e(t)."""
    mask: Tensor
    """bool [M or 1, 1, T, T], True where a frame sees a frame."""


class LayerNorm(nn.LayerNorm):
    """Layer norm in float32, in its input's dtype; scale and bias are rounded to it first, as in `RMSNorm`."""

    def forward(self, input: Tensor) -> Tensor:
        """Normalize [..., width]."""
        scale, bias = (each.to(input.dtype).float() for each in (self.weight, self.bias))
        return F.layer_norm(input.float(), self.normalized_shape, scale, bias, self.eps).to(input.dtype)


class Attention(nn.Module):
    """Self-attention of all tokens of an image, with biases; before it, of each token over the frames of a video."""

    def __init__(self, width: int, heads: int) -> None:
        """Build the projections."""
        super().__init__()
        self.heads = heads
        self.q_proj = Linear(width, width)
        self.k_proj = Linear(width, width)
        self.v_proj = Linear(width, width)
        self.out_proj = Linear(width, width)

    def forward(self, x: Tensor, mask: Tensor | None = None) -> Tensor:
        """Map tokens [M, n, width] to [M, n, width].

        Args:
            x: the tokens; with `mask` [M * T, n, width], T consecutive frames of each video.
            mask: bool [M or 1, 1, T, T], see `Past`. None: images.
        """
        q, k, v = (
            proj(x).unflatten(-1, (self.heads, -1)).transpose(1, 2) for proj in (self.q_proj, self.k_proj, self.v_proj)
        )
        if mask is not None:
            v = attend_over_time(q, k, v, mask)
        found: Tensor = self.out_proj(attend(q, k, v))
        return found


def attend_over_time(q: Tensor, k: Tensor, v: Tensor, mask: Tensor) -> Tensor:
    """Average the values of each patch over the frames of its video.

    Args:
        q: [M * T, heads, n, head_dim].
        k: as q.
        v: as q.
        mask: bool [M or 1, 1, T, T]: True where a frame sees a frame.

    Returns:
        Values, in the shape of v.
    """
    count, (heads, patches) = mask.shape[-1], q.shape[1:3]

    def by_patch(x: Tensor) -> Tensor:  # [M, heads * n, T, head_dim]: the mask needs no copy for each patch
        return x.unflatten(0, (-1, count)).permute(0, 2, 3, 1, 4).flatten(1, 2)

    found = F.scaled_dot_product_attention(by_patch(q), by_patch(k), by_patch(v), attn_mask=mask)
    return found.unflatten(1, (heads, patches)).permute(0, 3, 1, 2, 4).flatten(0, 1)


class Mlp(nn.Module):
    """fc2(gelu(fc1(x))), with the tanh form of gelu."""

    def __init__(self, width: int, hidden: int) -> None:
        """Build the layers."""
        super().__init__()
        self.fc1 = Linear(width, hidden)
        self.fc2 = Linear(hidden, width)

    def forward(self, x: Tensor) -> Tensor:
        """Map [..., width] to [..., width]."""
        found: Tensor = self.fc2(F.gelu(self.fc1(x), approximate="tanh"))
        return found


class VisionLayer(nn.Module):
    """Pre-norm transformer layer; with `temporal` it also attends over the frames of videos."""

    def __init__(self, sizes: VisionSizes, temporal: bool = False) -> None:
        """Build the layer; `temporal` adds no weights."""
        super().__init__()
        self.temporal = temporal
        self.layer_norm1 = LayerNorm(sizes.width, eps=EPS)
        self.self_attn = Attention(sizes.width, sizes.heads)
        self.layer_norm2 = LayerNorm(sizes.width, eps=EPS)
        self.mlp = Mlp(sizes.width, sizes.mlp)

    def forward(self, x: Tensor, past: Past | None = None) -> Tensor:
        """Map tokens [M, n, width] to [M, n, width].

        Args:
            x: the tokens; with `past` [M * T, n, width], T consecutive frames of each video.
            past: the frames, for a temporal layer.
        """
        if past is None:
            x = x + self.self_attn(self.layer_norm1(x))
        else:
            dated = (x.unflatten(0, (-1, len(past.encoding))) + past.encoding).flatten(0, 1)
            x = x + self.self_attn(self.layer_norm1(dated), past.mask)
        found: Tensor = x + self.mlp(self.layer_norm2(x))
        return found


class VisionEncoder(nn.Module):
    """Patches, learned positions, layers and a last norm; no pooling."""

    def __init__(self, sizes: VisionSizes) -> None:
        """Build the encoder."""
        super().__init__()
        self.patch = Conv2d(3, sizes.width, sizes.patch, stride=sizes.patch)
        self.position = nn.Embedding(sizes.tokens, sizes.width)
        nn.init.normal_(self.position.weight, std=sizes.width**-0.5)
        temporal = sizes.temporal_layers
        self.layers = nn.ModuleList(VisionLayer(sizes, number in temporal) for number in range(sizes.depth))
        self.norm = LayerNorm(sizes.width, eps=EPS)
        self.last_temporal = temporal[-1]

    def forward(self, images: Tensor, dtype: torch.dtype, frames: Frames | None = None) -> Tensor:
        """Encode images, or the present frame of videos with its past.

        Args:
            images: float32 [M, 3, image, image] in -1..1; with `frames` [M, T, 3, image, image], oldest frame first.
                Frames that are not valid may hold anything.
            dtype: of the layers' arithmetic.
            frames: times, and marks [M, T].

        Returns:
            [M, n, width] in `dtype`, the tokens row by row.
        """
        past = None
        if frames is not None:
            past, images = self._past(images, dtype, frames)
        patches = self.patch(images.float()).flatten(2).transpose(1, 2)  # [M * T, n, width], float32
        places = self.position(torch.arange(patches.shape[1], device=images.device)).float()
        x = (patches + places).to(dtype)
        for number, layer in enumerate(self.layers):
            x = layer(x, past) if past is not None and layer.temporal else layer(x)
            if past is not None and number == self.last_temporal:  # nothing reads the past behind it
                x, past = x.unflatten(0, (-1, len(past.encoding)))[:, -1], None
        found: Tensor = self.norm(x)
        return found

    def _past(self, images: Tensor, dtype: torch.dtype, frames: Frames) -> tuple[Past | None, Tensor]:
        """Mask the frames of videos [M, T, 3, image, image], and join them, [M * T, 3, image, image]."""
        count = len(frames.times)
        check_shape("images", images, (None, count, *images.shape[2:]))
        if count == 1:
            return None, images[:, 0]
        order = torch.arange(count, device=images.device)
        mask = (order <= order[:, None])[None]  # [1, T, T]
        if frames.valid is not None:
            check_shape("valid frames", frames.valid, tuple(images.shape[:2]))
            valid = frames.valid | (order == count - 1)
            # A mask does not stop a NaN: the values of masked keys are multiplied by 0.
            images = torch.where(valid[:, :, None, None, None], images, 0.0)
            # A frame always sees itself, so that no softmax has zero keys.
            mask = mask & valid[:, None] | (order == order[:, None])
        encoding = time_encoding(frames.times, self.norm.weight.shape[0])
        encoding = to_device(encoding.to(dtype), images.device)[:, None]
        return Past(encoding, mask[:, None]), images.flatten(0, 1)


def time_encoding(times: Sequence[float], width: int) -> Tensor:
    """Compute e(t) of times in seconds, float32 [T, width]: sin(t w), cos(t w) - 1 in turn, w = 10000^(-2 i / width).

    e(0) is 0. The frequencies are those of Vaswani et al. 2017, "Attention Is All You Need", computed in float64.
    """
    frequencies = 10_000.0 ** -(torch.arange(0, width, 2, dtype=torch.float64) / width)
    angles = torch.tensor(times, dtype=torch.float64)[:, None] * frequencies
    return torch.stack([angles.sin(), angles.cos() - 1], dim=2).flatten(1)[:, :width].float()
