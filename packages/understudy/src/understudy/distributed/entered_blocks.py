"""Agreement of the ranks on the blocks that a forward pass enters, before any of them waits for
another.

A sharded block gathers its weights when it is entered, and sums its gradients in the backward pass.
Both wait for the other ranks, so a rank that leaves out a block which another one enters would make
it wait until `parallel.timeout`.

The ranks expect the blocks of the passes before, in their sequence. A rank that leaves some of them
out gathers them all the same, and one that enters another block first gathers all that the others
still expect, so that every rank comes to the next exchange: one number per pass, and one per block
that was not expected. There the ranks compare what they have entered, and all of them raise if they
differ. All ranks may leave out blocks, or enter new ones, alike.
"""

import hashlib
from array import array
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any
from weakref import ReferenceType, WeakKeyDictionary, ref

import torch
from torch import nn

from understudy.distributed.mesh import Mesh
from understudy_base import ConfigError

_END = -1
"""Number in place of a block at the end of a pass."""


@contextmanager
def agreed_blocks(policy: nn.Module, mesh: Mesh) -> Iterator[None]:
    """Compare the sharded blocks that the ranks enter in a forward pass; all ranks enter this
    context together.

    Raises:
        ConfigError: on all ranks, where they enter different blocks; names the block and a rank.
    """
    # in a plan one process stands for all
    if mesh.world_size == 1 or mesh.planned_device is not None:
        yield
        return
    if policy not in _ENTERED:
        _ENTERED[policy] = _EnteredBlocks(policy, mesh)
    entered = _ENTERED[policy]
    if not entered.modules:
        yield
        return
    entered.begin()
    try:
        yield
        entered.end()
    finally:
        entered.is_active = False


class _EnteredBlocks:
    """Blocks that forward passes of a policy enter, by their numbers among its sharded modules."""

    def __init__(self, policy: nn.Module, mesh: Mesh) -> None:
        from torch.distributed.fsdp import FSDPModule

        self.mesh = mesh
        named = [
            (name, module)
            for name, module in policy.named_modules()
            if name and issubclass(type(module), FSDPModule)
        ]
        self.names = [name for name, _ in named]
        # none holds the policy
        self.modules: list[ReferenceType[Any]] = [ref(module) for _, module in named]
        self.expected: list[int] = []
        self.entered: list[int] = []
        self.place = 0  # in `expected`, behind the last block that was entered
        self.is_active = False
        for number, (_, module) in enumerate(named):
            hook = torch.compiler.disable(lambda *_, number=number: self.enter(number))
            module.register_forward_pre_hook(hook, prepend=True)  # before the weights are gathered

    def begin(self) -> None:
        """Begin a pass."""
        self.entered = []
        self.place = 0
        self.is_active = True

    def enter(self, number: int) -> None:
        """Note a block that is about to gather its weights, behind all that the other ranks gather
        before.
        """
        if not self.is_active:
            return
        if self.mesh.shape[1] > 1:  # else a pass gathers nothing from others
            self._meet(number)
        self.entered.append(number)

    def _meet(self, number: int) -> None:
        """Gather what is expected before a block."""
        if number in self.expected[self.place :]:
            stop = self.expected.index(number, self.place)
            self._gather(stop)
            self.place = stop + 1
            return
        self._gather(len(self.expected))
        self._compare(number)
        self.expected.insert(self.place, number)
        self.place += 1

    def end(self) -> None:
        """End a pass, before its backward pass."""
        if self.mesh.shape[1] > 1:
            self._gather(len(self.expected))
        self._compare(_END)
        if len(self.expected) > 2 * len(self.entered):  # the sequence changes from pass to pass
            self.expected = list(self.entered)

    @torch.no_grad()
    def _gather(self, stop: int) -> None:
        """Gather the weights of the expected blocks up to a place, for the ranks that enter
        them.
        """
        for number in self.expected[self.place : stop]:
            module: Any = self.modules[number]()
            module.unshard()
            module.reshard()

    def _compare(self, number: int) -> None:
        """Raise ConfigError on all ranks, unless all have entered the same blocks and enter
        `number` now.
        """
        sequence = array("q", [*self.entered, number])
        mark = int.from_bytes(hashlib.blake2b(sequence.tobytes(), digest_size=7).digest(), "big")
        if self.mesh.equal(mark):
            return
        sequences = self.mesh.gather(sequence.tolist())
        self.is_active = False
        # of all ranks, at the first place where they differ
        numbers = next(numbers for numbers in zip(*sequences) if len(set(numbers)) > 1)
        at = min(rank for rank, entered in enumerate(numbers) if entered != _END)
        other = next(rank for rank, entered in enumerate(numbers) if entered != numbers[at])
        then = (
            f"enters {self.names[numbers[other]]} there" if numbers[other] != _END else "does not"
        )
        raise ConfigError(
            f"rank {at} enters the block {self.names[numbers[at]]} in a forward pass, and rank "
            f"{other} {then}: all processes must enter the same blocks in each pass, or they wait "
            "for each other; compute the block for every batch, and give samples without a use "
            "for it a (zero) share in it"
        )


_ENTERED: WeakKeyDictionary[nn.Module, _EnteredBlocks] = WeakKeyDictionary()
