"""A sample of the validation frames, where there are too many to evaluate all.

The sample has a given size and is the same in every run on the same frames: it depends on neither seed, ranks nor batch
size. The frames of one source and one task are a stratum. A stratum gets its share of the sample, and a small one at
least a few frames, as long as a tenth of the sample suffices for that. Within a stratum the frames are spread over its
episodes in proportion to their lengths, and within an episode over its length: one frame from each of equal parts,
drawn by the key of the first sample of the part. Memory is needed only for chosen frames.
"""

import numpy as np

from understudy.order import sample_uniform

FEW = 16
"""Frames of a small stratum before shares are counted."""


def frame_counts(segments: np.ndarray) -> np.ndarray:
    """Return the number of frames of each segment: int64 (S,)."""
    return np.asarray(segments[:, 2] - segments[:, 1], np.int64)


def stratum_quotas(frames: np.ndarray, total: int) -> np.ndarray:
    """Return the number of sampled frames of each stratum: int64 (K,).

    Args:
        frames: int64 (K,): frames of each stratum.
        total: size of the sample, below the sum of `frames`.
    """
    count = len(frames)
    few = min(FEW, max(total // (10 * count), int(2 * count <= total)))
    least = np.minimum(frames, few)
    left = frames - least
    until = np.cumsum(left) * (total - int(least.sum())) // max(1, int(left.sum()))
    return np.asarray(least + np.diff(until, prepend=0))


def segment_quotas(segments: np.ndarray, stratum: np.ndarray, keys: np.ndarray, total: int) -> np.ndarray:
    """Return the number of sampled frames of each segment: int64 (S,), `total` in all. Arguments as `sample_frames`."""
    lengths = frame_counts(segments)
    order = np.argsort(stratum, kind="stable")
    sizes, firsts = lengths[order], np.unique(stratum[order], return_index=True)[1]
    frames = np.add.reduceat(sizes, firsts)
    quota, group = stratum_quotas(frames, total), np.repeat(np.arange(len(firsts)), np.diff(firsts, append=len(order)))
    until = np.cumsum(sizes)
    until -= np.concatenate([[0], until])[firsts][group]  # frames of the stratum up to the end of each segment
    # The phase of a stratum is drawn; otherwise the last episodes would always be favoured.
    phase = (_draw("held-out phase", segments[order][firsts, 0], 0 * firsts, keys[order][firsts]) * frames).astype(int)
    upto, before = ((bound * quota[group] + phase[group]) // frames[group] for bound in (until, until - sizes))
    counts = np.empty(len(order), np.int64)
    counts[order] = upto - before
    return counts


def sample_frames(
    segments: np.ndarray, stratum: np.ndarray, keys: np.ndarray, total: int
) -> tuple[np.ndarray, np.ndarray]:
    """Sample `total` of the frames of segments, or take all.

    Args:
        segments: int64 (S, 3): episode, start, stop.
        stratum: int64 (S,).
        keys: int64 (S,): key of the source of each segment.
        total: size of the sample; 0 takes all.

    Returns:
        Segment and frame of each sample, int64 (n,), ascending.
    """
    lengths = frame_counts(segments)
    whole = not total or int(lengths.sum()) <= total
    counts = lengths if whole else segment_quotas(segments, stratum, keys, total)
    segment = np.repeat(np.arange(len(segments)), counts)
    number = np.arange(len(segment)) - np.repeat(np.cumsum(counts) - counts, counts)  # within its segment
    start, length, count = segments[segment, 1], lengths[segment], counts[segment]
    if whole:
        return segment, start + number
    low, high = number * length // count, (number + 1) * length // count
    place = (_draw("held-out frame", segments[segment, 0], start + low, keys[segment]) * (high - low)).astype(np.int64)
    return segment, start + low + np.minimum(place, high - low - 1)


def identity(episode: np.ndarray, frame: np.ndarray, key: np.ndarray | int = 0) -> np.ndarray:
    """Return a number in [0, 2^63) per sample, int64 (n,).

    The numbers of one source are unique; samples of two sources share a number with probability 2^-63.
    """
    return np.asarray(((episode.astype(np.int64) << 32) + frame) ^ key)


def _draw(purpose: str, episode: np.ndarray, frame: np.ndarray, key: np.ndarray) -> np.ndarray:
    """Draw float64 (n,) in [0, 1), keyed by sample."""
    return sample_uniform(0, purpose, identity(episode, frame, key), (1,))[:, 0].astype(np.float64)
