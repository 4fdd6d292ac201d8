"""Agreement of the processes of a program, ours or not."""

from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any, TypeVar

import torch
import torch.distributed as dist
from torch import Tensor

T = TypeVar("T")


class Ranks:
    """Processes that compute something together, as seen by one of them."""

    rank: int
    world_size: int
    device: torch.device
    """Device of the arithmetic."""

    @property
    def group(self) -> Any:
        """Group of the exchanges; None: the default one."""
        return None

    def sum(self, tensor: Tensor) -> Tensor:
        """Sum `tensor` over all ranks, in place, on host or device; bit-equal on all of them."""
        # alone, gloo's threads would cost a small network a tenth of its step
        if self.world_size > 1:
            dist.all_reduce(tensor)
        return tensor

    def any(self, flag: bool) -> bool:
        """Return whether `flag` is set on any rank; does not wait for the device."""
        return self.votes(flag)[0]

    def votes(self, *flags: bool) -> list[bool]:
        """Return `any` of several flags in one exchange."""
        if self.world_size == 1:
            return list(flags)
        votes = torch.tensor(flags, dtype=torch.int32)
        dist.all_reduce(votes, op=dist.ReduceOp.MAX, group=self.group)
        return [bool(vote) for vote in votes.tolist()]

    def gather(self, value: T) -> list[T]:
        """Return the value of each rank, by rank; the values must pickle."""
        values: list[Any] = [None] * self.world_size
        dist.all_gather_object(values, value, group=self.group)
        return values


class GivenRanks(Ranks):
    """The processes of a group that another program has made; one process without a group.

    Everything goes through gloo and the host, so that a group of NCCL alone will do.
    """

    def __init__(self, device: torch.device, group: Any = None) -> None:
        """Take the place of this process in the default group.

        Args:
            device: device of the arithmetic.
            group: group of gloo with the same processes; None: the default one.
        """
        joined = dist.is_available() and dist.is_initialized()
        self.rank = dist.get_rank() if joined else 0
        self.world_size = dist.get_world_size() if joined else 1
        self.device = device
        self._group = group

    @property
    def group(self) -> Any:
        """Group of the exchanges; None: the default one."""
        return self._group

    def sum(self, tensor: Tensor) -> Tensor:
        """Return the sum over all ranks, on the host."""
        total = tensor.cpu()
        if self.world_size > 1:
            dist.all_reduce(total, group=self.group)
        return total

    def gather(self, value: T) -> list[T]:
        """Return the value of each rank, by rank; the values must pickle."""
        return [value] if self.world_size == 1 else super().gather(value)


@contextmanager
def given_ranks(device: torch.device) -> Iterator[GivenRanks]:
    """Give the processes of the program's group, with a group of gloo where it has none."""
    joined = dist.is_available() and dist.is_initialized() and dist.get_world_size() > 1
    group = None
    if joined and "cpu:gloo" not in dist.get_backend_config():
        group = dist.new_group(backend="gloo")
    try:
        yield GivenRanks(device, group)
    finally:
        if group is not None:
            dist.destroy_process_group(group)
