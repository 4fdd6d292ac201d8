"""Robots that differ in one batch: each sample by its own head, and the dimensions that a robot
lacks do not matter.
"""

import copy
from typing import Any

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from understudy.policies.common.normalizer import Affine
from understudy.policies.flow.model import FlowPolicy
from understudy.policies.losses import Loss, masked_squared_error, scalar
from understudy.testing.policies import CAMERAS, NORMALIZATION, batch, config, draws
from understudy.testing.policies import policy as single
from understudy_base.testing.refusals import refused

TWO: dict[str, Any] = {
    "heads": ["arm::joint", "hand::joint"],
    "action": {
        "offset": [[0.5, -1.0, 0.25], [5.0, 0.0, 0.0]],
        "spread": [[2.0, 0.0, 0.1], [3.0, 0.0, 0.0]],
    },
    "observation.state": {"offset": [[1.0, 2.0], [7.0, 0.0]], "spread": [[3.0, 0.5], [0.5, 0.0]]},
    "dims": {"action": [3, 1], "observation.state": [2, 1]},
}
"""The hand has one joint of the arm's three, and one number of its two."""


LOOSE = TWO | {
    "action": {
        "offset": [[0.5, -1.0, 0.25], [5.0, 1.0, 2.0]],
        "spread": [[2.0, 0.0, 0.1], [3.0, 1.0, 1.0]],
    },
    "observation.state": {"offset": [[1.0, 2.0], [7.0, 3.0]], "spread": [[3.0, 0.5], [0.5, 2.0]]},
}
"""With numbers for dimensions that the hand does not have: they are not to be believed."""


def two(normalization: dict[str, Any] = TWO, **changes: Any) -> FlowPolicy:
    """A policy of both heads with the weights of `understudy.testing.policies.policy`."""
    model = FlowPolicy(config(**changes), normalization)
    model.load_state_dict(single(**changes).state_dict())
    return model


def mixed(count: int = 4) -> dict[str, Any]:
    """A batch of arms (even) and hands (odd), as a mixture delivers it."""
    data = batch(count)
    head = torch.arange(count) % 2
    real = torch.where(head == 0, 3, 1)
    data["action_dim_is_pad"] = torch.arange(3) >= real[:, None]
    data["observation.state_dim_is_pad"] = torch.arange(2) >= torch.where(head == 0, 2, 1)[:, None]
    data["action"][data["action_dim_is_pad"][:, None].expand(-1, 4, -1)] = 0
    data["observation.state"][data["observation.state_dim_is_pad"]] = 0
    return data | {"head": head, "real_action_dim": real}


def gradients(model: FlowPolicy, loss: Loss) -> list[torch.Tensor]:
    model.zero_grad()
    scalar({"flow": loss}).backward()
    return [p.grad.clone() for p in model.parameters() if p.grad is not None]


def same(one: list[torch.Tensor], other: list[torch.Tensor]) -> bool:
    return all(torch.equal(a, b) for a, b in zip(one, other, strict=True))


# -- the affine maps


@given(st.lists(st.integers(0, 2), min_size=1, max_size=6), st.integers(0, 2))
def test_each_sample_is_mapped_by_its_own_head(heads: list[int], more: int) -> None:
    generator = torch.Generator().manual_seed(len(heads))
    offset = torch.randn(3, 2, generator=generator)
    spread = torch.rand(3, 2, generator=generator)
    spread[1, 0] = 0
    affine = Affine(offset, spread)
    x = torch.randn(len(heads), *[2] * more, 2, generator=generator)
    there = affine.normalize(x, torch.tensor(heads))
    back = affine.unnormalize(there, torch.tensor(heads))
    for b, head in enumerate(heads):
        alone = Affine(offset[head], spread[head])
        assert torch.equal(there[b], alone.normalize(x[b]))
        assert torch.equal(back[b], alone.unnormalize(there[b]))


