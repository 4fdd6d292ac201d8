"""A tiny policy, a batch and draws for the tests of the policies."""

from collections.abc import Mapping
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import numpy as np
import torch
from torch import Tensor

from understudy.policies.flow.model import FlowPolicy, FlowPolicyConfig
from understudy.train.micro_batches import MicroBatch, even_spans, take_parts
from understudy_data.checksums import Checksums

CAMERAS = ("observation.images.front", "observation.images.wrist")
NORMALIZATION = {
    "action": {"offset": [0.5, -1.0, 0.25], "spread": [2.0, 0.0, 0.1]},
    "observation.state": {"offset": [1.0, 2.0], "spread": [3.0, 0.5]},
}
TEXTS = ["pick up the red block", "", "pick up the blue block", "nimm den grünen Würfel"]


def config(**changes: Any) -> FlowPolicyConfig:
    small: dict[str, Any] = {
        "action_dim": 3,
        "state_dim": 2,
        "cameras": CAMERAS,
        "chunk": 4,
        "image_size": (16, 16),
        "channels": 8,
        "keypoints": 4,
        "width": 32,
        "layers": 2,
    }
    return FlowPolicyConfig(**(small | changes))


def policy(seed: int = 0, **changes: Any) -> FlowPolicy:
    """A small policy in which every parameter matters: zero-initialised ones are random, too."""
    with torch.random.fork_rng(devices=[]):
        torch.manual_seed(seed)
        model = FlowPolicy(config(**changes), NORMALIZATION)
        with torch.no_grad():
            for parameter in model.parameters():
                if not parameter.any():
                    parameter.normal_(std=0.1)
    return model


def batch(count: int, seed: int = 0) -> dict[str, Any]:
    """`count` samples for `policy()`, with padding at the end of all but the first."""
    generator = torch.Generator().manual_seed(seed)
    pictures = {
        key: torch.randint(0, 256, (count, 3, 16, 16), dtype=torch.uint8, generator=generator)
        for key in CAMERAS
    }
    return {
        **pictures,
        "observation.state": torch.randn(count, 2, generator=generator),
        "task": [TEXTS[b % len(TEXTS)] for b in range(count)],
        "action": torch.randn(count, 4, 3, generator=generator),
        "action_is_pad": torch.arange(4) >= 4 - torch.arange(count)[:, None] % 4,
    }


def draws(count: int, per_sample: int = 2, seed: int = 1) -> tuple[Tensor, Tensor]:
    """Noise [count, per_sample, 4, 3] and time [count, per_sample]."""
    generator = torch.Generator().manual_seed(seed)
    noise = torch.randn(count, per_sample, 4, 3, generator=generator)
    return noise, torch.rand(count, per_sample, generator=generator)


def as_draws(noise: Tensor, time: Tensor) -> dict[str, Tensor]:
    """The draws of a policy without a future, from noise and time."""
    return {"flow noise": noise, "flow time": time}


def micro_batches(
    batch: Mapping[str, Any], draws: Mapping[str, Tensor], count: int
) -> list[MicroBatch]:
    """`count` micro-batches of consecutive samples, equal up to one sample."""
    return take_parts(batch, draws, even_spans(len(batch["action"]), count))


def run_data(network: Any) -> Any:
    """The data of a run of one source, as far as its policy with this config needs it."""
    return SimpleNamespace(
        policy_config=lambda _: network,
        names=("",),
        heads=("",),
        head_of_source=np.zeros(1, np.int64),
    )


def editable(folder: Path) -> Path:
    """Remove the checksums of a policy folder, so that its files may be changed; returns it."""
    (folder / Checksums.FILE).unlink()
    return folder
