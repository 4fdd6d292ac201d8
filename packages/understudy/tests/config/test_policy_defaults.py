"""Defaults of a run that its policy brings: below flags, files and stored settings, above those of
the groups.
"""

import json
from dataclasses import replace
from importlib.util import find_spec
from pathlib import Path

import pytest

from understudy.config.train import TrainConfig
from understudy.optim.lr_schedule import lr_factor
from understudy.policies.registry import policy_type
from understudy.train.startup_summary import describe_defaults
from understudy_base import ConfigError
from understudy_kit import dump_yaml, load, main, validate, validate_new
from understudy_kit.cli.main import read_settings

ROOT = ["--data.root", "d"]
OPENPI = {
    "lr": 2.5e-5,
    "beta2": 0.95,
    "weight_decay": 1e-10,
    "weight_decay_on": "all",
    "grad_clip_norm": 1.0,
}


@pytest.mark.parametrize("kind", ["pi05", "pi0"])
def test_base_of_pi05_trains_as_openpi(kind: str) -> None:
    config = read_settings("train", [*ROOT, "--policy.type", kind])
    assert {name: getattr(config.optim, name) for name in OPENPI} == OPENPI
    assert config.optim.ema.decay == 0.99
    assert (config.schedule.warmup_steps, config.schedule.decay_steps) == (1000, 30_000)
    assert config.optim.lr * config.schedule.final_lr_ratio == pytest.approx(2.5e-6)
    assert config.data.normalize == {"pi05": "quantile", "pi0": "mean_std"}[kind]
    assert config.data.chunk_size == 50
    assert (config.steps, config.batch_size) == (30_000, 32)
    assert (
        read_settings("train", [*ROOT, "--policy.type", kind, "--lora.rank", "8"]).optim.ema.decay
        == 0
    )


def test_short_runs_compress_the_schedule_of_openpi_and_name_it() -> None:
    flags = [*ROOT, "--policy.type", "pi05"]
    config = read_settings("train", [*flags, "--steps", "3000"])
    assert (config.schedule.warmup_steps, config.schedule.decay_steps, config.batch_size) == (
        100,
        3000,
        32,
    )
    assert lr_factor(2999, config.schedule, 3000) == pytest.approx(0.1, abs=1e-4)
    assert config.policy.deviation(config.steps) in "\n".join(describe_defaults(config))
    assert read_settings("train", flags).policy.deviation(30_000) == ""
    longer = read_settings("train", [*flags, "--steps", "60000", "--schedule.warmup-steps", "7"])
    assert (longer.schedule.warmup_steps, longer.schedule.decay_steps) == (7, 30_000)


@pytest.mark.parametrize(
    ("steps", "warmup"), [(1, 0), (60, 6), (999, 99), (1000, 100), (50_000, 100)]
)
def test_short_runs_warm_up_in_a_tenth_of_their_steps(steps: int, warmup: int) -> None:
    config = read_settings("train", [*ROOT, "--steps", str(steps)])
    assert config.resolved().schedule.warmup_steps == warmup
    factors = [lr_factor(step, config.schedule, steps) for step in (warmup, steps)]
    assert factors == [1, 0]
    assert replace(config.resolved(), steps=10**6).resolved().schedule.warmup_steps == warmup
    chosen = read_settings(
        "train", [*ROOT, "--steps", str(steps), "--schedule.warmup-steps", "100"]
    )
    assert chosen.resolved().schedule.warmup_steps == 100


def test_flow_and_tiny_networks_have_the_defaults_of_every_run() -> None:
    plain = read_settings("train", ROOT)
    assert (plain.optim, plain.schedule) == (TrainConfig().optim, TrainConfig().schedule)
    tiny = read_settings("train", [*ROOT, "--policy.type", "pi05", "--policy.size", "tiny"])
    assert (tiny.optim, tiny.schedule, tiny.steps) == (plain.optim, plain.schedule, plain.steps)
    assert describe_defaults(tiny) == ["from policy pi05: data.normalize quantile"]
    assert describe_defaults(plain) == []


