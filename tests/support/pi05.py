"""A small pi0.5 network in which every parameter matters, its inputs, and attention by one explicit table."""

from collections.abc import Callable
from dataclasses import replace
from typing import Any

import torch
import torch.nn.functional as F
from torch import Tensor

from understudy.policies.common.flow_matching import time_features
from understudy.policies.common.settings import TowerSizes
from understudy.policies.common.towers import Attention, rotary
from understudy.policies.pi05.config import Sizes, VisionSizes
from understudy.policies.pi05.network import Observation, Pi0Network

SMALL = Sizes(
    vision=VisionSizes(width=16, depth=2, mlp=24, heads=2, patch=4, image=8),
    vlm=TowerSizes(width=24, depth=3, mlp_dim=32, num_heads=4, num_kv_heads=2, head_dim=8),
    expert=TowerSizes(width=16, depth=3, mlp_dim=20, num_heads=4, num_kv_heads=2, head_dim=8),
    vocab=64,
    chunk=5,
    dim=6,
)
KINDS = ("prefix", "response", "fast", "suffix")


def small(adaptive: bool = True, seed: int = 0, dtype: torch.dtype = torch.float32) -> Pi0Network:
    with torch.random.fork_rng(devices=[]):
        torch.manual_seed(seed)
        network = Pi0Network(replace(SMALL, adaptive=adaptive), dtype)
        with torch.no_grad():
            for name, parameter in network.named_parameters():
                parameter.normal_(std=1.0 if name == "embedding.weight" else 0.25)
    return network


def inputs(count: int = 3, cameras: int = 2, length: int = 7, seed: int = 0) -> dict[str, Any]:
    """Arguments of `flow_loss`; cameras are missing in front and behind, prompts differ in length."""
    generator = torch.Generator().manual_seed(seed)

    def normal(*shape: int) -> Tensor:
        return torch.randn(*shape, generator=generator)

    image_masks = torch.ones(count, cameras, dtype=torch.bool)
    image_masks[1::3, 0] = image_masks[2::3, -1] = False
    lengths = length - torch.arange(count) % 4
    return {
        "images": normal(count, cameras, 3, SMALL.vision.image, SMALL.vision.image).clamp(-1, 1),
        "image_masks": image_masks,
        "tokens": torch.randint(0, SMALL.vocab, (count, length), generator=generator),
        "token_masks": torch.arange(length) < lengths[:, None],
        "state": normal(count, SMALL.dim),
        "actions": normal(count, SMALL.chunk, SMALL.dim),
        "noise": normal(count, SMALL.chunk, SMALL.dim),
        "time": torch.tensor([0.1, 0.55, 0.97]).repeat(count)[:count],
    }


def seen(given: dict[str, Any]) -> dict[str, Any]:
    """The arguments of `sample` and `prefix`, of those of `flow_loss`."""
    return {key: given[key] for key in ("images", "image_masks", "tokens", "token_masks")}


Sees = Callable[[int, int, Tensor], Tensor]


def sees(query: int, key: int, index: Tensor) -> Tensor:
    """The table of `common/towers.py`: kinds of query and key, and index of key minus index of query [T, S]."""
    allowed = {(0, 0): True, (1, 0): True, (2, 0): True, (2, 1): True, (3, 0): True, (3, 1): True, (3, 3): True}
    if query == key in (1, 2):
        return index <= 0
    return torch.full(index.shape, allowed.get((query, key), False))


def joint(
    network: Pi0Network, observed: Observation, noisy: Tensor, time: Tensor, state: Tensor | None, table: Sees = sees
) -> tuple[Tensor, Tensor]:
    """Velocity [B, chunk, dim] and tower's tokens, by one dense masked attention a layer with an explicit softmax."""
    x, valid = observed.embeddings, observed.valid
    length, response = valid.shape[1], observed.prefix + observed.response
    embedded = network.action_in_proj(noisy)
    spread = time_features(time, network.sizes.expert.width)
    condition = None
    if network.sizes.adaptive:
        condition = F.silu(network.time_mlp_out(F.silu(network.time_mlp_in(spread))))
    else:
        assert state is not None
        mixed = torch.cat([embedded, spread[:, None].expand_as(embedded)], dim=2)
        embedded = network.action_time_mlp_out(F.silu(network.action_time_mlp_in(mixed)))
        embedded = torch.cat([network.state_proj(state)[:, None], embedded], dim=1)
    count = embedded.shape[1]
    kind = torch.tensor(
        [0] * observed.prefix + [1] * observed.response + [2] * (length - response) + [3] * count, dtype=torch.int64
    )
    place = torch.arange(length + count)
    between = place[None] - place[:, None]
    mask = torch.zeros(length + count, length + count, dtype=torch.bool)
    for query in range(4):
        for key in range(4):
            where = (kind[:, None] == query) & (kind[None] == key)
            mask |= where & table(query, key, between)
    if not network.sizes.adaptive:
        mask[length, length + 1 :] = False
    every = torch.cat([valid, torch.ones(len(valid), count, dtype=torch.bool)], dim=1)
    full = mask & every[:, None]  # [B, S, S]
    full = full | torch.eye(length + count, dtype=torch.bool)  # rows that nothing reads need a key, too
    ends = valid[:, :response].sum(dim=1, keepdim=True)
    positions = torch.cat([valid.cumsum(dim=1) - 1, ends + torch.arange(count)], dim=1)
    at = rotary(positions, network.sizes.vlm.head_dim)

    def turned(each: Tensor) -> Tensor:
        one, two = each.chunk(2, dim=-1)
        return torch.cat([one * at.cos - two * at.sin, two * at.cos + one * at.sin], dim=-1)

    def heads(layer: Attention, name: str, y: Tensor) -> Tensor:
        return getattr(layer, name)(y).unflatten(-1, (-1, network.sizes.vlm.head_dim)).transpose(1, 2)

    for layer in network.layers:
        y, _ = layer.vlm.input_layernorm(x)
        z, gate = layer.expert.input_layernorm(embedded, condition)
        q, k, v = (
            torch.cat([heads(layer.vlm.self_attn, name, y), heads(layer.expert.self_attn, name, z)], dim=2)
            for name in ("q_proj", "k_proj", "v_proj")
        )
        shared = q.shape[1] // k.shape[1]
        scores = turned(q) @ turned(k).repeat_interleave(shared, dim=1).transpose(2, 3) * q.shape[-1] ** -0.5
        weights = scores.masked_fill(~full[:, None], -torch.inf).softmax(dim=-1)
        found = (weights @ v.repeat_interleave(shared, dim=1)).transpose(1, 2).flatten(2)
        x = layer.vlm.finish(x, found[:, :length], None)
        embedded = layer.expert.finish(embedded, found[:, length:], gate, condition)
    last = network.expert_norm(embedded[:, -noisy.shape[1] :], condition)[0]
    return network.action_out_proj(last), network.vlm_norm(x)[0]
