"""Defaults that the policies of LeRobot bring: those of LeRobot's config classes, from flags, files
and mappings.
"""

import json
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
import torch

from understudy.config.train import TrainConfig
from understudy.optim.lr_schedule import lr_factor
from understudy.optim.param_groups import parameter_groups
from understudy.testing.runs import final_tensors, tiny_dataset
from understudy.train.startup_summary import describe_defaults
from understudy_base import ConfigError
from understudy_kit import load, main, validate, validate_new
from understudy_kit.cli.main import read_settings

pytest.importorskip("lerobot")
TrainPipelineConfig = pytest.importorskip("lerobot.configs.train").TrainPipelineConfig

ROOT = ["--data.root", "d", "--policy.type"]

CLASSES = {
    "lerobot-act": ("act", "ACTConfig"),
    "lerobot-diffusion": ("diffusion", "DiffusionConfig"),
    "lerobot-smolvla": ("smolvla", "SmolVLAConfig"),
}


def their_config(kind: str) -> Any:
    from importlib import import_module

    name, cls = CLASSES[kind]
    return getattr(import_module(f"lerobot.policies.{name}.configuration_{name}"), cls)(
        device="cpu"
    )


@pytest.mark.parametrize("kind", CLASSES)
def test_a_run_without_flags_has_lerobots_preset(kind: str) -> None:
    theirs = their_config(kind)
    preset = theirs.get_optimizer_preset()
    config = read_settings("train", [*ROOT, kind])
    optim = config.optim
    assert (optim.lr, (optim.beta1, optim.beta2), optim.eps) == (
        preset.lr,
        tuple(preset.betas),
        preset.eps,
    )
    assert (optim.weight_decay, optim.grad_clip_norm) == (
        preset.weight_decay,
        preset.grad_clip_norm,
    )
    weights = torch.nn.Linear(2, 2)
    assert [
        group["weight_decay"] for group in parameter_groups(weights.named_parameters(), optim)
    ] == [preset.weight_decay]
    assert (
        config.data.normalize
        == {"MEAN_STD": "mean_std", "MIN_MAX": "min_max"}[
            theirs.normalization_mapping["ACTION"].value
        ]
    )
    assert config.with_policy_defaults().data.chunk_size == getattr(theirs, "chunk_size", 63)
    assert config.augment.shift == 0
    assert config.data.drop_n_last_frames == getattr(theirs, "drop_n_last_frames", 0)
    pipeline = TrainPipelineConfig.__dataclass_fields__
    assert (config.steps, config.batch_size) == (
        pipeline["steps"].default,
        pipeline["batch_size"].default,
    )
    assert (
        config.schedule
        == read_settings("train", [*ROOT, kind, "--steps", str(config.steps)]).schedule
    )


