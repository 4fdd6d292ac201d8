"""Validation of any training loop: by hand, on several ranks, and without a change of the loop."""

from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
import torch.distributed as dist
from torch import Tensor, nn

import understudy as us
from understudy.policies.flow.model import FlowPolicy
from understudy.testing.mixtures import mixed, tiny_sources
from understudy.testing.ranks import in_ranks
from understudy.train.data.run_data import open_data
from understudy.train.validation.any_loop import ValidationTable
from understudy_base import ConfigError
from understudy_base.testing.refusals import refused
from understudy_data.testing.datasets import Spec, write_dataset

WINDOW = {"action": [0.0, 0.1, 0.2]}


@pytest.fixture(scope="module")
def roots(tmp_path_factory: pytest.TempPathFactory) -> tuple[Path, Path]:
    """Two robots of other widths."""
    folder = tmp_path_factory.mktemp("sets")
    specs = {"arm": Spec(lengths=(6, 5, 7)), "hand": Spec(lengths=(8, 4), action_dim=3)}
    for name, spec in specs.items():
        write_dataset(folder / name, spec)
    return folder / "arm", folder / "hand"


def sources(roots: tuple[Path, Path]) -> dict[Any, Any]:
    keys = ["action", "observation.state"]
    arm, hand = (us.EpisodeDataset(root, keys=keys, delta_timestamps=WINDOW) for root in roots)
    return {("arm", "joint"): arm, ("hand", "eef"): hand}


class Net(nn.Module):
    """It draws, and has dropout and batch statistics."""

    def __init__(self) -> None:
        super().__init__()
        with torch.random.fork_rng(devices=[]):
            torch.manual_seed(0)
            self.norm = nn.BatchNorm1d(3)
            self.out = nn.Sequential(nn.Dropout(0.5), nn.Linear(3, 1))
        self.seen: list[bool] = []

    def forward(self, batch: dict[str, Any]) -> dict[str, Tensor]:
        self.seen.append(self.training)
        value = self.out(self.norm(batch["observation.state"].float()))[:, 0]
        return {"plain": value.square(), "noisy": (value - torch.randn(len(value))).square()}


def masked(batch: dict[str, Any]) -> dict[str, us.policies.Loss]:
    pad = batch["action_is_pad"][..., None] | batch["action_dim_is_pad"][:, None]
    squares = torch.where(pad, 0.0, batch["action"].float()).square()
    return {"size": us.policies.Loss(squares.sum(dim=(1, 2)), (~pad).sum(dim=(1, 2)))}


def test_losses_equal_a_count_by_hand(roots: tuple[Path, Path]) -> None:
    given = sources(roots)
    table = us.validate(masked, given, batch_size=4)
    total = [0.0, 0]
    for row, ((name, mode), data) in zip(table.rows, given.items()):
        sums = [0.0, 0]
        for index in range(len(data)):
            sample = data[index]
            kept = sample["action"][~sample["action_is_pad"]].double()
            sums = [sums[0] + float(kept.square().sum()), sums[1] + kept.numel()]
        assert (row.dataset, row.control_mode) == (name, mode)
        assert row.loss == pytest.approx(sums[0] / sums[1], rel=1e-6)
        assert row.elements == sums[1]
        assert row.samples == len(data)
        assert row.episodes == len(set(data.segments[:, 0].tolist()))
        total = [a + b for a, b in zip(total, sums)]
    assert table.total.loss == pytest.approx(total[0] / total[1], rel=1e-6)
    assert table.frames == table.total.samples == sum(map(len, given.values()))
    lines = str(table).splitlines()
    assert [line.split()[:2] for line in lines[1:]] == [
        ["arm", "joint"],
        ["hand", "eef"],
        ["all", "-"],
    ]


def test_one_dataset_by_its_path(roots: tuple[Path, Path]) -> None:
    table = us.validate(lambda batch: batch["action"].float().sum(dim=-1), roots[0])
    assert [(row.dataset, row.control_mode) for row in table.rows] == [("arm", "")]
    assert list(table.total.terms) == ["loss"]
    assert table.total.elements == table.total.samples
    pair = us.validate(lambda batch: batch["action"].float().sum(dim=-1), [roots[0], roots[0]])
    assert [row.dataset for row in pair.rows] == ["arm", "arm#2"]
    assert pair.rows[0].loss == pair.rows[1].loss == table.total.loss


def test_nothing_of_the_loop_changes(roots: tuple[Path, Path]) -> None:
    net = Net()
    net.norm.eval()
    state = {name: value.clone() for name, value in net.state_dict().items()}
    modes = [module.training for module in net.modules()]
    generators = torch.get_rng_state(), repr(np.random.get_state())  # noqa: NPY002
    first = us.validate(net, sources(roots), batch_size=4)
    assert first == us.validate(net.forward, sources(roots), batch_size=4)
    assert first == us.validate(lambda batch: net(batch), sources(roots), model=net, batch_size=4)
    assert not any(net.seen)
    assert [module.training for module in net.modules()] == modes
    assert all(torch.equal(value, net.state_dict()[name]) for name, value in state.items())
    assert torch.equal(generators[0], torch.get_rng_state())
    assert generators[1] == repr(np.random.get_state())  # noqa: NPY002
    assert all(parameter.grad is None for parameter in net.parameters())
    other = us.validate(net, sources(roots), batch_size=4, seed=1)
    assert other.total.terms["plain"] == first.total.terms["plain"]
    assert other.total.terms["noisy"] != first.total.terms["noisy"]


