"""The setting `optim.train`: parameters that no pattern names keep every bit."""

from pathlib import Path

import pytest
import torch

from understudy.config.lora import LoraConfig
from understudy.config.train import OptimConfig, TrainConfig
from understudy.optim.lora import adapted_layers, add_adapters
from understudy.optim.param_groups import freeze, parameter_groups
from understudy.policies.policy import Policy
from understudy.testing import policies
from understudy.testing.runs import SHORT, tiny_config, tiny_dataset
from understudy.train import run
from understudy.train.checkpoint import checkpoint
from understudy.train.checkpoint.run_dir import RunDir
from understudy_base import ConfigError
from understudy_base.testing.refusals import refused
from understudy_kit import override


def trained_names(policy: torch.nn.Module) -> set[str]:
    return {name for name, parameter in policy.named_parameters() if parameter.requires_grad}


def chosen(**optim: tuple[str, ...]) -> set[str]:
    policy = policies.policy()
    freeze(policy, OptimConfig(**optim))  # type: ignore[arg-type]
    return trained_names(policy)


def test_patterns_train_what_they_name_alone() -> None:
    names = trained_names(policies.policy())
    assert chosen(train=("layers.*", "out_proj.bias")) == {
        name for name in names if name.startswith("layers.") or name == "out_proj.bias"
    }
    assert chosen(train=("*",)) == chosen() == names
    both = chosen(train=("layers.*",), freeze=("layers.0.*",))
    assert both == {name for name in names if name.startswith("layers.1.")}


def test_unknown_patterns_and_nothing_to_train_are_refused() -> None:
    with refused("optim.train", "'layer.*'", "layers.1.grow.bias", kind=ConfigError):
        chosen(train=("text.*", "layer.*"))
    with refused("optim.train", "optim.freeze", kind=ConfigError):
        chosen(train=("layers.*",), freeze=("layers.*",))


def test_parts_of_a_policy_are_names_too() -> None:
    policy = policies.policy()
    freeze(policy, OptimConfig(train=("top.*",)), parts={"layers.1.*": "top", "*": "rest"})
    assert trained_names(policy) == {
        name for name in dict(policy.named_parameters()) if name.startswith("layers.1.")
    }


@pytest.mark.parametrize(
    ("patterns", "layers"),
    [(("layers.*",), "layers."), (("*.lora_?",), ""), (("layers.1.grow.weight",), "layers.1.grow")],
)
def test_adapters_follow_the_patterns(patterns: tuple[str, ...], layers: str) -> None:
    """A layer outside of them gets none: it would be a frozen one, of rank 2 and no use."""
    policy = policies.policy()
    optim = OptimConfig(train=patterns)
    add_adapters(policy, LoraConfig(2).resolved(("*",)), optim, len)
    freeze(policy, optim)
    adapted = adapted_layers(policy)
    assert adapted
    assert all(name.startswith(layers) for name in adapted)
    assert trained_names(policy) == {
        f"{n}.{kind}" for n in adapted for kind in ("lora_a", "lora_b")
    }


def test_groups_have_the_trained_parameters_alone() -> None:
    policy = policies.policy()
    optim = OptimConfig(train=("layers.*",), weight_decay=0.5)
    freeze(policy, optim)
    named = [(name, p) for name, p in policy.named_parameters() if p.requires_grad]
    members = [name for group in parameter_groups(named, optim) for name, _ in group["params"]]
    assert set(members) == trained_names(policy)


def settings(tmp_path: Path) -> TrainConfig:
    config = tiny_config(tiny_dataset(tmp_path / "data"), tmp_path / "run", **SHORT)
    optim = {"train": ("layers.*", "out_proj.*"), "weight_decay": 0.5, "weight_decay_on": "all"}
    return override(config, optim=optim)


def test_a_run_changes_no_bit_of_the_others(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    config = settings(tmp_path)
    first = override(config, steps=1, output_dir=str(tmp_path / "one"))
    for each in (first, config):
        assert run.train(each) == run.DONE
    one = Policy.load(tmp_path / "one/policy").state_dict()
    last = Policy.load(tmp_path / "run/policy").state_dict()
    changed = {name for name, value in last.items() if not torch.equal(value, one[name])}
    chosen_names = {name for name in last if name.startswith(("layers.", "out_proj."))}
    assert changed
    assert changed <= chosen_names
    latest = checkpoint.find_latest(RunDir(tmp_path / "run").checkpoints)
    assert latest is not None
    moments = {n for n in checkpoint.tensor_names(latest) if n.startswith("exp_avg/")}
    assert moments == {f"exp_avg/{name}" for name in chosen_names}
    assert run.resume(override(config, steps=6)) == run.DONE
    with refused("optim.train", kind=ConfigError):
        run.resume(override(config, steps=8, optim={"train": ("layers.*",)}))


def test_the_start_names_the_number_of_frozen_parameters(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    caplog.set_level("INFO", logger="understudy")
    run.train(settings(tmp_path))
    policy = Policy.load(tmp_path / "run/policy")
    total = sum(p.numel() for p in policy.parameters())
    trained = sum(
        p.numel() for n, p in policy.named_parameters() if n.split(".")[0] in ("layers", "out_proj")
    )
    assert f"{trained:,} of {total:,} parameters" in caplog.text
    assert f"{total - trained:,} are frozen" in caplog.text
