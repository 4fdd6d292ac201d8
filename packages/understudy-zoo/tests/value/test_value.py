"""The value function: its target histogram, its figures, and samples without a return."""

import math
from dataclasses import replace
from itertools import pairwise
from typing import Any

import pytest
import torch

from understudy.policies.losses import scalar
from understudy.policies.policy import load
from understudy.testing.policies import CAMERAS, NORMALIZATION
from understudy.testing.policies import batch as flow_batch
from understudy_base.testing.refusals import refused
from understudy_zoo.value.config import ValueConfig
from understudy_zoo.value.model import ValuePolicy, bin_centers, histogram


def policy(**changes: Any) -> ValuePolicy:
    small: dict[str, Any] = {
        "action_dim": 3,
        "state_dim": 2,
        "cameras": CAMERAS,
        "chunk": 4,
        "image_size": (16, 16),
    }
    small |= {"channels": 8, "keypoints": 4, "width": 32, "bins": 11}
    with torch.random.fork_rng(devices=[]):
        torch.manual_seed(0)
        model = ValuePolicy(ValueConfig(**(small | changes)), NORMALIZATION)
        torch.nn.init.normal_(model.value_head.out.weight)  # fresh ones are 0
    return model


def batch(returns: list[float], unknown: list[bool]) -> dict[str, Any]:
    return flow_batch(len(returns)) | {
        "return": torch.tensor(returns),
        "return_is_pad": torch.tensor(unknown),
    }


def test_histogram_is_the_gaussian_over_the_bins() -> None:
    centers = torch.linspace(-2, 0, 5)
    shares = histogram(torch.tensor([-1.2, -2.0, 0.0]), centers, 0.75)

    def below(x: float, y: float) -> float:
        return 0.5 * (1 + math.erf((x - y) / (0.75 * 0.5) / math.sqrt(2)))

    for row, y in enumerate([-1.2, -2.0, 0.0]):
        edges = [-2.25, -1.75, -1.25, -0.75, -0.25, 0.25]
        masses = [below(high, y) - below(low, y) for low, high in pairwise(edges)]
        expected = [mass / sum(masses) for mass in masses]
        assert shares[row].tolist() == pytest.approx(expected, abs=1e-5)
    assert shares.argmax(dim=1).tolist() == [2, 0, 4]


def test_bins_are_as_fine_as_float32_resolves() -> None:
    """Finer ones are refused; at the limit a histogram is that of float64."""
    config = policy(returns="reward", value_range=(1000.0, 1000.2)).config
    centers = bin_centers(config)
    shares = histogram(centers[3:4], centers, config.smoothing)
    exact = histogram(
        torch.linspace(0, 0.2, 11, dtype=torch.float64)[3:4],
        torch.linspace(0, 0.2, 11).double(),
        0.75,
    )
    torch.testing.assert_close(shares.double(), exact, rtol=0.02, atol=1e-3)
    for changes in (
        {"value_range": (1000.0, 1000.1)},
        {"value_range": (0.0, 1e-35)},
        {"value_range": (-1e8, -1e8 + 1)},
    ):
        with refused("bins: 11", kind=ValueError):
            policy(returns="reward", **changes)
    with refused("bins: 11", kind=ValueError):
        policy(returns="time", horizon=1e-36)


def test_losses_and_figures_of_a_sample() -> None:
    model = policy()
    samples = batch([0.0, 1.0, 0.3], [False, False, False])
    logits = model.logits(samples).detach()
    centers = bin_centers(model.config)
    with torch.no_grad():
        losses = model.losses(samples, {}, terms=("value", "l1", "accuracy"))
    for row, value in enumerate([0.0, 1.0, 0.3]):
        shares = logits[row].softmax(0)
        goal = histogram(torch.tensor([value]), centers, model.config.smoothing)[0]
        assert float(losses["value"].sum[row]) == pytest.approx(
            -float((goal * shares.log()).sum()), rel=1e-4
        )
        assert float(losses["l1"].sum[row]) == pytest.approx(
            abs(float(shares @ centers) - value), abs=1e-5
        )
        right = (int(shares.argmax()) == 0) == (value == 0)
        assert float(losses["accuracy"].sum[row]) == right
    assert torch.equal(model.values(samples), logits.softmax(1) @ centers)
    assert set(model.losses(samples, {})) == {"value"}
    assert policy(returns="reward", value_range=(-1, 3)).metrics == ("l1",)


def test_unknown_returns_count_nothing() -> None:
    model = policy()
    known = batch([0.2, 1.0], [False, False])
    masked = batch([0.2, math.nan], [False, True])
    losses = model.losses(masked, {}, terms=("value", "l1", "accuracy"))
    assert {term: loss.count.tolist() for term, loss in losses.items()} == {
        term: [1, 0] for term in losses
    }
    assert model.counts(masked, {})["value"].tolist() == [1, 0]
    assert all(loss.sum[1] == 0 for loss in losses.values())
    scalar(model.losses(masked, {})).backward()
    masked_gradient = model.value_head.out.weight.grad
    model.zero_grad()
    scalar(model.losses({k: v[:1] for k, v in known.items()}, {})).backward()
    assert masked_gradient is not None
    torch.testing.assert_close(masked_gradient, model.value_head.out.weight.grad)


def test_saved_value_function_is_equal_and_does_not_act(tmp_path: Any) -> None:
    model = policy()
    samples = batch([0.0, 1.0], [False, False])
    model.save(tmp_path / "value")
    loaded = load(tmp_path / "value")
    assert isinstance(loaded, ValuePolicy)
    assert torch.equal(loaded.values(samples), model.values(samples))
    with refused(kind=ValueError):
        loaded.act(samples, {})


@pytest.mark.parametrize(
    ("changes", "name"),
    [
        ({"bins": 1}, "bins"),
        ({"smoothing": 0.0}, "smoothing"),
        ({"discount": 1.1}, "discount"),
        ({"discount": 0.0}, "discount"),
        ({"returns": "time"}, "horizon"),
        ({"value_range": (1.0, 1.0)}, "value_range"),
        ({"width": 12}, "width"),
        ({"future": True}, "future"),
    ],
)
def test_refuses_settings(changes: dict[str, Any], name: str) -> None:
    with refused(kind=ValueError) as caught:
        replace(policy().config, **changes)
    assert name in str(caught.value)
