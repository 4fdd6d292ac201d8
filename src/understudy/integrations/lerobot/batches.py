"""Batches of a `Loader` with the keys, shapes and dtypes of LeRobot's own dataset."""

from collections.abc import Iterator, Sequence
from typing import Any

import torch

from understudy.load.loader import Loader

_OWN = ("position", "source")
"""Keys that LeRobot's batches do not have."""


def lerobot_batches(loader: Loader, videos: Sequence[str]) -> Iterator[dict[str, Any]]:
    """Yield batches as LeRobot's `DataLoader` does; the loader is closed at the end.

    Images stay uint8, which the training script scales. Numbers of 64 bits become float32. A video window of one frame
    has no dimension of time.

    Args:
        loader: the loader.
        videos: keys of the videos with a window of one frame.
    """
    with loader:
        for batch in loader:
            for key in _OWN:
                batch.pop(key, None)
            for key in videos:
                batch[key] = batch[key].squeeze(1)  # [B, 1, 3, H, W] -> [B, 3, H, W]
            yield {key: value.float() if _is_double(value) else value for key, value in batch.items()}


def _is_double(value: Any) -> bool:
    return isinstance(value, torch.Tensor) and value.dtype == torch.float64
