"""The pi0.5 and pi0 network: masks by brute force, padding, caches, insulation, precision, with
controls.
"""

import copy
from dataclasses import replace
from typing import Any

import pytest
import torch
from torch import Tensor

from understudy.distributed.activation_checkpoint import apply_activation_checkpointing
from understudy.policies.common import flow_matching
from understudy.policies.common import towers as attention
from understudy.policies.common.towers import rotary
from understudy.policies.pi05.config import BASE
from understudy.policies.pi05.network import Observation, Pi0Network, Tail
from understudy.testing.pi05 import SMALL, inputs, seen, small

BOTH = pytest.mark.parametrize("adaptive", [True, False], ids=["pi05", "pi0"])


def tail(count: int = 3, response: int = 4, fast: int = 6, seed: int = 5) -> Tail:
    """Text of a response and of action tokens; both are padded, one sample has no response."""
    generator = torch.Generator().manual_seed(seed)
    tokens = torch.randint(0, SMALL.vocab, (count, response + fast), generator=generator)
    lengths = torch.tensor([[response, fast], [0, fast - 2], [response - 1, 1]])[:count]
    masks = torch.cat(
        [torch.arange(n) < lengths[:, i : i + 1] for i, n in enumerate((response, fast))], dim=1
    )
    return Tail(tokens, masks, response)


def observe(net: Pi0Network, given: dict[str, Any], text: Tail | None = None) -> Observation:
    embeddings, valid = net.prefix(**seen(given))
    found = Observation(embeddings, valid, valid.shape[1], 0, bool(valid.all()))
    return found if text is None else net.with_tail(found, text)


def gradients(net: Pi0Network, loss: Tensor) -> dict[str, Tensor | None]:
    net.zero_grad()
    loss.backward()
    return {name: parameter.grad for name, parameter in net.named_parameters()}


def close(one: Tensor, two: Tensor, bound: float = 1e-6) -> bool:
    """Whether the largest difference is below `bound` times the largest value."""
    return bool((one - two).abs().max() <= bound * two.abs().max())


# -- parameters ------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("adaptive", "count"), [(True, 3_353_433_872), (False, 3_238_048_528)], ids=["pi05", "pi0"]
)
def test_network_has_the_released_number_of_parameters(adaptive: bool, count: int) -> None:
    with torch.device("meta"):
        net = Pi0Network(replace(BASE, adaptive=adaptive))
    assert sum(parameter.numel() for parameter in net.parameters()) == count
    assert not list(net.buffers())


@BOTH
def test_flow_loss_reaches_all_but_the_unread_end_of_the_tower(adaptive: bool) -> None:
    net = small(adaptive)
    given = inputs()
    found = gradients(net, net.flow_loss(**given).mean())
    last = f"layers.{SMALL.vlm.depth - 1}.vlm."
    leaves = (
        "self_attn.q_proj",
        "self_attn.o_proj",
        "post_attention_layernorm",
        *(f"mlp.{n}_proj" for n in NAMES),
    )
    unread = {f"{last}{leaf}.weight" for leaf in leaves} | {"vlm_norm.weight"}
    assert {name for name, grad in found.items() if grad is None} == unread
    assert all(
        grad.any() for name, grad in found.items() if grad is not None and "k_proj.bias" not in name
    )


NAMES = ("gate", "up", "down")


@BOTH
def test_the_flow_loss_computes_no_unread_end_of_the_tower(adaptive: bool) -> None:
    net = small(adaptive)
    given = inputs()
    calls: list[int] = []
    for number, layer in enumerate(net.layers):
        layer.vlm.mlp.register_forward_hook(lambda *_, number=number: calls.append(number))
    net.flow_loss(**given)
    assert calls == [0, 1]  # of three layers
    calls.clear()
    net.compute(observe(net, given), None, hidden=True)
    assert calls == [0, 1, 2]  # control: the text loss reads the last one


# -- masks -----------------------------------------------------------------------------------------


