"""Normal numbers in place of those that a network of another package draws itself."""

from typing import Any

import torch
from torch import Tensor
from torch.overrides import TorchFunctionMode


class GivenNoise(TorchFunctionMode):
    """While it is active, the next `torch.randn_like` returns given numbers.

    A second call raises RuntimeError: the network then draws other numbers than the adapter knows.
    """

    def __init__(self, noise: Tensor) -> None:
        """Take the numbers."""
        super().__init__()
        self._noise: Tensor | None = noise

    def __torch_function__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        """Call a function of torch, or return the numbers."""
        if func is not torch.randn_like:
            return func(*args, **(kwargs or {}))
        noise, self._noise = self._noise, None
        if noise is None or noise.shape != args[0].shape:
            shape = tuple(args[0].shape)
            raise RuntimeError(f"the network draws {shape} normal numbers, which this release of LeRobot should not")
        return noise.to(args[0])
