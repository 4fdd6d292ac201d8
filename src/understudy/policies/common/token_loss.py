"""Cross-entropy over a large vocabulary, computed at the predicted tokens alone and in parts."""

import torch
import torch.nn.functional as F
from torch import Tensor
from torch.utils.checkpoint import checkpoint

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
