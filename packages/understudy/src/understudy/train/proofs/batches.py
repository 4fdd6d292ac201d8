"""Batches for proofs: from the needs that a policy declares, or of a dataset."""

from collections.abc import Mapping
from typing import Any

import torch
from torch import Tensor

from understudy.policies.capabilities.future import images_ahead
from understudy.policies.capabilities.returns import PredictsReturns
from understudy.policies.capabilities.texts import learns_responses
from understudy.policies.common.settings import TaskMode
from understudy.policies.policy import Policy
from understudy_base import ACTION, MODE, STATE, TASK, ConfigError

COUNT = 8
TASKS = ("pick up the red block", "push", "pick up the blue block", "push the red block")
FPS = 10.0


def own_batch(policy: Policy, count: int = COUNT) -> dict[str, Any]:
    """Make a batch of the keys and shapes in the config of a `Policy`."""
    config = policy.config
    generator = torch.Generator().manual_seed(0)
    images, states = (len(times) for times in policy.past.times(FPS))
    times = dict.fromkeys(config.cameras, -images) | {STATE: -states}
    ahead = {
        key: len(offsets) for key, offsets in config.windows(config.chunk, config.cameras).items()
    }
    if config.future:
        ahead[STATE] = config.chunk + 1
        if frames := images_ahead(config, config.chunk):
            ahead |= dict.fromkeys(config.cameras, 1 + len(frames))
    times |= ahead
    steps = policy.past.actions + config.chunk
    batch: dict[str, Any] = {
        TASK: [TASKS[row % len(TASKS)] for row in range(count)],
        ACTION: torch.randn(count, steps, config.action_dim, generator=generator),
        f"{ACTION}_is_pad": late(count, steps),
    }
    for camera in config.cameras:
        shape = _shape(times[camera], (3, *config.network_size))
        batch[camera] = torch.randint(
            0, 256, (count, *shape), dtype=torch.uint8, generator=generator
        )
    if config.state_dim:
        shape = _shape(times[STATE], (config.state_dim,))
        batch[STATE] = torch.randn(count, *shape, generator=generator)
    for key, number in times.items():
        if number and key in batch:
            batch[f"{key}_is_pad"] = (
                late(count, number) if number > 0 else late(count, -number).flip(1)
            )
    heads = len(policy.norm_heads)
    if heads > 1:
        batch["head"] = torch.arange(count) % heads
    if config.future:
        batch[MODE] = torch.tensor(
            [TaskMode.ALL.index(policy.modes[row % len(policy.modes)]) for row in range(count)]
        )
    if isinstance(config, PredictsReturns):
        target = config.return_target()
        share = torch.rand(count, generator=generator)
        batch["return"] = target["low"] + (target["high"] - target["low"]) * share
        batch["return_is_pad"] = torch.arange(count) % 3 == 2
    if learns_responses(config):
        batch["response"] = batch[TASK]
    return batch


def late(count: int, steps: int) -> Tensor:
    """Mark the ends of windows, bool [count, steps]; the first step is never marked."""
    return torch.arange(steps) >= steps - (torch.arange(count)[:, None] % steps)


def _shape(times: int, shape: tuple[int, ...]) -> tuple[int, ...]:
    return (abs(times), *shape) if times else shape


def stranger_batch(config: Any, count: int = COUNT) -> dict[str, Any]:
    """Make a batch of the features that a config of LeRobot's kind declares.

    Raises:
        ConfigError: it declares none.
    """
    inputs = getattr(config, "input_features", None)
    outputs = getattr(config, "output_features", None)
    if not isinstance(inputs, Mapping) or not isinstance(outputs, Mapping) or ACTION not in outputs:
        raise ConfigError(
            "the policy declares no inputs: give it config.input_features and "
            "config.output_features as LeRobot's policies have, or give batch= (a dict of tensors "
            "[B, ...]), or a dataset (--data)"
        )
    generator = torch.Generator().manual_seed(0)
    observed = getattr(config, "n_obs_steps", 1) or 1
    batch: dict[str, Any] = {TASK: [TASKS[row % len(TASKS)] for row in range(count)]}
    for key, feature in inputs.items():
        shape = (observed, *_feature(feature)) if observed > 1 else _feature(feature)
        batch[key] = torch.rand(count, *shape, generator=generator)
    steps = len(getattr(config, "action_delta_indices", None) or [0])
    batch[ACTION] = torch.randn(count, steps, *_feature(outputs[ACTION]), generator=generator)
    batch[f"{ACTION}_is_pad"] = late(count, steps)
    if length := getattr(config, "tokenizer_max_length", 0):
        tokens = torch.randint(3, 64, (count, length), generator=generator)
        batch["observation.language.tokens"] = tokens
        batch["observation.language.attention_mask"] = torch.ones_like(tokens, dtype=torch.bool)
    return batch


def _feature(feature: Any) -> tuple[int, ...]:
    return tuple(feature["shape"] if isinstance(feature, Mapping) else feature.shape)
