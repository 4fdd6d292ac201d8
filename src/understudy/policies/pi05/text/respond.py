"""Text behind the prompt, the tail: tokens of a batch, their loss, and the response that a policy predicts."""

from collections.abc import Mapping, Sequence
from typing import Any

import torch
import torch.nn.functional as F
from torch import Tensor

from understudy.policies.batch import to_device, value_of
from understudy.policies.common.token_loss import token_cross_entropy
from understudy.policies.common.towers.attention import Plan, rotary
from understudy.policies.common.towers.gemma import Cache
from understudy.policies.losses import Loss
from understudy.policies.pi05.extents import FAST, PROMPT, TEXT, TOKENS, Extent, cut
from understudy.policies.pi05.network import Pi0Network
from understudy.policies.pi05.observation import Observation, Tail


def tail_of(
    batch: Mapping[str, Any], sizes: Sequence[Extent], multiple: int = 1, most: Sequence[int] = (0, 0, 0)
) -> Tail:
    """Read the tokens to predict; without any, a tail of no tokens, so that every rank uses the same weights.

    Args:
        batch: with tokens.
        sizes: extent of each sample.
        multiple: see `padded_length`.
        most: the same, of prompt, response and FAST actions.
    """
    like = value_of(batch, PROMPT[0])
    parts, masks = [], []
    for term, limit in zip((TEXT, FAST), most[1:], strict=True):
        lengths = [extent.tokens(term) for extent in sizes]
        tokens, mask = cut(batch.get(TOKENS[term][0], like[:, :0]), lengths, multiple, limit)
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

    The prefix takes one pass of the language tower, and each further token one of its own, over the keys and values of
    those before it.

    Args:
        network: the network.
        observed: embedded prefix of B samples, without a tail.
        length: most tokens of a response.
        end: token behind which a response has no more.

    Returns:
        The response with its `end`, which the expert sees.
    """
    count, device = len(observed.valid), observed.valid.device
    tokens = torch.zeros(count, 0, dtype=torch.int64, device=device)
    masks = torch.zeros(count, 0, dtype=torch.bool, device=device)
    ended = torch.zeros(count, dtype=torch.bool, device=device)
    if not length:
        return Tail(tokens, masks, 0)
    order = torch.arange(observed.prefix, device=device)
    hidden, caches = _continue(network, observed.embeddings, observed.valid, None)
    last = hidden[torch.arange(count, device=device), torch.where(observed.valid, order, 0).amax(dim=1)]  # [B, width]
    table = network.embedding.weight.to(last.dtype)
    while True:
        best, own = F.linear(last, table).float().argmax(dim=1), ~ended[:, None]
        tokens, masks = torch.cat([tokens, best[:, None]], dim=1), torch.cat([masks, own], dim=1)
        ended = ended | (best == end)
        if tokens.shape[1] == length or ended.all():
            return Tail(tokens, masks, tokens.shape[1])
        seen = network.with_tail(observed, Tail(best[:, None], own, 1)).embeddings[:, observed.prefix :]
        hidden, caches = _continue(network, seen, torch.cat([observed.valid, masks], dim=1), caches)
        last = torch.where(own, hidden[:, 0], last)


def _continue(
    network: Pi0Network, x: Tensor, valid: Tensor, caches: Sequence[Cache] | None
) -> tuple[Tensor, list[Cache]]:
    """Run the language tower over the prefix, or over one token behind it.

    Args:
        network: the network.
        x: [B, P, width], the embedded prefix; with `caches` [B, 1, width], the token.
        valid: bool [B, P + n], of all tokens so far.
        caches: of all layers, for the tokens before `x`.

    Returns:
        The tower's tokens in the shape of `x`, and the caches with them.
    """
    at = rotary((valid.cumsum(dim=1) - 1)[:, -x.shape[1] :], network.sizes.vlm.head_dim)
    mask, prefix = valid[:, None, None], x.shape[1] if caches is None else 0
    plan = Plan(at, mask, None if prefix else mask, None, None, prefix, prefix, 1, insulate=False)
    tokens: Tensor | None = x
    found: list[Cache] = []
    for number, layer in enumerate(network.layers):
        tokens, _, cache = layer(tokens, None, plan, cache=None if caches is None else caches[number])
        found.append(cache)
    assert tokens is not None
    return network.vlm_norm(tokens)[0], found
