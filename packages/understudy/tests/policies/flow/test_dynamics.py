"""A policy with a future: two streams, each with its own time; given inputs stay, and the rest is
learnt.
"""

import copy
from typing import Any

import pytest
import torch
from torch import Tensor

from understudy.distributed.unused_parameters import check_unused_parameters, record_leaves
from understudy.policies.common.layers import sinusoids
from understudy.policies.common.settings import TaskMode
from understudy.policies.flow.model import FlowPolicy
from understudy.policies.losses import scalar
from understudy.testing.policies import NORMALIZATION, batch, config, draws
from understudy_base.testing.refusals import refused


def policy(**changes: Any) -> FlowPolicy:
    with torch.random.fork_rng(devices=[]):
        torch.manual_seed(0)
        model = FlowPolicy(config(**({"future": True} | changes)), NORMALIZATION)
        for parameter in model.parameters():
            if not parameter.any():
                torch.nn.init.normal_(parameter, std=0.1)
    return model


def lessons(modes: list[int]) -> tuple[dict[str, Any], Tensor, Tensor]:
    """Batch, noise [B, D, T, A + S], time [B, D, 2]; the state that would follow a padded action is
    padded too.
    """
    count = len(modes)
    generator = torch.Generator().manual_seed(3)
    data = batch(count)
    data["observation.state"] = torch.randn(count, 5, 2, generator=generator)
    last = torch.ones(count, 1, dtype=torch.bool) if count else torch.ones(0, 1, dtype=torch.bool)
    last[0] = False
    data["observation.state_is_pad"] = torch.cat([data["action_is_pad"], last], dim=1)
    data["mode"] = torch.tensor(modes)
    noise = torch.cat([draws(count)[0], torch.randn(count, 2, 4, 2, generator=generator)], dim=3)
    return data, noise, torch.rand(count, 2, 2, generator=generator)


def test_without_a_future_the_network_and_its_first_weights_are_what_they_were() -> None:
    """Names, shapes and their sequence, which is that of the draws of the first weights: those of
    saved policies.
    """
    names = {
        name: tuple(p.shape)
        for name, p in FlowPolicy(config(cameras=()), NORMALIZATION).named_parameters()
    }
    assert list(names.items()) == [
        ("text.embed.weight", (258, 64)),
        ("text.near.weight", (32, 64, 5)),
        ("text.near.bias", (32,)),
        ("text.far.weight", (32, 32, 5)),
        ("text.far.bias", (32,)),
        ("text.out.weight", (32, 32)),
        ("text.out.bias", (32,)),
        ("fuse.weight", (32, 34)),
        ("fuse.bias", (32,)),
        ("fuse2.weight", (32, 32)),
        ("fuse2.bias", (32,)),
        ("time.weight", (32, 64)),
        ("time.bias", (32,)),
        ("in_proj.weight", (32, 12)),
        ("in_proj.bias", (32,)),
        *[
            (f"layers.{n}.{name}", shape)
            for n in range(2)
            for name, shape in (
                ("modulate.weight", (96, 32)),
                ("modulate.bias", (96,)),
                ("grow.weight", (64, 32)),
                ("grow.bias", (64,)),
                ("shrink.weight", (32, 64)),
                ("shrink.bias", (32,)),
            )
        ],
        ("out_proj.weight", (12, 32)),
        ("out_proj.bias", (12,)),
    ]
    assert (policy().loss_terms, policy().modes) == (("flow", "dynamics"), TaskMode.ALL)
    assert (policy(future=False).loss_terms, policy(future=False).modes) == (
        ("flow",),
        (TaskMode.POLICY,),
    )


