"""Parts that the adapters of LeRobot's policies share: their features, normalized images, and draws in the network."""

from collections.abc import Mapping
from typing import Any, Self

import torch
import torch.nn.functional as F
from torch import Tensor

from understudy.batch_keys import ACTION, STATE
from understudy.optional_packages import optional_imports
from understudy.policies.batch import check_shape, value_of
from understudy.policies.common.normalizer import Normalizer
from understudy.policies.lerobot.settings import ColorSettings, LerobotConfig
from understudy.policies.policy import Policy
from understudy.policies.registry import policy_type

_EPS = 1e-8  # LeRobot adds it to deviations


class LerobotPolicy(Policy):
    """Base class of the adapters: normalization, random numbers and per-sample losses are ours, the network theirs."""

    config: Any
    image_mean: Tensor
    image_std: Tensor

    def __init__(self, config: LerobotConfig, normalization: Mapping[str, Any]) -> None:
        """Read the normalization, that of the colors included.

        Args:
            config: facts and settings.
            normalization: see `policies/common/normalizer.py`.

        Raises:
            ValueError: the normalization does not fit the config.
        """
        super().__init__()
        self.config = config
        self.normalizer = Normalizer(normalization, {ACTION: config.action_dim, STATE: config.state_dim})
        for name, values in _colors(config).items() if isinstance(config, ColorSettings) else ():
            self.register_buffer(name, torch.tensor(values).view(3, 1, 1), persistent=False)

    def train(self, mode: bool = True) -> Self:
        """Set the mode. The network keeps that of evaluation, unless `losses` changes it."""
        super().train(mode)
        for child in self.children():
            child.eval()
        return self

    def pixels(self, batch: Mapping[str, Any], camera: str) -> Tensor:
        """Return images of the batch in 0..1, float32 [B, 3, H, W], or [B, n, 3, H, W] of n times."""
        image: Tensor = value_of(batch, camera)
        past = getattr(self.config, "past_steps", 0)
        check_shape(camera, image, (None, *([past + 1] if past else []), 3, None, None))
        if image.dtype != torch.uint8:
            raise ValueError(f"{camera} is {image.dtype}, images are uint8")
        return image.float() / 255

    def normal_images(self, batch: Mapping[str, Any], camera: str) -> Tensor:
        """Return images of the size `image_size` with normalized colors, float32."""
        pixels = self.pixels(batch, camera)
        if tuple(pixels.shape[-2:]) != tuple(self.config.image_size):
            small = F.interpolate(pixels.flatten(0, -4), size=self.config.image_size, mode="area")
            pixels = small.view(*pixels.shape[:-2], *self.config.image_size)
        return (pixels - self.image_mean) / (self.image_std + _EPS)


def their_config(kind: type[Any], config: LerobotConfig) -> Any:
    """Make the config of a network: of the class `kind` of LeRobot, from ours."""
    with optional_imports():
        from lerobot.configs.types import FeatureType, PolicyFeature

    names = policy_type(config.type).settings.shared_fields()  # type: ignore[attr-defined]
    own = {name: getattr(config, name) for name in names}
    return kind(
        input_features={
            **{key: PolicyFeature(FeatureType.VISUAL, (3, *config.image_size)) for key in config.cameras},
            STATE: PolicyFeature(FeatureType.STATE, (config.state_dim,)),
        },
        output_features={ACTION: PolicyFeature(FeatureType.ACTION, (config.action_dim,))},
        **{**config.their_fields(), **own},
    )


def _colors(config: ColorSettings) -> dict[str, tuple[float, ...]]:
    return {"image_mean": config.image_mean, "image_std": config.image_std}
