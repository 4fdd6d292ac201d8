"""Augmentation of a batch and its way to the device, without any network.

All random numbers are keyed by (seed, purpose, position), so a sample gets the same mode, shift and
text on any rank, in any micro-batch and after any restart.
"""

from collections.abc import Mapping
from typing import TYPE_CHECKING, Any

import numpy as np
import torch
from torch import Tensor

from understudy.policies.batch import to_device
from understudy.policies.common.images import drop_texts, shift_images
from understudy.policies.common.settings import TaskMode
from understudy.policies.draws import Draws, RandomSpec, make_draws
from understudy_base import PROMPT_METADATA, TASK, Batch
from understudy_data import Instructions, KeyedDraws, PromptMetadata

if TYPE_CHECKING:
    from understudy.config.data import DataConfig
    from understudy.config.train import AugmentConfig


def draw_modes(seed: int, positions: Tensor, shares: Mapping[str, float]) -> Tensor:
    """Draw the mode of each position: indexes into `TaskMode.ALL`, int64 [n].

    Args:
        seed: seed of the run.
        positions: int64 [n], on the host.
        shares: share of each mode by name; they sum to 1.
    """
    bounds = np.cumsum([shares.get(mode, 0.0) for mode in TaskMode.ALL])
    # where the sum is just below 1
    last = max(number for number, mode in enumerate(TaskMode.ALL) if shares.get(mode))
    drawn = KeyedDraws(seed).uniform("task mode", positions.numpy()).reshape(-1)
    return torch.from_numpy(
        np.minimum(np.searchsorted(bounds, drawn, side="right"), last).astype(np.int64)
    )


def apply_augmentation(
    batch: Batch, cameras: tuple[str, ...], augment: "AugmentConfig", seed: int
) -> dict[str, Any]:
    """Shift the images and drop some instructions; `batch["position"]` keys the random numbers."""
    return shift_cameras(drop_instructions(batch, augment, seed), cameras, augment, seed)


def drop_instructions(batch: Batch, augment: "AugmentConfig", seed: int) -> dict[str, Any]:
    """Draw one of several instructions, and replace some by the empty text, on the host."""
    if not (augment.text_dropout or augment.task_separator):
        return dict(batch)
    positions = batch["position"].numpy()
    texts = Instructions(augment.task_separator).draw(batch[TASK], seed, positions)
    if augment.text_dropout:
        draws = torch.from_numpy(KeyedDraws(seed).uniform("text dropout", positions))
        texts = drop_texts(texts, draws, augment.text_dropout)
    return {**batch, TASK: texts}


def drop_metadata(batch: Batch, data: "DataConfig", seed: int) -> dict[str, Any]:
    """Drop metadata from some prompts, on the host: each field for its share of the samples, and
    all for a share.

    Fields draw independently; `batch["position"]` keys the draws, so an epoch differs from the next
    one.
    """
    if PROMPT_METADATA not in batch:
        return dict(batch)
    positions = batch["position"].numpy()
    draws = KeyedDraws(seed)
    all_of = draws.uniform("prompt metadata", positions) < data.prompt_metadata_dropout
    drawn = {}
    for name, share in data.prompt_metadata.items():
        of_field = draws.uniform(f"prompt metadata {name}", positions)
        drawn[PromptMetadata.label(name)] = of_field < share
    metadata = []
    for row, lines in enumerate(batch[PROMPT_METADATA]):
        dropped = [name for name, rows in drawn.items() if rows[row]]
        kept = "" if all_of[row] else PromptMetadata.drop(lines, dropped)
        metadata.append(kept)
    return {**batch, PROMPT_METADATA: metadata}


def shift_cameras(
    batch: Batch, cameras: tuple[str, ...], augment: "AugmentConfig", seed: int
) -> dict[str, Any]:
    """Shift the images of each sample by a few pixels, on the device of the images."""
    changed = dict(batch)
    if not augment.shift:
        return changed
    for camera in cameras:
        draws = torch.from_numpy(
            KeyedDraws(seed).uniform(f"shift {camera}", batch["position"].numpy(), (2,))
        )
        # [B, 3, H, W], or [B, T, 3, H, W]: the frames of a sample shift alike
        images = batch[camera]
        shifted = shift_images(
            images.flatten(1, -3), to_device(draws, images.device), augment.shift
        )
        changed[camera] = shifted.view_as(images)
    return changed


def draw_on_device(
    spec: Mapping[str, RandomSpec],
    seed: int,
    positions: Tensor,
    device: torch.device,
    purpose: str = "",
) -> Draws:
    """Draw random numbers, keyed as by `policies/draws.py`, and copy them to `device`."""
    return {
        name: to_device(values, device)
        for name, values in make_draws(spec, seed, positions, purpose).items()
    }
