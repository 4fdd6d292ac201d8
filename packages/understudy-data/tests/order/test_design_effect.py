"""The design effect: a sum over all pairs, and the variance of the mean."""

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from understudy_base.testing.refusals import refused
from understudy_data.order.design_effect import Correlation, design_effect, expected_uniform

models = st.builds(Correlation, st.floats(0, 0.5), st.floats(0, 0.5), st.floats(0.1, 1e4))


def matrix(episode: np.ndarray, frame: np.ndarray, model: Correlation) -> np.ndarray:
    """The correlations of one window, pair by pair."""
    distance = np.abs(frame[:, None] - frame[None, :])
    together = episode[:, None] == episode[None, :]
    own = 1 - model.episode - model.near
    return together * (
        model.episode + model.near * np.exp(-distance / model.frames) + own * (distance == 0)
    )


@given(
    models,
    st.integers(1, 60),
    st.integers(1, 6),
    st.sampled_from([3, 200, 10**9]),
    st.integers(0, 2**32),
)
def test_equals_the_sum_over_all_pairs(
    model: Correlation, n: int, episodes: int, frames: int, seed: int
) -> None:
    rng = np.random.default_rng(seed)
    episode = rng.integers(-2, episodes, (3, n))
    frame = rng.integers(0, frames, (3, n))
    expected = [matrix(e, f, model).sum() / n for e, f in zip(episode, frame, strict=True)]
    np.testing.assert_allclose(design_effect(episode, frame, model), expected, rtol=1e-12)


def test_limits() -> None:
    window = np.arange(256)[None]
    # 256 episodes: as good as independent
    assert design_effect(window, window * 0) == pytest.approx(1)
    # one frame, 256 times: one sample
    assert design_effect(window * 0, window * 0) == pytest.approx(256)
    # far apart in one episode
    assert design_effect(window * 0, window * 10**6) == pytest.approx(1 + 255 * 0.3)


def test_is_the_variance_of_the_mean() -> None:
    """Gradients drawn with the model's correlations: the variance of a window's mean is its design
    effect.
    """
    rng = np.random.default_rng(0)
    episode = rng.integers(0, 9, 64)
    frame = rng.integers(0, 120, 64)
    factor = np.linalg.cholesky(matrix(episode, frame, Correlation()) + 1e-9 * np.eye(64))
    means = (rng.standard_normal((20_000, 64)) @ factor.T).mean(axis=1)
    assert means.var() * 64 == pytest.approx(design_effect(episode[None], frame[None])[0], rel=0.05)


def test_expected_uniform_is_the_mean_over_all_windows() -> None:
    lengths = np.array([3, 1, 5, 40])
    episode = np.repeat(np.arange(4), lengths)
    frame = np.concatenate([np.arange(n) for n in lengths])
    rng = np.random.default_rng(1)
    drawn = np.stack([rng.permutation(49)[:20] for _ in range(4000)])
    simulated = design_effect(episode[drawn], frame[drawn])
    error = simulated.std() / np.sqrt(4000)
    assert abs(simulated.mean() - expected_uniform(lengths, 20)) < 4 * error
    assert expected_uniform(lengths, 49) == pytest.approx(
        design_effect(episode[None], frame[None])[0]
    )
    assert expected_uniform(np.array([1]), 1) == 1


def test_design_effect_refuses_impossible_models_and_windows() -> None:
    for wrong in ({"episode": 0.8}, {"near": -0.1}, {"frames": 0.0}, {"episode": float("nan")}):
        with refused(*wrong, *wrong.values(), kind=ValueError):
            Correlation(**wrong)
    with refused("episode", (2, 0), "frame", kind=ValueError):
        design_effect(np.zeros((2, 0)), np.zeros((2, 0)))
    with refused("episode", (3,), "frame", kind=ValueError):
        design_effect(np.zeros(3), np.zeros(3))
    with refused(5, 4, kind=ValueError):
        expected_uniform(np.array([4]), 5)
