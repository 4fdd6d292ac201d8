"""Per-sample losses: padded slots reach neither loss nor gradient, and the scalar is derived from
the parts.
"""

import torch

from understudy.policies.losses import Loss, masked_squared_error, scalar, valid_elements
from understudy.testing.policies import batch, draws, policy


def test_negative_control_the_same_nan_in_a_valid_slot_is_seen() -> None:
    data, (noise, time) = batch(4), draws(4)
    assert not data["action_is_pad"][2, 0]
    data["action"][2, 0, 0] = float("nan")
    loss = policy().flow_losses(data, noise, time)["flow"]
    assert torch.isfinite(loss.sum).tolist() == [True, True, False, True]


def test_negative_control_a_mask_after_the_square_lets_nan_into_the_gradient() -> None:
    predicted = torch.zeros(1, 1, 2, 1, requires_grad=True)
    target = torch.tensor([1.0, float("nan")]).view(1, 1, 2, 1)
    pad = torch.tensor([[False, True]])
    late = torch.where(pad[:, None, :, None], 0.0, (predicted - target).square()).sum()
    assert torch.isfinite(late)
    assert torch.isnan(torch.autograd.grad(late, predicted)[0]).any()
    early = masked_squared_error(predicted, target, pad).sum.sum()
    assert torch.autograd.grad(early, predicted)[0].flatten().tolist() == [-2.0, 0.0]


def test_matches_a_loop_over_the_elements() -> None:
    torch.manual_seed(3)
    predicted = torch.randn(3, 2, 4, 2)
    target = torch.randn(3, 2, 4, 2)
    pad = torch.rand(3, 4) < 0.4
    loss = masked_squared_error(predicted, target, pad)
    for b in range(3):
        valid = [(d, t) for d in range(2) for t in range(4) if not pad[b, t]]
        expected = sum(float(((predicted - target)[b, d, t] ** 2).sum()) for d, t in valid)
        assert abs(float(loss.sum[b]) - expected) < 1e-4
        assert int(loss.count[b]) == 2 * len(valid)


def test_scalar_weighs_elements_not_samples() -> None:
    losses = {
        "a": Loss(torch.tensor([6.0, 1.0]), torch.tensor([3, 1])),
        "b": Loss(torch.zeros(2), torch.tensor([0, 0])),
    }
    assert scalar(losses).item() == 7 / 4  # a mean of means would be (2 + 1) / 2


def test_a_fully_padded_batch_has_loss_and_gradient_zero() -> None:
    data, (noise, time) = batch(2), draws(2)
    data["action_is_pad"][:] = True
    model = policy()
    loss = scalar(model.flow_losses(data, noise, time))
    loss.backward()
    assert loss.item() == 0
    assert all((p.grad == 0).all() for p in model.parameters() if p.grad is not None)


def test_errors_of_padding_count_nothing_whatever_they_are() -> None:
    errors = torch.arange(24, dtype=torch.float32).view(2, 2, 3, 2)
    is_pad = torch.tensor([[False, False, True], [False, True, True]])
    dim_is_pad = torch.tensor([[False, False], [False, True]])
    broken = errors.clone()
    broken[0, :, 2] = torch.nan
    broken[1, :, 1:] = torch.inf
    broken[1, :, :, 1] = torch.nan
    found = Loss.of_errors(broken, is_pad, dim_is_pad, detail=True)
    assert found.sum.tolist() == [errors[0, :, :2].sum().item(), errors[1, :, 0, 0].sum().item()]
    assert found.count.tolist() == valid_elements(is_pad, 2, 2, dim_is_pad).tolist() == [8, 2]
    assert found.detail is not None
    assert torch.equal(found.detail.sum.sum(dim=(1, 2)), found.sum)
    assert torch.equal(found.detail.count.sum(dim=1) * 2, found.count)
    assert Loss.of_errors(errors, is_pad, dim_is_pad).detail is None


def test_losses_are_added_with_their_details_and_ordered_by_time() -> None:
    is_pad = torch.zeros(2, 3, dtype=torch.bool)
    first = Loss.of_errors(torch.rand(2, 4, 3, 2), is_pad, detail=True)
    second = Loss.of_errors(torch.rand(2, 4, 3, 2), ~is_pad, detail=True)
    both = first.plus(second)
    assert torch.equal(both.sum, first.sum)
    assert torch.equal(both.count, first.count)
    assert both.detail is not None
    assert first.plus(second._replace(detail=None)).detail is None
    times = torch.tensor([[0.9, 0.1, 0.5, 0.3], [0.1, 0.2, 0.3, 0.4]])
    order = both.ordered(times).detail.order  # type: ignore[union-attr]
    assert order.tolist() == [[1, 3, 2, 0], [0, 1, 2, 3]]  # type: ignore[union-attr]
    plain = first._replace(detail=None)
    assert plain.ordered(times) is plain
