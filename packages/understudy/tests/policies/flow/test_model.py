"""FlowPolicy: a function of its inputs and nothing else, in the robot's units, refusing inputs that
do not fit.
"""

import re
from typing import Any

import pytest
import torch

from understudy.policies.flow.model import FlowPolicy, FlowPolicyConfig
from understudy.policies.losses import scalar
from understudy.testing.policies import CAMERAS, NORMALIZATION, batch, config, draws, policy
from understudy_base.testing.refusals import refused


def test_same_batch_noise_and_time_give_the_same_numbers_and_no_generator_is_touched() -> None:
    data, (noise, time) = batch(3), draws(3)
    model = policy()
    state = torch.get_rng_state()
    first = model.flow_losses(data, noise, time)["flow"].sum
    actions = model.act(data, {"noise": noise[:, 0]})
    torch.rand(7)
    torch.manual_seed(99)
    assert torch.equal(model.flow_losses(data, noise, time)["flow"].sum, first)
    assert torch.equal(model.act(data, {"noise": noise[:, 0]}), actions)
    torch.set_rng_state(state)
    model.flow_losses(data, noise, time)
    assert torch.equal(torch.get_rng_state(), state)


@pytest.mark.parametrize("key", [*CAMERAS, "observation.state", "task", "noise"])
def test_every_input_matters(key: str) -> None:
    data, (noise, _) = batch(2), draws(2)
    model = policy()
    before = model.act(data, {"noise": noise[:, 0]})
    other = dict(data)
    start = noise[:, 0]
    if key == "noise":
        start = noise[:, 1]
    elif key == "task":
        other["task"] = ["pick up the green block"] * 2
    elif key == "observation.state":
        other[key] = data[key] + 1
    else:
        other[key] = batch(2, seed=5)[key]
    assert not torch.allclose(before, model.act(other, {"noise": start}))


@pytest.mark.parametrize("cameras", [(), CAMERAS[:1], CAMERAS])
@pytest.mark.parametrize("state_dim", [0, 2])
def test_any_number_of_cameras_with_or_without_state(
    cameras: tuple[str, ...], state_dim: int
) -> None:
    data, (noise, time) = batch(3), draws(3)
    model = policy(cameras=cameras, state_dim=state_dim)
    assert set(model.input_keys) == {*cameras, "task"} | (
        {"observation.state"} if state_dim else set()
    )
    # asks for nothing else
    only = {key: data[key] for key in (*model.input_keys, "action", "action_is_pad")}
    scalar(model.flow_losses(only, noise, time)).backward()
    assert all(p.grad is not None and torch.isfinite(p.grad).all() for p in model.parameters())
    assert model.act(only, {"noise": noise[:, 0]}).shape == (3, 4, 3)


def test_actions_come_in_the_robots_units() -> None:
    data, (noise, _) = batch(3), draws(3)
    model = policy()
    plain = FlowPolicy(
        config(), NORMALIZATION | {"action": {"offset": [0.0] * 3, "spread": [1.0] * 3}}
    )
    plain.load_state_dict(model.state_dict())
    normal = plain.act(data, {"noise": noise[:, 0]})
    robot = model.act(data, {"noise": noise[:, 0]})
    torch.testing.assert_close(
        robot, normal * torch.tensor([2.0, 0.0, 0.1]) + torch.tensor([0.5, -1.0, 0.25])
    )
    # a dimension that never moved in training stays exactly where it was
    assert (robot[..., 1] == -1.0).all()


def test_the_units_of_the_state_do_not_matter() -> None:
    data, (noise, _) = batch(3), draws(3)
    meters = policy()
    millimeters = FlowPolicy(
        config(),
        NORMALIZATION | {"observation.state": {"offset": [1e3, 2e3], "spread": [3e3, 5e2]}},
    )
    millimeters.load_state_dict(meters.state_dict())
    scaled = data | {"observation.state": data["observation.state"] * 1000}
    torch.testing.assert_close(
        meters.act(data, {"noise": noise[:, 0]}), millimeters.act(scaled, {"noise": noise[:, 0]})
    )


def test_a_fresh_policy_predicts_no_velocity() -> None:
    with torch.random.fork_rng(devices=[]):
        torch.manual_seed(0)
        model = FlowPolicy(config(), NORMALIZATION)
    noise = draws(2)[0][:, 0]
    expected = noise * torch.tensor([2.0, 0.0, 0.1]) + torch.tensor([0.5, -1.0, 0.25])
    torch.testing.assert_close(model.act(batch(2), {"noise": noise}), expected)


@pytest.mark.long
def test_it_learns_to_tell_texts_pictures_and_states_apart() -> None:
    """Three samples that differ in one input each must end up with three action chunks."""
    data = {key: value[:1] for key, value in batch(4).items()}
    three: dict[str, Any] = {
        key: value * 3 if isinstance(value, list) else value.repeat(3, *[1] * (value.ndim - 1))
        for key, value in data.items()
    }
    three["task"] = ["left", "right", "left"]
    three[CAMERAS[0]][2] = 255 - three[CAMERAS[0]][2]
    three["action"] = torch.tensor([-1.0, 0.0, 1.0])[:, None, None].expand(3, 4, 3).contiguous()
    three["action_is_pad"][:] = False
    unit = NORMALIZATION | {"action": {"offset": [0.0] * 3, "spread": [1.0] * 3}}
    with torch.random.fork_rng(devices=[]):
        torch.manual_seed(0)
        model = FlowPolicy(config(cameras=CAMERAS[:1]), unit)
    optimizer = torch.optim.Adam(model.parameters(), lr=5e-3)
    generator = torch.Generator().manual_seed(0)
    for _ in range(120):
        noise = torch.randn(3, 8, 4, 3, generator=generator)
        time = torch.rand(3, 8, generator=generator)
        optimizer.zero_grad()
        scalar(model.flow_losses(three, noise, time)).backward()
        optimizer.step()
    acted = model.act(three, {"noise": torch.randn(3, 4, 3, generator=generator)})
    assert (acted - three["action"]).mean(dim=(1, 2)).abs().max() < 0.4  # they are 1 apart


