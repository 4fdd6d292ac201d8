"""Starting a world-action model from weights of pi0.5: shared layers are read, those of the future
are fresh.
"""

import json
from collections.abc import Mapping
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
import torch

pytest.importorskip("sentencepiece", reason="needs the extra pi05")

from understudy.config.train import TrainConfig
from understudy.policies.pi05.config import Pi05Settings
from understudy.policies.policy import load
from understudy.policies.registry import policy_type
from understudy.testing.killed import WORLD_ACTION, world_action_settings
from understudy.testing.runs import final_tensors, tiny_config, tiny_dataset
from understudy.testing.sentences import write_model
from understudy.train import run
from understudy.train.checkpoint.run_dir import RunDir
from understudy.train.data.run_data import open_data
from understudy.train.data.run_normalization import choose_normalization
from understudy.train.profiling.plan import plan, with_known_base
from understudy_base import ConfigError
from understudy_kit import override
from understudy_zoo.world_action.policy import WorldActionPolicy


@pytest.fixture(scope="module")
def files(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A folder with data/, a tokenizer, and a trained pi0.5."""
    folder = tmp_path_factory.mktemp("start")
    tiny_dataset(folder / "data")
    settings = Pi05Settings(
        network=json.dumps(WORLD_ACTION), tokenizer=str(write_model(folder)), prompt_tokens=64
    )
    config = tiny_config(folder / "data", folder / "pi05", steps=1, val={"every": 0})
    assert run.train(replace(config, policy=settings)) == run.DONE
    return folder


def started(files: Path, out: Path, **changes: Any) -> TrainConfig:
    settings = world_action_settings(files / "tokenizer.model", weights=str(files / "pi05/policy"))
    config = tiny_config(files / "data", out, steps=2, val={"every": 0}, device="cpu")
    return override(replace(config, policy=settings), **{"mode": "joint", **changes})


@pytest.mark.parametrize(("rank", "mode"), [(0, "joint"), (2, "policy")])
def test_run_starts_from_weights_of_pi05(files: Path, tmp_path: Path, rank: int, mode: str) -> None:
    """With a rate of almost 0 the shared weights stay those of pi0.5."""
    changes: dict[str, Any] = (
        {"optim": {"lr": 1e-12, "weight_decay": 0.0}} if not rank else {"lora": {"rank": rank}}
    )
    assert (
        run.train(started(files, tmp_path / "r", max_num_tokens=1000, mode=mode, **changes))
        == run.DONE
    )
    made = load(tmp_path / "r/policy")
    source = load(files / "pi05/policy")
    assert isinstance(made, WorldActionPolicy)
    assert made.imagines == (mode == "joint")
    shared = dict(source.named_parameters())
    ahead = {name: value for name, value in made.named_parameters() if name not in shared}
    assert bool(ahead) == made.imagines
    assert all(name.startswith("future.") for name in ahead)
    if not rank:
        for name, value in shared.items():
            torch.testing.assert_close(made.get_parameter(name), value, rtol=0, atol=1e-9)


NETWORKS: dict[str, dict[str, Any]] = {
    "world_action": {"mode": "joint", "max_num_tokens": 1000, "policy": {"future_patch": 8}},
    "pi05": {"policy": {"history": (0.2, 0.4), "state_history": True}},
}


@pytest.mark.long
@pytest.mark.parametrize(
    ("kind", "part"), [("world_action", "future"), ("pi05", "proprio_history_proj")]
)
def test_adapters_leave_fresh_layers_trained_in_full(
    files: Path, tmp_path: Path, kind: str, part: str, caplog: pytest.LogCaptureFixture
) -> None:
    """Parameters that the first weights lack have moments and no adapters, from the start and after
    a resume.
    """
    changes = dict(NETWORKS[kind])
    settings = {
        "network": json.dumps(WORLD_ACTION),
        "prompt_tokens": 64,
        "tokenizer": str(files / "tokenizer.model"),
    }
    settings |= {"weights": str(files / "pi05/policy")} | changes.pop("policy", {})
    adapters = {"rank": 2, "also_train": ("action_out_proj.bias",)}
    config = tiny_config(
        files / "data", tmp_path / "r", steps=2, val={"every": 0}, device="cpu", lora=adapters
    )
    config = override(
        replace(config, policy=policy_type(kind).settings(**settings)),
        checkpoint={"every": 1},
        **changes,
    )
    with caplog.at_level("INFO"):
        assert run.train(config) == run.DONE
    (line,) = [line for line in caplog.text.splitlines() if line.startswith("lora.also_train: ")]
    assert f"{part} (" in line
    first = final_tensors(tmp_path / "r")
    shared = set(load(files / "pi05/policy").state_dict())
    fresh = {name for name in load(tmp_path / "r/policy").state_dict() if name not in shared}
    assert fresh
    assert all(name.startswith(f"{part}.") for name in fresh)
    full = {name for name in moments(first) if not name.endswith(("lora_a", "lora_b"))}
    assert full == fresh | {"action_out_proj.bias"}
    assert not any(name.startswith(f"{part}.") and "lora" in name for name in moments(first))
    assert run.resume(override(RunDir(tmp_path / "r").settings(), steps=3)) == run.DONE
    second = final_tensors(tmp_path / "r")
    assert moments(second) == moments(first)
    assert [
        name
        for name in sorted(fresh)
        if torch.equal(first[f"weights/{name}"], second[f"weights/{name}"])
    ] == []
    assert torch.equal(first["weights/vlm_norm.weight"], second["weights/vlm_norm.weight"])
    opened = open_data(config := config.resolved())
    planned = with_known_base(config, opened, choose_normalization(config, opened)).lora
    assert (planned.base, set(planned.also_train)) == ("float32", full)


def moments(tensors: Mapping[str, torch.Tensor]) -> set[str]:
    """Names of the parameters that a checkpoint has moments of."""
    return {name.removeprefix("exp_avg/") for name in tensors if name.startswith("exp_avg/")}


@pytest.mark.long
def test_plan_has_the_parameters_and_tokens_of_the_future(files: Path, tmp_path: Path) -> None:
    config = started(files, tmp_path / "r", activation_checkpoint="selective", batch_size=4)
    joint, alone = (
        plan(replace(config, mode=mode), world_size=2, device="cpu") for mode in ("joint", "policy")
    )
    # actions and states, patches of two images
    ahead = 2 * config.data.actions_per_chunk + 2 * (16 // 8) ** 2
    assert alone.tokens_per_sample is not None
    assert joint.tokens_per_sample == alone.tokens_per_sample + ahead
    assert joint.parameters > alone.parameters


def test_weights_of_a_world_action_model_are_refused_as_pi05(files: Path, tmp_path: Path) -> None:
    assert run.train(started(files, tmp_path / "r")) == run.DONE
    config = started(files, tmp_path / "pi05", mode="policy")
    plain = Pi05Settings(
        network=json.dumps(WORLD_ACTION), tokenizer=str(files / "tokenizer.model"),
        prompt_tokens=64, weights=str(tmp_path / "r/policy"), weights_settings="ignore",
    )  # fmt: skip
    with pytest.raises(ConfigError, match="future"):
        run.train(replace(config, policy=plain))


@pytest.mark.parametrize("mode", ["policy", "joint"])
def test_run_starts_from_weights_of_a_world_action_model(
    files: Path, tmp_path: Path, mode: str
) -> None:
    """Its folder states the same chunk and the same towers. A future is read where there is one,
    else fresh.
    """
    assert run.train(started(files, tmp_path / "first", mode=mode)) == run.DONE
    first = tmp_path / "first/policy"
    config = started(
        files,
        tmp_path / "r",
        policy={"weights": str(first)},
        optim={"lr": 1e-12, "weight_decay": 0.0},
    )
    assert run.train(config) == run.DONE
    made = load(tmp_path / "r/policy")
    source = dict(load(first).named_parameters())
    assert any(name.startswith("future.") for name in source) == (mode == "joint")
    for name, value in source.items():
        torch.testing.assert_close(made.get_parameter(name), value, rtol=0, atol=1e-9)
