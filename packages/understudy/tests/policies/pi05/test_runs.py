"""Runs of pi0.5 and pi0: trained, stopped and resumed, exported, and played on."""

import copy
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from safetensors.torch import save_file
from torch.utils._python_dispatch import TorchDispatchMode

pytest.importorskip("sentencepiece", reason="needs the extra pi05")
pytest.importorskip("tokenizers", reason="needs the extra pi05")

from understudy.config.train import TrainConfig
from understudy.policies.common.fast_tokenizer import FastTokenizer
from understudy.policies.inference import load_policy
from understudy.policies.pi05.config import Pi05Settings, Sizes
from understudy.testing.released import released_shapes
from understudy.testing.runs import series, tiny_config, tiny_dataset
from understudy.testing.sentences import write_model
from understudy.train import run
from understudy.train.profiling.plan import plan
from understudy_base import ConfigError
from understudy_base.testing.refusals import refused


@pytest.fixture(scope="module")
def files(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A folder with data/, tok/ and fast/."""
    folder = tmp_path_factory.mktemp("pi05")
    tiny_dataset(folder / "data")
    write_model(folder / "tok")
    time = np.linspace(0, 1, 3)[:, None]
    FastTokenizer.fit(
        [np.sin(time * rate + np.arange(2)) for rate in np.linspace(0, 3, 100)], vocab_size=60
    ).save(folder / "fast")
    return folder


def config(files: Path, out: Path, kind: type[Pi05Settings], **changes: Any) -> TrainConfig:
    made: dict[str, Any] = {
        "size": "tiny",
        "tokenizer": str(files / "tok"),
        "prompt_tokens": 64,
        "max_delay": 1,
    }
    if kind is Pi05Settings:
        made |= {"fast": str(files / "fast"), "action_tokens": 48}
    return tiny_config(files / "data", out, policy=kind(**made), **changes)


@pytest.mark.long
def test_micro_batches_change_rounding_alone(files: Path, tmp_path: Path) -> None:
    losses = []
    for size in (None, 2, 1):
        out = tmp_path / str(size)
        assert (
            run.train(config(files, out, Pi05Settings, micro_batch_size=size, steps=6)) == run.DONE
        )
        losses.append([record["loss"] for record in series(out)])
    np.testing.assert_allclose(losses[1], losses[0], rtol=1e-5)
    np.testing.assert_allclose(losses[2], losses[0], rtol=1e-5)


@pytest.mark.long
@pytest.mark.parametrize("mode", ["selective", "full"])
def test_recomputed_runs_are_equal_to_the_bit(files: Path, tmp_path: Path, mode: Any) -> None:
    plain = config(files, tmp_path / "plain", Pi05Settings, steps=4)
    assert run.train(plain) == run.DONE
    again = config(files, tmp_path / "again", Pi05Settings, steps=4, activation_checkpoint=mode)
    assert run.train(again) == run.DONE
    assert series(tmp_path / "plain") == series(tmp_path / "again")


@pytest.mark.long
@pytest.mark.parametrize("blocks", [("2",), ("vision.*",)])
def test_chosen_blocks_alone_are_recomputed(
    files: Path, tmp_path: Path, blocks: tuple[str, ...]
) -> None:
    plain = config(files, tmp_path / "plain", Pi05Settings, steps=2, val={"every": 0})
    few = replace(plain, activation_checkpoint="full", activation_checkpoint_blocks=blocks)
    every = replace(few, activation_checkpoint_blocks=())
    kept = [plan(made, 1, "cpu").memory["activations"] for made in (plain, few, every)]
    assert kept[0] > kept[1] > kept[2]
    assert run.train(plain) == run.DONE
    assert run.train(replace(few, output_dir=str(tmp_path / "few"))) == run.DONE
    assert series(tmp_path / "plain") == series(tmp_path / "few")
    for wrong in (("0",), ("99",), ("nothing.*",)):
        with refused("activation_checkpoint_blocks", wrong[0], kind=ConfigError):
            run.train(
                replace(few, output_dir=str(tmp_path / "no"), activation_checkpoint_blocks=wrong)
            )


class Kernels(TorchDispatchMode):
    """The kernels of attention that are computed."""

    def __init__(self) -> None:
        super().__init__()
        self.names: set[str] = set()

    def __torch_dispatch__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        if "attention" in (name := func.overloadpacket.__name__):
            self.names.add(name)
        return func(*args, **(kwargs or {}))


@pytest.mark.long
@pytest.mark.parametrize("mode", ["none", "full"])
def test_eager_attention_differs_by_rounding_alone(files: Path, tmp_path: Path, mode: Any) -> None:
    losses = []
    names = []
    for attention in ("sdpa", "eager"):
        out = tmp_path / attention
        made = config(
            files, out, Pi05Settings, steps=4, attention=attention, activation_checkpoint=mode
        )
        with Kernels() as kernels:
            assert run.train(made) == run.DONE
        losses.append([record["loss"] for kind in ("train", "val") for record in series(out, kind)])
        names.append(kernels.names)
    np.testing.assert_allclose(losses[1], losses[0], rtol=1e-4)
    assert names[0]
    assert names[1] == set()


def test_exported_policy_acts(files: Path, tmp_path: Path) -> None:
    assert run.train(config(files, tmp_path / "run", Pi05Settings, steps=2)) == run.DONE
    policy = load_policy(tmp_path / "run")
    observation = {
        "observation.state": np.zeros(policy.config.state_dim, np.float32),
        policy.metadata["cameras"][0]: np.zeros((24, 32, 3), np.uint8),
        "task": "pick up the red block",
    }
    found = policy.act(observation, generator=torch.Generator().manual_seed(0))
    assert found.shape == (3, policy.action_dim)
    assert np.isfinite(found).all()
    copied = copy.deepcopy(policy.policy)
    assert all(
        torch.equal(a, b)
        for a, b in zip(copied.parameters(), policy.policy.parameters(), strict=True)
    )


def test_missing_tokenizer_is_an_error_before_the_table_of_the_start(
    files: Path, tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    made = config(files, tmp_path / "run", Pi05Settings)
    with caplog.at_level("INFO"), pytest.raises(ConfigError, match=r"policy\.tokenizer"):
        run.train(replace(made, policy=Pi05Settings(size="tiny")))
    assert "parameters" not in caplog.text
    assert not (tmp_path / "run/config.yaml").exists()


def test_missing_tokenizer_is_an_error_before_the_weights_are_read(
    files: Path, tmp_path: Path
) -> None:
    """The control: with the tokenizer the values of the file are."""
    made = Pi05Settings(size="tiny", prompt_tokens=64, normalization="data")
    weights = {key: torch.zeros(shape) for key, shape in released_shapes(Sizes.TINY).items()}
    weights["action_in_proj.bias"][0] = torch.nan
    (tmp_path / "w").mkdir()
    save_file(weights, tmp_path / "w/model.safetensors")
    policy = replace(made, weights=str(tmp_path / "w"))
    with refused("policy.tokenizer", "required", kind=ConfigError):
        run.train(tiny_config(files / "data", tmp_path / "a", policy=policy))
    with refused("policy.weights", "action_in_proj.bias", kind=ConfigError):
        run.train(
            tiny_config(
                files / "data", tmp_path / "b", policy=replace(policy, tokenizer=str(files / "tok"))
            )
        )
