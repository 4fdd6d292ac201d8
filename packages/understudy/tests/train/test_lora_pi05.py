"""Low-rank adapters of pi0.5 and pi0, through the same path as those of any policy."""

from pathlib import Path
from typing import Any

import pytest
import torch
from torch import Tensor

pytest.importorskip("sentencepiece", reason="needs the extra pi05")

from understudy.config.lora import LoraConfig
from understudy.config.train import OptimConfig, TrainConfig
from understudy.optim.lora import add_adapters, merge_adapters
from understudy.policies.draws import generate_draws
from understudy.policies.losses import scalar
from understudy.policies.pi05.config import Pi05PolicyConfig, Pi05Settings, Sizes
from understudy.policies.pi05.network import Pi0Network
from understudy.policies.pi05.policy import Pi05Policy
from understudy.testing.pi05_policy import batch, policy

BOTH = pytest.mark.parametrize("adaptive", [True, False], ids=["pi05", "pi0"])


# -- the adapters ----------------------------------------------------------------------------------


def adapted(tokenizer: Path, adaptive: bool, **options: Any) -> tuple[Pi05Policy, list[str]]:
    made = policy(tokenizer, adaptive)
    config = LoraConfig(4, **options).resolved(made.config.LORA_TARGETS)
    names = add_adapters(made, config, OptimConfig(), len, made.config.PARTS)
    return made, names


def loss_of(made: Pi05Policy) -> Tensor:
    draws = generate_draws(made.random_spec("train"), 4, torch.Generator().manual_seed(3))
    return scalar(made.losses(made.preprocess(batch()), draws))


def disturb(made: Pi05Policy) -> None:
    generator = torch.Generator().manual_seed(2)
    with torch.no_grad():
        for name, parameter in made.named_parameters():
            if name.endswith(".lora_b"):
                parameter.normal_(std=0.05, generator=generator)


@BOTH
def test_default_adapters_are_on_both_towers_and_the_projections(
    tokenizer: Path, adaptive: bool
) -> None:
    _, names = adapted(tokenizer, adaptive)
    linear = ("self_attn.q_proj", "self_attn.k_proj", "self_attn.v_proj", "self_attn.o_proj")
    linear += ("mlp.gate_proj", "mlp.up_proj", "mlp.down_proj")
    towers = {
        f"layers.{i}.{tower}.{name}"
        for i in range(3)
        for tower in ("vlm", "expert")
        for name in linear
    }
    ends = {"action_in_proj", "action_out_proj"}
    ends |= (
        {"time_mlp_in", "time_mlp_out"}
        if adaptive
        else {"state_proj", "action_time_mlp_in", "action_time_mlp_out"}
    )
    assert set(names) == towers | ends


@BOTH
def test_fresh_adapters_change_no_bit_and_alone_have_gradients(
    tokenizer: Path, adaptive: bool
) -> None:
    plain, (made, names) = policy(tokenizer, adaptive), adapted(tokenizer, adaptive)
    assert torch.equal(loss_of(plain), loss_of(made))
    disturb(made)
    loss_of(made).backward()
    reached = {name for name, p in made.named_parameters() if p.grad is not None and p.grad.any()}
    unread = {f"layers.2.vlm.{name}" for name in ("self_attn.q_proj", "self_attn.o_proj")}
    # nothing reads their results
    unread |= {f"layers.2.vlm.mlp.{name}_proj" for name in ("gate", "up", "down")}
    assert reached == {
        f"{name}.{kind}" for name in set(names) - unread for kind in ("lora_a", "lora_b")
    }


@BOTH
def test_default_targets_leave_out_layers_without_gradient(tokenizer: Path, adaptive: bool) -> None:
    """The test above is the control: with `LORA_TARGETS` some adapters get no gradient."""
    made = policy(tokenizer, adaptive)
    everything = adapted(tokenizer, adaptive)[1]
    config = LoraConfig(4).resolved(made.config.lora_targets())
    names = add_adapters(made, config, OptimConfig(), len, made.config.PARTS)
    disturb(made)
    loss_of(made).backward()
    trained = {name for name, parameter in made.named_parameters() if parameter.requires_grad}
    assert trained == {
        name for name, p in made.named_parameters() if p.grad is not None and p.grad.any()
    }
    assert set(everything) - set(names) == {
        f"layers.2.vlm.{name}_proj"
        for name in ("self_attn.q", "self_attn.o", "mlp.gate", "mlp.up", "mlp.down")
    }
    assert set(names) <= set(everything)


def test_default_targets_of_predicted_tokens_are_all() -> None:
    assert Pi05Settings(response_tokens=8).lora_targets() == Pi05Settings.LORA_TARGETS
    assert Pi05Settings(fast="fast").lora_targets() == Pi05Settings.LORA_TARGETS
    assert "layers.17.vlm.*_proj" not in Pi05Settings().lora_targets()
    run = TrainConfig(policy=Pi05Settings(size="tiny"), lora=LoraConfig(4)).resolved()
    assert run.lora.targets == Pi05Settings(size="tiny").lora_targets()


@BOTH
def test_merged_policy_has_the_own_keys_and_the_same_loss(
    tokenizer: Path, adaptive: bool, tmp_path: Path
) -> None:
    made, _ = adapted(tokenizer, adaptive, alpha=8.0)
    disturb(made)
    merged = merge_adapters(made.state_dict(), 2.0)
    assert merged.keys() == policy(tokenizer, adaptive).state_dict().keys()
    made.save(tmp_path / "merged", merged)
    one = loss_of(made)
    two = loss_of(Pi05Policy.load(tmp_path / "merged"))
    torch.testing.assert_close(one, two, rtol=1e-5, atol=0)
    assert (loss_of(policy(tokenizer, adaptive)) / one - 1).abs() > 1e-4


def test_parts_cover_the_towers(tokenizer: Path) -> None:
    made, names = adapted(tokenizer, True, targets=("vlm.*",), also_train=("expert.*",))
    assert names
    assert all(".vlm." in name or name == "projector" for name in names)
    whole = {name for name, p in made.named_parameters() if p.requires_grad and "lora" not in name}
    of_expert = {name for name in dict(policy(tokenizer).named_parameters()) if ".expert." in name}
    of_expert |= {
        name for name in whole if name.startswith(("expert_norm", "action_", "time_mlp_"))
    }
    assert whole == of_expert
    assert len(of_expert) > 40


def test_adapters_of_the_released_size_are_as_many_as_documented() -> None:
    """From shapes alone: 26.6 of 3,353 million parameters."""
    with torch.device("meta"):
        network = Pi0Network(Sizes.BASE)
        before = sum(p.numel() for p in network.parameters())
        config = LoraConfig(16).resolved(Pi05PolicyConfig.LORA_TARGETS)
        add_adapters(network, config, OptimConfig(), len, Pi05PolicyConfig.PARTS)
    trained = sum(p.numel() for p in network.parameters() if p.requires_grad)
    tower = 16 * 18 * (2 * (2048 + 2048) + 2 * (2048 + 256) + 3 * (2048 + 16384))
    expert = 16 * 18 * (2 * (1024 + 2048) + 2 * (1024 + 256) + 3 * (1024 + 4096))
    ends = 16 * (2 * (1024 + 32) + 2 * (1024 + 1024))
    assert (before, trained) == (3_353_433_872, tower + expert + ends)
    assert trained == 26_641_408


# -- runs ------------------------------------------------------------------------------------------