def in_a_group(roots: tuple[Path, Path]) -> ValidationTable:
    dist.init_process_group("gloo")
    try:
        return us.validate(Net(), sources(roots), batch_size=3, num_threads=2)
    finally:
        dist.destroy_process_group()


def test_one_rank_two_and_three_find_the_same_bits(roots: tuple[Path, Path]) -> None:
    alone = us.validate(Net(), sources(roots), batch_size=3)
    assert not dist.is_initialized()
    for world in (2, 3):
        assert in_ranks(world, in_a_group, roots) == [alone] * world


def other_data(roots: tuple[Path, Path]) -> str:
    dist.init_process_group("gloo")
    try:
        us.validate(Net(), list(roots)[: 1 + dist.get_rank()])
    except ConfigError as error:
        return str(error)
    finally:
        dist.destroy_process_group()
    return ""


def test_ranks_with_other_sources_are_refused(tmp_path: Path) -> None:
    for name in ("one", "two"):
        write_dataset(tmp_path / name, Spec(lengths=(4,)))
    messages = in_ranks(2, other_data, (tmp_path / "one", tmp_path / "two"))
    assert all("rank 1" in message for message in messages)


def test_losses_of_a_policy_are_those_of_a_run(tmp_path: Path) -> None:
    """The same frames, draws and mechanism as `understudy validate`."""
    config = mixed(tiny_sources(tmp_path, small_pictures=False)[:1], tmp_path / "out", device="cpu")
    data = open_data(config)
    facts = data.policy_config(config)
    policy = FlowPolicy(
        facts,
        {
            "heads": list(data.heads),
            "action": {"offset": [[0.0] * 4], "spread": [[1.0] * 4]},
            "observation.state": {"offset": [[0.0] * 5], "spread": [[1.0] * 5]},
        },
    )
    held = data.validation[0]
    assert held is not None
    table = us.validate(policy, {("wide", "arm::joint"): held})
    again = us.validate(policy, {("wide", "arm::joint"): held})
    assert table == again
    assert table.rows[0].elements == table.total.elements > table.total.samples
    assert len(table.record["time"]) == policy.validation_draws


def test_weights_and_sampled_frames(roots: tuple[Path, Path]) -> None:
    net = Net()
    both = us.validate(net, sources(roots), weights={"plain": 2.0})
    assert both.total.loss == pytest.approx(2 * both.total.terms["plain"])
    assert "noisy" in both.total.terms
    few = us.validate(net, sources(roots), frames=10)
    assert few.total.samples == 10
    assert few.frames == both.frames


@pytest.mark.parametrize(
    "losses",
    [
        lambda batch: batch["action"].float().mean(),
        lambda batch: {"a": batch["action"].float()},
        lambda batch: {"a": us.policies.Loss(torch.zeros(len(batch["task"])), torch.tensor(3))},
        lambda batch: {},
        lambda batch: None,
        lambda batch: (torch.zeros(2), {}),
    ],
)
def test_losses_of_another_form_are_refused(losses: Any, roots: tuple[Path, Path]) -> None:
    with refused("losses", kind=ConfigError):
        us.validate(losses, roots[0])


def test_values_out_of_range_are_refused(roots: tuple[Path, Path]) -> None:
    for name, value in {"batch_size": 0, "frames": -1, "num_threads": True}.items():
        with refused(name, kind=ConfigError):
            us.validate(Net(), roots[0], **{name: value})  # type: ignore[arg-type]
    with refused("sources", kind=ConfigError):
        us.validate(Net(), [])
    with refused("sources", kind=ConfigError):
        us.validate(Net(), {("a", "b", "c"): roots[0]})  # type: ignore[dict-item]
    with refused("weights", "'nosy'", kind=ConfigError):
        us.validate(Net(), sources(roots), weights={"nosy": 1.0})


def test_losses_in_other_dtypes_are_summed_in_float64(roots: tuple[Path, Path]) -> None:
    found = {}
    for dtype in (torch.float64, torch.bfloat16):

        def tenth(batch: dict[str, Any], dtype: torch.dtype = dtype) -> Tensor:
            return torch.full((len(batch["task"]),), 0.1, dtype=dtype)

        found[dtype] = us.validate(tenth, roots[0]).total.loss
    assert found[torch.float64] == pytest.approx(0.1, rel=1e-12)
    assert found[torch.bfloat16] == float(torch.tensor(0.1, dtype=torch.bfloat16))