def test_a_mode_zeroes_its_loss_and_nothing_else() -> None:
    model, (data, noise, time) = policy(), lessons([0, 1, 2, 0])
    found = model.flow_losses(data, noise, time, detail=True)
    steps = (
        (~data["action_is_pad"]).sum(dim=1),
        (~data["observation.state_is_pad"][:, 1:]).sum(dim=1),
    )
    for term, valid, width in zip(("flow", "dynamics"), steps, (3, 2)):
        lesson = torch.tensor(
            [term in TaskMode.TRAINS[TaskMode.ALL[mode]] for mode in data["mode"].tolist()]
        )
        assert found[term].count.tolist() == (valid * width * 2 * lesson).tolist()
        assert ((found[term].sum != 0) == (lesson & (valid > 0))).all()
        detail = found[term].detail
        assert detail is not None
        assert (detail.sum.shape, detail.count.shape) == ((4, 2, width), (4, width))
        torch.testing.assert_close(detail.sum.sum(dim=(1, 2)), found[term].sum)
        assert int(model.counts(data, {"flow time": time})[term].sum()) == int(
            found[term].count.sum()
        )
    for b in range(4):  # whatever the others are lessons in
        one = {key: value[b : b + 1] for key, value in data.items()}
        alone = model.flow_losses(one, noise[b : b + 1], time[b : b + 1])
        for term, loss in alone.items():
            torch.testing.assert_close(loss.sum, found[term].sum[b : b + 1], rtol=1e-4, atol=1e-4)
    assert set(model.flow_losses(data, noise, time, terms=["dynamics"])) == {"dynamics"}
    without = {key: value for key, value in data.items() if key != "mode"}
    assert torch.equal(
        model.flow_losses(without, noise, time)["flow"].sum,
        model.flow_losses(data | {"mode": torch.zeros(4, dtype=torch.int64)}, noise, time)[
            "flow"
        ].sum,
    )


@pytest.mark.parametrize(
    ("mode", "own"), [(TaskMode.FORWARD, slice(0, 3)), (TaskMode.INVERSE, slice(3, 5))]
)
def test_what_is_given_comes_without_noise_and_without_a_time(mode: str, own: slice) -> None:
    model, (data, noise, time) = policy(), lessons([TaskMode.ALL.index(mode)] * 4)
    term = TaskMode.TRAINS[mode][0]
    before = model.flow_losses(data, noise, time)[term].sum
    other = noise.clone()
    times = time.clone()
    other[..., own] += 3
    times[..., 0 if mode == TaskMode.FORWARD else 1] = 0.9
    assert torch.equal(model.flow_losses(data, other, times)[term].sum, before)
    assert not torch.equal(model.flow_losses(data, noise + 0.1, time)[term].sum, before)
    key = "action" if mode == TaskMode.FORWARD else "observation.state"
    moved = data | {key: data[key] + 0.5}
    # and it matters
    assert not torch.equal(model.flow_losses(moved, noise, time)[term].sum, before)


@pytest.mark.parametrize("poison", [float("nan"), 1e6])
def test_states_behind_the_end_of_an_episode_reach_nothing(poison: float) -> None:
    model, (data, noise, time) = policy(), lessons([0, 1, 2, 0])
    found = model.flow_losses(data, noise, time)
    scalar(found).backward()
    before = [p.grad.clone() for p in model.parameters() if p.grad is not None]
    other = copy.deepcopy(data)
    other["observation.state"][data["observation.state_is_pad"] & (torch.arange(5) > 0)] = poison
    again = model.flow_losses(other, noise, time)
    assert all(torch.equal(found[term].sum, again[term].sum) for term in found)
    model.zero_grad()
    scalar(again).backward()
    after = [p.grad for p in model.parameters() if p.grad is not None]
    assert all(torch.equal(a, b) for a, b in zip(before, after, strict=True) if b is not None)


@pytest.mark.parametrize("number", range(3))
def test_a_batch_that_by_chance_has_one_mode_gives_every_weight_a_gradient(number: int) -> None:
    """Or a rank would wait for another, whose batch has other modes."""
    model, (data, noise, time) = policy(), lessons([number] * 4)

    class One:
        rank = 0
        world_size = 1

        def gather(self, value: Any) -> list[Any]:
            return [value]

    with record_leaves(model, One()) as leaves:  # type: ignore[arg-type]
        found = model.flow_losses(data, noise, time)
    loss = scalar(found)
    check_unused_parameters(model, leaves, loss, One())  # type: ignore[arg-type]
    loss.backward()
    assert all(p.grad is not None and torch.isfinite(p.grad).all() for p in model.parameters())
    assert torch.isfinite(loss)


