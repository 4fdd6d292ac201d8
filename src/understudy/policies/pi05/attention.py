"""Attention between segments of tokens, and rotary positions.

A sequence is [prefix | tail | suffix]: images and prompt; text to predict; state and actions.

    queries      keys: prefix  response  FAST    suffix
    prefix             x
    response           x       causal
    FAST               x       x         causal
    suffix             x       x                 x

Each row is one call of `attend`. The prefix is bidirectional, and so is the suffix. (The state token of pi0 does not
see the actions.) A mask hides keys only, never queries: the result of a padded token is read by no other token, and no
softmax has zero keys. Without padding there is no mask at all, so that a GPU takes its fastest kernel.
"""

from typing import NamedTuple

import torch
import torch.nn.functional as F
from torch import Tensor

THETA = 10_000.0
"""Base of the rotary periods (Su et al. 2021, "RoFormer", and Gemma)."""


class Rotary(NamedTuple):
    """Rotations of a sequence of tokens. `cos` and `sin`: float32 [B, 1, T, head_dim / 2]."""

    cos: Tensor
    sin: Tensor


def rotary(positions: Tensor, head_dim: int) -> Rotary:
    """Compute the rotations of positions, int64 [B, T]: angle i is position * THETA^(-2 i / head_dim), in float32.

    They are computed where they are used. A buffer of frequencies would be cast with the module: in bfloat16 the angle
    of position 500 is off by up to 0.7 rad.
    """
    exponents = torch.arange(0, head_dim, 2, device=positions.device).float() / head_dim
    angles = positions.float()[:, None, :, None] * (1.0 / THETA**exponents)  # [B, 1, T, head_dim / 2]
    return Rotary(angles.cos(), angles.sin())


def rotate(x: Tensor, at: Rotary) -> Tensor:
    """Rotate x [B, heads, T, head_dim], its first half against its second; computed in float32, in x's dtype."""
    one, two = x.float().chunk(2, dim=-1)
    return torch.cat([one * at.cos - two * at.sin, two * at.cos + one * at.sin], dim=-1).to(x.dtype)


def attend(q: Tensor, k: Tensor, v: Tensor, mask: Tensor | None = None) -> Tensor:
    """Average the values v by the softmax of q k^T / sqrt(head_dim).

    Args:
        q: [B, heads, T, head_dim].
        k: [B, kv_heads, S, head_dim]; `kv_heads` divides `heads`, and consecutive query heads share one.
        v: as k.
        mask: bool, broadcastable to [B, heads, T, S]: True where a query sees a key. None: each sees all.

    Returns:
        [B, T, heads * head_dim].
    """
    batch, heads, length, _ = q.shape
    found = F.scaled_dot_product_attention(q, _per_head(k, heads), _per_head(v, heads), attn_mask=mask)
    return found.transpose(1, 2).reshape(batch, length, -1)


def _per_head(x: Tensor, heads: int) -> Tensor:
    """Repeat [B, kv_heads, S, D] for each query head without a copy where there is one, [B, heads, S, D].

    Not `enable_gqa`: with it and a mask, a GPU would take the slowest kernel.
    """
    batch, own, length, dim = x.shape
    return x[:, :, None].expand(batch, own, heads // own, length, dim).reshape(batch, heads, length, dim)


def key_mask(*valid: Tensor | None, lengths: tuple[int, ...], batch: int, device: torch.device) -> Tensor | None:
    """Join the marks of several segments into a mask of keys, bool [B, 1, 1, S].

    Args:
        valid: of each segment bool [B, length], None where all its tokens are valid.
        lengths: tokens of each segment.
        batch: B.
        device: of the mask.

    Returns:
        None where all segments are valid.
    """
    if all(marks is None for marks in valid):
        return None
    parts = [
        torch.ones(batch, length, dtype=torch.bool, device=device) if marks is None else marks
        for marks, length in zip(valid, lengths)
    ]
    return torch.cat(parts, dim=1)[:, None, None]
