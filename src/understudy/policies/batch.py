"""Checks of the batch that a policy gets; an error names the key."""

from collections.abc import Mapping
from typing import Any

from torch import Tensor


def value_of(batch: Mapping[str, Any], key: str) -> Any:
    """What the batch has under `key`. Raises ValueError where it has nothing."""
    if key not in batch:
        raise ValueError(f"the batch has {sorted(batch)}, the policy needs {key!r}")
    return batch[key]


def check_shape(name: str, tensor: Tensor, shape: tuple[int | None, ...]) -> None:
    """Refuse a tensor whose shape is not `shape` (None: any): ValueError."""
    got = tuple(tensor.shape)
    if len(got) != len(shape) or any(want is not None and have != want for have, want in zip(got, shape)):
        wanted = ", ".join("any" if side is None else str(side) for side in shape)
        raise ValueError(f"{name} has shape {got}, expected ({wanted})")
