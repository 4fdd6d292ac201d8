"""Real-time chunking: given actions, and guidance by the true Jacobian."""

from typing import Any

import pytest
import torch
from torch import Tensor

from understudy.policies.common.flow_matching import (
    guidance_weights,
    guided_velocity,
    sample_given,
    sample_guided,
)
from understudy.policies.pi05.network import Pi0Network
from understudy.testing.pi05 import SMALL, inputs, seen, small
from understudy_base.testing.refusals import refused

BOTH = pytest.mark.parametrize("adaptive", [True, False], ids=["pi05", "pi0"])


def field_of(net: Pi0Network, given: dict[str, Any]) -> Any:
    with torch.no_grad():
        return net.field(net.observe(**seen(given)), given["state"])


@BOTH
def test_given_actions_stay_and_the_others_continue_them(adaptive: bool) -> None:
    net = small(adaptive)
    given = inputs()
    field = field_of(net, given)
    chunk = given["actions"].clone()
    with torch.no_grad():
        plain = net.sample(**seen(given), state=given["state"], noise=given["noise"], steps=4)
        torch.testing.assert_close(sample_given(field, given["noise"], chunk, 0, 4), plain)
        found = sample_given(field, given["noise"], chunk, 2, 4)
        assert torch.equal(found[:, :2], chunk[:, :2])
        assert not torch.allclose(found[:, 2:], plain[:, 2:], atol=1e-2)
        chunk[:, 2:] = torch.nan
        assert torch.equal(sample_given(field, given["noise"], chunk, 2, 4), found)
        assert torch.equal(
            sample_given(field, given["noise"], given["actions"], 5, 4), given["actions"]
        )
        noise = torch.where(torch.arange(5)[:, None] < 2, 1e3, given["noise"])
        assert torch.equal(sample_given(field, noise, chunk, 2, 4), found)


def test_given_actions_have_time_zero() -> None:
    times: list[Tensor] = []

    def field(x: Tensor, time: Tensor) -> Tensor:
        times.append(time)
        return x

    sample_given(field, torch.ones(1, 3, 2), torch.zeros(1, 3, 2), 1, 2)
    assert [time.tolist() for time in times] == [[[0.0, 1.0, 1.0]], [[0.0, 0.5, 0.5]]]


@BOTH
def test_guidance_is_the_jacobian_product_of_the_full_map(adaptive: bool) -> None:
    """The whole Jacobian of the estimate, row by row, of a full pass without a cache."""
    net = small(adaptive)
    given = inputs(1)
    field = field_of(net, given)
    time = 0.6
    factor = 1.7
    weights = guidance_weights(SMALL.chunk, 2, 4)[None, :, None]
    found = guided_velocity(field, given["noise"], time, given["actions"], weights, factor)

    def moves(x: Tensor) -> Tensor:
        observed = net.observe(**seen(given))
        predicted, _ = net.compute(observed, x[:, None], torch.full((1, 1), time), given["state"])
        assert predicted is not None
        return predicted[:, 0]

    jacobian = (
        torch.autograd.functional.jacobian(lambda x: x - time * moves(x), given["noise"])
        .flatten(3)
        .flatten(0, 2)
    )
    with torch.no_grad():
        velocity = moves(given["noise"])
        error = weights * (given["actions"] - (given["noise"] - time * velocity))
        expected = velocity - factor * (jacobian.T @ error.flatten()).view_as(velocity)
        without = velocity - factor * error  # control: the plain error, as without a Jacobian
    torch.testing.assert_close(found, expected, rtol=1e-4, atol=1e-5)
    assert (found - without).abs().max() > 1e-2


def test_a_linear_field_is_guided_to_the_target() -> None:
    """Where the estimate is x itself, guidance is a plain pull with the documented factor."""
    target = torch.full((1, 2, 1), 3.0)
    found = sample_guided(
        lambda x, time: torch.zeros_like(x), torch.zeros(1, 2, 1), target, 1, 1, steps=4
    )
    x = 0.0
    for k in range(4):
        tau = k / 4
        factor = (
            5.0 if not k else min(5.0, (1 - tau) / tau * ((1 - tau) ** 2 + tau**2) / (1 - tau) ** 2)
        )
        x += factor * (3.0 - x) / 4
    torch.testing.assert_close(found, torch.tensor([[[x], [0.0]]]))


def test_guidance_weights_fall_from_the_delay_to_the_horizon() -> None:
    exp = guidance_weights(6, 2, 5)
    assert exp[:2].tolist() == [1.0, 1.0]
    assert (exp.diff() <= 0).all()
    assert exp[5] == 0
    assert guidance_weights(3, 3, 3).tolist() == [1.0] * 3
    for wrong, named in (
        ((3, 2, 1), "delay=2"),
        ((3, 1, 4), "horizon=4"),
    ):
        with refused(named, kind=ValueError):
            guidance_weights(*wrong)
