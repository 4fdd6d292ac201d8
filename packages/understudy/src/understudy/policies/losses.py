"""Per-sample losses of a policy, and the scalar that follows from them.

A policy returns `dict[str, Loss]`, one entry per loss term. (With `Policy.scalar_losses` it returns
means over the batch, and `Policy.sample_losses` makes the entries.) With sum and count per sample a
run divides by the *global* count, so that ranks and micro-batches never weigh samples differently,
and a validation groups samples by task. The scalar comes from the same numbers: computing the
details of each draw and dimension cannot change it.
"""

from collections.abc import Mapping
from typing import NamedTuple

import torch
from torch import Tensor


class Detail(NamedTuple):
    """A loss term by draw and dimension.

    `sum`: float32 [B, D, A], over slots. `count`: int64 [B, A], elements per draw; equal for all
    draws.
    """

    sum: Tensor
    count: Tensor  # type: ignore[assignment]  # as in Loss
    order: Tensor | None = None
    """int64 [B, D]: indices of the draws in the order of a validation's table; None: as they are.
    """


class Loss(NamedTuple):
    """One loss term of a batch. `sum`: float32 [B], `count`: int64 [B], the number of elements
    behind each sum.
    """

    sum: Tensor
    count: Tensor  # type: ignore[assignment]  # the field hides tuple.count
    detail: Detail | None = None
    """The same by draw and dimension, on request; it adds up to `sum` up to rounding, and to
    `count` exactly.
    """

    @classmethod
    def of_errors(
        cls, errors: Tensor, is_pad: Tensor, dim_is_pad: Tensor | None = None, detail: bool = False
    ) -> "Loss":
        """Sum errors per sample over every element whose slot and dimension are not padded.

        A padded prediction or target that is not finite must be replaced before the error is
        computed: its gradient would not be finite either (`masked_squared_error`).

        Args:
            errors: float32 [B, D, T, A]; D draws of noise and time for the same sample.
            is_pad: bool [B, T]; True where the target repeats a frame beyond the episode.
            dim_is_pad: bool [B, A]; True where the sample's robot has no such dimension. None: it
                has all.
            detail: also fill `detail`.

        Returns:
            Loss whose count is `valid_elements`.
        """
        _, draws, _, dim = errors.shape
        pad = padded_elements(is_pad, dim_is_pad)  # [B, T, 1 or A]
        errors = torch.where(pad[:, None], 0.0, errors)
        parts = None
        if detail:
            parts = Detail(errors.sum(dim=2), (~pad).sum(dim=1).expand(-1, dim))
        return cls(errors.sum(dim=(1, 2, 3)), valid_elements(is_pad, draws, dim, dim_is_pad), parts)

    def plus(self, other: "Loss") -> "Loss":
        """Return the loss of the elements of both; details are added where both have them."""
        detail = None
        if self.detail is not None and other.detail is not None:
            sums = self.detail.sum + other.detail.sum
            detail = Detail(sums, self.detail.count + other.detail.count)
        return Loss(self.sum + other.sum, self.count + other.count, detail)

    def ordered(self, time: Tensor) -> "Loss":
        """Return the loss whose detail orders its draws by their stratified times [B, D]: the d-th
        earliest lies in the d-th interval.
        """
        if self.detail is None:
            return self
        return self._replace(detail=self.detail._replace(order=time.argsort(dim=1)))


def valid_elements(
    is_pad: Tensor, draws: int, dim: int, dim_is_pad: Tensor | None = None
) -> Tensor:
    """Count the elements of each sample behind a masked loss: int64 [B], draws * real dimensions *
    unpadded slots.

    Args:
        is_pad: bool [B, T], slots.
        draws: per sample.
        dim: width of the target.
        dim_is_pad: bool [B, dim], dimensions that the sample's robot does not have; None: it has
            all.
    """
    real = dim if dim_is_pad is None else (~dim_is_pad).sum(dim=1)
    return (~is_pad).sum(dim=1) * (draws * real)


def padded_elements(is_pad: Tensor, dim_is_pad: Tensor | None) -> Tensor:
    """Mark the elements without a target, bool [B, T, 1] of slots [B, T], or [B, T, A] with
    dimensions [B, A].
    """
    pad = is_pad[..., None]
    return pad if dim_is_pad is None else pad | dim_is_pad[:, None]


def masked_squared_error(
    predicted: Tensor,
    target: Tensor,
    is_pad: Tensor,
    dim_is_pad: Tensor | None = None,
    detail: bool = False,
) -> Loss:
    """Sum the squared error per sample over every element whose slot and dimension are not padded.

    Args:
        predicted: float32 [B, D, T, A]; D draws of noise and time for the same sample.
        target: float32 [B, D, T, A].
        is_pad: bool [B, T]; True where the target repeats a frame beyond the episode.
        dim_is_pad: bool [B, A]; True where the sample's robot has no such dimension. None: it has
            all.
        detail: also fill `Loss.detail`.

    Returns:
        Loss whose count is `valid_elements`.

    `torch.where` before the arithmetic, not a product after it: 0 * NaN is NaN, and the gradient of
    a `where` placed after a NaN is still 0 * NaN. Selecting a zero difference first keeps both
    value and gradient clean.
    """
    pad = padded_elements(is_pad, dim_is_pad)[:, None]  # [B, 1, T, 1 or A]
    zero = torch.zeros((), dtype=predicted.dtype, device=predicted.device)
    squares = (torch.where(pad, zero, predicted) - torch.where(pad, zero, target)).square()
    return Loss.of_errors(squares, is_pad, dim_is_pad, detail)


def scalar(losses: Mapping[str, Loss]) -> Tensor:
    """Add up sum / count of each term, float32 []: the loss of a batch on a single device.

    A batch without a single valid element has loss 0 (and gradient 0), not NaN.
    """
    terms = [loss.sum.sum() / loss.count.sum().clamp(min=1) for loss in losses.values()]
    return torch.stack(terms).sum()


class Imagined(NamedTuple):
    """Predicted consequences of actions."""

    actions: Tensor
    """float32 [B, T, A] in the robot's units: the given actions, or the policy's own."""
    states: Tensor
    """float32 [B, T, S] in the robot's units, after each action."""
    images: Tensor | None
    """uint8 [B, K, cameras, 3, H, W] of the network's size, K frames of `images_ahead`; None
    without future images.
    """
