"""Normalization by one affine map per key and norm head, in float32, and its inverse.

Every kind of normalization (mean and deviation, range, quantiles) is an offset and a spread per dimension. The numbers
come as plain arrays. Robots that differ have maps of their own, the heads; each sample names its head. This is the only
place with the formula.
"""

from collections.abc import Mapping
from typing import Any

import torch
from torch import Tensor, nn


class Affine(nn.Module):
    """Map (x - offset) / spread per dimension; a constant dimension (spread 0) becomes 0, and its constant in reverse.

    The buffers, float32 [H, dim], are not part of the state dict: a saved policy has them in `normalisation.json`.
    """

    offset: Tensor
    spread: Tensor

    def __init__(self, offset: Any, spread: Any) -> None:
        """Make the map from [H, dim] arrays, or [dim] of the only head; finite, spread >= 0, else ValueError."""
        super().__init__()
        try:
            offset, spread = (torch.as_tensor(array, dtype=torch.float32).clone() for array in (offset, spread))
        except (TypeError, ValueError, RuntimeError) as error:  # no numbers, or rows of different lengths
            raise ValueError(f"offset and spread must be arrays of numbers, [dim] or [heads, dim]: {error}") from error
        if offset.ndim not in (1, 2) or offset.shape != spread.shape:
            shapes = f"offset {tuple(offset.shape)} and spread {tuple(spread.shape)}"
            raise ValueError(f"{shapes} must both be [dim] or [heads, dim]")
        if not (torch.isfinite(offset).all() and torch.isfinite(spread).all() and (spread >= 0).all()):
            raise ValueError(f"offset {offset.tolist()} and spread {spread.tolist()} must be finite, spread >= 0")
        self.register_buffer("offset", offset.view(-1, offset.shape[-1]), persistent=False)
        self.register_buffer("spread", spread.view(-1, spread.shape[-1]), persistent=False)

    def normalize(self, x: Tensor, head: Tensor | None = None) -> Tensor:
        """Normalize [..., dim] in the robot's units to float32 [..., dim].

        Args:
            x: the values.
            head: int64 [B], the row of each sample x[b]; None: the only one.

        Raises:
            ValueError: `head` is missing where there are several, or out of range.
        """
        offset, spread = self._rows(x, head)
        constant = spread == 0
        scaled = (x.float() - offset) / torch.where(constant, 1.0, spread)
        return torch.where(constant, 0.0, scaled)

    def unnormalize(self, x: Tensor, head: Tensor | None = None) -> Tensor:
        """Invert `normalize`: float32 [..., dim] -> float32 [..., dim] in the robot's units."""
        offset, spread = self._rows(x, head)
        return x.float() * spread + offset

    def arrays(self) -> dict[str, list[list[float]]]:
        """Return offset and spread as [H][dim] lists; float32 -> float64 -> text -> float32 is exact."""
        return {"offset": self.offset.tolist(), "spread": self.spread.tolist()}

    @staticmethod
    def from_arrays(arrays: Mapping[str, Any], key: str, dim: int, heads: int = 1) -> "Affine":
        """Make the maps of one key from {"offset": ..., "spread": ...}.

        Raises:
            ValueError: they are not `dim` wide, or not as many as `heads`.
        """
        missing = {"offset", "spread"} - set(arrays)
        if missing:
            raise ValueError(f"normalization of {key!r} lacks {sorted(missing)}")
        affine = Affine(arrays["offset"], arrays["spread"])
        rows, width = affine.offset.shape
        if width != dim:
            raise ValueError(f"normalization of {key!r} is {width} wide, the policy expects {dim}")
        if rows != heads:
            raise ValueError(f"normalization of {key!r} has {rows} norm heads, expected {heads}")
        return affine

    def _rows(self, x: Tensor, head: Tensor | None) -> tuple[Tensor, Tensor]:
        """Offset and spread, broadcastable to x: [dim], or [B, 1, ..., dim]."""
        offset, spread = of_head(self.offset, head), of_head(self.spread, head)
        if head is None:
            return offset[0], spread[0]
        if head.shape[0] != x.shape[0]:
            raise ValueError(f"head has shape {tuple(head.shape)}, expected ({x.shape[0]},)")
        shape = (x.shape[0], *[1] * (x.ndim - 2), offset.shape[1])
        return offset.view(shape), spread.view(shape)


def of_head(table: Tensor, head: Tensor | None) -> Tensor:
    """Return each sample's row of a table [H, dim]: [B, dim] by head, int64 [B]; the only row [1, dim] for None.

    Raises:
        ValueError: `head` is missing where there are several, or out of range. (On a GPU that ends the process.)
    """
    if head is None:
        if len(table) != 1:
            raise ValueError(f"there are {len(table)} norm heads: give the head of each sample, head [B]")
        return table
    if head.ndim != 1 or head.dtype != torch.int64:
        raise ValueError(f"head is {head.dtype} of shape {tuple(head.shape)}, expected int64 (B,)")
    try:
        return table.index_select(0, head)  # not table[head], for which -1 is the last one
    except IndexError as error:
        raise ValueError(f"head {head.tolist()}: there are {len(table)} norm heads") from error
