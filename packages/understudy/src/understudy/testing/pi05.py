"""A small pi0.5 network in which every parameter matters, and its inputs."""

from dataclasses import replace
from pathlib import Path
from typing import Any

import torch
from torch import Tensor

from understudy.policies.common.settings import TowerSizes
from understudy.policies.pi05.config import Sizes, VisionSizes
from understudy.policies.pi05.network import Pi0Network

GOLDEN = Path(__file__).parents[3] / "tests/policies/pi05/golden"
"""Folder of golden vectors, also those of other distributions."""
SMALL = Sizes(
    vision=VisionSizes(width=16, depth=2, mlp=24, heads=2, patch=4, image=8),
    vlm=TowerSizes(width=24, depth=3, mlp_dim=32, num_heads=4, num_kv_heads=2, head_dim=8),
    expert=TowerSizes(width=16, depth=3, mlp_dim=20, num_heads=4, num_kv_heads=2, head_dim=8),
    vocab=64,
    chunk=5,
    dim=6,
)


def small(adaptive: bool = True, seed: int = 0, dtype: torch.dtype = torch.float32) -> Pi0Network:
    with torch.random.fork_rng(devices=[]):
        torch.manual_seed(seed)
        network = Pi0Network(replace(SMALL, adaptive=adaptive), dtype)
        with torch.no_grad():
            for name, parameter in network.named_parameters():
                std = 1.0 if name == "embedding.weight" else 0.25
                parameter.normal_(std=std)
    return network


def inputs(count: int = 3, cameras: int = 2, length: int = 7, seed: int = 0) -> dict[str, Any]:
    """Arguments of `flow_loss`; cameras are missing in front and behind, prompts differ in
    length.
    """
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
