"""Low-rank adapters: their arithmetic, their training and their merge."""

import re
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st
from torch import Tensor, nn

from understudy.config.lora import LoraConfig
from understudy.config.train import OptimConfig, TrainConfig
from understudy.optim.lora import adapted_layers, add_adapters, merge_adapters
from understudy.optim.moving_average import make_average
from understudy.optim.param_groups import freeze
from understudy.policies.flow.model import FlowPolicy, FlowPolicyConfig
from understudy.policies.losses import scalar
from understudy.testing import policies
from understudy.train.precision import compute_dtype, make_optimizer, named_tensors, store, table
from understudy_base import ConfigError
from understudy_base.testing.refusals import refused

PAGE = (Path(__file__).parents[4] / "docs" / "training.md").read_text()


@dataclass(frozen=True)
class Seeds:
    """Seeds of the adapters by name."""

    base: int = 0

    def __call__(self, name: str) -> int:
        return self.base + sum(name.encode())


def adapted(
    rank: int = 4, frozen: tuple[str, ...] = (), compute: Any = "float32", **options: Any
) -> FlowPolicy:
    policy = policies.policy(compute=compute)
    config = LoraConfig(rank, **options).resolved(("*",))
    add_adapters(policy, config, OptimConfig(freeze=frozen), Seeds())
    freeze(policy, OptimConfig(freeze=frozen))
    return policy


def loss_of(policy: FlowPolicy) -> Tensor:
    return scalar(policy.flow_losses(policies.batch(4), *policies.draws(4)))


def disturb(policy: FlowPolicy, std: float = 0.05) -> None:
    """Give the adapters values unlike fresh ones."""
    generator = torch.Generator().manual_seed(3)
    with torch.no_grad():
        for name, parameter in policy.named_parameters():
            if name.endswith(".lora_b"):
                parameter.normal_(std=std, generator=generator)


@pytest.mark.parametrize("compute", ["float32", "bfloat16"])
def test_fresh_adapters_change_no_bit(compute: str) -> None:
    plain = policies.policy(compute=compute)
    policy = adapted(compute=compute)
    assert torch.equal(loss_of(plain), loss_of(policy))
    disturb(policy)
    assert not torch.equal(loss_of(plain), loss_of(policy)), (
        "the control: adapters that are not 0 do"
    )


def test_names_are_those_of_the_network_and_two_per_layer() -> None:
    plain = policies.policy()
    policy = adapted()
    linear = [name for name, module in plain.named_modules() if isinstance(module, nn.Linear)]
    assert list(adapted_layers(policy)) == linear
    added = {f"{name}.{kind}" for name in linear for kind in ("lora_a", "lora_b")}
    assert set(policy.state_dict()) == set(plain.state_dict()) | added
    layer = adapted_layers(policy)["layers.0.grow"]
    assert [tuple(layer.get_parameter(kind).shape) for kind in ("lora_a", "lora_b")] == [
        (4, 32),
        (64, 4),
    ]


def test_gradients_reach_adapters_alone_and_all_of_them() -> None:
    policy = adapted()
    disturb(policy)  # with B = 0 no gradient of A differs from 0
    loss_of(policy).backward()
    reached = {name for name, p in policy.named_parameters() if p.grad is not None and p.grad.any()}
    assert reached == {
        name for name, _ in policy.named_parameters() if name.endswith((".lora_a", ".lora_b"))
    }
    plain = policies.policy()
    loss_of(plain).backward()
    assert all(p.grad is not None for p in plain.parameters()), (
        "the control: without adapters everything has one"
    )


def test_rank_0_changes_nothing() -> None:
    policy = policies.policy()
    assert add_adapters(policy, LoraConfig(targets=("nothing.*",)), OptimConfig(), Seeds()) == []
    assert all(p.requires_grad for p in policy.parameters())
    assert set(policy.state_dict()) == set(policies.policy().state_dict())


def test_an_adapter_does_not_depend_on_other_layers() -> None:
    everything = adapted()
    one = adapted(targets=("layers.1.shrink",))
    a = one.get_parameter("layers.1.shrink.lora_a")
    assert torch.equal(a, everything.get_parameter("layers.1.shrink.lora_a"))
    other = policies.policy()
    add_adapters(other, LoraConfig(4, targets=("layers.1.shrink",)), OptimConfig(), Seeds(1))
    assert not torch.equal(a, other.get_parameter("layers.1.shrink.lora_a"))
    bound = 64**-0.5
    assert a.abs().max() <= bound
    assert float(a.detach().std()) == pytest.approx(bound / 3**0.5, rel=0.15)


# -- patterns --------------------------------------------------------------------------------------


