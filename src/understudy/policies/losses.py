"""Per-sample losses: what every policy returns, and how a scalar is derived from it.

A policy answers `dict[str, Loss]`, one entry per loss term. Keeping sum and count per sample lets a run divide by the
*global* count (so ranks and micro-batches never weigh samples differently) and lets a validation bucket samples by
task, all from the same numbers. There is no second code path for the scalar: asking for the per-sample values, or for
those of each draw and dimension, cannot change it.
"""

from collections.abc import Mapping
from typing import NamedTuple

import torch
from torch import Tensor


class Detail(NamedTuple):
    """A loss term by draw and dimension. `sum`: float32 [B, D, A], over slots; `count`: int64 [B, A], the elements
    behind the sum of each draw, of which all have the same."""

    sum: Tensor
    count: Tensor  # type: ignore[assignment]  # as in Loss


class Loss(NamedTuple):
    """One loss term of a batch. `sum`: float32 [B], `count`: int64 [B], the number of elements behind each sum."""

    sum: Tensor
    count: Tensor  # type: ignore[assignment]  # the field hides tuple.count, which nobody needs here
    detail: Detail | None = None
    """The same in parts, where it was asked for: equal to `sum` up to the rounding of sums, and to `count` exactly."""


def valid_elements(is_pad: Tensor, draws: int, dim: int, dim_is_pad: Tensor | None = None) -> Tensor:
    """Elements of each sample behind a masked loss: int64 [B], draws * real dimensions * unpadded slots.

    Args:
        is_pad: bool [B, T], slots.
        dim_is_pad: bool [B, dim], dimensions that the sample's robot does not have; None: it has all.
    """
    real = dim if dim_is_pad is None else (~dim_is_pad).sum(dim=1)
    return (~is_pad).sum(dim=1) * (draws * real)


def masked_squared_error(
    predicted: Tensor, target: Tensor, is_pad: Tensor, dim_is_pad: Tensor | None = None, detail: bool = False
) -> Loss:
    """Squared error summed per sample over every element whose slot and dimension are not padded.

    Args:
        predicted, target: float32 [B, D, T, A]; D draws of noise and time for the same sample.
        is_pad: bool [B, T]; True where the target repeats a frame beyond the episode.
        dim_is_pad: bool [B, A]; True where the sample's robot has no such dimension. None: it has all.
        detail: tell it by draw and dimension too.
    Returns:
        Loss whose count is `valid_elements`.

    `torch.where` before the arithmetic, not a product after it: 0 * NaN is NaN, and the gradient of a `where` placed
    after a NaN is still 0 * NaN. Selecting a zero difference first keeps both value and gradient clean.
    """
    _, draws, _, dim = predicted.shape
    pad = is_pad[:, None, :, None]  # [B, 1, T, 1]
    if dim_is_pad is not None:
        pad = pad | dim_is_pad[:, None, None]  # [B, 1, T, A]
    zero = torch.zeros((), dtype=predicted.dtype, device=predicted.device)
    squares = (torch.where(pad, zero, predicted) - torch.where(pad, zero, target)).square()
    parts = Detail(squares.sum(dim=2), (~pad[:, 0]).sum(dim=1).expand(-1, dim)) if detail else None
    return Loss(squares.sum(dim=(1, 2, 3)), valid_elements(is_pad, draws, dim, dim_is_pad), parts)


def scalar(losses: Mapping[str, Loss]) -> Tensor:
    """The number to report or, on a single device, to back-propagate: each term's sum / count, added up. float32 [].

    A batch without a single valid element has loss 0 (and gradient 0), not NaN.
    """
    terms = [loss.sum.sum() / loss.count.sum().clamp(min=1) for loss in losses.values()]
    return torch.stack(terms).sum()
