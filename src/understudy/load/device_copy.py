"""Batches to a device, copied beside the work that is under way there.

On a CUDA device the copies run on a stream of their own from page-locked memory; the current stream waits for them and
keeps what it uses alive, so the batch may be used like any other. Elsewhere it is a plain `Tensor.to`.
"""

from typing import Any

import torch
from torch import Tensor


class Delivery:
    """Copies batches to `device`. Raises ValueError for a CUDA device where there is none."""

    def __init__(self, device: torch.device) -> None:
        if device.type == "cuda" and not torch.cuda.is_available():
            raise ValueError(f"device {str(device)!r}: torch finds no CUDA device here; leave it out, or 'cpu'")
        self._device = device
        self.pins = device.type == "cuda"
        self._stream = torch.cuda.Stream(device) if self.pins else None

    def copy(self, batch: dict[str, Any]) -> dict[str, Any]:
        """The batch with its tensors on the device; what is no tensor stays as it is."""
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
