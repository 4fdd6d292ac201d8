"""Layers of the policies with explicit precision: parameters are cast to the input's dtype.

Parameters keep their stored dtype (float32 for training). Layers compute in the dtype of their
input, normalization layers in float32. There is no autocast: this file shows the precision of each
operation.
"""

from typing import Any, Self

import torch
import torch.nn.functional as F
from torch import Tensor, nn
from torch.utils.checkpoint import checkpoint


class Linear(nn.Linear):
    """y = x W^T + b in x's dtype."""

    def forward(self, input: Tensor) -> Tensor:
        """Map [..., in] to [..., out]."""
        weight = self.weight.to(input.dtype)
        bias = None if self.bias is None else self.bias.to(input.dtype)
        return F.linear(input, weight, bias)

    def rows(self, x: Tensor) -> Tensor:
        """Map x [..., in] to [..., out] as a matrix: torch returns a product of more dimensions as
        a view.

        FSDP2 warns of views that a sharded module returns: an operation in place would drop its
        hook.
        """
        product: Tensor = self(x.flatten(0, -2))
        return product.unflatten(0, x.shape[:-1])

    def zeroed(self) -> Self:
        """Set weight and bias to 0, and return the layer: a residual or modulation that starts as
        the identity.
        """
        nn.init.zeros_(self.weight)
        nn.init.zeros_(self.bias)
        return self


class Conv1d(nn.Conv1d):
    """1-D convolution in x's dtype, zero padding as given."""

    def forward(self, input: Tensor) -> Tensor:
        """Convolve the input."""
        bias = None if self.bias is None else self.bias.to(input.dtype)
        return self._conv_forward(input, self.weight.to(input.dtype), bias)


class Conv2d(nn.Conv2d):
    """2-D convolution in x's dtype, zero padding as given."""

    def forward(self, input: Tensor) -> Tensor:
        """Convolve the input."""
        bias = None if self.bias is None else self.bias.to(input.dtype)
        return self._conv_forward(input, self.weight.to(input.dtype), bias)


class Embedding(nn.Embedding):
    """Table of rows in any float dtype; the rows come in float32.

    Where the gradient of a bfloat16 table is float32 (`Tensor.grad_dtype`), its rows are summed in
    float32, too.
    """

    def forward(self, input: Tensor) -> Tensor:
        """Look up rows by their numbers, int64 [...]; returns float32 [..., width]."""
        if (
            self.weight.dtype != torch.float32
            and getattr(self.weight, "grad_dtype", None) == torch.float32
        ):
            embedded: Tensor = _Float32Rows.apply(  # type: ignore[no-untyped-call]
                self.weight, input
            )
            return embedded
        return super().forward(input).float()


class _Float32Rows(torch.autograd.Function):
    """Rows of a table in float32, with a float32 gradient of the table: its rows are sums over
    equal numbers.
    """

    @staticmethod
    def forward(context: Any, table: Tensor, numbers: Tensor) -> Tensor:
        """Look up rows."""
        context.save_for_backward(numbers)
        context.count = table.shape[0]
        return F.embedding(numbers, table).float()

    @staticmethod
    def backward(context: Any, gradient: Tensor) -> tuple[Tensor, None]:
        """Sum the gradients of each row."""
        (numbers,) = context.saved_tensors
        return torch.ops.aten.embedding_dense_backward(
            gradient, numbers, context.count, -1, False
        ), None


def layer_norm(x: Tensor) -> Tensor:
    """Normalize to zero mean and unit variance over the last dimension, computed in float32,
    without learned scale.
    """
    return F.layer_norm(x.float(), x.shape[-1:]).to(x.dtype)


def group_norm(x: Tensor, groups: int) -> Tensor:
    """Normalize to zero mean and unit variance over each group of channels and all places of [B, C,
    H, W], in float32.

    It works per sample, so the output of a sample does not depend on the rest of its batch (batch
    norm's would).
    """
    return F.group_norm(x.float(), groups).to(x.dtype)


def sinusoids(time: Tensor, dim: int) -> Tensor:
    """Compute sine-cosine features of times in [0, 1], with pi0's log-spaced periods 0.004 to 4.

    [...] -> float32 [..., dim].
    """
    if dim % 2:
        raise ValueError(f"dim={dim}: sine-cosine features come in pairs, use an even number")
    exponents = torch.linspace(0.0, 1.0, dim // 2, device=time.device)
    angles = time.float()[..., None] * (2 * torch.pi / (4e-3 * 1000.0**exponents))
    return torch.cat([angles.sin(), angles.cos()], dim=-1)


class Layer(nn.Module):
    """A residual MLP layer modulated by the condition (adaLN-zero, Peebles & Xie 2023, "Scalable
    Diffusion Models").
    """

    def __init__(self, width: int) -> None:
        """Build the layer for vectors of `width`."""
        super().__init__()
        self.modulate = Linear(width, 3 * width).zeroed()
        self.grow = Linear(width, 2 * width)
        self.shrink = Linear(2 * width, width)

    def forward(self, x: Tensor, condition: Tensor) -> Tensor:
        """Map x and condition, [..., width] each, to [..., width]."""
        scale, shift, gate = self.modulate(condition).chunk(3, dim=-1)
        return x + gate * self.shrink(F.gelu(self.grow(layer_norm(x) * (1 + scale) + shift)))


PART = 2048
"""Tokens whose logits exist at the same time: 2 GB in float32 at 257,152 words."""


def token_cross_entropy(hidden: Tensor, table: Tensor, targets: Tensor, part: int = PART) -> Tensor:
    """Compute -log p(target) per token, of logits `hidden @ table.T`.

    The logits of one part exist at a time; the backward pass computes them again.

    Args:
        hidden: [N, width], in the dtype of the products.
        table: [vocab, width], the output embedding.
        targets: int64 [N].
        part: tokens of a part.

    Returns:
        float32 [N]; N may be 0.
    """
    table = table.to(hidden.dtype)

    def loss(x: Tensor, target: Tensor, weight: Tensor) -> Tensor:
        return F.cross_entropy(F.linear(x, weight).float(), target, reduction="none")

    if len(hidden) <= part and not torch.is_grad_enabled():
        return loss(hidden, targets, table)
    parts = [
        checkpoint(loss, x, target, table, use_reentrant=False)
        for x, target in zip(hidden.split(part), targets.split(part))
    ]
    return torch.cat(parts)
