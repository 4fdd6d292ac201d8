"""Precision of any training loop: dtypes, and shares of weights that a step moves."""

import copy
from typing import Any

import pytest
import torch
from torch import nn

import understudy as us
from understudy.optim.adamw import Float32AdamW
from understudy.testing import policies
from understudy.train import precision
from understudy.train.precision_report import PrecisionReport


def network(dtype: torch.dtype = torch.float32) -> nn.Sequential:
    with torch.random.fork_rng(devices=[]):
        torch.manual_seed(0)
        return nn.Sequential(nn.Linear(64, 64), nn.Linear(64, 8)).to(dtype)


def bits(model: nn.Module) -> list[torch.Tensor]:
    return [value.clone() for value in model.state_dict().values()]


def stepped(model: nn.Module, optimizer: Any, steps: int = 1) -> None:
    for step in range(steps):
        model.zero_grad()
        generator = torch.Generator().manual_seed(step)
        inputs = torch.randn(4, 64, generator=generator).to(next(model.parameters()).dtype)
        model(inputs).square().mean().backward()
        optimizer.step()


def measured(model: nn.Module, optimizer: Any) -> float:
    """Share of the weights that one more step moves."""
    before = bits(model)
    stepped(model, optimizer)
    changed = sum(int((a != b).sum()) for a, b in zip(before, bits(model)))
    return changed / sum(value.numel() for value in before)


@pytest.mark.parametrize("lr", [1e-3, 1e-4, 2.5e-5, 1e-6])
def test_first_step_of_bfloat16_moves_the_estimated_share(lr: float) -> None:
    model = network(torch.bfloat16)
    optimizer = torch.optim.AdamW(model.parameters(), lr=lr, weight_decay=0.0)
    (group,) = us.check_precision(model, optimizer).groups
    assert group.moves == group.moves_in_bf16
    assert group.moves == pytest.approx(measured(model, optimizer), abs=0.05)


def test_moments_give_the_share_of_the_next_step() -> None:
    model = network(torch.bfloat16)
    optimizer = torch.optim.AdamW(model.parameters(), lr=3e-4, weight_decay=0.1)
    stepped(model, optimizer, 5)
    optimizer.param_groups[0]["lr"] = 1e-4
    report = us.check_precision(model, optimizer)
    assert report.groups[0].moments == ("bfloat16",)
    assert report.groups[0].moves == pytest.approx(measured(model, optimizer), abs=0.15)
    assert "moments" in report.estimate


def test_masters_move_where_bfloat16_does_not() -> None:
    model = network(torch.bfloat16)
    optimizer = us.MasterWeights(torch.optim.AdamW(model.parameters(), lr=1e-6))
    report = us.check_precision(model, optimizer)
    (group,) = report.groups
    assert (group.weights, group.masters) == (("bfloat16",), ("float32",))
    assert group.moves is not None
    assert group.moves_in_bf16 is not None
    assert group.moves > 0.9 > 0.1 > group.moves_in_bf16
    assert group.size == 8 * group.parameters, "weight, gradient and master"
    assert report.notes == ()
    stepped(model, optimizer)
    assert us.check_precision(model, optimizer).groups[0].size == 16 * group.parameters
    masters = {name: p.detach().float() for name, p in model.named_parameters()}
    ours = Float32AdamW(model.named_parameters(), lr=1e-6, masters=masters)
    (group,) = us.check_precision(model, ours).groups
    assert group.masters == ("float32",)
    assert group.size == 14 * group.parameters
    assert set(group.moments) == {"float32", "int16"}


def test_bfloat16_without_masters_is_noted_with_its_share() -> None:
    model = network(torch.bfloat16)
    plain = torch.optim.AdamW(model.parameters(), lr=1e-6)
    report = us.check_precision(model, plain)
    assert any("MasterWeights" in note and "1e-06" in note for note in report.notes)
    stepped(model, plain)
    assert len(us.check_precision(model, plain).notes) == 2
    assert us.check_precision(network(), torch.optim.AdamW(network().parameters())).notes


