"""Copies of batches to a device, beside the computation there."""

from collections.abc import Collection
from copy import copy
from typing import Any

import torch
from torch import Tensor


class DeviceCopy:
    """Copies batches to a device.

    On a CUDA device the copies run on a stream of their own from page-locked memory. The current
    stream waits for them and keeps their memory alive, so a batch is used like any other. Elsewhere
    the copy is a plain `Tensor.to`.

    Raises:
        ValueError: a CUDA device where there is none.
    """

    def __init__(self, device: torch.device, host_keys: Collection[str]) -> None:
        """Prepare the copies; values under `host_keys` stay on the host."""
        if device.type == "cuda" and not torch.cuda.is_available():
            raise ValueError(
                f"device {str(device)!r}: torch finds no CUDA device here; leave it out, or give "
                "'cpu'"
            )
        self._device = device
        self._host_keys = frozenset(host_keys)
        self.pins = device.type == "cuda"
        """Whether batches must lie in page-locked memory."""
        self._stream = torch.cuda.Stream(device) if self.pins else None

    def copy(self, batch: dict[str, Any]) -> dict[str, Any]:
        """Batch with its tensors on the device; other values are passed through. Its type is
        kept.
        """
        moved = {
            k: v for k, v in batch.items() if isinstance(v, Tensor) and k not in self._host_keys
        }
        copied = copy(batch)
        if self._stream is None:
            copied.update((key, value.to(self._device)) for key, value in moved.items())
            return copied
        current = torch.cuda.current_stream(self._device)
        with torch.cuda.stream(self._stream):
            copied.update(
                (key, value.to(self._device, non_blocking=True)) for key, value in moved.items()
            )
        current.wait_stream(self._stream)
        for key in moved:
            copied[key].record_stream(current)
        return copied
