"""Streams of the world-action model in a batch: targets, padding, and the parts that a task mode gives.

Padded values are replaced before any arithmetic, so that no content of a padded slot, of a dimension that a robot does
not have, or of a missing camera reaches the network or a loss.
"""

from collections.abc import Mapping, Sequence
from typing import Any, NamedTuple

import torch
from torch import Tensor

from understudy.batch_keys import ACTION, MODE, STATE
from understudy.policies.batch import check_shape, value_of
from understudy.policies.common.encoders.image import as_network_input
from understudy.policies.common.normalizer import Normalizer
from understudy.policies.common.task_modes import DYNAMICS, FLOW, MODES, POLICY, TRAINS
from understudy.policies.world_action.config import WorldActionConfig
from understudy.policies.world_action.patches import to_images, to_patches

CHANGE = 0.25
"""Unit of a change of a pixel in the stream of images; pixels are in -1..1."""


class Stream(NamedTuple):
    """Target of one loss term."""

    clean: Tensor
    """float32 [B, tokens, dim], normalized, 0 where padded."""
    is_pad: Tensor
    """bool [B, tokens], tokens without a target."""
    dim_is_pad: Tensor | None
    """bool [B, dim], dimensions that the sample's robot does not have; None: it has all."""
    given: Tensor | None
    """bool [B], True where the sample's mode gives the target as an input; None: nowhere."""

    @property
    def uncounted(self) -> Tensor:
        """Tokens that count nothing: those without a target, and all tokens of a given target."""
        return self.is_pad if self.given is None else self.is_pad | self.given[:, None]


def stream_of(term: str, batch: Mapping[str, Any], config: WorldActionConfig, normalizer: Normalizer) -> Stream:
    """Read the target of a loss term from a training batch.

    Raises:
        ValueError: a missing key or a wrong shape, by name.
    """
    if term in (FLOW, DYNAMICS):
        key = ACTION if term == FLOW else STATE
        slots = config.chunk + (term == DYNAMICS)
        values, is_pad = value_of(batch, key), value_of(batch, f"{key}_is_pad")
        check_shape(key, values, (None, slots, config.action_dim if term == FLOW else config.state_dim))
        check_shape(f"{key}_is_pad", is_pad, tuple(values.shape[:2]))
        clean = normalizer.actions(batch) if term == FLOW else normalizer.states(batch, values[:, 1:])
        is_pad = is_pad[:, -config.chunk :]
        dim_is_pad = normalizer.dim_is_pad(key, batch)
    else:
        clean, is_pad = _changes(batch, config)
        dim_is_pad = None
    return Stream(torch.where(is_pad[..., None], 0.0, clean), is_pad, dim_is_pad, _given(batch, term))


def _given(batch: Mapping[str, Any], term: str) -> Tensor | None:
    if MODE not in batch:
        return None
    given = torch.zeros_like(batch[MODE], dtype=torch.bool)
    for number, mode in enumerate(MODES):
        if term not in TRAINS[mode]:
            given = given | (batch[MODE] == number)
    return given


def present(image: Tensor) -> Tensor:
    """The current image of a camera, uint8 [B, 3, H, W], of a window [B, 1 + K, 3, H, W] or of the image itself."""
    return image[:, 0] if image.ndim == 5 else image


def _changes(batch: Mapping[str, Any], config: WorldActionConfig) -> tuple[Tensor, Tensor]:
    """Changes of all cameras' future patches against the present ones [B, tokens, dim], and their padding."""
    changes, pads = [], []
    for camera in config.cameras:
        images, is_pad = value_of(batch, camera), value_of(batch, f"{camera}_is_pad")
        check_shape(camera, images, (None, 1 + config.imagined, 3, None, None))
        check_shape(f"{camera}_is_pad", is_pad, tuple(images.shape[:2]))
        is_pad = is_pad[:, 1:]
        lacks: Tensor | None = batch.get(f"{camera}_is_missing")
        if lacks is not None:
            is_pad = is_pad | lacks[:, None]
        pixels = as_network_input(images.flatten(0, 1), config.image_size, torch.float32).unflatten(0, images.shape[:2])
        patches = to_patches(pixels, config.future_patch)  # [B, 1 + K, P, dim]
        changes.append((patches[:, 1:] - patches[:, :1]) / CHANGE)
        pads.append(is_pad[..., None].expand(-1, -1, patches.shape[2]))
    return torch.stack(changes, dim=2).flatten(1, 3), torch.stack(pads, dim=2).flatten(1, 3)


def imagined_images(changes: Tensor, now: Sequence[Tensor], config: WorldActionConfig) -> Tensor:
    """Add predicted changes to the present images.

    Args:
        changes: float32 [B, tokens, dim], a sample of the stream of images.
        now: present images of each camera, uint8 [B, 3, H, W].
        config: of the network.

    Returns:
        uint8 [B, K, cameras, 3, height, width] of the network's size.
    """
    height, width = config.image_size
    pixels = torch.stack([as_network_input(image, config.image_size, torch.float32) for image in now], dim=1)
    shape = (config.imagined, len(now), config.patches)
    change = to_images(changes.unflatten(1, shape) * CHANGE, height, config.future_patch)
    return (
        ((pixels[:, None] + change + 1) * 127.5)
        .round()
        .clamp(0, 255)
        .to(torch.uint8)
        .view(-1, *shape[:2], 3, height, width)
    )


def check_mode(mode: str, config: WorldActionConfig) -> None:
    """Raise ValueError for a mode that a network without a future does not have."""
    if mode not in MODES or (mode != POLICY and not config.future):
        known = ", ".join(MODES) if config.future else POLICY
        raise ValueError(f"mode {mode!r}: this policy has {known}; another `mode` of the run trains the future too")
