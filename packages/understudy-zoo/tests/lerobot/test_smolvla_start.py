"""Settings that a run of `lerobot-smolvla` takes from the folder `policy.weights`, and refusals.
Without LeRobot.
"""

import json
import os
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
import torch

from understudy_zoo.lerobot.settings import LerobotSmolvlaSettings, check_smolvla_start

pytest.importorskip("lerobot", reason="needs LeRobot: nox -s lerobot")

from understudy.config.train import TrainConfig
from understudy.policies import policy_folder
from understudy.policies.registry import policy_type
from understudy_base import ConfigError
from understudy_base.testing.refusals import refused
from understudy_zoo.folder_formats import describe_folder, save_folder
from understudy_zoo.testing.lerobot_policies import MOVING, run_config, smolvla_config


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    """Folder of LeRobot with other settings than the defaults, and one tensor."""
    own = smolvla_config("vlm", chunk=6, train_expert_only=False, pad_language_to="max_length")
    save_folder(
        tmp_path / "base", describe_folder("lerobot", own, MOVING, {}), {"a": torch.ones(1)}
    )
    return tmp_path / "base"


def change(folder: Path, **changes: Any) -> None:
    path = folder / "config.json"
    path.write_text(json.dumps(json.loads(path.read_text()) | changes))


def started(folder: Path, **settings: Any) -> LerobotSmolvlaSettings:
    return LerobotSmolvlaSettings(weights=str(folder), config=settings).resolved().started()


def config_of(settings: LerobotSmolvlaSettings, **facts: Any) -> Any:
    facts = {
        "action_dim": 3,
        "state_dim": 4,
        "cameras": ("observation.images.a",),
        "chunk": 4,
    } | facts
    return policy_type("lerobot-smolvla").make_config(settings, **facts)


def test_settings_are_those_of_the_folder(folder: Path) -> None:
    found = started(folder)
    wanted = {
        "max_state_dim": 5,
        "max_action_dim": 4,
        "num_vlm_layers": 2,
        "resize_imgs_with_padding": [32, 32],
    }
    wanted |= {"vlm_model_name": "vlm", "num_steps": 3, "pad_language_to": "max_length"}
    assert {name: found.config[name] for name in wanted} == wanted
    assert "train_expert_only" not in found.config  # a choice of the run
    assert found.image_size == LerobotSmolvlaSettings().image_size  # of the run's data
    assert found.stored_chunk() == 6
    check_smolvla_start(config_of(found))
    assert LerobotSmolvlaSettings().stored_chunk() is None


def test_folder_of_understudy_is_read(tmp_path: Path) -> None:
    policy_folder.save(
        tmp_path / "own", smolvla_config("vlm", chunk=6), MOVING, {"a": torch.ones(1)}
    )
    found = started(tmp_path / "own")
    assert (found.config["max_state_dim"], found.stored_chunk()) == (5, 6)
    check_smolvla_start(config_of(found))


def test_own_choices_are_kept(folder: Path) -> None:
    found = started(folder, num_steps=7, vlm_model_name="other", tokenizer_max_length=12)
    assert [
        found.config[name] for name in ("num_steps", "vlm_model_name", "tokenizer_max_length")
    ] == [7, "other", 12]
    check_smolvla_start(config_of(found))


def test_chunk_of_the_run_is_that_of_the_folder_unless_set(folder: Path, tmp_path: Path) -> None:
    base = run_config(tmp_path, tmp_path / "run", LerobotSmolvlaSettings(weights=str(folder)))
    for chunk, wanted in ((0, 6), (3, 3)):
        config: TrainConfig = replace(base, data=replace(base.data, chunk_size=chunk))
        assert config.resolved().data.chunk_size == wanted


def test_paths_mean_the_same_in_another_folder(
    folder: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(folder.parent)
    assert LerobotSmolvlaSettings(weights="base").resolved().weights == str(folder)
    hub = LerobotSmolvlaSettings(weights="lerobot/smolvla_base")
    assert hub.resolved().started() == hub


@pytest.mark.parametrize(
    ("name", "value"), [("max_action_dim", 7), ("attention_mode", "self_attn")]
)
def test_settings_of_another_network_are_named_with_both_values(
    folder: Path, name: str, value: Any
) -> None:
    theirs = json.loads((folder / "config.json").read_text())[name]
    with refused("policy.config", name, value, theirs, folder / "config.json", kind=ConfigError):
        check_smolvla_start(config_of(started(folder, **{name: value})))


def test_fields_that_the_folder_lacks_have_lerobots_defaults(folder: Path) -> None:
    path = folder / "config.json"
    stored = json.loads(path.read_text())
    del stored["min_period"]
    path.write_text(json.dumps(stored))
    with refused("policy.config", "min_period", 0.01, 0.004, kind=ConfigError):
        check_smolvla_start(config_of(started(folder, min_period=0.01)))


@pytest.mark.parametrize(
    ("changes", "names"),
    [
        ({"type": "act"}, ("type", "act")),
        ({"num_vlm_layers": "two"}, ("num_vlm_layers", "two")),
        ({"adapt_to_pi_aloha": True}, ("adapt_to_pi_aloha",)),
        ({"normalization_mapping": {"VISUAL": "MEAN_STD"}}, ("normalization_mapping",)),
        ({"chunk_size": 0}, ("chunk_size", 0)),
    ],
)
def test_folders_that_ours_cannot_take_are_named(
    folder: Path, changes: dict[str, Any], names: tuple[Any, ...]
) -> None:
    change(folder, **changes)
    with refused("policy.weights", folder / "config.json", *names, kind=ConfigError):
        started(folder)


@pytest.mark.parametrize("lost", ["config.json", "model.safetensors"])
def test_missing_files_are_named(folder: Path, lost: str) -> None:
    own = config_of(started(folder))
    os.remove(folder / lost)
    with refused("policy.weights", lost, kind=ConfigError):
        check_smolvla_start(own)


def test_missing_folder_is_named(tmp_path: Path) -> None:
    with refused("policy.weights", tmp_path / "none", kind=ConfigError):
        check_smolvla_start(config_of(started(tmp_path / "none")))


def test_two_starts_are_refused(folder: Path, tmp_path: Path) -> None:
    base = run_config(tmp_path, tmp_path / "run", LerobotSmolvlaSettings(weights=str(folder)))
    assert any(line.startswith("init_from") for line in replace(base, init_from="other").problems())
