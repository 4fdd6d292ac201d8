"""Instructions as UTF-8 bytes: any language, no vocabulary file, nothing to download.

Enough to tell a few hundred instructions apart; not a language model, so a wording never seen in training means
nothing to it.
"""

from collections.abc import Sequence

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from understudy.policies.layers import Linear, layer_norm

START, PAD = 256, 257  # after the 256 byte values; START makes the empty text a text of one token


def byte_tokens(texts: Sequence[str], length: int) -> Tensor:
    """UTF-8 bytes behind a START token, cut or padded to `length`. int64 [len(texts), length]."""
    tokens = torch.full((len(texts), length), PAD, dtype=torch.int64)
    for row, text in enumerate(texts):
        ids = [START, *text.encode("utf-8")[: length - 1]]
        tokens[row, : len(ids)] = torch.tensor(ids)
    return tokens


class TextEncoder(nn.Module):
    """Byte tokens -> one vector per text: embedding plus place, one self-attention block, mean over the tokens.

    Texts repeat within a batch (a dataset has few tasks), so each distinct one is encoded once.
    """

    def __init__(self, length: int, width: int, out: int, heads: int = 4) -> None:
        super().__init__()
        self.length, self.heads = length, heads
        self.embed = nn.Embedding(PAD + 1, width)
        self.place = nn.Parameter(torch.randn(length, width) * 0.5)
        self.qkv = Linear(width, 3 * width)
        self.mix = Linear(width, width)
        self.grow = Linear(width, 2 * width)
        self.shrink = Linear(2 * width, width)
        self.out = Linear(width, out)

    def forward(self, texts: Sequence[str], dtype: torch.dtype) -> Tensor:
        """texts: B strings -> [B, out] in `dtype`, on the parameters' device."""
        device = self.place.device
        distinct = sorted(set(texts))
        where = {text: row for row, text in enumerate(distinct)}
        tokens = byte_tokens(distinct, self.length).to(device)  # [U, L]
        valid = tokens != PAD  # [U, L]
        x = (self.embed(tokens) + self.place).to(dtype)  # [U, L, W]
        rows, length, width = x.shape
        qkv = self.qkv(layer_norm(x)).view(rows, length, 3, self.heads, width // self.heads)
        q, k, v = qkv.permute(2, 0, 3, 1, 4)  # each [U, heads, L, W / heads]
        seen = F.scaled_dot_product_attention(q, k, v, attn_mask=valid[:, None, None, :])
        x = x + self.mix(seen.transpose(1, 2).reshape(rows, length, width))
        x = x + self.shrink(F.gelu(self.grow(layer_norm(x))))
        keep = valid[..., None]  # [U, L, 1]
        pooled = torch.where(keep, x, 0).sum(dim=1) / keep.sum(dim=1)  # [U, W]
        out = self.out(layer_norm(pooled))  # [U, out]
        return out[torch.tensor([where[text] for text in texts], device=device)]
