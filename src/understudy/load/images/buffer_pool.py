"""Memory of pictures in batches, used again once nobody looks at it.

Fresh memory costs as much as a tenth of the decoding: the system zeroes each page when it is first touched. A buffer is
handed out as a tensor over a numpy array; when the consumer has dropped the tensor and everything that shares its
memory, nobody but this pool refers to the array, and the next batch is written into it. A consumer that keeps its
batches keeps them: then memory is fresh. Page-locked memory is torch's to reuse, which knows of copies under way.
"""

import sys
import threading
import time
from typing import Any

import numpy as np
import torch

_PATIENCE = 0.05  # seconds


class Buffers:
    """uint8 arrays, of which at most `most` wait here to be used again. For any thread.

    Where all of them are in use, one is waited for, as briefly as a consumer that has just got a batch takes to let go
    of the one before: otherwise there would soon be one more. A consumer that turns out to keep its batches gets fresh
    memory from then on.
    """

    def __init__(self, most: int, pin: bool) -> None:
        self._most, self._pin = most, pin
        self._lock = threading.Lock()
        self._known: list[np.ndarray] = []  # the one longest known first
        self._patient = True

    def take(self, shape: tuple[int, ...]) -> np.ndarray:
        """An array of this shape that nobody else refers to; what is in it is undefined."""
        if self._pin:
            return torch.empty(shape, dtype=torch.uint8, pin_memory=True).numpy()
        with self._lock:
            array = self._free(shape)
            if array is None and self._patient and len(self._known) == self._most:
                until = time.monotonic() + _PATIENCE
                while array is None and time.monotonic() < until:
                    time.sleep(_PATIENCE / 100)
                    array = self._free(shape)
                self._patient = array is not None
            if array is None:
                array = np.empty(shape, np.uint8)
                self._known = [*self._known, array][-self._most :]
            return array

    def _free(self, shape: tuple[int, ...]) -> np.ndarray | None:
        for i in range(len(self._known)):
            # Two refer to a free one: the list, and getrefcount's own argument.
            if sys.getrefcount(self._known[i]) == 2 and self._known[i].shape == shape:
                return self._known[i]
        return None

    def rows(self, tables: dict[str, Any]) -> dict[str, Any]:
        """The tensors of rows in the same kind of memory as pictures."""
        if not self._pin:
            return tables
        return {key: value.pin_memory() if isinstance(value, torch.Tensor) else value for key, value in tables.items()}
