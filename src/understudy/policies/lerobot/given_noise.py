"""Normal numbers in place of those that a network of another package draws itself."""

from collections.abc import Iterable
from typing import Any

import torch
from torch import Tensor
from torch.overrides import TorchFunctionMode


class GivenNoise(TorchFunctionMode):
    """While it is active, the calls of `torch.randn_like` and `torch.randn` return given numbers, one after the other.

    Further calls raise RuntimeError: the network then draws other numbers than the adapter knows.
    """

    def __init__(self, *noises: Tensor) -> None:
        """Take the numbers of each call."""
        super().__init__()
        self._noises = list(noises)

    def __torch_function__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        """Call a function of torch, or return the numbers."""
        named = kwargs or {}
        if func not in (torch.randn_like, torch.randn):
            return func(*args, **named)
        like = func is torch.randn_like
        first = args[0] if args else named["size"]
        shape = tuple(first.shape if like else first if isinstance(first, Iterable) else args)
        noise = self._noises.pop(0) if self._noises else None
        if noise is None or tuple(noise.shape) != shape:
            raise RuntimeError(f"the network draws {shape} normal numbers, which this release of LeRobot should not")
        return noise.to(first) if like else noise
