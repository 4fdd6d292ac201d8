"""Parts of a run's settings that decide its processes and its forward passes."""

from dataclasses import dataclass
from typing import Annotated

from understudy.config.intervals import Processes
from understudy_kit import OnResume, Positive


@dataclass(frozen=True)
class ParallelConfig:
    """Mesh of processes: replicas of the weights, each divided into shards.

    (dp_replicate, dp_shard) = (N, 1) is DDP, (1, N) FSDP2, (R, S) HSDP. Start the processes with
    `--launch N`. The samples do not depend on the mesh; the numbers only through the rounding of
    sums.
    """

    dp_shard: Processes = 1
    """Number of processes that share the weights, gradients and moments of one replica."""
    dp_replicate: Processes | None = None
    """Number of replicas; the default is processes / dp_shard."""
    timeout: Annotated[Positive, OnResume.NO_EFFECT] = 600.0
    """Seconds that a process waits for an idle one before it gives up. This catches processes that
    hang: a process that ended is noticed at once, and work that rank 0 does alone at the start may
    take any time.
    """


@dataclass(frozen=True)
class Batching:
    """Samples of a step and of its forward passes, by the names of the settings."""

    batch_size: int
    micro_batch_size: int | None = None
    max_num_tokens: int | None = None
    max_samples: int | None = None

    def accumulates(self) -> bool:
        """Return whether the settings may cut the share of a process into several micro-batches."""
        return any((self.micro_batch_size, self.max_num_tokens, self.max_samples))

    def forward_samples(self) -> int:
        """Return the most samples of a forward pass that the settings name; the share of a process
        may be smaller.
        """
        limits = (self.micro_batch_size, self.max_samples, self.batch_size)
        return min(limit for limit in limits if limit)

    def num_micro_batches(self, world_size: int) -> int:
        """Return the number of micro-batches of each process."""
        if not self.micro_batch_size:
            return 1
        return self.batch_size // (world_size * self.micro_batch_size)

    def largest_part(self, world_size: int, tokens: int | None) -> int:
        """Return the samples of the largest part of a step, where each sample has `tokens` tokens.

        Args:
            world_size: processes of the run.
            tokens: tokens of the largest sample.
        """
        if self.micro_batch_size:
            return self.micro_batch_size
        share = -(-self.batch_size // world_size)
        by_tokens = share
        if self.max_num_tokens is not None and tokens:
            by_tokens = self.max_num_tokens // tokens
        return max(1, min(share, self.max_samples or share, by_tokens))


@dataclass(frozen=True)
class MeshSettings:
    """Settings that the processes of a run have to fit."""

    parallel: ParallelConfig
    device: str
    precision: str
    batching: Batching
