"""Rank of this process among those of a training, for every loader and sampler. Imports no
torch.
"""

import os
import sys
import warnings
from dataclasses import dataclass
from functools import cache

from understudy_base import ConfigError, is_boolean

_DIVIDERS = {
    "accelerate": ("BatchSamplerShard", "IterableDatasetShard", "DataLoaderDispatcher"),
    "lightning": ("_DatasetSamplerWrapper",),
    "pytorch_lightning": ("_DatasetSamplerWrapper",),
    "lightning_fabric": ("_DatasetSamplerWrapper",),
}
"""Package -> its classes that divide the samples of a DataLoader among processes."""


@dataclass(frozen=True)
class ProcessRank:
    """Rank of this process, and the number of processes.

    Attributes:
        rank: number of this process.
        world_size: number of processes.
        is_given: whether the caller gave both; else `find` found them.
    """

    rank: int
    world_size: int
    is_given: bool

    @classmethod
    def find(cls, rank: int | None = None, world_size: int | None = None) -> "ProcessRank":
        """Rank of this process and number of processes.

        Where they are not given, they are those of torch.distributed if it is initialized; else
        RANK and WORLD_SIZE of the environment, as torchrun, accelerate and Ray set them; else 0 of
        1.

        Raises:
            ConfigError: one without the other; values of the environment that are no rank; a group
                of one process where the environment names several.
        """
        if is_boolean(rank) or is_boolean(world_size):
            raise ConfigError(f"rank {rank} with world_size {world_size}: give whole numbers")
        if rank is not None and world_size is not None:
            return cls(rank, world_size, True)
        if rank is not None or world_size is not None:
            raise ConfigError(
                f"rank {rank} with world_size {world_size}: give both, or neither to have them "
                "found"
            )
        group = _group()
        if group is not None and group[1] > 1:
            # whatever the environment holds: Lightning sets WORLD_SIZE alone
            return cls(*group, False)
        named = _named()
        if group is not None and named[1] > 1:
            raise ConfigError(
                f"the process group has 1 process, and the environment names rank {named[0]} of "
                f"{named[1]}: give rank= and world_size="
            )
        return cls(*named, False)

    def check(self, reader: str) -> None:
        """Compare with the process group of now, before the first sample is read.

        Warn once where rank 0 of 1 was given in a group of several.

        Args:
            reader: class of the loader or sampler, for messages.

        Raises:
            ConfigError: a group was made after the reader, in which this process has another rank;
                or another library divides the samples of a reader that divides them itself.
        """
        if (divider := _divider()) is not None:
            if self.world_size > 1:
                raise ConfigError(
                    f"{divider} divides the samples among processes, and this {reader} gives rank "
                    f"{self.rank} of {self.world_size} its own: leave the DataLoader out of "
                    f"accelerator.prepare, or give {reader} rank=0, world_size=1"
                )
            return
        group = _group()
        if group is None or group[1] == 1 or group == (self.rank, self.world_size):
            return
        if not self.is_given:
            raise ConfigError(
                f"this {reader} was made for rank {self.rank} of {self.world_size}, before a "
                f"process group in which this process is rank {group[0]} of {group[1]}: make it "
                f"after init_process_group, or give it rank={group[0]}, world_size={group[1]}"
            )
        if self.world_size == 1:
            warn_once(
                f"a loader was given rank=0, world_size=1 in a process group of {group[1]}: every "
                "rank reads the same samples; leave both out, and they are found"
            )


@cache
def warn_once(message: str) -> None:
    """Warn with `message`, once in this process."""
    warnings.warn(message, stacklevel=5)


def _group() -> tuple[int, int] | None:
    """Rank and size of the default process group; None without one."""
    dist = sys.modules.get("torch.distributed")
    if dist is None or not dist.is_available() or not dist.is_initialized():
        return None
    return dist.get_rank(), dist.get_world_size()


def _number(text: str) -> int:
    """The number that digits spell; -1 for another text."""
    return int(text) if text.isascii() and text.isdigit() else -1


def _named() -> tuple[int, int]:
    """RANK and WORLD_SIZE of the environment; 0 and 1 without them."""
    texts = [os.environ.get(name, "") for name in ("RANK", "WORLD_SIZE")]
    if texts in (["", ""], ["", "1"]):
        return 0, 1
    numbers = [_number(text) for text in texts]
    if not 0 <= numbers[0] < numbers[1]:
        raise ConfigError(
            f"RANK={texts[0]!r} with WORLD_SIZE={texts[1]!r} in the environment: need 0 <= RANK < "
            "WORLD_SIZE, or neither; make the loader after init_process_group (in Lightning: in "
            "train_dataloader), or give rank= and world_size="
        )
    return numbers[0], numbers[1]


def _divider() -> str | None:
    """Name of the class, of another library, that divides the samples that the caller's caller
    reads; None without one.

    Such a class has no sign of it but its place on the stack. The locals of a frame are not looked
    at: that would keep all of them, a caller's model too, for as long as the frame lives.
    """
    frame = None if sys.modules.keys().isdisjoint(_DIVIDERS) else sys._getframe(3)
    while frame is not None:
        package = frame.f_globals.get("__name__", "").partition(".")[0]
        kind = frame.f_code.co_qualname.partition(".")[0]
        if kind in _DIVIDERS.get(package, ()):
            return f"{kind} of {package}"
        frame = frame.f_back
    return None
