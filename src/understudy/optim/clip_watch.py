"""Detection of a clip by others, which rounds bfloat16 gradients again, before the first step of `MasterWeights`."""

import warnings
from collections.abc import Iterable
from typing import Any

import torch
from torch import Tensor


class ClipWatch:
    """Gradients of bfloat16 parameters, watched from a backward pass to the first step.

    `clip_grad_norm_` of torch and of Accelerate changes each gradient once, in place, between the two.

    Args:
        parameters: watched until `close`.
    """

    def __init__(self, parameters: Iterable[Tensor]) -> None:
        self._low = [p for p in parameters if p.requires_grad and p.dtype == torch.bfloat16]
        self._hooks = [p.register_post_accumulate_grad_hook(self._wait_for_end) for p in self._low]
        self._versions: dict[Tensor, int] = {}
        self._waiting = False

    def _wait_for_end(self, _: Tensor) -> None:
        if not self._waiting:
            self._waiting = True
            # Queued twice: DistributedDataParallel reduces the gradients in a callback, which comes before the second.
            queue: Any = torch.autograd.Variable._execution_engine.queue_callback
            queue(lambda: queue(self._note_versions))

    def _note_versions(self) -> None:
        self._waiting = False
        self._versions = {p: p.grad._version for p in self._low if p.grad is not None}

    def warn(self) -> None:
        """Warn where every gradient was changed once, in place, since its backward pass."""
        changes = {p.grad._version - before for p, before in self._versions.items() if p.grad is not None}
        if changes == {1}:
            warnings.warn(
                "the bfloat16 gradients were changed after backward, as clip_grad_norm_ of torch and Accelerate does: "
                "the norm has 8 bits, and the gradients are rounded again; clip with clip_grad_norm_ of MasterWeights",
                stacklevel=4,
            )

    def close(self) -> None:
        """Remove the hooks; nothing is watched any more."""
        for hook in self._hooks:
            hook.remove()
        self._low, self._hooks, self._versions = [], [], {}
