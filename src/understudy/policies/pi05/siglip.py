"""SigLIP vision encoder (Zhai et al. 2023, "Sigmoid Loss for Language Image Pre-Training"): an image, a row of tokens.

The patch convolution and the table of positions compute in float32, whatever the precision of the rest, as in the
released JAX code. The parameter names are those of the released files.
"""

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from understudy.policies.common.layers import Conv2d, Linear
from understudy.policies.pi05.attention import attend
from understudy.policies.pi05.sizes import VisionSizes

EPS = 1e-6


class LayerNorm(nn.LayerNorm):
    """Layer norm with scale and bias, computed in float32, in its input's dtype."""

    def forward(self, input: Tensor) -> Tensor:
        """Normalize [..., width]."""
        bias = None if self.bias is None else self.bias.float()
        return F.layer_norm(input.float(), self.normalized_shape, self.weight.float(), bias, self.eps).to(input.dtype)


class Attention(nn.Module):
    """Self-attention of all tokens of an image, with biases."""

    def __init__(self, width: int, heads: int) -> None:
        """Build the projections."""
        super().__init__()
        self.heads = heads
        self.q_proj = Linear(width, width)
        self.k_proj = Linear(width, width)
        self.v_proj = Linear(width, width)
        self.out_proj = Linear(width, width)

    def forward(self, x: Tensor) -> Tensor:
        """Map tokens [M, n, width] to [M, n, width]."""
        q, k, v = (
            proj(x).unflatten(-1, (self.heads, -1)).transpose(1, 2) for proj in (self.q_proj, self.k_proj, self.v_proj)
        )
        found: Tensor = self.out_proj(attend(q, k, v))
        return found


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
    """Pre-norm transformer layer."""

    def __init__(self, sizes: VisionSizes) -> None:
        """Build the layer."""
        super().__init__()
        self.layer_norm1 = LayerNorm(sizes.width, eps=EPS)
        self.self_attn = Attention(sizes.width, sizes.heads)
        self.layer_norm2 = LayerNorm(sizes.width, eps=EPS)
        self.mlp = Mlp(sizes.width, sizes.mlp)

    def forward(self, x: Tensor) -> Tensor:
        """Map tokens [M, n, width] to [M, n, width]."""
        x = x + self.self_attn(self.layer_norm1(x))
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
        self.layers = nn.ModuleList(VisionLayer(sizes) for _ in range(sizes.depth))
        self.norm = LayerNorm(sizes.width, eps=EPS)

    def forward(self, images: Tensor, dtype: torch.dtype) -> Tensor:
        """Encode images.

        Args:
            images: float32 [M, 3, image, image] in -1..1.
            dtype: of the layers' arithmetic.

        Returns:
            [M, n, width] in `dtype`, the tokens row by row.
        """
        patches = self.patch(images.float()).flatten(2).transpose(1, 2)  # [M, n, width], float32
        places = self.position(torch.arange(patches.shape[1], device=images.device)).float()
        x = (patches + places).to(dtype)
        for layer in self.layers:
            x = layer(x)
        found: Tensor = self.norm(x)
        return found