def test_bfloat16_computes_in_bfloat16_and_stays_near() -> None:
    data, (noise, time) = batch(3), draws(3)
    full = policy()
    half = policy(compute="bfloat16")
    seen: list[torch.dtype] = []
    half.fuse.register_forward_hook(lambda _, __, out: seen.append(out.dtype))
    loss = half.flow_losses(data, noise, time)["flow"]
    exact = full.flow_losses(data, noise, time)["flow"]
    assert seen == [torch.bfloat16]
    assert loss.sum.dtype == torch.float32
    assert all(p.dtype == torch.float32 for p in half.parameters())
    torch.testing.assert_close(loss.sum, exact.sum, rtol=0.05, atol=0.05)
    assert not torch.equal(loss.sum, exact.sum)


def test_pictures_of_another_size_are_area_averaged() -> None:
    data = batch(2)
    noise = draws(2)[0][:, 0]
    large = dict(data)
    for key in CAMERAS:
        large[key] = data[key].repeat_interleave(3, dim=2).repeat_interleave(2, dim=3)
    model = policy()
    torch.testing.assert_close(
        model.act(large, {"noise": noise}), model.act(data, {"noise": noise})
    )


def test_the_default_policy_is_compact() -> None:
    model = FlowPolicy(
        FlowPolicyConfig(action_dim=3, state_dim=2, cameras=CAMERAS[:1]), NORMALIZATION
    )
    assert 0.5e6 < sum(p.numel() for p in model.parameters()) < 2e6


def test_what_does_not_fit_is_refused_by_name() -> None:
    data, (noise, time) = batch(2), draws(2)
    model = policy()
    without = {key: value for key, value in data.items() if key != "observation.state"}
    wrong: list[tuple[dict[str, Any], torch.Tensor, torch.Tensor, tuple[str, ...]]] = [
        (without, noise, time, ("observation.state",)),
        (data | {"action": data["action"][:, :3]}, noise, time, ("action", "(2, 3, 3)")),
        (
            data | {"action_is_pad": data["action_is_pad"][:, :3]},
            noise,
            time,
            ("action_is_pad", "(2, 3)"),
        ),
        (data, noise[:, 0], time, ("noise", tuple(noise[:, 0].shape))),
        (data, noise, time[:, :1], ("time", tuple(time[:, :1].shape))),
        (
            data | {CAMERAS[0]: data[CAMERAS[0]].float()},
            noise,
            time,
            (CAMERAS[0], "torch.float32", "uint8"),
        ),
        (data | {CAMERAS[0]: data[CAMERAS[0]][:, None]}, noise, time, (CAMERAS[0],)),
        (
            data | {"observation.state": torch.zeros(2, 5)},
            noise,
            time,
            ("observation.state", "(2, 5)", "(2, 2)"),
        ),
    ]
    for broken, n, t, values in wrong:
        with refused(*values, kind=ValueError):
            model.flow_losses(broken, n, t)
    with refused("noise", "(1, 4, 3)", kind=ValueError):
        model.act(data, {"noise": noise[:1, 0]})


@pytest.mark.parametrize(
    ("field", "value"),
    [("chunk", 0), ("state_dim", -1), ("channels", 12), ("image_size", (64, 30)), ("keypoints", 3)],
)
def test_impossible_configs_are_refused(field: str, value: Any) -> None:
    with refused(field, value, kind=ValueError):
        config(**{field: value})


@pytest.mark.parametrize(
    ("normalization", "values"),
    [
        ({"action": NORMALIZATION["action"]}, ["observation.state"]),
        (NORMALIZATION | {"action": {"offset": [0.0], "spread": [1.0]}}, ["action", 1, 3]),
        (NORMALIZATION | {"action": {"offset": [0.0] * 3}}, ["action", "spread"]),
        (
            NORMALIZATION | {"action": {"offset": [0.0] * 3, "spread": [1.0, float("nan"), 1.0]}},
            ["spread", "nan"],
        ),
        (
            NORMALIZATION | {"action": {"offset": [0.0] * 3, "spread": [1.0, -1.0, 1.0]}},
            ["spread", -1.0],
        ),
    ],
)
def test_a_wrong_normalization_is_refused(
    normalization: dict[str, Any], values: list[object]
) -> None:
    with refused(*values, kind=ValueError):
        FlowPolicy(config(), normalization)


def test_flow_policy_keeps_the_parameter_names_of_checkpoints() -> None:
    names = {re.sub(r"\.\d+\.", ".*.", name) for name, _ in policy().named_parameters()}
    layers = (
        "text.far text.near text.out fuse fuse2 time in_proj out_proj layers.*.modulate "
        "layers.*.grow layers.*.shrink "
    )
    layers += "vision.stem vision.blocks.*.conv vision.blocks.*.film vision.filters vision.colours"
    of_layers = {f"{layer}.{kind}" for layer in layers.split() for kind in ("weight", "bias")}
    assert names == {"text.embed.weight", "vision.camera", *of_layers}
