"""Placement: which positions a rank makes in which step. Nothing else in the project computes this.

Step k of a run with global batch B is made of the positions [k*B, (k+1)*B); rank r of W makes the offsets
[r*B // W, (r+1)*B // W) of them. Every rank takes part in every step, so no rank ever has a batch fewer than another,
and where B divides the number of lanes V, a lane comes up at one offset throughout an epoch: it stays with one rank.
"""

import numpy as np


def rank_slice(batch: int, rank: int, world: int) -> tuple[int, int]:
    """The offsets [low, high) in every global batch that `rank` makes; sizes differ by at most one over the ranks.

    Raises ValueError unless 0 <= rank < world <= batch.
    """
    if batch < 1:
        raise ValueError(f"global batch {batch}: it must hold at least 1 sample")
    if not 1 <= world <= batch:
        raise ValueError(f"{world} ranks for a global batch of {batch}: need 1 to {batch} ranks, or a larger batch")
    if not 0 <= rank < world:
        raise ValueError(f"rank {rank} is not one of the {world} ranks 0..{world - 1}")
    return rank * batch // world, (rank + 1) * batch // world


def batch_positions(position: int, batch: int, rank: int = 0, world: int = 1) -> np.ndarray:
    """Positions (int64, about batch/world of them) that `rank` makes of the global batch which starts at `position`.

    This is the form for a run whose batch changed on the way, where `position` is no multiple of the batch.
    """
    if position < 0:
        raise ValueError(f"position {position}: positions start at 0")
    low, high = rank_slice(batch, rank, world)
    return np.arange(position + low, position + high, dtype=np.int64)


def rank_positions(step: int, batch: int, rank: int = 0, world: int = 1) -> np.ndarray:
    """Positions (int64, about batch/world of them) that `rank` makes in step `step` of a run with a constant batch."""
    if step < 0:
        raise ValueError(f"step {step}: steps start at 0")
    return batch_positions(step * batch, batch, rank, world)
