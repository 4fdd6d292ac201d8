"""Memory of batches, reused once the consumer has released it.

Fresh memory costs up to a tenth of the decoding: the system zeroes each page when it is first
touched. A buffer is handed out as a tensor over a numpy array. Once the consumer has dropped the
tensor and everything that shares its memory, only this pool refers to the array, and the next batch
is written into it. A consumer that keeps its batches gets fresh memory. Page-locked memory is
reused by torch, which knows of copies under way.
"""

import sys
import threading
import time
from typing import Any

import numpy as np
import torch

_PATIENCE = 0.05  # seconds


class BufferPool:
    """Arrays, of which at most `most` are kept for reuse. Thread-safe.

    When all of them are in use, `take` waits briefly: a consumer that has just received a batch
    releases the one before in a moment, and without the wait there would soon be one more buffer.
    After a wait in vain, as with a consumer that keeps its batches, it no longer waits.
    """

    def __init__(self, most: int, pin: bool) -> None:
        self._most = most
        self._pin = pin
        self._lock = threading.Lock()
        self._known: list[np.ndarray] = []  # oldest first
        self._patient = True

    def take(self, shape: tuple[int, ...], dtype: str = "uint8") -> np.ndarray:
        """Array of this shape and dtype without other references; its content is undefined."""
        if self._pin:
            return torch.empty(shape, dtype=getattr(torch, dtype), pin_memory=True).numpy()
        with self._lock:
            array = self._find_free(shape, dtype)
            if array is None and self._patient and len(self._known) == self._most:
                until = time.monotonic() + _PATIENCE
                while array is None and time.monotonic() < until:
                    time.sleep(_PATIENCE / 100)
                    array = self._find_free(shape, dtype)
                self._patient = array is not None
            if array is None:
                array = np.empty(shape, dtype)
                self._known = [*self._known, array][-self._most :]
            return array

    def _find_free(self, shape: tuple[int, ...], dtype: str) -> np.ndarray | None:
        for i in range(len(self._known)):
            # A free one has two references: the list, and getrefcount's own argument.
            if (
                sys.getrefcount(self._known[i]) == 2
                and self._known[i].shape == shape
                and self._known[i].dtype == dtype
            ):
                return self._known[i]
        return None

    def pin_rows(self, rows: dict[str, Any]) -> dict[str, Any]:
        """Rows with their tensors in the same kind of memory as images."""
        if not self._pin:
            return rows
        pinned = {}
        for key, value in rows.items():
            pinned[key] = value.pin_memory() if isinstance(value, torch.Tensor) else value
        return pinned
