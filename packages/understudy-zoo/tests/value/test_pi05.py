"""The value function on the towers of pi0.5: its gradients, first weights, adapters, resume, plan
and scores.
"""

import json
from dataclasses import asdict, fields, replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from safetensors.torch import load_file, save_file

pytest.importorskip("sentencepiece", reason="needs the extra pi05")

import understudy as us
from understudy.config.train import TrainConfig
from understudy.policies.losses import scalar
from understudy.policies.pi05.config import Pi05Settings
from understudy.policies.pi05.released_keys import EMBEDDING, HEAD
from understudy.policies.policy import Policy, load
from understudy.testing.killed import WORLD_ACTION
from understudy.testing.pi05 import SMALL
from understudy.testing.pi05_policy import CAMERAS, NORMALISATION
from understudy.testing.pi05_policy import batch as pi05_batch
from understudy.testing.pi05_policy import policy as pi05_policy
from understudy.testing.runs import final_tensors, series, tiny_config, tiny_dataset
from understudy.testing.sentences import write_model
from understudy.train import run
from understudy.train.checkpoint.run_dir import RunDir
from understudy.train.profiling.plan import plan
from understudy_base import ConfigError
from understudy_base.testing.refusals import refused
from understudy_data.testing.datasets import rate_episodes
from understudy_data.testing.outcomes import write_outcomes
from understudy_kit import override
from understudy_zoo.cli.score import ScoreConfig, score
from understudy_zoo.value.config import Pi05ValueConfig, Pi05ValueSettings, ReturnSettings
from understudy_zoo.value.model import Pi05ValuePolicy

FILE = "model.safetensors"
TOWER = "layers.0.vlm.self_attn.q_proj.weight"


