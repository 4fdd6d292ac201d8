"""Weights of ImageNet for the ResNet of a policy of LeRobot, from torchvision."""

from typing import Any

import torch
from torch import Tensor

from understudy.errors import ConfigError
from understudy.optional_packages import optional_imports
from understudy.policies.lerobot.settings import NO_WEIGHTS

SETTING = "policy.pretrained_backbone_weights"


def check_backbone(config: Any) -> None:
    """Fetch the weights of a new run's ResNet, if it has some; see `backbone_weights`."""
    backbone_weights(config.pretrained_backbone_weights)


def backbone_weights(name: str) -> dict[str, Tensor]:
    """Return the state dict of torchvision's weights of this name; empty for `none`.

    Raises:
        ConfigError: there are no such weights, or they are neither in torch's cache nor to be fetched.
    """
    if name == NO_WEIGHTS:
        return {}
    with optional_imports():
        from torchvision.models import get_weight

    try:
        weights = get_weight(name)
    except (ValueError, KeyError) as error:
        fix = f"give names of torchvision, or {NO_WEIGHTS}"
        raise ConfigError(f"{SETTING}: {name}: torchvision has no such weights; {fix}") from error
    try:
        found: dict[str, Tensor] = weights.get_state_dict(progress=False, check_hash=True)
    except (OSError, RuntimeError) as error:
        place = f"{torch.hub.get_dir()}/checkpoints/{weights.url.rpartition('/')[2]}"
        raise ConfigError(
            f"{SETTING}: {name} is not in torch's cache and cannot be fetched ({error}); put {weights.url} at {place}, "
            f"or give {NO_WEIGHTS}, which trains the ResNet from fresh weights"
        ) from error
    return found