def test_a_head_that_is_not_said_or_not_there_is_refused() -> None:
    affine = Affine([[0.0], [1.0]], [[1.0], [1.0]])
    x = torch.zeros(2, 1)
    with refused(2, "head", kind=ValueError):
        affine.normalize(x)
    for head in ([0, 2], [-1, 0]):
        with refused(head, 2, kind=ValueError):
            affine.normalize(x, torch.tensor(head))
    with pytest.raises(ValueError, match="int64"):
        affine.normalize(x, torch.tensor([0.0, 1.0]))
    with refused("head", "(1,)", kind=ValueError):
        affine.normalize(x, torch.tensor([0]))
    data, (noise, time) = mixed(), draws(4)
    del data["head"]
    with refused("arm::joint", "hand::joint", "'head'", kind=ValueError):
        two().flow_losses(data, noise, time)
    with refused("arm::joint", "hand::joint", "'head'", kind=ValueError):
        two().act(data, {"noise": noise[:, 0]})


# -- the policy


def test_a_single_head_changes_no_bit_of_the_policy() -> None:
    """The old normalization, of one dimension, and the new one."""
    old, data, (noise, time) = single(), batch(3), draws(3)
    rows = {key: {name: [row] for name, row in maps.items()} for key, maps in NORMALIZATION.items()}
    new = FlowPolicy(config(), {"heads": ["robot::joint"], **rows, "delta": [[False] * 3]})
    new.load_state_dict(old.state_dict())
    assert (old.norm_heads, new.norm_heads) == (("",), ("robot::joint",))
    for told in (data, data | {"head": torch.zeros(3, dtype=torch.int64)}):
        losses = [model.flow_losses(told, noise, time)["flow"] for model in (old, new)]
        assert torch.equal(losses[0].sum, losses[1].sum)
        assert torch.equal(
            old.act(told, {"noise": noise[:, 0]}), new.act(told, {"noise": noise[:, 0]})
        )


def test_a_sample_among_other_robots_is_as_among_its_own() -> None:
    model, data, (noise, time) = two(), mixed(), draws(4)
    whole = model.flow_losses(data, noise, time)["flow"]
    acted = model.act(data, {"noise": noise[:, 0]})
    for b in range(4):
        one = {key: value[b : b + 1] for key, value in data.items()}
        alone = model.flow_losses(one, noise[b : b + 1], time[b : b + 1])["flow"]
        torch.testing.assert_close(alone.sum, whole.sum[b : b + 1], rtol=1e-4, atol=1e-4)
        torch.testing.assert_close(model.act(one, {"noise": noise[b : b + 1, 0]}), acted[b : b + 1])
    # draws, dimensions, slots
    assert whole.count.tolist() == [2 * 3 * 4, 2 * 1 * 3, 2 * 3 * 2, 2 * 1 * 1]
    assert int(model.counts(data, {"flow time": time})["flow"].sum()) == int(whole.count.sum())


def test_the_mask_follows_from_the_head_where_the_batch_has_none() -> None:
    """As on a robot, which does not know how wide the others are."""
    model, data, (noise, time) = two(), mixed(), draws(4)
    bare = {key: value for key, value in data.items() if not key.endswith("dim_is_pad")}
    assert torch.equal(
        model.flow_losses(bare, noise, time)["flow"].sum,
        model.flow_losses(data, noise, time)["flow"].sum,
    )
    assert torch.equal(
        model.act(bare, {"noise": noise[:, 0]}), model.act(data, {"noise": noise[:, 0]})
    )
    told = single().flow_losses(
        batch(4) | {"action_dim_is_pad": data["action_dim_is_pad"], "action": data["action"]},
        noise,
        time,
    )
    assert torch.equal(told["flow"].count, model.flow_losses(data, noise, time)["flow"].count)


