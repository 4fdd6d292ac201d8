"""Construction of a network without memory for its large tensors, which are filled later."""

from math import prod
from typing import Any

import torch
from torch.overrides import TorchFunctionMode

LARGE = 1 << 20
"""Elements of a tensor that `OnMeta` makes on the meta device."""


class OnMeta(TorchFunctionMode):
    """Context in which tensors of `LARGE` elements or more are made on the meta device: shapes alone.

    Small ones are real, so a policy can check and keep its normalization.
    """

    def __torch_function__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        """Call `func`, with another device where it makes a large tensor from a shape."""
        named = dict(kwargs or {})
        if func in (torch.empty, torch.zeros, torch.ones):
            shape = named.get("size", args[0] if len(args) == 1 and not isinstance(args[0], int) else args)
            if prod(shape) >= LARGE:
                named["device"] = "meta"
        return func(*args, **named)
