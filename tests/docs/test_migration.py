"""Hints for flags of other tools, which docs/migration.md lists: each names settings that exist."""

import re
from pathlib import Path

import pytest

from understudy.config.other_trainers import read_hints, read_tables
from understudy.config.train import TrainConfig
from understudy.policies.pi05.config import Pi05Settings
from understudy_base import ConfigError
from understudy_base.testing.refusals import refused
from understudy_kit import load, override, validate
from understudy_kit.cli.main import COMMANDS, read_settings
from understudy_kit.config.flags import list_settings

FOREIGN = read_hints()
PARALLELISM = "model.config.parallelism"


def flags() -> set[str]:
    """Every flag of `understudy train`, with those of pi0.5."""
    paths = [
        setting.path
        for kind in (None, Pi05Settings)
        for setting in list_settings(TrainConfig, kind)
    ]
    return {f"--{path.replace('_', '-')}" for path in paths}


def test_settings_of_the_same_name_exist() -> None:
    for trainer, table in read_tables().items():
        names = [name.lstrip("-").replace("_", "-") for name in table]
        assert len(set(names)) == len(names), trainer
        assert {f"--{name}" for name in names if name not in FOREIGN} <= flags()


def test_hints_name_existing_settings_and_commands() -> None:
    known = {"--launch", *flags()}
    known |= {flag.rpartition(".")[0] for flag in known}
    for name, hint in FOREIGN.items():
        assert f"--{name}" not in known, name
        for command in re.findall(r"understudy ([a-z]+) (?=[A-Z])", hint):
            assert command in COMMANDS, hint
        own = re.sub(r"understudy push .*", "", hint)
        for flag in re.findall(r"--[a-z0-9.-]+", own):
            assert flag.rstrip(".") in known, hint


def test_foreign_flags_are_refused_with_their_hint() -> None:
    words = [word for name in FOREIGN for word in (f"--{name}", "x")]
    with refused(*(f"--{name}" for name in FOREIGN), kind=ConfigError) as caught:
        read_settings("train", words)
    lines = str(caught.value).split("; --")
    assert len(lines) == len(FOREIGN)
    for line, (name, hint) in zip(lines, FOREIGN.items()):
        assert line.removeprefix("--").startswith(f"{name}: ")
        assert line.endswith(hint)


def test_foreign_names_in_a_file_are_refused_with_their_hint() -> None:
    """A settings file of LeRobot: groups that are unknown here as well as names in a known
    group.
    """
    content = {
        "dataset": {"repo_id": "someone/table", "other": 1},
        "policy": {"n_action_steps": 8},
        "wandb": {"enable": True},
        "num_workers": 4,
    }
    with refused(
        "dataset.repo_id", "policy.n_action_steps", "wandb.enable", "num_workers", kind=ConfigError
    ) as caught:
        validate(TrainConfig, content)
    for name in ("dataset.repo-id", "policy.n-action-steps", "wandb.enable", "num-workers"):
        assert FOREIGN[name] in str(caught.value)


def test_names_of_a_toml_file_of_cosmos_are_refused_with_their_hint() -> None:
    content = {
        "job": {"experiment": "action_policy_droid_nano", "wandb_mode": "online"},
        "model": {"parallelism": {"data_parallel_shard_degree": 8}},
        "optimizer": {"lr": 2e-4},
        "trainer": {"grad_accum_iter": 1},
        "dataloader_train": {"max_samples_per_batch": 32},
        "checkpoint": {"save_iter": 1000},
    }
    with refused(
        "model.parallelism.data_parallel_shard_degree", "checkpoint.save_iter", kind=ConfigError
    ) as caught:
        validate(TrainConfig, content)
    for name in (
        "job.experiment",
        "trainer.grad-accum-iter",
        "dataloader-train.max-samples-per-batch",
    ):
        assert FOREIGN[name] in str(caught.value)


@pytest.mark.parametrize("flag", ["--max-num-tokens", "--max-samples"])
def test_minus_one_is_uncapped(flag: str) -> None:
    config = read_settings("train", ["--data.root", "there", flag, "-1"])
    assert config == read_settings("train", ["--data.root", "there"])
    with refused(flag, -2, kind=ConfigError):
        read_settings("train", ["--data.root", "there", flag, "-2"])


@pytest.mark.parametrize("name", TrainConfig.UNCAPPED)
def test_minus_one_is_uncapped_in_python_and_files(name: str, tmp_path: Path) -> None:
    (tmp_path / "run.yaml").write_text(f"{name}: -1\n")
    uncapped = TrainConfig(**{name: -1})  # type: ignore[arg-type]
    capped = TrainConfig(**{name: 9})  # type: ignore[arg-type]
    assert load(TrainConfig, tmp_path / "run.yaml") == uncapped == TrainConfig()
    assert override(capped, **{name: -1}) == TrainConfig()


@pytest.mark.parametrize(
    ("word", "name", "ours"),
    [
        ("trainer.max_iter=5", "trainer.max_iter", "--steps"),
        ("--trainer.max_iter=5", "trainer.max_iter", "--steps"),
        ("--trainer.max_iter", "trainer.max_iter", "--steps"),
        (f"{PARALLELISM}.data_parallel_shard_degree=4", PARALLELISM, "--parallel.dp-shard"),
        (f"{PARALLELISM}.cfg_parallel_shard_degree=2", PARALLELISM, "--parallel.dp-shard"),
    ],
)
def test_overrides_of_cosmos_get_their_hint(word: str, name: str, ours: str) -> None:
    with refused(name, ours, kind=ConfigError):
        read_settings("train", ["--data.root", "there", word])


@pytest.mark.parametrize("flag", ["--max_num_tokens_after_packing", "--no_such_flag"])
@pytest.mark.parametrize("value", ["-1", "-.5", "-1e3"])
def test_negative_value_belongs_to_its_unknown_flag(flag: str, value: str) -> None:
    with refused(flag, kind=ConfigError) as caught:
        read_settings("train", ["--data.root", "there", flag, value])
    assert value not in str(caught.value)


def test_items_of_a_foreign_list_get_the_hint_of_the_list() -> None:
    with refused(FOREIGN["dataset-mixture.datasets"], kind=ConfigError):
        read_settings("train", ["--dataset_mixture.datasets.0.weight", "2"])


@pytest.mark.parametrize(
    ("flag", "hint"),
    [
        ("--grad_accumulation_steps", FOREIGN["gradient-accumulation-steps"]),
        ("--episode_pool_sizes", FOREIGN["episode-pool-size"]),
        ("--policy.tokenizer", "--policy.type pi05"),
        ("--policy.widht", "--policy.width"),
        ("--sed", "--seed"),
    ],
)
def test_nearest_name_is_proposed(flag: str, hint: str) -> None:
    """Names of other trainers and of other policies are candidates, too."""
    with refused(hint, kind=ConfigError):
        read_settings("train", ["--data.root", "there", flag, "2"])


def test_settings_of_the_chosen_policy_are_proposed() -> None:
    with refused("--policy.tokenizer?", kind=ConfigError):
        read_settings("train", ["--policy.type", "pi05", "--policy.tokeniser", "x"])
