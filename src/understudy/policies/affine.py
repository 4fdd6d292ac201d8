"""Normalisation as the policy applies it: one affine map per key, in float32, and its inverse.

Every way of normalising (mean and deviation, range, quantiles) is an offset and a spread per dimension; which numbers
they are is decided where the data is known, and handed in as plain arrays. The formula is written here and nowhere
else.
"""

from collections.abc import Mapping
from typing import Any

import torch
from torch import Tensor, nn


class Affine(nn.Module):
    """(x - offset) / spread per dimension; a constant dimension (spread 0) becomes 0 and comes back as its constant.

    The buffers are not part of the state dict: they are no weights, and the saved policy keeps them in
    `normalisation.json`, one truth.
    """

    offset: Tensor
    spread: Tensor

    def __init__(self, offset: Any, spread: Any) -> None:
        """offset, spread: [dim] arrays, finite, spread >= 0. Raises ValueError otherwise."""
        super().__init__()
        offset, spread = (torch.as_tensor(array, dtype=torch.float32).clone() for array in (offset, spread))
        if offset.ndim != 1 or offset.shape != spread.shape:
            raise ValueError(f"offset {tuple(offset.shape)} and spread {tuple(spread.shape)} must both be [dim]")
        if not (torch.isfinite(offset).all() and torch.isfinite(spread).all() and (spread >= 0).all()):
            raise ValueError(f"offset {offset.tolist()} and spread {spread.tolist()} must be finite, spread >= 0")
        self.register_buffer("offset", offset, persistent=False)
        self.register_buffer("spread", spread, persistent=False)

    def normalise(self, x: Tensor) -> Tensor:
        """[..., dim] in the robot's units -> float32 [..., dim]."""
        constant = self.spread == 0
        scaled = (x.float() - self.offset) / torch.where(constant, 1.0, self.spread)
        return torch.where(constant, 0.0, scaled)

    def unnormalise(self, x: Tensor) -> Tensor:
        """The inverse: float32 [..., dim] -> float32 [..., dim] in the robot's units."""
        return x.float() * self.spread + self.offset

    def arrays(self) -> dict[str, list[float]]:
        """offset and spread as lists; float32 -> float64 -> text -> float32 is exact."""
        return {"offset": self.offset.tolist(), "spread": self.spread.tolist()}

    @staticmethod
    def of(arrays: Mapping[str, Any], key: str, dim: int) -> "Affine":
        """The map of one key from {"offset": ..., "spread": ...}. Raises ValueError when it is not `dim` wide."""
        missing = {"offset", "spread"} - set(arrays)
        if missing:
            raise ValueError(f"normalisation of {key!r} lacks {sorted(missing)}")
        affine = Affine(arrays["offset"], arrays["spread"])
        if len(affine.offset) != dim:
            raise ValueError(f"normalisation of {key!r} is {len(affine.offset)} wide, the policy expects {dim}")
        return affine
