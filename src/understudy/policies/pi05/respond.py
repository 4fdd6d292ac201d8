"""Text behind the prompt, the tail: tokens of a batch, their loss, and the response that a policy predicts."""

from collections.abc import Mapping, Sequence
from typing import Any

import torch
import torch.nn.functional as F
from torch import Tensor

from understudy.policies.batch import to_device, value_of
from understudy.policies.common.token_loss import token_cross_entropy
from understudy.policies.losses import Loss
from understudy.policies.pi05.extents import FAST, PROMPT, TEXT, TOKENS, Extent, cut
from understudy.policies.pi05.network import Observation, Pi0Network, Tail


def tail_of(batch: Mapping[str, Any], sizes: Sequence[Extent]) -> Tail:
    """Read the tokens to predict; without any, a tail of no tokens, so that every rank uses the same weights."""
    like = value_of(batch, PROMPT[0])
    parts, masks = [], []
    for term in (TEXT, FAST):
        tokens, mask = cut(batch.get(TOKENS[term][0], like[:, :0]), [extent.tokens(term) for extent in sizes])
        parts.append(tokens)
        masks.append(torch.ones_like(tokens, dtype=torch.bool) if mask is None else mask)
    return Tail(torch.cat(parts, dim=1), torch.cat(masks, dim=1), parts[0].shape[1])


def token_losses(
    network: Pi0Network,
    observed: Observation,
    hidden: Tensor,
    tail: Tail,
    sizes: Sequence[Extent],
    terms: Sequence[str],
) -> dict[str, Loss]:
    """Compute the cross-entropy of the tail per sample; the last valid token before each predicts it.

    Args:
        network: its embedding is the table of logits, too.
        observed: prefix and tail.
        hidden: [B, P + L, width], the tower's result for `observed`.
        tail: the targets.
        sizes: numbers of valid tokens.
        terms: of `TOKENS`.
    """
    prefix, (count, length) = observed.prefix, tail.tokens.shape
    order = torch.arange(prefix + length, device=hidden.device)
    latest = torch.where(observed.valid, order, 0).cummax(dim=1).values  # [B, P + L], last valid token up to each
    before = latest[:, prefix - 1 : prefix - 1 + length]  # [B, L]
    found = {}
    for term in terms:
        low = 0 if term == TEXT else tail.response
        lengths = torch.tensor([extent.tokens(term) for extent in sizes])
        wanted = [row * length + low + i for row, own in enumerate(sizes) for i in range(own.tokens(term))]
        where = to_device(torch.tensor(wanted, dtype=torch.int64), hidden.device)
        rows = where // max(1, length)
        states = hidden[rows, before.flatten()[where]]  # [N, width]
        each = token_cross_entropy(states, network.embedding.weight, tail.tokens.flatten()[where])
        sums = each.new_zeros(count * length).index_copy(0, where, each).view(count, length).sum(dim=1)
        found[term] = Loss(sums, to_device(lengths, hidden.device))
    return found


@torch.no_grad()
def respond(network: Pi0Network, observed: Observation, length: int, end: int) -> Tail:
    """Predict the most likely next token until each sample has ended.

    Each token takes one pass of the language tower over the prefix and the response so far.

    Args:
        network: the network.
        observed: embedded prefix of B samples, without a tail.
        length: most tokens of a response.
        end: token behind which a response has no more.

    Returns:
        The response with its `end`, which the expert sees.
    """
    count, device = len(observed.valid), observed.valid.device
    rows = torch.arange(count, device=device)
    tokens = torch.zeros(count, 0, dtype=torch.int64, device=device)
    masks = torch.zeros(count, 0, dtype=torch.bool, device=device)
    ended = torch.zeros(count, dtype=torch.bool, device=device)
    while tokens.shape[1] < length and not ended.all():
        seen = network.with_tail(observed, Tail(tokens, masks, tokens.shape[1]))
        _, hidden = network.compute(seen, None, hidden=True)
        assert hidden is not None
        order = torch.arange(seen.valid.shape[1], device=device)
        last: Tensor = hidden[rows, torch.where(seen.valid, order, 0).amax(dim=1)]  # [B, width]
        best = F.linear(last, network.embedding.weight.to(last.dtype)).float().argmax(dim=1)
        tokens, masks = torch.cat([tokens, best[:, None]], dim=1), torch.cat([masks, ~ended[:, None]], dim=1)
        ended = ended | (best == end)
    return Tail(tokens, masks, tokens.shape[1])
