"""Placement: the positions of each rank in each step. The only place where this is computed.

Step k of a run with global batch size B consists of the positions [k*B, (k+1)*B). Rank r of W makes
their offsets [r*B // W, (r+1)*B // W). Every rank takes part in every step, so no rank ever has a
batch fewer than another. Where B divides the number of lanes V, a lane has the same offset
throughout an epoch and therefore stays on one rank.
"""

import numpy as np


def rank_slice(batch_size: int, rank: int, world_size: int) -> tuple[int, int]:
    """Offsets [low, high) of `rank` in every global batch; the sizes of two ranks differ by at most
    one.

    Raises:
        ValueError: unless 0 <= rank < world_size <= batch_size.
    """
    if batch_size < 1:
        raise ValueError(f"global batch size {batch_size}: need at least 1 sample")
    if not 1 <= world_size <= batch_size:
        raise ValueError(
            f"{world_size} ranks for a global batch of {batch_size}: need 1 to {batch_size} ranks, "
            "or a larger batch"
        )
    if not 0 <= rank < world_size:
        raise ValueError(f"rank {rank}: need one of the {world_size} ranks 0..{world_size - 1}")
    return rank * batch_size // world_size, (rank + 1) * batch_size // world_size


def batch_positions(
    position: int, batch_size: int, rank: int = 0, world_size: int = 1
) -> np.ndarray:
    """Positions (int64, about batch_size / world_size) of `rank` in the global batch that starts at
    `position`.

    For runs whose batch size changed, where `position` need not be a multiple of the batch size.
    """
    if position < 0:
        raise ValueError(f"position {position}: positions start at 0")
    low, high = rank_slice(batch_size, rank, world_size)
    return np.arange(position + low, position + high, dtype=np.int64)


def rank_positions(step: int, batch_size: int, rank: int = 0, world_size: int = 1) -> np.ndarray:
    """Positions (int64, about batch_size / world_size) of `rank` in step `step` of a run with a
    constant batch size.
    """
    if step < 0:
        raise ValueError(f"step {step}: steps start at 0")
    return batch_positions(step * batch_size, batch_size, rank, world_size)