@BOTH
def test_without_padding_no_call_has_a_mask(
    adaptive: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    net = small(adaptive)
    given = inputs()
    given |= {
        "image_masks": torch.ones(3, 2, dtype=torch.bool),
        "token_masks": torch.ones(3, 7, dtype=torch.bool),
    }
    masked = net.flow_loss(**given)
    calls: list[Any] = []
    plain = attention.F.scaled_dot_product_attention
    monkeypatch.setattr(
        attention.F,
        "scaled_dot_product_attention",
        lambda *a, **k: (calls.append(k["attn_mask"]), plain(*a, **k))[1],
    )
    assert close(net.flow_loss(**given | {"image_masks": None, "token_masks": None}), masked)
    # pi0: the state token
    assert sum(mask is not None for mask in calls) == (0 if adaptive else SMALL.vlm.depth)
    calls.clear()
    net.flow_loss(**given)
    assert any(mask is not None for mask in calls)


# -- invariances -----------------------------------------------------------------------------------


def test_missing_cameras_are_not_encoded() -> None:
    net = small()
    given = inputs()
    encoded: list[int] = []
    net.vision.register_forward_pre_hook(lambda _, found: encoded.append(len(found[0])))
    net.flow_loss(**given)
    assert encoded == [int(given["image_masks"].sum())]
    assert encoded[0] < given["image_masks"].numel()


def test_a_batch_without_images_uses_every_weight() -> None:
    """All ranks of a sharded run must use the same weights in each step."""
    net = small()
    given = inputs()
    found = gradients(
        net, net.flow_loss(**given | {"image_masks": torch.zeros(3, 2, dtype=torch.bool)}).mean()
    )
    own = [grad for name, grad in found.items() if name.startswith(("vision", "projector"))]
    assert all(grad is not None and not grad.any() for grad in own)


# -- sampling --------------------------------------------------------------------------------------


@BOTH
def test_candidates_share_one_pass_of_the_tower(
    adaptive: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    net = small(adaptive)
    given = inputs()
    noise = torch.randn(3, 4, SMALL.chunk, SMALL.dim, generator=torch.Generator().manual_seed(3))
    calls = []
    net.projector.register_forward_hook(lambda *_: calls.append(1))
    found = net.sample(**seen(given), state=given["state"], noise=noise, steps=3)
    assert len(calls) == 1
    for number in range(4):
        alone = net.sample(**seen(given), state=given["state"], noise=noise[:, number], steps=3)
        assert close(found[:, number], alone)
    assert not close(found[:, 0], found[:, 1], 1e-2)


# -- insulation ------------------------------------------------------------------------------------


def flow_of(
    net: Pi0Network, given: dict[str, Any], insulate: bool, text: Tail | None = None
) -> Tensor:
    found, _ = net.compute(
        observe(net, given, text),
        given["noise"][:, None],
        given["time"][:, None],
        given["state"],
        insulate,
    )
    assert found is not None
    return found


# -- precision and blocks --------------------------------------------------------------------------


def test_rotary_angles_survive_a_cast_of_the_network() -> None:
    """Control: frequencies in a buffer, cast with the module, turn position 900 by more than half a
    radian.
    """
    positions = torch.tensor([[100, 500, 900]])
    dim = 256
    exponents = torch.arange(0, dim, 2).double() / dim
    exact = positions.double()[:, None, :, None] / 10_000**exponents
    found = rotary(positions, dim)
    assert (found.cos - exact.cos()).abs().max() < 2e-4
    assert (found.sin - exact.sin()).abs().max() < 2e-4
    rounded = positions[:, None, :, None] * (1 / 10_000**exponents).to(torch.bfloat16).double()
    assert (rounded - exact).abs().max() > 0.5
    net = small()
    given = inputs()
    cast = copy.deepcopy(net).to(torch.bfloat16).float()
    for parameter, own in zip(cast.parameters(), net.parameters()):
        parameter.data.copy_(own.data)
    assert torch.equal(cast.flow_loss(**given), net.flow_loss(**given))


@BOTH
def test_bfloat16_follows_float32(adaptive: bool) -> None:
    net = small(adaptive)
    low = small(adaptive, dtype=torch.bfloat16)
    given = inputs()
    one = flow_of(net, given, False).flatten()
    two = flow_of(low, given, False).flatten()
    assert two.dtype == torch.float32
    assert torch.nn.functional.cosine_similarity(one, two, dim=0) > 0.999
    assert not close(two, one, 1e-4)
    stored = copy.deepcopy(low).to(torch.bfloat16)
    assert torch.isfinite(stored.flow_loss(**given)).all()


@BOTH
@pytest.mark.parametrize("mode", ["selective", "full"])
def test_activation_checkpointing_changes_no_bit(adaptive: bool, mode: Any) -> None:
    net = small(adaptive)
    given = inputs()
    text = tail()

    def run() -> tuple[Tensor, dict[str, Tensor | None]]:
        flow, hidden = net.compute(
            observe(net, given, text),
            given["noise"][:, None],
            given["time"][:, None],
            given["state"],
            hidden=True,
        )
        assert flow is not None
        assert hidden is not None
        return flow, gradients(net, flow.square().mean() + hidden[:, -10:].square().mean())

    before, grads = run()
    apply_activation_checkpointing([*net.vision.layers, *net.layers], mode)
    after, again = run()
    assert torch.equal(before, after)
    assert all(torch.equal(grads[name], again[name]) for name in grads)  # type: ignore[arg-type]


def test_times_are_exact_at_the_shortest_period() -> None:
    time = torch.tensor([1.0, 0.999, 0.1])
    found = flow_matching.time_features(time, 1024)
    angle = 2 * torch.pi * time.double() / 4e-3
    torch.testing.assert_close(found[:, 0].double(), angle.sin(), rtol=0, atol=1e-7)
    assert found.dtype == torch.float32
