"""Design effect of a window of samples, exact under a stated correlation model.

Kish's design effect of a window of n samples is `sum over all pairs i, j of corr(i, j) / n`: the
variance of the window's mean, divided by the variance it would have if its n samples were
independent. 1 is as good as independent draws; 9 means that a batch of 256 averages no better than
28 independent samples would.

The correlations are a model, not a measurement: three numbers (`Correlation`), and every printed
figure that rests on them is marked as a model. If absolute figures matter to you, measure the
correlations on your own policy (gradients of single samples). The ranking of orders does not depend
on them.
"""

from dataclasses import dataclass

import numpy as np

__all__ = ["Correlation", "design_effect", "expected_episodes", "expected_uniform"]


@dataclass(frozen=True)
class Correlation:
    """Correlation of two samples of one episode; samples of different episodes are independent.

        different frames    corr(i, j) = episode + near * exp(-|frame_i - frame_j| / frames)
        the same frame      corr(i, j) = 1 (a sample with itself)

    It is a covariance for any non-negative values with `episode + near <= 1`: three independent
    parts, one shared by the episode (scene, task, operator), one that fades along it (the current
    event), one of each frame alone.
    """

    episode: float = 0.3
    """Correlation of any two frames of an episode."""
    near: float = 0.3
    """Further correlation of neighbouring frames."""
    frames: float = 30.0
    """Distance in frames at which `near` has fallen to 1/e: one second at 30 fps."""

    def __post_init__(self) -> None:
        if not (
            self.episode >= 0
            and self.near >= 0
            and self.episode + self.near <= 1
            and self.frames > 0
        ):
            raise ValueError(
                f"Correlation(episode={self.episode}, near={self.near}, frames={self.frames}) is "
                "no correlation: episode and near are shares >= 0 with episode + near <= 1, "
                "frames is a distance > 0"
            )


def design_effect(
    episode: np.ndarray, frame: np.ndarray, model: Correlation | None = None
) -> np.ndarray:
    """Compute the design effect of each window, exactly.

    Args:
        episode: int64 (W, n), the episodes of the n samples of W windows; any numbers that
            distinguish episodes.
        frame: int64 (W, n), their frames.
        model: correlation of samples; None for `Correlation()`.

    Returns:
        float64 (W,), each >= 0 and <= n. Order inside a window does not matter.

    Raises:
        ValueError: the shapes differ, are not (W, n), or n is 0.
    """
    model = model or Correlation()
    episode = np.asarray(episode)
    frame = np.asarray(frame)
    if episode.shape != frame.shape or episode.ndim != 2 or episode.shape[1] == 0:
        raise ValueError(
            f"design_effect: episode {episode.shape}, frame {frame.shape}: both must be (windows, "
            "samples > 0)"
        )
    windows, n = episode.shape
    window = np.repeat(np.arange(windows), n)
    by = np.lexsort((frame.ravel(), episode.ravel(), window))
    window = window[by]
    e = episode.ravel()[by]
    f = frame.ravel()[by].astype(np.float64)

    # Begins of the groups of one (window, episode), and of one (window, episode, frame).
    new_episode = np.ones(window.size, bool)
    new_episode[1:] = (window[1:] != window[:-1]) | (e[1:] != e[:-1])
    new_frame = new_episode.copy()
    new_frame[1:] |= f[1:] != f[:-1]

    same_episode = _pairs(new_episode, window, windows)
    same_frame = _pairs(new_frame, window, windows)
    fading = np.bincount(
        window, weights=_exponential_sums(f, new_episode, model.frames), minlength=windows
    )
    independent = 1.0 - model.episode - model.near  # independent part of a frame
    # Pairs are counted once, i < j; the diagonal adds n times 1.
    return (
        1.0
        + 2.0 * (model.episode * same_episode + model.near * fading + independent * same_frame) / n
    )


def expected_episodes(lengths: np.ndarray, samples: float) -> float:
    """Expected number of distinct episodes among `samples` frames drawn at random: that of a
    perfect shuffle.

    Each of the draws, taken as independent, misses an episode of L of N frames with probability 1 -
    L / N.

    Args:
        lengths: int64 (episodes,), frames of each episode.
        samples: size of the window.
    """
    size = np.asarray(lengths, np.float64)
    missed = (1.0 - size / size.sum()) ** samples
    return float(min((1.0 - missed).sum(), samples))


def expected_uniform(lengths: np.ndarray, samples: int) -> float:
    """Expected design effect of `samples` frames drawn without replacement: that of a perfect
    random shuffle.

    Args:
        lengths: int64 (episodes,), frames of each episode.
        samples: size of the window, at most `lengths.sum()`.
    """
    model = Correlation()
    size = np.asarray(lengths, np.float64)
    total = float(size.sum())
    if not 1 <= samples <= total:
        raise ValueError(
            f"expected_uniform: a window of {samples} samples out of {total:.0f} frames"
        )
    if total == 1:
        return 1.0
    # In an episode of L frames, the sum over i < j of r^(j-i) is r (L (1-r) - (1 - r^L)) / (1-r)^2;
    # r = exp(-1/frames).
    r = np.exp(-1.0 / model.frames)
    fading = r * (size * (1 - r) - (1 - r**size)) / (1 - r) ** 2
    pairs = model.episode * size * (size - 1) / 2 + model.near * fading
    return 1.0 + (samples - 1) * 2.0 * float(pairs.sum()) / (total * (total - 1))


def _pairs(new: np.ndarray, window: np.ndarray, windows: int) -> np.ndarray:
    """Number of pairs i < j inside the groups that `new` begins, per window: float64 (windows,)."""
    start = np.flatnonzero(new)
    count = np.diff(np.append(start, new.size)).astype(np.float64)
    return np.bincount(window[start], weights=count * (count - 1) / 2, minlength=windows)


def _exponential_sums(f: np.ndarray, new: np.ndarray, scale: float) -> np.ndarray:
    """Sum of exp(-(f_j - f_i) / scale) over the earlier i of its group, for each sample j; f rises
    in a group.

    The recurrence A_j = a_j (A_{j-1} + 1) with a_j = exp(-(f_j - f_{j-1}) / scale), and 0 at a
    group's start, is a chain of maps x -> a x + b. Composing neighbours, then pairs of neighbours,
    then fours ... gives all of them in log2(longest group) vector steps, with no sum over pairs and
    no exponential that could overflow.
    """
    a = np.zeros(f.size)
    np.exp(-(f[1:] - f[:-1]) / scale, out=a[1:], where=~new[1:])
    b = a.copy()  # x -> a (x + 1)
    start = np.flatnonzero(new)
    longest = int(np.diff(np.append(start, f.size)).max())
    step = 1
    while step < longest:
        # the product is formed first: each map reads its left neighbour's old value
        b[step:] += a[step:] * b[:-step]
        a[step:] = a[step:] * a[:-step]
        step *= 2
    return b