@pytest.mark.parametrize("where", ["steps", "action dims", "state dims", "noise of dims"])
@pytest.mark.parametrize("poison", [float("nan"), float("inf"), 1e6])
@pytest.mark.parametrize("masked_by", ["head", "head alone", "batch"])
def test_what_stands_in_a_masked_place_reaches_nothing(
    where: str, poison: float, masked_by: str
) -> None:
    data, (noise, time) = mixed(), draws(4)
    dims = data["action_dim_is_pad"]
    state_dims = data["observation.state_dim_is_pad"]
    model = {"head": two, "head alone": lambda: two(LOOSE), "batch": single}[masked_by]()
    if masked_by == "head alone":
        data = {key: value for key, value in data.items() if not key.endswith("dim_is_pad")}
    if masked_by == "batch":
        data = {key: value for key, value in data.items() if key != "head"}
    loss = model.flow_losses(data, noise, time, detail=True)["flow"]
    before = gradients(model, loss)
    acted = model.act(data, {"noise": noise[:, 0]})
    other = copy.deepcopy(data)
    if where == "steps":
        other["action"][data["action_is_pad"]] = poison
    elif where == "action dims":
        other["action"][dims[:, None].expand(-1, 4, -1)] = poison
    elif where == "state dims":
        other["observation.state"][state_dims] = poison
    else:
        noise = torch.where(dims[:, None, None], poison, noise)
    again = model.flow_losses(other, noise, time, detail=True)["flow"]
    assert torch.equal(loss.sum, again.sum)
    assert loss.detail is not None
    assert again.detail is not None
    assert torch.equal(loss.detail.sum, again.detail.sum)
    assert same(before, gradients(model, again))
    assert torch.equal(acted, model.act(other, {"noise": noise[:, 0]}))
    assert (acted[dims[:, None].expand(-1, 4, -1)] == 0).all()


def test_a_dimension_is_masked_that_the_head_or_the_batch_masks() -> None:
    model, data, (noise, time) = two(), mixed(2), draws(2)
    data["action_dim_is_pad"] = torch.tensor([[False, True, False], [False, False, False]])
    assert model.flow_losses(data, noise, time)["flow"].count.tolist() == [2 * 2 * 4, 2 * 1 * 3]


def test_negative_control_a_mask_by_product_lets_nan_poison_all() -> None:
    predicted = torch.zeros(1, 1, 2, 2, requires_grad=True)
    target = torch.tensor([[1.0, float("nan")], [1.0, 1.0]]).view(1, 1, 2, 2)
    steps = torch.tensor([[False, False]])
    dims = torch.tensor([[False, True]])
    product = ((predicted - target).square() * (~dims[:, None, None]).float()).sum()
    assert torch.isnan(product)
    assert torch.isnan(torch.autograd.grad(product, predicted)[0]).any()
    chosen = masked_squared_error(predicted, target, steps, dims)
    assert (chosen.sum.item(), chosen.count.item()) == (2.0, 2)
    assert torch.autograd.grad(chosen.sum.sum(), predicted)[0].flatten().tolist() == [
        -2.0,
        0.0,
        -2.0,
        0.0,
    ]


def test_a_nan_in_a_real_dimension_is_seen_by_its_own_sample_alone() -> None:
    model, data, (noise, time) = two(), mixed(), draws(4)
    data["action"][1, 0, 0] = float("nan")
    assert torch.isfinite(model.flow_losses(data, noise, time)["flow"].sum).tolist() == [
        True,
        False,
        True,
        True,
    ]


# -- cameras


def test_the_picture_of_a_missing_camera_does_not_matter_and_that_it_is_missing_does() -> None:
    model, data, (noise, time) = single(), batch(4), draws(4)
    lacks = torch.tensor([False, True, False, True])
    data[f"{CAMERAS[1]}_is_missing"] = lacks
    loss = model.flow_losses(data, noise, time)["flow"]
    acted = model.act(data, {"noise": noise[:, 0]})
    before = gradients(model, loss)
    other = data | {
        CAMERAS[1]: torch.where(
            lacks[:, None, None, None], 255 - data[CAMERAS[1]], data[CAMERAS[1]]
        )
    }
    again = model.flow_losses(other, noise, time)["flow"]
    assert torch.equal(loss.sum, again.sum)
    assert same(before, gradients(model, again))
    assert torch.equal(acted, model.act(other, {"noise": noise[:, 0]}))
    present = model.act(
        {k: v for k, v in data.items() if not k.endswith("missing")}, {"noise": noise[:, 0]}
    )
    changed = (present != acted).flatten(1).any(dim=1)
    assert changed.tolist() == lacks.tolist()
    with refused(f"{CAMERAS[1]}_is_missing", "(3,)", kind=ValueError):
        model.flow_losses(data | {f"{CAMERAS[1]}_is_missing": lacks[:3]}, noise, time)


