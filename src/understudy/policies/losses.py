"""Per-sample losses: what every policy returns, and how a scalar is derived from it.

A policy answers `dict[str, Loss]`, one entry per loss term. Keeping sum and count per sample lets a run divide by the
*global* count (so ranks and micro-batches never weigh samples differently) and lets a validation bucket samples by
task, all from the same numbers. There is no second code path for the scalar: asking for the per-sample values cannot
change it. Not here: what is compared with what (`flow.py`), and any communication between ranks (the run's business).
"""

from collections.abc import Mapping
from typing import NamedTuple

import torch
from torch import Tensor


class Loss(NamedTuple):
    """One loss term of a batch. `sum`: float32 [B], `count`: int64 [B], the number of elements behind each sum."""

    sum: Tensor
    count: Tensor  # type: ignore[assignment]  # the field hides tuple.count, which nobody needs here


def valid_elements(is_pad: Tensor, draws: int, dim: int) -> Tensor:
    """Elements of each sample behind a masked loss: bool [B, T] -> int64 [B], draws * dim * unpadded slots."""
    return (~is_pad).sum(dim=1) * (draws * dim)


def masked_squared_error(predicted: Tensor, target: Tensor, is_pad: Tensor) -> Loss:
    """Squared error summed per sample over every element whose slot is not padded.

    Args:
        predicted, target: float32 [B, D, T, A]; D draws of noise and time for the same sample.
        is_pad: bool [B, T]; True where the target repeats a frame beyond the episode.
    Returns:
        Loss whose count is `valid_elements`.

    `torch.where` before the arithmetic, not a product after it: 0 * NaN is NaN, and the gradient of a `where` placed
    after a NaN is still 0 * NaN. Selecting a zero difference first keeps both value and gradient clean.
    """
    _, draws, _, dim = predicted.shape
    pad = is_pad[:, None, :, None]  # [B, 1, T, 1]
    zero = torch.zeros((), dtype=predicted.dtype, device=predicted.device)
    difference = torch.where(pad, zero, predicted) - torch.where(pad, zero, target)
    return Loss(difference.square().sum(dim=(1, 2, 3)), valid_elements(is_pad, draws, dim))


def scalar(losses: Mapping[str, Loss]) -> Tensor:
    """The number to report or, on a single device, to back-propagate: each term's sum / count, added up. float32 [].

    A batch without a single valid element has loss 0 (and gradient 0), not NaN.
    """
    terms = [loss.sum.sum() / loss.count.sum().clamp(min=1) for loss in losses.values()]
    return torch.stack(terms).sum()
