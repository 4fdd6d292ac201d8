"""Responses of a policy that was trained to give them, token by token."""

import torch
import torch.nn.functional as F
from torch import Tensor

from understudy.policies.pi05.network import Observation, Pi0Network, Tail


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