@pytest.mark.parametrize("lr", [1e-3, 3e-4])  # the default of every run is a choice like any other
def test_flags_and_files_precede_the_policy(lr: float, tmp_path: Path) -> None:
    flags = [*ROOT, "--policy.type", "pi05", "--optim.lr", str(lr), "--optim.ema.decay", "0"]
    config = read_settings("train", flags)
    assert (config.optim.lr, config.optim.ema.decay, config.optim.weight_decay) == (lr, 0, 1e-10)
    file = tmp_path / "c.json"
    content = {"policy": {"type": "pi05"}, "optim": {"lr": lr}, "data": {"root": "d"}}
    file.write_text(json.dumps(content))
    for made in (
        load(TrainConfig, file),
        validate_new(TrainConfig, content),
        read_settings("train", [str(file)]),
    ):
        assert (made.optim.lr, made.optim.weight_decay, made.data.root) == (lr, 1e-10, "d")


def test_a_flag_for_another_type_takes_its_defaults(tmp_path: Path) -> None:
    (tmp_path / "c.json").write_text(
        json.dumps({"policy": {"type": "pi05"}, "optim": {"beta1": 0.8}})
    )
    config = read_settings("train", [str(tmp_path / "c.json"), *ROOT, "--policy.type", "flow"])
    assert (config.optim.beta1, config.optim.lr) == (0.8, TrainConfig().optim.lr)


def test_stored_settings_are_complete(tmp_path: Path) -> None:
    config = read_settings("train", [*ROOT, "--policy.type", "pi05", "--optim.lr", "1e-3"])
    (tmp_path / "c.yaml").write_text(dump_yaml(config))
    assert load(TrainConfig, tmp_path / "c.yaml") == config
    assert validate(TrainConfig, {"policy": {"type": "pi05"}}).optim == TrainConfig().optim


def test_print_config_and_help_show_them(capsys: pytest.CaptureFixture[str]) -> None:
    for command in ("train", "plan", "profile"):
        assert main([command, *ROOT, "--policy.type", "pi05", "--print-config"]) == 0
        assert "lr: 2.5e-05" in capsys.readouterr().out
    with pytest.raises(SystemExit):
        read_settings("train", ["--policy.type", "pi05", "--help"])
    assert "(default: 2.5e-05)" in capsys.readouterr().out


def test_mixtures_keep_settings_of_single_datasets_apart(monkeypatch: pytest.MonkeyPatch) -> None:
    kind = policy_type("flow").settings
    brought = {"data": {"drop_n_last_frames": 7, "normalize": "min_max"}}
    monkeypatch.setattr(kind, "run_defaults", lambda *_: brought)
    one = validate_new(TrainConfig, {"data": {"root": "a"}})
    assert (one.data.drop_n_last_frames, one.data.normalize) == (7, "min_max")
    mixed = validate_new(TrainConfig, {"data": {"sources": [{"root": "a"}, {"root": "b"}]}})
    assert (mixed.data.drop_n_last_frames, mixed.data.normalize, mixed.problems()) == (
        0,
        "min_max",
        [],
    )


def test_eager_attention_and_chosen_blocks_have_their_conditions() -> None:
    of_pi05 = ["--policy.type", "pi05"]
    for flags in (
        ["--attention", "eager", "--max-num-tokens", "99", *of_pi05],
        ["--attention", "eager", "--policy.type", "flow"],  # it has no attention
        ["--activation-checkpoint-blocks", "2"],
    ):
        with pytest.raises(ConfigError) as error:
            read_settings("train", [*ROOT, *flags])
        assert flags[0].strip("-").replace("-", "_") in str(error.value)
    assert read_settings("profile", [*ROOT, "--attention", "eager", *of_pi05]).attention == "eager"
    made = read_settings(
        "plan", [*ROOT, "--activation-checkpoint", "full", "--activation-checkpoint-blocks", "2"]
    )
    assert made.recomputation() == "full, 1 of 2 blocks"


@pytest.mark.skipif(
    find_spec("lerobot") is not None, reason="needs an installation without LeRobot"
)
def test_defaults_of_a_missing_package_are_refused_or_named(
    capsys: pytest.CaptureFixture[str],
) -> None:
    assert main(["train", *ROOT, "--policy.type", "lerobot-act", "--print-config"]) == 2
    assert "understudy-zoo[lerobot]" in capsys.readouterr().err
    with pytest.raises(SystemExit):
        read_settings("train", ["--policy.type", "lerobot-act", "--help"])
    assert "understudy-zoo[lerobot]" in " ".join(capsys.readouterr().out.split())
