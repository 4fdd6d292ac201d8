"""Settings that a folder of released weights implies, against those of a run."""

import json
from dataclasses import asdict, replace
from pathlib import Path
from typing import Any

import pytest

pytest.importorskip("sentencepiece", reason="needs the extra pi05")

from understudy.policies import policy_folder
from understudy.policies.pi05.config import Pi0PolicyConfig, Pi05PolicyConfig, Pi05Settings, Sizes
from understudy.policies.settings import check_start
from understudy.testing.pi05_policy import NORMALISATION, policy
from understudy.testing.runs import tiny_config, tiny_dataset
from understudy.testing.sentences import write_model
from understudy.train import run
from understudy_base import ConfigError
from understudy_base.testing.refusals import refused
from understudy_data.checksums import write_checksums
from understudy_kit import main
from understudy_zoo.folder_formats import describe_folder, save_folder

LEROBOT: dict[str, Any] = {
    "type": "pi05",
    "chunk_size": 50,
    "tokenizer_max_length": 200,
    "max_action_dim": 32,
    "max_state_dim": 32,
    "image_resolution": [224, 224],
    "paligemma_variant": "gemma_2b",
    "action_expert_variant": "gemma_300m",
    "dtype": "bfloat16",
}
OPENPI: dict[str, Any] = {
    "action_dim": 32,
    "action_horizon": 50,
    "paligemma_variant": "gemma_2b",
    "action_expert_variant": "gemma_300m",
    "precision": "bfloat16",
    "max_token_len": 200,
    "discrete_state_input": True,
    "pi05": True,
}
OWN: dict[str, Any] = {
    "type": "pi05",
    "chunk": 50,
    "prompt": "state",
    "prompt_tokens": 200,
    "action_dim": 7,
}


def config(folder: Path, kind: Any = Pi05PolicyConfig, **changes: Any) -> Any:
    facts: dict[str, Any] = {
        "action_dim": 7,
        "state_dim": 7,
        "chunk": 50,
        "cameras": ("observation.images.front",),
    }
    return kind(**facts | {"weights": str(folder), "size": "base"} | changes)


def write(folder: Path, stored: dict[str, Any], name: str = "config.json") -> Path:
    folder.mkdir(exist_ok=True)
    (folder / name).write_text(json.dumps(stored))
    return folder


@pytest.mark.parametrize("stored", [LEROBOT, OPENPI, OWN, {"model_type": "another"}])
def test_released_folders_fit_their_settings(stored: dict[str, Any], tmp_path: Path) -> None:
    check_start(config(write(tmp_path / "w", stored)))


def test_pi052_implies_its_prompts(tmp_path: Path) -> None:
    """A recipe makes messages of the prompts; without one they are pi0.5's."""
    stored = LEROBOT | {"type": "pi052", "input_features": {}}
    folder = write(tmp_path / "w", stored)
    check_start(config(folder, prompt="message"))
    with refused("policy.prompt", "state", "message", kind=ConfigError):
        check_start(config(folder))
    check_start(config(write(tmp_path / "w", stored | {"recipe_path": None})))


@pytest.mark.parametrize(
    ("stored", "field", "value"),
    [
        (LEROBOT, "chunk_size", 10),
        (LEROBOT, "tokenizer_max_length", 48),
        (LEROBOT, "max_action_dim", 24),
        (LEROBOT, "max_state_dim", 24),
        (LEROBOT, "image_resolution", [448, 448]),
        (LEROBOT, "paligemma_variant", "gemma_300m"),
        (LEROBOT, "action_expert_variant", "gemma_2b"),
        (LEROBOT, "type", "pi0_fast"),
        (OPENPI, "action_horizon", 10),
        (OPENPI, "action_dim", 24),
        (OPENPI, "max_token_len", 48),
        (OPENPI, "discrete_state_input", False),
        (OPENPI, "pi05", False),
        (OWN, "chunk", 10),
        (OWN, "prompt", "plain"),
        (OWN, "prompt_tokens", 48),
        (OWN, "type", "pi0"),
    ],
)
@pytest.mark.parametrize("name", ["config.json", "metadata.json"])
def test_a_contradiction_names_both_values(
    stored: dict[str, Any], field: str, value: object, name: str, tmp_path: Path
) -> None:
    folder = write(tmp_path / "w", stored | {field: value}, name)
    with pytest.raises(ConfigError) as raised:
        check_start(config(folder))
    lines = str(raised.value).splitlines()[1:]
    assert len(lines) == 1
    shown = (
        {False: "pi0" if field == "pi05" else "plain"}.get(value, value)
        if isinstance(value, bool)
        else value
    )
    assert field in lines[0]
    assert lines[0].endswith(str(shown))
    assert str(folder / name) in lines[0]
    check_start(config(folder, weights_settings="ignore"))