def test_frozen_and_whole_layers_get_no_adapter() -> None:
    policy = adapted(
        frozen=("vision.*", "*.shrink.lora_b"),
        also_train=("out_proj.*", "fuse.bias", "text.embed.*"),
    )
    names = list(adapted_layers(policy))
    assert "fuse" in names, "a bias that trains does not exclude its layer"
    assert "out_proj" not in names
    assert not any(name.startswith("vision.") for name in names)
    trains = {name for name, p in policy.named_parameters() if p.requires_grad}
    expected = {f"{name}.{kind}" for name in names for kind in ("lora_a", "lora_b")}
    expected -= {"layers.0.shrink.lora_b", "layers.1.shrink.lora_b"}
    assert trains == expected | {
        "out_proj.weight",
        "out_proj.bias",
        "fuse.bias",
        "text.embed.weight",
    }


@pytest.mark.parametrize(
    ("options", "words"),
    [
        ({"targets": ("layer.*",)}, ["lora.targets", "'layer.*'"]),
        ({"targets": ("text.near",)}, ["lora.targets", "'text.near'"]),  # a convolution
        ({"also_train": ("out.*",)}, ["lora.also_train", "'out.*'"]),
        (
            {"frozen": ("layers.*",), "targets": ("layers.*",)},
            ["lora.targets", "layers.*", "optim.freeze"],
        ),
    ],
)
def test_patterns_without_effect_are_errors(options: dict[str, Any], words: list[str]) -> None:
    with refused(*words, kind=ConfigError):
        adapted(**options)


def test_a_shared_weight_is_refused() -> None:
    network = nn.ModuleDict(
        {"one": nn.Linear(4, 4), "two": nn.Linear(4, 4), "three": nn.Linear(4, 4)}
    )
    network["two"].weight = network["one"].weight
    with refused("lora.targets", "weight", kind=ConfigError):
        add_adapters(network, LoraConfig(2, targets=("*",)), OptimConfig(), Seeds())
    only = LoraConfig(2, targets=("three",))
    assert add_adapters(network, only, OptimConfig(), Seeds()) == ["three"]


def test_adapters_of_a_network_on_the_meta_device_have_values_unless_that_is_the_default() -> None:
    for device, expected in (("cpu", "cpu"), ("meta", "meta")):
        network = nn.Sequential(
            nn.Linear(2**16, 2**16, device="meta"), nn.Linear(2**16, 2**16, device="meta")
        )
        with torch.device(device):
            add_adapters(network, LoraConfig(8, targets=("*",)), OptimConfig(), Seeds())
        trained = [p for p in network.parameters() if p.requires_grad]
        assert {p.device.type for p in trained} == {expected}
        assert sum(p.numel() for p in trained) == 4 * 8 * 2**16


# -- memory ----------------------------------------------------------------------------------------


@pytest.mark.parametrize("precision", ["fp32", "bf16", "bf16-split"])
def test_optimizer_state_is_that_of_the_adapters(precision: Any) -> None:
    policy = adapted(rank := 4, compute=compute_dtype(precision))
    config = TrainConfig(precision=precision)
    base = {
        name: p.detach().clone() for name, p in policy.named_parameters() if not p.requires_grad
    }
    masters = store(policy, precision)
    optimizer = make_optimizer(policy, config.optim, masters, accumulates=False)
    size = sum(
        rank * (layer.in_features + layer.out_features) for layer in adapted_layers(policy).values()
    )
    split = size - rank * 2 * 32  # the text encoder's last layer stays float32
    low = 2 * split if precision == "bf16-split" else 0
    state = [t for s in optimizer.state.values() for kind, t in s.items() if kind != "step"]
    assert sum(t.numel() * t.element_size() for t in state) == 2 * 4 * size + low
    assert {
        name: p.dtype for name, p in policy.named_parameters() if name in base
    } == dict.fromkeys(base, torch.float32)
    for _ in range(3):
        optimizer.zero_grad()
        loss_of(policy).backward()
        optimizer.step()
    after = dict(policy.named_parameters())
    assert [name for name in base if not torch.equal(base[name], after[name])] == []
    assert any(after[name].any() for name in after if name.endswith(".lora_b"))
    assert {t.dtype for t in named_tensors(policy, optimizer).values()} == {torch.float32}


def counted(precision: Any, rank: int) -> list[int]:
    """Trained parameters, bytes of the optimizer's state, and bytes of weights, gradients and
    state.
    """
    facts: dict[str, Any] = {"action_dim": 3, "state_dim": 2, "cameras": policies.CAMERAS}
    policy = FlowPolicy(
        FlowPolicyConfig(compute=compute_dtype(precision), **facts), policies.NORMALIZATION
    )
    add_adapters(policy, LoraConfig(rank, targets=("*",)), OptimConfig(), Seeds())
    config = TrainConfig(precision=precision)
    masters = store(policy, precision)
    optimizer = make_optimizer(policy, config.optim, masters, accumulates=False)
    state = sum(
        t.numel() * t.element_size() for each in optimizer.state.values() for t in each.values()
    )
    trained = [p for p in policy.parameters() if p.requires_grad]
    resident = sum(p.numel() * p.element_size() for p in (*policy.parameters(), *trained))
    return [sum(p.numel() for p in trained), state, resident + state]