def test_groups_frozen_and_forgotten_parameters_are_rows() -> None:
    model = network()
    model[0].bias.requires_grad_(False)
    groups: list[dict[str, Any]] = [
        {"params": [model[0].weight], "lr": 1e-3},
        {"params": [], "lr": 1e-5},
        {"params": [model[1].bias]},
    ]
    optimizer = torch.optim.AdamW(groups)
    report = us.check_precision(model, optimizer, lr=1e-4)
    rows = {group.name: group for group in report.groups}
    assert list(rows) == ["group 0", "group 1", "group 2", "frozen", "in no group"]
    assert [group.lr for group in report.groups] == [1e-4] * 3 + [None] * 2
    assert rows["group 1"].parameters == 0
    assert rows["group 1"].moves is None
    assert rows["frozen"].gradients == ()
    assert rows["in no group"].parameters == 64 * 8
    assert any("1.weight" in note for note in report.notes)
    assert len(str(report).splitlines()) == 7 + len(report.notes)


def test_other_optimizers_need_gradients() -> None:
    model = network(torch.bfloat16)
    optimizer = torch.optim.SGD(model.parameters(), lr=1e-2)
    assert us.check_precision(model, optimizer).groups[0].moves is None
    model(torch.ones(2, 64, dtype=torch.bfloat16)).sum().backward()
    moves = us.check_precision(model, optimizer).groups[0].moves
    optimizer.step()
    changed = network(torch.bfloat16)
    same = [(a == b).double().mean() for a, b in zip(bits(changed), bits(model))]
    assert moves is not None
    assert 0 < moves < 1
    assert min(same) < 1


def test_report_changes_nothing() -> None:
    model = network()
    optimizer = torch.optim.AdamW(model.parameters())
    stepped(model, optimizer)
    before = bits(model)
    state = copy.deepcopy(optimizer.state_dict())
    grads = [p.grad for p in model.parameters()]
    seed = torch.get_rng_state()
    us.check_precision(model, optimizer, lr=1.0)
    assert all(map(torch.equal, before, bits(model)))
    assert repr(state) == repr(optimizer.state_dict())
    assert all(a is b for a, b in zip(grads, [p.grad for p in model.parameters()]))
    assert torch.equal(seed, torch.get_rng_state())


@pytest.mark.parametrize("dtype", [torch.float64, torch.float16])
def test_other_dtypes_are_reported(dtype: torch.dtype) -> None:
    model = network(dtype)
    (group,) = us.check_precision(model, torch.optim.AdamW(model.parameters())).groups
    assert group.weights == (str(dtype).removeprefix("torch."),)


def test_odd_inputs_are_refused_or_reported() -> None:
    model = network()
    optimizer = torch.optim.AdamW(model.parameters())
    for lr in (-1.0, float("nan"), float("inf"), True):
        with pytest.raises(ValueError, match="lr"):
            us.check_precision(model, optimizer, lr=lr)
    with pytest.raises(TypeError, match="model"):
        us.check_precision("flow", optimizer)  # type: ignore[arg-type]
    with pytest.raises(TypeError, match="optimizer"):
        us.check_precision(model, model)  # type: ignore[arg-type]
    with torch.device("meta"):
        meta = network()
    assert us.check_precision(meta, torch.optim.AdamW(meta.parameters())).groups[0].moves is None
    empty = nn.Module()
    report = us.check_precision(empty, torch.optim.AdamW([{"params": []}]))
    assert report.groups[0].parameters == 0


def test_rows_of_the_trainer_have_the_same_bytes() -> None:
    policy = policies.policy()
    optimizer = Float32AdamW(policy.named_parameters())
    line = precision.table(policy, optimizer, None, "float32").splitlines()[1]
    report: PrecisionReport = us.check_precision(policy, optimizer)
    assert f"{report.groups[0].size / 2**20:.2f}" == line.split()[-1]
    assert f"{report.groups[0].parameters:,}" in line
