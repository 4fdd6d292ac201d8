"""Responses token by token over a cache: equal to full passes, for samples of different lengths."""

import pytest
import torch
import torch.nn.functional as F

from understudy.policies.pi05.network import Observation, Pi0Network, Tail
from understudy.policies.pi05.targets import respond
from understudy.testing.pi05 import inputs, seen, small


def full_passes(
    network: Pi0Network, observed: Observation, length: int, end: int
) -> list[list[int]]:
    """Responses of each sample by a pass over everything for each token."""
    count = len(observed.valid)
    tokens = torch.zeros(count, 0, dtype=torch.int64)
    masks = torch.zeros(count, 0, dtype=torch.bool)
    ended = torch.zeros(count, dtype=torch.bool)
    for _ in range(length):
        whole = network.with_tail(observed, Tail(tokens, masks, tokens.shape[1]))
        _, hidden = network.compute(whole, None, hidden=True)
        assert hidden is not None
        last = torch.where(whole.valid, torch.arange(whole.valid.shape[1]), 0).amax(dim=1)
        best = F.linear(hidden[torch.arange(count), last], network.embedding.weight).argmax(dim=1)
        tokens = torch.cat([tokens, best[:, None]], dim=1)
        masks = torch.cat([masks, ~ended[:, None]], dim=1)
        ended = ended | (best == end)
    return [tokens[row][masks[row]].tolist() for row in range(count)]


@torch.no_grad()
@pytest.mark.parametrize("adaptive", [True, False])
def test_responses_over_a_cache_equal_full_passes(adaptive: bool) -> None:
    network = small(adaptive)
    given = seen(inputs(4))
    network.embedding.weight.mul_(0.02)  # otherwise a token predicts itself, whatever is before it
    observed = network.observe(*given.values())
    free = full_passes(network, observed, 9, end=-1)
    assert max(len(set(row)) for row in free) > 2
    end = free[1][4]  # ends samples at different lengths
    wanted = full_passes(network, observed, 9, end)
    widths: list[int] = []
    hook = network.layers[0].register_forward_pre_hook(
        lambda _, args: widths.append(args[0].shape[1])
    )
    found = respond(network, observed, 9, end)
    hook.remove()
    assert [found.tokens[row][found.masks[row]].tolist() for row in range(4)] == wanted
    assert len({len(row) for row in wanted}) > 1
    assert widths == [observed.prefix] + [1] * (found.tokens.shape[1] - 1)
    for length in (0, 1, 3):
        cut = respond(network, observed, length, end=-1)
        assert cut.tokens.shape == cut.masks.shape == (4, length)
        assert cut.tokens.tolist() == [row[:length] for row in free]
