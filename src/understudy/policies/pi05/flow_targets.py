"""Noisy chunks of actions and their loss, in the network's units and width."""

from collections.abc import Mapping
from typing import Any

import torch
from torch import Tensor, nn

from understudy.batch_keys import ACTION
from understudy.policies.batch import check_shape, value_of
from understudy.policies.common.chunking import given_actions
from understudy.policies.common.flow_matching import noisy_actions, velocity
from understudy.policies.common.normalizer import Normalizer
from understudy.policies.draws import Draws
from understudy.policies.losses import Loss, masked_squared_error
from understudy.policies.pi05.config import Pi05PolicyConfig


def widened(x: Tensor, dim: int) -> Tensor:
    """Pad the last dimension with zeros to the network's."""
    return nn.functional.pad(x, (0, dim - x.shape[-1]))


def unlearnt_actions(batch: Mapping[str, Any], draws: Draws, chunk: int) -> Tensor:
    """Mark the actions without a loss, bool [B, T]: padded ones and given ones."""
    is_pad: Tensor = value_of(batch, f"{ACTION}_is_pad")
    check_shape(f"{ACTION}_is_pad", is_pad, (None, chunk))
    given = _given_actions(draws, chunk)
    return is_pad if given is None else is_pad | given


def _given_actions(draws: Draws, chunk: int) -> Tensor | None:
    """Actions that the sample is given without noise, bool [B, T]; None: none."""
    return given_actions(draws["flow delay"], chunk) if "flow delay" in draws else None


def noisy_chunks(
    batch: Mapping[str, Any], draws: Draws, config: Pi05PolicyConfig, normalizer: Normalizer, dim: int
) -> tuple[Tensor, Tensor, Tensor]:
    """Return noisy actions [B, D, T, dim], their times [B, D] or [B, D, T], and the clean actions [B, T, dim].

    Padded actions are replaced by 0 before any arithmetic: such a slot carries noise only.

    Args:
        batch: of training.
        draws: of the batch.
        config: of the policy.
        normalizer: of the policy.
        dim: width of the network's actions.

    Raises:
        ValueError: a missing key or a wrong shape, by name.
    """
    noise, time = draws["flow noise"], draws["flow time"]
    check_shape(ACTION, value_of(batch, ACTION), (None, config.chunk, config.action_dim))
    actions = normalizer.actions(batch)
    is_pad: Tensor = value_of(batch, f"{ACTION}_is_pad")
    check_shape(f"{ACTION}_is_pad", is_pad, tuple(actions.shape[:2]))
    clean = widened(torch.where(is_pad[..., None], torch.zeros_like(actions), actions), dim)
    check_shape("noise", noise, (len(clean), None, config.chunk, dim))
    check_shape("time", time, tuple(noise.shape[:2]))
    given = _given_actions(draws, config.chunk)
    every = clean[:, None].expand_as(noise)
    if given is None:
        return noisy_actions(every, noise, time), time, clean
    times = torch.where(given[:, None], 0.0, time[..., None].expand(*noise.shape[:3]))
    return noisy_actions(every.unsqueeze(3), noise.unsqueeze(3), times).squeeze(3), times, clean


def flow_loss(
    batch: Mapping[str, Any], draws: Draws, moves: Tensor, clean: Tensor, normalizer: Normalizer, detail: bool
) -> Loss:
    """Compute the squared error of the velocity per sample, over the robot's own dimensions.

    Args:
        batch: of training.
        draws: of the batch.
        moves: predicted velocity [B, D, T, dim].
        clean: actions [B, T, dim] of `noisy_chunks`.
        normalizer: of the policy.
        detail: whether to return the errors of each draw too.
    """
    noise, own = draws["flow noise"], value_of(batch, ACTION).shape[-1]
    target = velocity(clean[:, None].expand_as(noise), noise)
    dims = normalizer.dim_is_pad(ACTION, batch)
    unlearnt = unlearnt_actions(batch, draws, clean.shape[1])
    found = masked_squared_error(moves[..., :own], target[..., :own], unlearnt, dims, detail)
    if detail and found.detail is not None:  # the d-th earliest of a sample's times lies in the d-th interval
        found = found._replace(detail=found.detail._replace(order=draws["flow time"].argsort(dim=1)))
    return found
