"""Instructions as UTF-8 bytes: any language, no vocabulary file, nothing to download.

It distinguishes a few hundred instructions. It is no language model: a wording absent from training carries no meaning.
"""

from collections.abc import Sequence

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from understudy.policies.common.layers import Conv1d, Linear, layer_norm

FREQUENCY = 4.0  # deviation of a fresh phase in radians: from 4 on, sentences that differ in a word are unrelated
START, PAD = 256, 257  # after the 256 byte values; START makes the empty text a text of one token


def byte_tokens(texts: Sequence[str], length: int) -> Tensor:
    """Encode texts as UTF-8 bytes behind a START token, cut or padded to `length`: int64 [len(texts), length]."""
    tokens = torch.full((len(texts), length), PAD, dtype=torch.int64)
    for row, text in enumerate(texts):
        ids = [START, *text.encode("utf-8")[: length - 1]]
        tokens[row, : len(ids)] = torch.tensor(ids)
    return tokens


def text_room(texts: Sequence[str], length: int) -> tuple[int, int, str]:
    """Return the tokens of the longest text before it is cut, `length`, and the setting of that."""
    return 1 + max((len(text.encode("utf-8")) for text in texts), default=0), length, "text_bytes"


class TextEncoder(nn.Module):
    """Byte tokens -> one vector per text.

    Convolutions over the bytes detect words, then the maximum over places (Kim 2014, "Convolutional Neural Networks for
    Sentence Classification"). The sine of a random projection separates the sentences (random Fourier features, Rahimi
    & Recht 2007).

    The separation matters. Sentences of a dataset often differ in one word, and a mean over their tokens differs by a
    tenth: a policy then memorises the training scenes before it uses the words. Here two different sentences start
    nearly orthogonal.

    Texts repeat within a batch (a dataset has few tasks), so each distinct one is encoded once.
    """

    def __init__(self, length: int, width: int, out: int) -> None:
        """Build the encoder of `length` bytes, embedded in `width` numbers, to vectors of `out` numbers."""
        super().__init__()
        self.length = length
        self.embed = nn.Embedding(PAD + 1, width)
        self.near = Conv1d(width, out, 5, padding=2)  # letters within a word
        self.far = Conv1d(out, out, 5, padding=8, dilation=4)  # a word and its neighbours
        self.out = Linear(out, out)
        nn.init.normal_(self.out.weight, std=FREQUENCY * out**-0.5)

    def forward(self, texts: Sequence[str] | Tensor, dtype: torch.dtype) -> Tensor:
        """Encode B strings, or their `byte_tokens` [B, L], as [B, out] in -1..1, in `dtype`."""
        device = self.embed.weight.device
        if isinstance(texts, Tensor):
            return self._encode(texts.to(device), dtype)
        distinct = sorted(set(texts))
        where = {text: row for row, text in enumerate(distinct)}
        found = self._encode(byte_tokens(distinct, self.length).to(device), dtype)
        return found[torch.tensor([where[text] for text in texts], device=device)]

    def _encode(self, tokens: Tensor, dtype: torch.dtype) -> Tensor:
        """Encode tokens [U, L] as [U, out]."""
        valid = (tokens != PAD)[:, None]  # [U, 1, L]
        x = torch.where(valid, self.embed(tokens).transpose(1, 2), 0).to(dtype)  # [U, W, L]
        x = torch.where(valid, F.relu(self.near(x)), 0)  # [U, out, L]
        x = torch.where(valid, x + F.relu(self.far(x)), 0)
        phase = self.out(layer_norm(x.amax(dim=2).float()))  # [U, out], float32: a phase in radians bears no rounding
        return torch.sin(phase).to(dtype)