@pytest.fixture(scope="module")
def files(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A folder with data/ of rated episodes, a tokenizer, and a trained pi0.5."""
    folder = tmp_path_factory.mktemp("value_pi05")
    rate_episodes(tiny_dataset(folder / "data"), success=[True, False] * 5)
    settings = Pi05Settings(
        network=json.dumps(WORLD_ACTION), tokenizer=str(write_model(folder)), prompt_tokens=64
    )
    config = tiny_config(folder / "data", folder / "pi05", steps=1, val={"every": 0})
    assert run.train(replace(config, policy=settings)) == run.DONE
    return folder


def policy(tokenizer: Path, **changes: Any) -> Pi05ValuePolicy:
    """A policy in which every parameter matters."""
    facts: dict[str, Any] = {
        "action_dim": 3,
        "state_dim": 2,
        "cameras": CAMERAS,
        "chunk": 4,
        "prompt_tokens": 80,
    }
    facts |= {
        "dimensions": asdict(replace(SMALL, vocab=320)),
        "tokenizer": str(tokenizer),
        "bins": 11,
    }
    with torch.random.fork_rng(devices=[]):
        torch.manual_seed(0)
        made = Pi05ValuePolicy(Pi05ValueConfig(**facts | changes), NORMALISATION)
        with torch.no_grad():
            for name, parameter in made.named_parameters():
                parameter.normal_(std=1.0 if name == "embedding.weight" else 0.25)
    return made


def batch(made: Policy, **changes: Any) -> dict[str, Any]:
    known = {
        "return": torch.tensor([0.0, 1.0, 0.3, 1.0]),
        "return_is_pad": torch.tensor([False, False, False, True]),
    }
    return made.preprocess(pi05_batch() | known | changes)


def settings(files: Path, out: Path, weights: Path | None = None, **changes: Any) -> TrainConfig:
    towers: dict[str, Any] = {
        "network": json.dumps(WORLD_ACTION),
        "tokenizer": str(files / "tokenizer.model"),
        "prompt_tokens": 64,
    }
    chosen = Pi05ValueSettings(**towers, bins=11, weights=str(weights or ""), normalization="data")
    config = tiny_config(
        files / "data", out, steps=2, val={"every": 0}, device="cpu", optim={"ema": {"decay": 0.0}}
    )
    return override(replace(config, policy=chosen), **changes)


def edited(
    files: Path, out: Path, prefix: str = "", without: str = "", **added: torch.Tensor
) -> Path:
    """Copy the tensors of the trained pi0.5 as a bare file."""
    tensors = load_file(files / "pi05/policy" / FILE)
    kept = {prefix + key: value for key, value in tensors.items() if key != without}
    save_file(kept | added, out)
    return out


def test_every_parameter_gets_a_gradient(files: Path) -> None:
    made = policy(files / "tokenizer.model")
    assert not any(
        "expert" in name or name.startswith(("action_", "time_")) for name in made.state_dict()
    )
    scalar(made.losses(batch(made), {})).backward()
    assert [
        name
        for name, parameter in made.named_parameters()
        if not (parameter.grad is not None and parameter.grad.any())
    ] == []


def test_padding_and_missing_cameras_reach_nothing(files: Path) -> None:
    made = policy(files / "tokenizer.model")
    whole = batch(made)
    with torch.no_grad():
        expected = made.logits(whole)
        hidden = whole[CAMERAS[1]].clone()
        hidden[1] = 255
        assert torch.equal(made.logits(whole | {CAMERAS[1]: hidden}), expected)
        alone = made.preprocess({key: value[:1] for key, value in pi05_batch().items()})
        torch.testing.assert_close(made.logits(alone), expected[:1])
        made.packs = True
        torch.testing.assert_close(made.logits(whole), expected)
    with_chunk = pi05_policy(files / "tokenizer.model").tokens(whole) or []
    assert made.tokens(whole) == [count - 4 for count in with_chunk]


@pytest.mark.parametrize("dialect", ["pi05", "pi052"])
def test_towers_have_the_bits_of_the_file(
    files: Path, tmp_path: Path, dialect: str, caplog: pytest.LogCaptureFixture
) -> None:
    """Frozen towers keep them; the log has the tensors that are not read, and the head is fresh."""
    weights = tmp_path / "w.safetensors"
    # LeRobot's trainer: a prefix, and a stale text head beside the embedding
    if dialect == "pi052":
        embedding = load_file(files / "pi05/policy" / FILE)[HEAD]
        more = {f"model.{EMBEDDING}": embedding, f"model.{HEAD}": embedding + 1}
        edited(files, weights, "model.", HEAD, **more)
    else:
        weights = files / "pi05/policy"
    with caplog.at_level("INFO"):
        config = settings(files, tmp_path / "r", weights, optim={"freeze": ("vlm.*", "vision.*")})
        assert run.train(config) == run.DONE
    (line,) = {
        record.getMessage() for record in caplog.records if "action expert" in record.getMessage()
    }
    assert all(
        text in line
        for text in (str(weights), "gemma_expert.* (", "action_*_proj.* (4)", "time_mlp_* (4)")
    )
    made = load(tmp_path / "r/policy")
    source = load(files / "pi05/policy")
    towers = {name for name, _ in made.named_parameters() if not name.startswith("value_head.")}
    assert towers == {
        name for name, _ in source.named_parameters() if "expert" not in name and "vlm" in name
    } | {
        name
        for name, _ in source.named_parameters()
        if name.startswith(("vision.", "projector.", "embedding."))
    }
    assert [
        name
        for name in towers
        if not torch.equal(made.get_parameter(name), source.get_parameter(name))
    ] == []
    assert made.get_parameter("value_head.out.weight").any()


def test_files_that_are_not_of_these_towers_are_refused(files: Path, tmp_path: Path) -> None:
    key = Pi05ValueSettings().stored_name(TOWER)
    lacking = edited(files, tmp_path / "lacking.safetensors", without=key)
    with refused("policy.weights", key, kind=ConfigError):
        run.train(settings(files, tmp_path / "a", lacking))
    more = edited(files, tmp_path / "more.safetensors", unknown_proj=torch.zeros(2))
    with refused("policy.weights", "unknown_proj", kind=ConfigError):
        run.train(settings(files, tmp_path / "b", more))
    assert run.train(settings(files, tmp_path / "value")) == run.DONE
    plain = replace(
        Pi05Settings(), network=json.dumps(WORLD_ACTION), tokenizer=str(files / "tokenizer.model")
    )
    with refused("policy.weights", kind=ConfigError):
        run.train(
            replace(
                settings(files, tmp_path / "c"),
                policy=replace(plain, weights=str(tmp_path / "value/policy"), prompt_tokens=64),
            )
        )


@pytest.mark.long
def test_adapters_train_the_fresh_head_in_full(files: Path, tmp_path: Path) -> None:
    config = settings(
        files, tmp_path / "r", files / "pi05/policy", lora={"rank": 2}, max_num_tokens=1000
    )
    # the weights have 3, and actions are not used
    config = override(config, data={"chunk_size": None})
    assert run.train(config) == run.DONE
    assert RunDir(tmp_path / "r").settings().data.chunk_size == 1
    moments = {
        name.removeprefix("exp_avg/")
        for name in final_tensors(tmp_path / "r")
        if name.startswith("exp_avg/")
    }
    whole = {name for name in moments if not name.endswith(("lora_a", "lora_b"))}
    assert whole == {
        f"value_head.{layer}.{kind}" for layer in ("hidden", "out") for kind in ("weight", "bias")
    }
    assert {name.split(".")[2] for name in moments - whole} == {"vlm"}
    planned = plan(
        override(config, output_dir=str(tmp_path / "p"), lora={"rank": 0}),
        world_size=2,
        device="cpu",
    )
    assert planned.parameters == sum(
        parameter.numel() for parameter in load(tmp_path / "r/policy").parameters()
    )


def test_learns_the_outcome_that_the_prompt_shows(files: Path, tmp_path: Path) -> None:
    """The state is in the prompt, and there are no cameras."""
    won = [bool(number % 2) for number in np.random.default_rng(3).permutation(40)]
    write_outcomes(tmp_path / "data", [6] * 40, won)
    fast: dict[str, Any] = {
        "optim": {"lr": 1e-2},
        "augment": {"text_dropout": 0.0, "shift": 0},
        "val": {"every": 120},
    }
    config = settings(
        files, tmp_path / "r", steps=120, batch_size=16, checkpoint={"every": 120}, **fast
    )
    assert run.train(override(config, data={"root": str(tmp_path / "data")})) == run.DONE
    terms = series(tmp_path / "r", "val")[-1]["terms"]
    assert terms["accuracy"]["loss"] > 0.8
    assert terms["l1"]["loss"] < 0.35


def test_figures_are_by_group_and_a_resume_is_exact(files: Path, tmp_path: Path) -> None:
    changes: dict[str, Any] = {"steps": 8, "checkpoint": {"every": 4}, "val": {"every": 8}}
    whole = settings(files, tmp_path / "whole", **changes)
    assert run.train(whole) == run.DONE
    terms = series(tmp_path / "whole", "val")[-1]
    assert set(terms["terms"]) == {"value", "l1", "accuracy"}
    assert all(set(group["terms"]) == {"value", "l1", "accuracy"} for group in terms["groups"])
    half = override(whole, output_dir=str(tmp_path / "half"), schedule={"decay_steps": 8})
    run.train(override(half, steps=4))
    run.resume(half)
    files_of = [(tmp_path / name / "policy" / FILE).read_bytes() for name in ("whole", "half")]
    assert files_of[0] == files_of[1]


def test_score_writes_its_values(files: Path, tmp_path: Path) -> None:
    assert run.train(settings(files, tmp_path / "r")) == run.DONE
    score(ScoreConfig(paths=(str(tmp_path / "r"), str(files / "data"), str(tmp_path / "out"))))
    before = us.EpisodeDataset(files / "data")
    after = us.EpisodeDataset(tmp_path / "out")
    made = load(tmp_path / "r/policy").eval()
    samples = [before[index] for index in range(12)]
    (camera,) = made.config.cameras
    read = {
        key: torch.stack([sample[key] for sample in samples])
        for key in (camera, "observation.state")
    }
    with torch.no_grad():
        expected = made.values(
            made.preprocess(read | {"task": [sample["task"] for sample in samples]})
        )
    torch.testing.assert_close(
        torch.stack([after[index]["value"] for index in range(12)]), expected, atol=1e-5, rtol=0
    )


@pytest.mark.parametrize(
    ("changes", "name"),
    [
        ({"max_delay": 2}, "max_delay"),
        ({"noise_samples": 2}, "noise_samples"),
        ({"bins": 1}, "bins"),
        ({"future": True}, "future"),
    ],
)
def test_refuses_settings(files: Path, changes: dict[str, Any], name: str) -> None:
    with refused(name, kind=ValueError):
        policy(files / "tokenizer.model", **changes)


@pytest.mark.parametrize("size", ["tiny", "base"])
def test_settings_are_those_of_pi05_beside_the_returns(size: Any) -> None:
    chosen = Pi05ValueSettings(size=size)
    plain = Pi05Settings(size=size)
    assert chosen.problems() == []
    own = {field.name for field in fields(ReturnSettings)} | {"type"}
    assert {name: value for name, value in vars(chosen).items() if name not in own} == {
        name: value for name, value in vars(plain).items() if name != "type"
    }
