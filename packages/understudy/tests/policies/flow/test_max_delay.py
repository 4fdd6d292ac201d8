"""A flow policy that is given the first actions of a chunk: its training, its chunks, and the
numbers it refuses.
"""

from pathlib import Path

import pytest
import torch

from understudy.policies.draws import generate_draws, make_draws
from understudy.policies.flow.model import FlowPolicy
from understudy.testing.arm import write_arm_policy
from understudy.testing.policies import NORMALIZATION, as_draws, batch, config, draws, policy
from understudy_base.testing.refusals import refused


def test_given_actions_have_no_noise_and_train_nothing() -> None:
    net = policy(max_delay=3)
    data = batch(4)
    delay = torch.tensor([0, 1, 3, 2])  # of 4, 3, 2 and 1 unpadded actions
    drawn = as_draws(*draws(4)) | {"flow delay": delay}
    found = net.losses(data, drawn)["flow"]
    assert (
        found.count.tolist()
        == net.counts(data, drawn)["flow"].tolist()
        == [2 * 4 * 3, 2 * 2 * 3, 0, 0]
    )
    assert (found.sum[:2] > 0).all()
    assert not found.sum[2:].any()

    given = torch.arange(4) < delay[:, None]
    noise = torch.where(given[:, None, :, None], 7.0, drawn["flow noise"])
    assert torch.equal(net.losses(data, drawn | {"flow noise": noise})["flow"].sum, found.sum)
    other = data | {"action": torch.where(given[..., None], data["action"] + 1, data["action"])}
    changed = net.losses(other, drawn)["flow"].sum != found.sum  # the given actions are an input
    assert changed.tolist() == [False, True, False, False]
    fewer = net.losses(data, drawn | {"flow delay": torch.zeros(4, dtype=torch.int64)})["flow"]
    assert torch.equal(fewer.sum[0], found.sum[0])


def test_half_of_the_samples_of_training_alone_are_given_actions() -> None:
    net = policy(max_delay=3)
    many = make_draws(net.random_spec("train"), 0, torch.arange(2400))["flow delay"]
    assert many.dtype == torch.int64
    assert many.max() == 3
    expected = torch.tensor([1200, 400, 400, 400])
    assert (torch.bincount(many) - expected).abs().max() < 80  # more than 3 standard deviations
    for use in ("validation", "act"):
        assert "flow delay" not in net.random_spec(use)  # type: ignore[arg-type]
    assert "flow delay" not in policy().random_spec("train")


def test_the_other_weights_start_as_those_of_a_policy_without() -> None:
    torch.manual_seed(0)
    plain = FlowPolicy(config(), NORMALIZATION).state_dict()
    torch.manual_seed(0)
    more = FlowPolicy(config(max_delay=2), NORMALIZATION).state_dict()
    assert set(more) - set(plain) == {"delay.weight", "delay.bias"}
    assert all(torch.equal(more[name], value) for name, value in plain.items())


def test_a_chunk_begins_with_the_given_actions() -> None:
    net = policy(max_delay=2).eval()
    data = batch(4)
    drawn = generate_draws(net.random_spec("act"), 4, torch.Generator().manual_seed(0))
    plain = net.act(data, drawn)
    assert torch.equal(net.continue_chunk(data, drawn, plain[:, :1], 0), plain)
    executing = plain[:, 1:] + torch.tensor([0.5, 0.0, 0.05])
    found = net.continue_chunk(data, drawn, executing, 2)
    torch.testing.assert_close(found[:, :2], executing[:, :2])
    other = net.continue_chunk(data, drawn, executing + torch.tensor([1.0, 0.0, 0.0]), 2)
    assert (other[:, 2:] - found[:, 2:]).abs().max() > 1e-4
    behind = executing.clone()
    behind[:, 2:] = 100  # not given, so without effect
    assert torch.equal(net.continue_chunk(data, drawn, behind, 2), found)
    guided = net.continue_chunk(data, drawn, executing, 2, horizon=3)
    assert not torch.equal(guided[:, :2], found[:, :2])


def test_a_trained_policy_continues_what_it_is_given() -> None:
    """All actions of a chunk are 1 or all are -1, and the observation does not say which."""
    one = {"offset": [0.0], "spread": [1.0]}
    torch.manual_seed(0)
    net = FlowPolicy(config(action_dim=1, state_dim=0, cameras=(), max_delay=2), {"action": one})
    side = torch.tensor([1.0, -1.0]).repeat(16)
    data = {
        "task": ["go"] * 32,
        "action": side[:, None, None].expand(32, 4, 1).contiguous(),
        "action_is_pad": torch.zeros(32, 4, dtype=torch.bool),
    }
    optimizer = torch.optim.Adam(net.parameters(), lr=6e-3)
    for step in range(100):
        loss = net.losses(
            data, make_draws(net.random_spec("train"), 0, torch.arange(32) + 32 * step)
        )["flow"]
        optimizer.zero_grad()
        (loss.sum.sum() / loss.count.sum()).backward()
        optimizer.step()
    net.eval()
    drawn = generate_draws(net.random_spec("act"), 32, torch.Generator().manual_seed(0))
    alone = net.act(data, drawn)[:, 3, 0]
    assert set(alone.sign().tolist()) == {-1.0, 1.0}  # the noise decides
    for delay in (1, 2):
        found = net.continue_chunk(data, drawn, data["action"], delay)[:, :, 0]
        assert (found - side[:, None]).abs().mean() < 0.2


def test_numbers_that_it_was_not_trained_for_are_refused() -> None:
    for changes, named in (
        ({"max_delay": -1}, ("max_delay", -1)),
        ({"max_delay": 4}, ("max_delay", 4)),
        ({"max_delay": 2, "future": True}, ("max_delay", 2)),
    ):
        with refused(*named, kind=ValueError):
            config(**changes)
    net = policy(max_delay=2).eval()
    data = batch(1)
    drawn = generate_draws(net.random_spec("act"), 1)
    rest = torch.zeros(1, 3, 3)
    with refused("delay=3", "max_delay", 2, kind=ValueError):
        net.continue_chunk(data, drawn, rest, 3)
    with refused("delay", 4, kind=ValueError):
        net.continue_chunk(data, drawn, rest, 4)
    assert net.continue_chunk(data, drawn, rest, 3, horizon=3).isfinite().all()  # guided


@pytest.mark.parametrize("most", [0, 6])
def test_a_folder_says_for_which_delays(tmp_path: Path, most: int) -> None:
    folder = write_arm_policy(tmp_path / "policy", max_delay=most)
    assert FlowPolicy.load(folder).config.max_delay == most
    assert ("max_delay" in (folder / "README.md").read_text()) == bool(most)
