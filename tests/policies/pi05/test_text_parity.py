"""Predicted text, FAST tokens, insulation and guidance against the naive formulation, which no port has."""

import json
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
import torch
from safetensors.torch import load_file
from torch import Tensor

from support.naive_pi05 import NaivePi0, Sample, guided_velocity, samples, sees
from understudy.policies.common.layers import token_cross_entropy
from understudy.policies.pi05.config import Sizes
from understudy.policies.pi05.network import Observation, Pi0Network, Tail
from understudy.policies.pi05.released_keys import EMBEDDING, is_adaptive, own_name, released_key
from understudy.policies.pi05.targets import respond

GOLDEN = Path(__file__).with_name("golden")
BOTH = pytest.mark.parametrize("family", ["pi05", "pi0"])
SLOW_CASES = [("pi05", False), ("pi0", True), ("pi0", False)]
RESPONSE = [[11, 12, 13, 14], [15, 16], []]
FAST = [[21, 22, 23], [], [24, 25, 26, 27]]


def networks(family: str) -> tuple[Pi0Network, NaivePi0, dict[str, Tensor], list[Sample]]:
    """(network, naive network of the same weights, inputs, the same samples with a response and FAST tokens)."""
    weights = load_file(GOLDEN / family / "weights.safetensors")
    sizes: dict[str, Any] = json.loads((GOLDEN / family / "sizes.json").read_text())
    network = Pi0Network(Sizes.from_mapping(sizes, adaptive=is_adaptive(weights)))
    own = {name for name, _ in network.named_parameters()}
    keys = {own_name(key): key for key in sorted(weights, key=lambda key: key == EMBEDDING)}  # the head is stale
    network.load_state_dict({name: weights[key] for name, key in keys.items() if name in own})
    inputs = load_file(GOLDEN / family / "inputs.safetensors")
    data = [
        replace(sample, response=response, fast=fast) for sample, response, fast in zip(samples(inputs), RESPONSE, FAST)
    ]
    leaves = {key: value.double().requires_grad_() for key, value in weights.items()}
    return network, NaivePi0(leaves, sizes), inputs, data


def tail(response: list[list[int]] = RESPONSE, fast: list[list[int]] = FAST) -> Tail:
    """Both kinds of tokens, each right-padded to one more than its longest row."""

    def pad(rows: list[list[int]]) -> Tensor:
        width = max(map(len, rows)) + 1
        return torch.tensor([row + [-1] * (width - len(row)) for row in rows])

    tokens = torch.cat([pad(response), pad(fast)], dim=1)
    return Tail(tokens, tokens >= 0, max(map(len, response)) + 1)


def observe(network: Pi0Network, inputs: dict[str, Tensor], text: Tail | None) -> Observation:
    names = ("images", "image_masks", "tokens", "token_masks")
    observed = network.observe(*(inputs[name] for name in names))
    return observed if text is None else network.with_tail(observed, text)


def noisy(inputs: dict[str, Tensor]) -> Tensor:
    time = inputs["time"][:, None, None]
    return time * inputs["noise"] + (1 - time) * inputs["actions"]


def compute(
    network: Pi0Network, inputs: dict[str, Tensor], text: Tail | None, insulate: bool = False
) -> tuple[Tensor, Tensor]:
    """(velocity [B, chunk, dim], tokens of the tower behind the last norm)."""
    observed = observe(network, inputs, text)
    moves, hidden = network.compute(
        observed, noisy(inputs)[:, None], inputs["time"][:, None], inputs["state"], insulate, hidden=True
    )
    assert moves is not None
    assert hidden is not None
    return moves[:, 0], hidden


def distance(found: Tensor, reference: Tensor) -> float:
    return float((found.double() - reference).detach().abs().max() / reference.detach().abs().max())


def token_losses(network: Pi0Network, inputs: dict[str, Tensor], text: Tail, hidden: Tensor) -> dict[str, Tensor]:
    """Cross-entropy of all `response` and of all `fast` tokens; each is predicted by the valid token before it."""
    observed = observe(network, inputs, text)
    found: dict[str, list[Tensor]] = {"response": [], "fast": []}
    for i, marks in enumerate(text.masks):
        before = int(observed.valid[i, : observed.prefix].nonzero().max())
        for place in marks.nonzero()[:, 0].tolist():
            kind = "response" if place < text.response else "fast"
            state, target = hidden[i, before][None], text.tokens[i, place][None]
            found[kind].append(token_cross_entropy(state, network.embedding.weight, target))
            before = observed.prefix + place
    return {kind: torch.cat(losses) for kind, losses in found.items()}


def assert_equal_gradients(network: Pi0Network, slow: NaivePi0) -> None:
    for name, parameter in network.named_parameters():
        key = EMBEDDING if name == "embedding.weight" else released_key(name)
        wanted = slow.weights[key].grad
        found = torch.zeros_like(parameter) if parameter.grad is None else parameter.grad
        wanted = torch.zeros_like(found) if wanted is None else wanted
        if name.startswith("vision.layers.") and name.endswith("k_proj.bias"):  # zero in exact arithmetic
            assert float(found.norm()) < 1e-5, name
        else:
            assert float((found - wanted).norm()) <= 1e-5 * float(wanted.norm()), name