def test_a_camera_that_nobody_has_gets_a_gradient_of_zero() -> None:
    """A gradient on all ranks, or they would wait for each other."""
    model, data, (noise, time) = single(cameras=CAMERAS[:1]), batch(2), draws(2)
    data[f"{CAMERAS[0]}_is_missing"] = torch.tensor([True, True])
    scalar(model.flow_losses(data, noise, time)).backward()
    assert model.vision is not None
    assert all(p.grad is not None and (p.grad == 0).all() for p in model.vision.parameters())


# -- in detail


@settings(max_examples=20)
@given(st.integers(0, 2**20))
def test_details_add_up_in_any_groups_and_change_nothing(seed: int) -> None:
    generator = torch.Generator().manual_seed(seed)
    predicted, target = (
        torch.randn(5, 3, 4, 6, generator=generator, requires_grad=True) for _ in range(2)
    )
    steps = torch.rand(5, 4, generator=generator) < 0.3
    dims = torch.rand(5, 6, generator=generator) < 0.3
    plain, told = (
        masked_squared_error(predicted, target, steps, dims, detail=d) for d in (False, True)
    )
    assert plain.detail is None
    assert told.detail is not None
    assert torch.equal(plain.sum, told.sum)
    assert torch.equal(scalar({"a": plain}), scalar({"a": told}))
    (one,), (other,) = (
        torch.autograd.grad(scalar({"a": loss}), predicted) for loss in (plain, told)
    )
    assert torch.equal(one, other)
    assert (told.detail.sum.shape, told.detail.count.shape) == ((5, 3, 6), (5, 6))
    assert torch.equal(told.detail.count.sum(dim=1) * 3, told.count)
    group = torch.randint(0, 3, (5, 3, 6), generator=generator)  # any partition
    sums = [told.detail.sum[group == g].double().sum() for g in range(3)]
    torch.testing.assert_close(
        torch.stack(sums).sum(), told.sum.double().sum(), rtol=1e-5, atol=1e-5
    )
    counts = [told.detail.count[:, None].expand(-1, 3, -1)[group == g].sum() for g in range(3)]
    assert int(torch.stack(counts).sum()) == int(told.count.sum())
    assert (told.detail.sum[dims[:, None].expand(-1, 3, -1)] == 0).all()


def test_details_of_a_policy_are_those_of_its_draws_and_dimensions() -> None:
    model, data, (noise, time) = two(), mixed(), draws(4)
    plain, told = (model.flow_losses(data, noise, time, detail=d)["flow"] for d in (False, True))
    assert torch.equal(plain.sum, told.sum)
    assert told.detail is not None
    for d in range(2):
        one = model.flow_losses(data, noise[:, d : d + 1], time[:, d : d + 1])["flow"]
        torch.testing.assert_close(told.detail.sum[:, d].sum(dim=1), one.sum, rtol=1e-4, atol=1e-4)
        assert torch.equal(told.detail.count.sum(dim=1), one.count)


# -- kept and refused heads


def test_two_heads_survive_the_disk(tmp_path: Any) -> None:
    model, data, (noise, _) = two(), mixed(), draws(4)
    model.save(tmp_path / "policy")
    back = FlowPolicy.load(tmp_path / "policy")
    assert (back.norm_heads, back.normalizer.arrays()) == (
        model.norm_heads,
        model.normalizer.arrays(),
    )
    assert torch.equal(
        back.act(data, {"noise": noise[:, 0]}), model.act(data, {"noise": noise[:, 0]})
    )


@pytest.mark.parametrize(
    ("changes", "values"),
    [
        ({"heads": ["a"]}, [2, 1]),
        ({"heads": ["a", "a"]}, ["['a', 'a']"]),
        ({"heads": []}, ["[]"]),
        ({"dims": {"action": [4, 1]}}, ["dims", [4, 1]]),
        ({"dims": {"action": [0, 1]}}, ["dims", [0, 1]]),
        ({"dims": {"action": [3]}}, ["dims", [3]]),
        ({"delta": [[False] * 3]}, ["delta", (1, 3)]),
        (
            {"action": {"offset": [[0.0] * 3, [0.0]], "spread": [[1.0] * 3] * 2}},
            ["offset", "spread"],
        ),
    ],
)
def test_heads_that_do_not_fit_are_refused(changes: dict[str, Any], values: list[object]) -> None:
    with refused(*values, kind=ValueError):
        FlowPolicy(config(), TWO | changes)
