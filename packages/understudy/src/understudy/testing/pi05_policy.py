"""A small pi0.5, or a policy made of it, with a tokenizer, and batches for it."""

from dataclasses import asdict, replace
from pathlib import Path
from typing import Any

import torch

from understudy.policies.pi05.config import Pi0PolicyConfig, Pi05PolicyConfig
from understudy.policies.pi05.policy import Pi05Policy
from understudy.testing.pi05 import SMALL

CAMERAS = ("observation.images.front", "observation.images.wrist")
NORMALISATION = {
    "action": {"offset": [0.5, -1.0, 0.25], "spread": [2.0, 0.0, 0.1]},
    "observation.state": {"offset": [0.0, 0.5], "spread": [2.0, 2.0]},
}
TASKS = ["pick up the red block", "push", "pick up the blue block", "push the red block"]
RESPONSES = ["push the block", "", "pick up", "red"]


def policy(
    tokenizer: Path,
    adaptive: bool = True,
    seed: int = 0,
    network: type[Pi05Policy] = Pi05Policy,
    make: Any = None,
    **changes: Any,
) -> Pi05Policy:
    """A policy in which every parameter matters; `network` and `make` are other classes of policy
    and settings.
    """
    dimensions = asdict(replace(SMALL, adaptive=adaptive, vocab=320))
    facts: dict[str, Any] = {"action_dim": 3, "state_dim": 2, "cameras": CAMERAS, "chunk": 4}
    usual = Pi05PolicyConfig if adaptive else Pi0PolicyConfig
    make = make or usual
    config = make(
        **facts
        | {"dimensions": dimensions, "tokenizer": str(tokenizer), "prompt_tokens": 80}
        | changes
    )
    with torch.random.fork_rng(devices=[]):
        torch.manual_seed(seed)
        made = network(config, NORMALISATION)
        with torch.no_grad():
            for name, parameter in made.named_parameters():
                std = 1.0 if name == "embedding.weight" else 0.25
                parameter.normal_(std=std)
    return made


def batch(
    count: int = 4,
    seed: int = 0,
    response: bool = False,
    size: tuple[int, int] = (12, 10),
    future: int = 0,
) -> dict[str, Any]:
    """A batch as a loader gives it: padding at the end of all but the first, the wrist camera of
    sample 1 missing.

    With `future` it has as many images that follow, and the state after each action.
    """
    generator = torch.Generator().manual_seed(seed)
    images = (1 + future,) if future else ()
    states = (5,) if future else ()
    found: dict[str, Any] = {
        key: torch.randint(
            0, 256, (count, *images, 3, *size), dtype=torch.uint8, generator=generator
        )
        for key in CAMERAS
    }
    if future:
        found |= {f"{key}_is_pad": torch.zeros(count, *images, dtype=torch.bool) for key in CAMERAS}
        found["observation.state_is_pad"] = torch.zeros(count, *states, dtype=torch.bool)
    found |= {
        f"{CAMERAS[1]}_is_missing": torch.arange(count) == 1,
        "observation.state": torch.rand(count, *states, 2, generator=generator) * 2 - 1,
        "task": [TASKS[b % len(TASKS)] for b in range(count)],
        "action": torch.randn(count, 4, 3, generator=generator),
        "action_is_pad": torch.arange(4) >= 4 - torch.arange(count)[:, None] % 4,
    }
    if response:
        found["response"] = [RESPONSES[b % len(RESPONSES)] for b in range(count)]
    return found