@pytest.mark.long
@pytest.mark.parametrize("steps", [3_000, 60_000])
@pytest.mark.parametrize("kind", CLASSES)
def test_learning_rate_follows_lerobots_schedule(kind: str, steps: int) -> None:
    theirs = their_config(kind)
    weight = torch.nn.Parameter(torch.zeros(1))
    config = validate_new(TrainConfig, {"policy": {"type": kind}, "steps": steps}).resolved()
    factor: Any = lambda step: 1.0  # noqa: E731
    if (preset := theirs.get_scheduler_preset()) is not None:
        factor = preset.build(torch.optim.SGD([weight]), steps).lr_lambdas[0]
    for step in range(0, steps, steps // 100):
        # LeRobot's cosine begins at step 0, ours behind the warm-up, and warm-ups differ by one
        # step.
        assert lr_factor(step, config.schedule, steps) == pytest.approx(factor(step), abs=0.035)


@pytest.mark.long
def test_flags_and_files_precede_the_preset(tmp_path: Path) -> None:
    (tmp_path / "c.json").write_text(
        json.dumps({"policy": {"type": "lerobot-act"}, "optim": {"lr": 1e-3}})
    )
    # the default of every run, on purpose
    assert load(TrainConfig, tmp_path / "c.json").optim.lr == 1e-3
    flags = [
        str(tmp_path / "c.json"),
        "--data.root",
        "d",
        "--optim.beta2",
        "0.95",
        "--augment.shift",
        "4",
    ]
    config = read_settings("train", flags)
    assert (config.optim.lr, config.optim.beta2, config.augment.shift) == (1e-3, 0.95, 4)
    assert (config.optim.weight_decay, config.schedule.kind) == (1e-4, "constant")
    other = read_settings("train", [*flags, "--policy.type", "lerobot-diffusion"])
    assert (other.optim.weight_decay, other.schedule.kind, other.optim.lr) == (1e-6, "cosine", 1e-3)


@pytest.mark.long
def test_stored_settings_stay_as_they_are() -> None:
    stored = validate(TrainConfig, {"policy": {"type": "lerobot-act"}})
    assert stored.optim == TrainConfig().optim


def test_images_keep_their_recorded_size() -> None:
    settings = TrainConfig(
        policy=validate(TrainConfig, {"policy": {"type": "lerobot-act"}}).policy
    ).policy
    assert settings.fitted({"a": (48, 64), "b": (48, 64)}).image_size == (48, 64)
    for sizes in ({"a": (48, 64), "b": (64, 64)}, {"a": None}):
        with pytest.raises(ConfigError) as error:
            settings.fitted(sizes)
        assert "policy.image_size" in str(error.value)
    assert replace(settings, image_size=(32, 32)).fitted({"a": None}).image_size == (32, 32)


@pytest.mark.long
def test_a_run_names_its_defaults_and_sizes(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    import torchvision

    data = tiny_dataset(tmp_path / "data")
    fresh = torchvision.models.resnet18(weights=None).state_dict()
    monkeypatch.setattr("torchvision.models._api.load_state_dict_from_url", lambda *_, **__: fresh)
    caplog.set_level("INFO")
    assert (
        main(
            [
                *flags(data, tmp_path / "run"),
                "--optim.beta2",
                "0.95",
                "--optim.freeze",
                "model.backbone.*",
            ]
        )
        == 0
    )
    lines = caplog.text.splitlines()
    assert any("from policy lerobot-act" in line and "optim.lr 1e-05" in line for line in lines)
    assert any(
        "not from policy lerobot-act: steps 1 " in line
        and "optim.beta2 0.95 (its own: 0.999)" in line
        for line in lines
    )
    assert any(line.endswith("64x64") and "->" not in line for line in lines)
    stored = load(TrainConfig, tmp_path / "run" / "config.yaml")
    assert stored.policy.image_size == (64, 64)
    assert (stored.optim.lr, stored.optim.beta2, stored.data.chunk_size) == (1e-5, 0.95, 100)
    tensors = final_tensors(tmp_path / "run")
    name = next(name for name in tensors if name.endswith("backbone.layer1.0.conv1.weight"))
    assert torch.equal(tensors[name], fresh["layer1.0.conv1.weight"])


@pytest.mark.long
def test_weights_of_imagenet_that_cannot_be_had_are_refused(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    data = tiny_dataset(tmp_path / "data")
    monkeypatch.setenv("TORCH_HOME", str(tmp_path / "torch"))
    monkeypatch.setenv("https_proxy", "http://127.0.0.1:9")
    assert main(flags(data, tmp_path / "run")) == 2
    assert "pretrained_backbone_weights" in capsys.readouterr().err
    fresh = flags(data, tmp_path / "run", "pretrained_backbone_weights", "null")
    assert main(fresh) == 0


def flags(data: Path, out: Path, *more: str) -> list[str]:
    small = ["--policy.config", "dim_model", "16", "n_heads", "2", "dim_feedforward", "8", *more]
    command = [
        "train",
        "--policy.type",
        "lerobot-act",
        *small,
        "--data.root",
        str(data),
        "--steps",
        "1",
    ]
    return [
        *command,
        "--batch-size",
        "2",
        "--val.every",
        "0",
        "--log.no-report",
        "--output-dir",
        str(out),
    ]


@pytest.mark.long
def test_the_start_names_a_difference_to_lerobot() -> None:
    config = validate_new(
        TrainConfig, {"policy": {"type": "lerobot-diffusion"}, "optim": {"lr": 1e-3}}
    )
    lines = describe_defaults(config)
    assert config.policy.deviation(config.steps) in lines[1]
    assert "optim.lr 0.001 (its own: 0.0001)" in lines[2]
