"""Which held-out frames a validation judges where there are too many to judge all.

A sample of a given size, the same in every run on the same frames: it depends on neither seed, ranks nor batch. The
frames of one source and one task are a stratum. A stratum gets its share of the sample, and small ones at least a few
frames, as long as a tenth of the sample suffices for that. Within a stratum the frames are spread over its episodes in
proportion to their lengths, and within an episode over its length: one frame from each of equal parts, drawn by the
key of the sample at which the part begins. Nothing here takes memory per frame that is not chosen.
"""

import numpy as np

from understudy.order import sample_uniform

FEW = 16
"""Frames that a small stratum gets before shares are counted."""


def all_of(segments: np.ndarray) -> np.ndarray:
    """How many frames each segment has: int64 (S,)."""
    return np.asarray(segments[:, 2] - segments[:, 1], np.int64)


def quotas(frames: np.ndarray, most: int) -> np.ndarray:
    """How many frames each stratum gives to a sample of `most`, fewer than there are: int64 (K,).

    Args:
        frames: int64 (K,), of each stratum.
    """
    count = len(frames)
    few = min(FEW, max(most // (10 * count), int(2 * count <= most)))
    least = np.minimum(frames, few)
    left = frames - least
    until = np.cumsum(left) * (most - int(least.sum())) // max(1, int(left.sum()))
    return np.asarray(least + np.diff(until, prepend=0))


def spread(segments: np.ndarray, stratum: np.ndarray, keys: np.ndarray, most: int) -> np.ndarray:
    """How many frames each segment gives: int64 (S,), `most` in all; arguments as for `chosen`."""
    lengths = all_of(segments)
    order = np.argsort(stratum, kind="stable")
    sizes, firsts = lengths[order], np.unique(stratum[order], return_index=True)[1]
    frames = np.add.reduceat(sizes, firsts)
    quota, which = quotas(frames, most), np.repeat(np.arange(len(firsts)), np.diff(firsts, append=len(order)))
    until = np.cumsum(sizes)
    until -= np.concatenate([[0], until])[firsts][which]  # frames of the stratum up to the end of each segment
    # Where the first one of a stratum falls is drawn, or the last episodes would always be favoured.
    phase = (_drawn("held-out phase", segments[order][firsts, 0], 0 * firsts, keys[order][firsts]) * frames).astype(int)
    upto, before = ((at * quota[which] + phase[which]) // frames[which] for at in (until, until - sizes))
    counts = np.empty(len(order), np.int64)
    counts[order] = upto - before
    return counts


def chosen(segments: np.ndarray, stratum: np.ndarray, keys: np.ndarray, most: int) -> tuple[np.ndarray, np.ndarray]:
    """A sample of `most` of the frames of segments, or all: (which segment, which frame) of each, int64 (n,), in the
    sequence of the segments and their frames.

    Args:
        segments: int64 (S, 3): episode, start, stop. stratum: int64 (S,). keys: int64 (S,), of the source of each.
        most: 0 takes all.
    """
    lengths = all_of(segments)
    whole = not most or int(lengths.sum()) <= most
    counts = lengths if whole else spread(segments, stratum, keys, most)
    segment = np.repeat(np.arange(len(segments)), counts)
    number = np.arange(len(segment)) - np.repeat(np.cumsum(counts) - counts, counts)  # within its segment
    start, length, count = segments[segment, 1], lengths[segment], counts[segment]
    if whole:
        return segment, start + number
    low, high = number * length // count, (number + 1) * length // count
    place = (_drawn("held-out frame", segments[segment, 0], start + low, keys[segment]) * (high - low)).astype(np.int64)
    return segment, start + low + np.minimum(place, high - low - 1)


def identity(episode: np.ndarray, frame: np.ndarray, key: np.ndarray | int = 0) -> np.ndarray:
    """One number in [0, 2^63) per sample, int64 (n,): two samples of one source never share theirs, and samples of two
    sources with probability 2^-63."""
    return np.asarray(((episode.astype(np.int64) << 32) + frame) ^ key)


def _drawn(purpose: str, episode: np.ndarray, frame: np.ndarray, key: np.ndarray) -> np.ndarray:
    """float64 (n,) in [0, 1), by sample."""
    return sample_uniform(0, purpose, identity(episode, frame, key), (1,))[:, 0].astype(np.float64)