def test_documented_bytes_are_those_of_the_policy() -> None:
    rows = re.findall(
        r"^\| (`.*`) \| (\d+) \| ([\d,]+) \| ([\d,]+) \| ([\d,]+) \|$", PAGE, flags=re.MULTILINE
    )
    assert len(rows) == 4
    for precisions, rank, *figures in rows:
        for precision in re.findall(r"`(.*?)`", precisions):
            assert counted(precision, int(rank)) == [
                int(figure.replace(",", "")) for figure in figures
            ]


def test_the_average_shares_frozen_weights_and_checkpoints_hold_them_once() -> None:
    policy = adapted()
    average = make_average(policy)
    mine = dict(policy.named_parameters())
    theirs = dict(average.named_parameters())
    assert {n for n in mine if mine[n].data_ptr() == theirs[n].data_ptr()} == set(
        policies.policy().state_dict()
    ) - {name for name, _ in policy.named_buffers()}
    optimizer = make_optimizer(policy, OptimConfig(), {}, accumulates=False)
    stored = named_tensors(policy, optimizer, average)
    line = table(policy, optimizer, average, "float32").splitlines()[-1]
    assert line.split()[:2] == [
        "average",
        f"{sum(p.numel() for p in mine.values() if p.requires_grad):,}",
    ]
    assert "weights/out_proj.weight" in stored
    assert "average/out_proj.weight" not in stored
    assert "average/out_proj.lora_a" in stored
    half = policies.policy()
    freeze(half, OptimConfig(freeze=("out_proj.*",)))
    optimizer = make_optimizer(half, OptimConfig(), {}, accumulates=False)
    whole = named_tensors(half, optimizer, make_average(half))
    assert set(whole) >= {"weights/out_proj.weight", "average/layers.0.grow.weight"}
    assert "average/out_proj.weight" not in whole


# -- merge -----------------------------------------------------------------------------------------


def test_a_merged_policy_is_an_ordinary_one_that_computes_the_same() -> None:
    policy = adapted(alpha=8.0)
    disturb(policy)
    merged = policies.policy(seed=1)
    before = {name: tensor.clone() for name, tensor in policy.state_dict().items()}
    merged.load_weights(merge_adapters(policy.state_dict(), 2.0))
    assert all(torch.equal(before[name], tensor) for name, tensor in policy.state_dict().items()), (
        "given, not changed"
    )
    noise = policies.draws(4)[0][:, 0]
    pairs = [(loss_of(policy), loss_of(merged))]
    pairs += [
        (
            policy.act(policies.batch(4), {"noise": noise}),
            merged.act(policies.batch(4), {"noise": noise}),
        )
    ]
    for one, two in pairs:
        torch.testing.assert_close(one, two, rtol=2e-5, atol=2e-6)
    for scale in (1.0, -2.0):  # the control: another scale is another policy
        merged.load_weights(merge_adapters(policy.state_dict(), scale))
        assert (loss_of(merged) / loss_of(policy) - 1).abs() > 1e-3


@given(
    sizes=st.tuples(st.integers(1, 40), st.integers(1, 40)),
    rank=st.integers(1, 8),
    alpha=st.sampled_from([0.5, 1.0, 16.0]),
    bias=st.booleans(),
    seed=st.integers(0, 2**32),
)
def test_merge_equals_the_formula_in_float64(
    sizes: tuple[int, int], rank: int, alpha: float, bias: bool, seed: int
) -> None:
    generator = torch.Generator().manual_seed(seed)
    network = nn.Sequential(nn.Linear(*sizes, bias=bias))
    config = LoraConfig(rank, alpha, ("0",))
    add_adapters(network, config, OptimConfig(), Seeds(seed % 2**31))
    for p in network.parameters():
        p.data.normal_(generator=generator)
    x = torch.randn(5, sizes[0], generator=generator)
    state = {name: t.double() for name, t in network.state_dict().items()}
    weight = state["0.weight"] + alpha / rank * state["0.lora_b"] @ state["0.lora_a"]
    merged = merge_adapters(network.state_dict(), config.scale)
    assert set(merged) == {"0.weight", "0.bias"} if bias else {"0.weight"}
    torch.testing.assert_close(merged["0.weight"].double(), weight, rtol=1e-4, atol=1e-4)
    expected = x.double() @ weight.T + (state["0.bias"] if bias else 0.0)
    torch.testing.assert_close(network(x).detach().double(), expected, rtol=1e-4, atol=1e-3)


def test_merge_without_adapters_returns_the_weights() -> None:
    weights = policies.policy().state_dict()
    merged = merge_adapters(weights, 0.0)
    assert merged.keys() == weights.keys()
    assert all(merged[name] is weights[name] for name in weights)
