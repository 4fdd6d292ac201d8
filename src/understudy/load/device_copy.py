"""Copies of batches to a device, beside the computation there."""

from typing import Any

import torch
from torch import Tensor


class DeviceCopy:
    """Copies batches to a device.

    On a CUDA device the copies run on a stream of their own from page-locked memory. The current stream waits for them
    and keeps their memory alive, so a batch is used like any other. Elsewhere the copy is a plain `Tensor.to`.

    Raises:
        ValueError: a CUDA device where there is none.
    """

    def __init__(self, device: torch.device) -> None:
        if device.type == "cuda" and not torch.cuda.is_available():
            raise ValueError(f"device {str(device)!r}: torch finds no CUDA device here; leave it out, or give 'cpu'")
        self._device = device
        self.pins = device.type == "cuda"
        """Whether batches must lie in page-locked memory."""
        self._stream = torch.cuda.Stream(device) if self.pins else None

    def copy(self, batch: dict[str, Any]) -> dict[str, Any]:
        """Batch with its tensors on the device; other values are passed through."""
        if self._stream is None:
            return {k: v.to(self._device) if isinstance(v, Tensor) else v for k, v in batch.items()}
        current = torch.cuda.current_stream(self._device)
        out = {}
        with torch.cuda.stream(self._stream):
            for key, value in batch.items():
                out[key] = value.to(self._device, non_blocking=True) if isinstance(value, Tensor) else value
        current.wait_stream(self._stream)
        for value in out.values():
            if isinstance(value, Tensor):
                value.record_stream(current)
        return out