def test_what_does_not_fit_is_refused_by_name() -> None:
    model, (data, noise, time) = policy(), lessons([0, 0])
    state = "observation.state"
    wrong: list[tuple[dict[str, Any], Tensor, Tensor, tuple[object, ...]]] = [
        (data, noise[..., :3], time, ("noise", tuple(noise[..., :3].shape))),
        (data, noise, time[..., 0], ("time", tuple(time[..., 0].shape))),
        (
            data | {state: data[state][:, 0]},
            noise,
            time,
            (state, tuple(data[state][:, 0].shape), "(any, 5, 2)"),
        ),
        (
            {k: v for k, v in data.items() if k != f"{state}_is_pad"},
            noise,
            time,
            (f"'{state}_is_pad'",),
        ),
    ]
    for broken, n, t, values in wrong:
        with refused(*values, kind=ValueError):
            model.flow_losses(broken, n, t)
    plain = policy(future=False)
    with refused("'mode'", "'policy'", kind=ValueError):
        plain.flow_losses(batch(2) | {"mode": torch.tensor([0, 1])}, *draws(2))
    with refused("mode", kind=ValueError):
        plain.imagine(batch(2), {"noise": draws(2)[0][:, 0]})
    with refused("'forward_dynamics'", "inverse_dynamics", kind=ValueError):
        model.act(data, {"noise": noise[:, 0]}, mode=TaskMode.FORWARD)
    with pytest.raises(ValueError, match="state_dim"):
        policy(state_dim=0)


def test_to_act_the_state_of_now_is_enough_and_the_noise_of_what_is_given_does_not_matter() -> None:
    model, (data, noise, _) = policy(), lessons([0, 0])
    now = {key: data[key] for key in model.input_keys} | {
        "observation.state": data["observation.state"][:, 0]
    }
    acted = model.act(now, {"noise": noise[:, 0]})
    assert acted.shape == (2, 4, 3)
    # it does not look at the future
    assert torch.equal(acted, model.act(data, {"noise": noise[:, 0]}))
    told = now | {"action": data["action"]}
    foreseen = model.imagine(told, {"noise": noise[:, 0]}).states
    assert foreseen.shape == (2, 4, 2)
    other = noise[:, 0].clone()
    other[..., :3] += 1
    assert torch.equal(foreseen, model.imagine(told, {"noise": other}).states)
    assert not torch.equal(
        foreseen, model.imagine(now | {"action": data["action"] + 1}, {"noise": noise[:, 0]}).states
    )
    assert model.imagine(now, {"noise": noise[:, 0]}, mode=TaskMode.POLICY).states.shape == (
        2,
        4,
        2,
    )


@pytest.mark.parametrize("mode", [TaskMode.FORWARD, TaskMode.INVERSE])
def test_what_is_given_stays_as_it_is_all_the_way_at_time_zero(mode: str) -> None:
    model, (data, noise, _) = policy(), lessons([0, 0])
    points: list[Tensor] = []
    times: list[Tensor] = []
    model.in_proj.register_forward_pre_hook(
        lambda _, inputs: points.append(inputs[0].view(2, 4, 5))
    )
    model.time.register_forward_pre_hook(lambda _, inputs: times.append(inputs[0].view(2, 2, 64)))
    (model.imagine if mode == TaskMode.FORWARD else model.act)(
        data, {"noise": noise[:, 0]}, 3, mode
    )
    given = 0 if mode == TaskMode.FORWARD else 1
    assert len(points) == len(times) == 3
    for k, (x, time) in enumerate(zip(points, times)):
        assert torch.equal(time[:, given], sinusoids(torch.zeros(2), 64))
        torch.testing.assert_close(
            time[:, 1 - given], sinusoids(torch.full((2,), 1 - k / 3), 64), rtol=0, atol=1e-3
        )
        assert torch.equal(x.split([3, 2], dim=2)[given], points[0].split([3, 2], dim=2)[given])
    pads = (
        data["action_is_pad"]
        if mode == TaskMode.FORWARD
        else data["observation.state_is_pad"][:, 1:]
    )
    assert (points[0].split([3, 2], dim=2)[given] == 0).all(dim=2).tolist() == pads.tolist()


def test_given_actions_of_a_robot_with_fewer_dimensions_bring_no_nan_along() -> None:
    model, (data, noise, _) = policy(), lessons([0, 0])
    data["action_dim_is_pad"] = torch.tensor([[False, False, True]] * 2)
    spoilt = data | {
        "action": torch.where(data["action_dim_is_pad"][:, None], float("nan"), data["action"])
    }
    assert torch.equal(
        model.imagine(data, {"noise": noise[:, 0]}).states,
        model.imagine(spoilt, {"noise": noise[:, 0]}).states,
    )
    assert torch.isfinite(model.imagine(spoilt, {"noise": noise[:, 0]}).states).all()