def test_changed_weights_start_no_run(tmp_path: Path) -> None:
    folder = write(tmp_path / "w", LEROBOT)
    (folder / "model.safetensors").write_bytes(b"weights")
    write_checksums(folder)
    check_start(config(folder))
    (folder / "model.safetensors").write_bytes(b"weighty")
    with refused("policy.weights", folder / "model.safetensors", kind=ConfigError):
        check_start(config(folder))


def test_all_contradictions_are_listed_at_once(tmp_path: Path) -> None:
    folder = write(tmp_path / "w", LEROBOT)
    with pytest.raises(ConfigError) as raised:
        check_start(config(folder, chunk=8, prompt="plain", prompt_tokens=48))
    lines = str(raised.value).splitlines()[1:]
    assert [line.split()[0] for line in lines] == [
        "data.chunk_size",
        "policy.prompt_tokens",
        "policy.prompt",
    ]
    with pytest.raises(ConfigError, match=r"policy\.type"):
        check_start(config(folder, Pi0PolicyConfig))


def test_a_file_of_weights_has_the_config_beside_it(tmp_path: Path) -> None:
    folder = write(tmp_path / "w", LEROBOT | {"chunk_size": 10})
    (folder / "model.safetensors").touch()
    with pytest.raises(ConfigError, match="chunk_size"):
        check_start(config(folder / "model.safetensors"))
    check_start(config(Path("")))


@pytest.mark.parametrize("content", ["{", "[]"])
def test_a_damaged_config_is_an_error(content: str, tmp_path: Path) -> None:
    (tmp_path / "config.json").write_text(content)
    with pytest.raises(ConfigError, match=r"config\.json"):
        check_start(config(tmp_path))


@pytest.mark.parametrize("adaptive", [True, False])
@pytest.mark.parametrize("tool", ["lerobot", "openpi", "understudy"])
def test_exported_folders_imply_the_settings_of_their_policy(
    tool: str, adaptive: bool, tmp_path: Path
) -> None:
    made = policy(write_model(tmp_path / "tok"), adaptive)
    if tool == "understudy":
        policy_folder.save(tmp_path / "w", made.config, NORMALISATION, made.state_dict())
    else:
        save_folder(
            tmp_path / "w", describe_folder(tool, made.config, NORMALISATION, {}), made.state_dict()
        )
    same = replace(made.config, weights=str(tmp_path / "w"))
    check_start(same)
    with pytest.raises(ConfigError, match="chunk"):
        check_start(replace(same, chunk=3))


@pytest.mark.long
def test_run_is_refused_before_it_starts(tmp_path: Path) -> None:
    data = tiny_dataset(tmp_path / "data")
    tokenizer = write_model(tmp_path / "tok")
    chosen = Pi05Settings(size="tiny", tokenizer=str(tokenizer))
    assert run.train(tiny_config(data, tmp_path / "first", policy=chosen, steps=1)) == run.DONE
    assert main(["export", str(tmp_path / "first"), "--format", "lerobot"]) == 0
    weights = replace(chosen, weights=str(tmp_path / "first/export-lerobot"))
    assert run.train(tiny_config(data, tmp_path / "second", policy=weights, steps=1)) == run.DONE
    other = replace(weights, prompt_tokens=100)
    with pytest.raises(ConfigError, match="tokenizer_max_length"):
        run.train(tiny_config(data, tmp_path / "third", policy=other, steps=1))
    assert not (tmp_path / "third/order.json").exists()


def test_sizes_of_the_base_network_are_the_released_names(tmp_path: Path) -> None:
    """A network of other dimensions contradicts a folder of the released ones."""
    folder = write(tmp_path / "w", LEROBOT)
    with pytest.raises(ConfigError, match="paligemma_variant"):
        check_start(config(folder, dimensions=asdict(Sizes.TINY)))
