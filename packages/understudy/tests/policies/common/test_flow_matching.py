"""The path, its velocity, the spread of times and the Euler walk."""

import pytest
import torch

from understudy.policies.common.flow_matching import (
    delays,
    euler,
    noisy_actions,
    sample_guided,
    spread_times,
    velocity,
)


def test_time_one_is_noise_and_time_zero_is_the_actions() -> None:
    actions = torch.randn(2, 5, 4, 3)
    noise = torch.randn(2, 5, 4, 3)
    assert torch.equal(noisy_actions(actions, noise, torch.ones(2, 5)), noise)
    assert torch.equal(noisy_actions(actions, noise, torch.zeros(2, 5)), actions)


def test_velocity_is_the_derivative_of_the_path() -> None:
    actions = torch.randn(1, 1, 2, 3).double()
    noise = torch.randn(1, 1, 2, 3).double()
    early, late = (
        noisy_actions(actions, noise, torch.full((1, 1), t).double()) for t in (0.3, 0.7)
    )
    torch.testing.assert_close((late - early) / 0.4, velocity(actions, noise))


@pytest.mark.parametrize("steps", [1, 3, 10])
def test_euler_along_the_true_velocity_lands_on_the_actions(steps: int) -> None:
    actions = torch.randn(2, 4, 3)
    noise = torch.randn(2, 4, 3)
    seen: list[float] = []

    def field(x: torch.Tensor, time: torch.Tensor) -> torch.Tensor:
        seen.append(time[0].item())
        # the walk stays on the path
        torch.testing.assert_close(x, noisy_actions(actions, noise, time))
        return velocity(actions, noise)

    torch.testing.assert_close(euler(field, noise, steps), actions)
    assert seen == pytest.approx([1 - k / steps for k in range(steps)])


def test_euler_needs_a_step() -> None:
    with pytest.raises(ValueError, match="steps=0"):
        euler(lambda x, _: x, torch.zeros(1, 1, 1), 0)


def test_times_follow_beta_and_each_draw_has_its_stratum() -> None:
    generator = torch.Generator().manual_seed(0)
    time = spread_times(torch.rand(20_000, 4, generator=generator))
    assert time.min() >= 0
    assert time.max() <= 1
    edges = (torch.arange(5) / 4) ** (2 / 3)
    for d in range(4):
        assert edges[d] <= time[:, d].min()
        assert time[:, d].max() <= edges[d + 1] + 1e-6
    # Beta(1.5, 1): mean 0.6, variance 0.0686. All strata together must have both.
    assert abs(time.mean().item() - 0.6) < 0.003
    assert abs(time.flatten().var().item() - 0.06857) < 0.001


def test_spreading_the_times_lowers_the_variance() -> None:
    uniform = torch.rand(4000, 4, generator=torch.Generator().manual_seed(0))
    independent = spread_times(uniform.reshape(-1, 1)).reshape(4000, 4)
    assert spread_times(uniform).mean(1).var() < independent.mean(1).var() / 8


def test_delays_are_equally_likely_up_to_the_largest() -> None:
    assert torch.bincount(delays(torch.arange(8) / 8, 3)).tolist() == [2, 2, 2, 2]


def test_dimensions_of_other_robots_do_not_guide() -> None:
    noise = torch.randn(2, 4, 3)
    chunk = torch.randn(2, 4, 3)
    own = torch.tensor([True, True, False])

    def guided(actions: torch.Tensor, dims: torch.Tensor | None) -> torch.Tensor:
        return sample_guided(lambda x, _: x.roll(1, -1), noise, actions, 1, 3, steps=10, dims=dims)[
            ..., own
        ]

    other = torch.where(own, chunk, 9.0)
    assert torch.equal(guided(chunk, own), guided(other, own))
    assert not torch.equal(guided(chunk, None), guided(other, None))


def test_the_least_time_is_that_of_the_released_training_to_the_bit() -> None:
    uniform = torch.rand(50, 3, generator=torch.Generator().manual_seed(2))
    times = spread_times(uniform)
    assert torch.equal(spread_times(uniform, least=0.001), 0.999 * times + 0.001)
    assert torch.equal(spread_times(uniform, least=0.0), times)
    assert spread_times(torch.zeros(1, 1), least=0.001).item() == pytest.approx(0.001)