@pytest.mark.parametrize(("family", "insulate"), [("pi05", True), *SLOW_CASES])
def test_velocity_text_and_gradients_beside_a_tail(family: str, insulate: bool) -> None:
    network, slow, inputs, data = networks(family)
    text = tail()
    moves, hidden = compute(network, inputs, text, insulate)
    ours = token_losses(network, inputs, text, hidden)
    wanted_moves, theirs = [], {"response": [], "fast": []}
    for sample, x, time in zip(data, noisy(inputs).double(), inputs["time"].tolist()):
        wanted_moves.append(slow.velocity(sample, x, [time] * len(x), insulate))
        for kind, losses in slow.token_losses(sample).items():
            theirs[kind].append(losses)
    wanted = torch.stack(wanted_moves)
    assert distance(moves, wanted) <= 2e-6
    for kind, losses in ours.items():
        assert distance(losses, torch.cat(theirs[kind])) <= 2e-6
    target = inputs["noise"] - inputs["actions"]
    ((moves - target).square().mean() + ours["response"].mean() + 0.5 * ours["fast"].mean()).backward()
    (
        (wanted - target).square().mean()
        + torch.cat(theirs["response"]).mean()
        + 0.5 * torch.cat(theirs["fast"]).mean()
    ).backward()
    assert_equal_gradients(network, slow)


@BOTH
@pytest.mark.parametrize("seed", range(3))
def test_tokens_reach_each_other_as_in_the_table(family: str, seed: int) -> None:
    """In one layer, a token's result depends on the inputs that it sees and on its own: all pairs, random padding."""
    draw = torch.Generator().manual_seed(seed)
    full, _, inputs, _ = networks(family)
    network = Pi0Network(
        replace(full.sizes, vlm=replace(full.sizes.vlm, depth=1), expert=replace(full.sizes.expert, depth=1))
    )
    network.load_state_dict({name: value for name, value in full.state_dict().items() if name in network.state_dict()})
    response, fast = (
        [torch.randint(1, 96, (int(n),), generator=draw).tolist() for n in torch.randint(0, 4, (3,), generator=draw)]
        for _ in range(2)
    )
    text = tail(response, fast)
    inputs["image_masks"] = torch.rand(3, 3, generator=draw) > 0.3
    inputs["token_masks"] = torch.rand(3, inputs["tokens"].shape[1], generator=draw) > 0.4  # padding anywhere
    inputs["token_masks"][:, 0] = True
    observed = observe(network, inputs, text)
    leaf = observed.embeddings.detach().requires_grad_()
    moves, hidden = network.compute(
        observed._replace(embeddings=leaf),
        noisy(inputs)[:, None],
        inputs["time"][:, None],
        inputs["state"],
        hidden=True,
    )
    assert moves is not None
    assert hidden is not None
    kinds = ["prefix"] * observed.prefix + ["response"] * text.response
    kinds += ["fast"] * (leaf.shape[1] - len(kinds))
    tokens = [(kind, kinds[:i].count(kind)) for i, kind in enumerate(kinds)]

    def reached(outputs: Tensor) -> list[list[bool]]:
        weights = torch.randn(outputs.shape, generator=draw)
        (found,) = torch.autograd.grad((outputs * weights).sum(), leaf, retain_graph=True)
        return found.abs().amax(dim=2).gt(0).tolist()

    valid = observed.valid.tolist()
    for i, query in enumerate(tokens):
        for sample, row in enumerate(reached(hidden[:, i])):
            if valid[sample][i]:
                assert row == [there and sees(query, key) for there, key in zip(valid[sample], tokens)]
    for sample, row in enumerate(reached(moves)):
        assert row == [there and sees(("action", 0), key) for there, key in zip(valid[sample], tokens)]


@pytest.mark.long
@BOTH
def test_responses_are_the_most_likely_tokens(family: str) -> None:
    network, slow, inputs, data = networks(family)
    wanted: list[list[int]] = []
    for sample in data:
        tokens: list[int] = []
        for _ in range(4):
            with torch.no_grad():
                found = slow.run(replace(sample, response=tokens, fast=[]), None, [])
            last = found["response" if tokens else "prefix"][-1]
            tokens = [*tokens, int((slow.embedding @ last).argmax())]
        wanted.append(tokens)
    end = wanted[0][1]  # so that one sample ends before the others
    found = respond(network, observe(network, inputs, None), 4, end)
    for row, tokens in zip(range(3), wanted):
        ours = found.tokens[row][found.masks[row]].tolist()
        assert ours == (tokens[: tokens.index(end) + 1] if end in tokens else tokens)
    assert found.masks.sum(dim=1).tolist() != [4, 4, 4]


@pytest.mark.long
@BOTH
def test_guided_correction_is_the_transposed_jacobian(family: str) -> None:
    network, slow, inputs, data = networks(family)
    slow = NaivePi0({key: value.detach() for key, value in slow.weights.items()}, slow.sizes)  # gradients of x alone
    field = network.field(observe(network, inputs, None), inputs["state"])
    time, weights, highest = 0.6, torch.tensor([1.0, 1.0, 0.6, 0.2, 0.0]), 5.0
    x, previous = inputs["noise"], inputs["actions"]
    times = torch.full((3,), time)

    def denoised(at: Tensor) -> Tensor:
        return at - time * field(at, times)

    error = (previous - denoised(x)).detach() * weights[:, None]
    _, correction = torch.autograd.functional.vjp(denoised, x, error)
    tau = 1 - time
    found = field(x, times) - (1 - tau) / tau * ((1 - tau) ** 2 + tau**2) / (1 - tau) ** 2 * correction
    sample = replace(data[1], response=[], fast=[])
    exact = slow.at(replace(sample, prefix=slow.prefix(sample)), float(times[0]))
    wanted = guided_velocity(exact, sample.noise, time, sample.actions, weights.tolist(), highest)
    assert distance(found[1], wanted) <= 1e-5
