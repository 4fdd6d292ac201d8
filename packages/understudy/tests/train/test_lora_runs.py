"""Runs with low-rank adapters: trained, killed, resumed, sharded, validated, exported and
played.
"""

import json
import signal
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
import torch
from torch import Tensor

from understudy.compile import missing_compiler
from understudy.config.train import ParallelConfig, TrainConfig
from understudy.distributed.torch_release import has_gradient_sum
from understudy.optim.lora import merge_adapters
from understudy.policies.flow.model import FlowPolicy
from understudy.testing import resumed
from understudy.testing.ranks import in_ranks
from understudy.testing.runs import final_tensors, same_run, series, tiny_config, trained_run
from understudy.train import run
from understudy.train.checkpoint.run_dir import RunDir
from understudy_base import ConfigError
from understudy_kit import main, override

RANK = 4
ALPHA = 8.0
ADAPTERS = ("lora_a", "lora_b")


@pytest.fixture(scope="module")
def base(data: Path) -> Path:
    """The policy to start from."""
    return trained_run(data.parent / "base") / "policy"


def settings(data: Path, base: Path, out: Path, **changes: Any) -> TrainConfig:
    config = tiny_config(data, out, init_from=str(base), lora={"rank": RANK, "alpha": ALPHA})
    return override(config, **changes)


@pytest.fixture(scope="module")
def trained(data: Path, base: Path) -> Path:
    out = data.parent / "trained"
    assert run.train(settings(data, base, out)) == run.DONE
    return out


def is_adapter(name: str) -> bool:
    return name.endswith(ADAPTERS)


def weights(tensors: dict[str, Tensor], kind: str) -> dict[str, Tensor]:
    return {n.removeprefix(f"{kind}/"): t for n, t in tensors.items() if n.startswith(f"{kind}/")}


# -- a run -----------------------------------------------------------------------------------------


def test_checkpoints_hold_the_base_to_the_bit_and_moments_of_adapters_alone(
    trained: Path, base: Path
) -> None:
    tensors = final_tensors(trained)
    first = FlowPolicy.load(base).state_dict()
    held = weights(tensors, "weights")
    assert {name for name in held if not is_adapter(name)} == set(first)
    assert [name for name in first if not torch.equal(first[name], held[name])] == []
    adapters = {name for name in held if is_adapter(name)}
    assert all(held[name].any() for name in adapters if name.endswith("lora_b")), (
        "every adapter was trained"
    )
    for kind in ("exp_avg", "exp_avg_sq", "step"):
        assert set(weights(tensors, kind)) == adapters
    assert set(weights(tensors, "average")) == adapters


def test_exported_policy_is_an_ordinary_one(trained: Path, base: Path, tmp_path: Path) -> None:
    """Keys and config of the base; the actions of the run's own weights, which validation has."""
    assert main(["export", str(trained), "--output-dir", str(tmp_path / "out")]) == 0
    assert (tmp_path / "out/model.safetensors").read_bytes() == (
        trained / "policy/model.safetensors"
    ).read_bytes()
    one = FlowPolicy.load(base)
    two = FlowPolicy.load(trained / "policy")
    assert one.state_dict().keys() == two.state_dict().keys()
    assert json.loads((base / "config.json").read_text()) == json.loads(
        (trained / "policy/config.json").read_text()
    )
    tensors = final_tensors(trained)
    merged = merge_adapters(weights(tensors, "weights") | weights(tensors, "average"), ALPHA / RANK)
    assert [
        name for name, tensor in two.state_dict().items() if not torch.equal(tensor, merged[name])
    ] == []
    moved = {
        name
        for name, tensor in one.state_dict().items()
        if not torch.equal(tensor, two.state_dict()[name])
    }
    assert moved == {
        name.rpartition(".")[0] + ".weight"
        for name in weights(tensors, "weights")
        if is_adapter(name)
    }


def test_exported_policy_validates_as_the_run_did(
    data: Path, trained: Path, tmp_path: Path
) -> None:
    """A run that starts from the export and trains nothing has the validation loss of the adapted
    weights.
    """
    still = tiny_config(
        data, tmp_path / "still", init_from=str(trained / "policy"), steps=1, val={"every": 1}
    )
    assert (
        run.train(replace(still, optim=replace(still.optim, lr=1e-30, weight_decay=0.0)))
        == run.DONE
    )
    there, here = (series(root, "val")[-1]["loss"] for root in (tmp_path / "still", trained))
    assert there == pytest.approx(here, rel=1e-5)
    assert run.evaluate_checkpoint(trained)["loss"] == here


# -- resume ----------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    "change",
    [
        {"rank": 8},
        {"rank": 0},
        {"alpha": 4.0},
        {"targets": ("layers.*",)},
        {"also_train": ("out_proj.*",)},
    ],
    ids=lambda change: next(iter(change)),
)
def test_resume_refuses_other_adapters(trained: Path, change: dict[str, Any]) -> None:
    config = RunDir(trained).settings()
    with pytest.raises(ConfigError) as caught:
        run.resume(override(config, steps=20, lora=change))
    lines = str(caught.value).splitlines()
    assert [line.split(":")[0].strip() for line in lines[1:]] == [f"lora.{name}" for name in change]


def test_settings_of_a_run_are_resolved(trained: Path, data: Path, base: Path) -> None:
    """A later release may choose other layers by default, and this run keeps its own."""
    lora = RunDir(trained).settings().lora
    assert (lora.alpha, lora.targets) == (ALPHA, ("*",))
    assert settings(data, base, trained, lora={"alpha": None}).resolved().lora.scale == 1.0


# -- the dtype of the base -------------------------------------------------------------------------


@pytest.fixture(scope="module")
def half(data: Path, base: Path) -> Path:
    """The policy to start from, in bfloat16."""
    assert (
        main(
            [
                "export",
                str(base.parent),
                "--dtype",
                "bf16",
                "--output-dir",
                str(data.parent / "half"),
            ]
        )
        == 0
    )
    return data.parent / "half"


def frozen_dtypes(root: Path) -> dict[torch.dtype, int]:
    """Number of frozen weights of the latest checkpoint, by dtype."""
    found: dict[torch.dtype, int] = {}
    tensors = final_tensors(root)
    trained = {name.removeprefix("exp_avg/") for name in tensors if name.startswith("exp_avg/")}
    for name, tensor in weights(tensors, "weights").items():
        if name not in trained:
            found[tensor.dtype] = found.get(tensor.dtype, 0) + tensor.numel()
    return found


def same_training(one: Path, two: Path) -> None:
    """Assert that two runs had the same losses, adapters and policy; their bases may have different
    dtypes.
    """
    assert series(one) == series(two)
    assert series(one, "val") == series(two, "val")
    first = final_tensors(one)
    second = final_tensors(two)
    assert first.keys() == second.keys()
    assert [
        name for name in first if not torch.equal(first[name].float(), second[name].float())
    ] == []
    assert (one / "policy/model.safetensors").read_bytes() == (
        two / "policy/model.safetensors"
    ).read_bytes()


@pytest.mark.long
@pytest.mark.parametrize("precision", ["fp32", "bf16"])
def test_base_of_a_bf16_file_has_the_bits_of_a_float32_base(
    data: Path, half: Path, tmp_path: Path, precision: str
) -> None:
    for name in ("stored", "float32"):
        config = settings(data, half, tmp_path / name, lora={"base": name}, precision=precision)
        assert run.train(config) == run.DONE
    same_training(tmp_path / "stored", tmp_path / "float32")
    narrow = frozen_dtypes(tmp_path / "stored")
    wide = frozen_dtypes(tmp_path / "float32")
    assert set(wide) == {torch.float32}
    assert sum(narrow.values()) == sum(wide.values())
    assert narrow[torch.bfloat16] > 0.4 * wide[torch.float32], (
        "vectors and the table of letters stay float32"
    )
    assert main(["export", str(tmp_path / "stored"), "--output-dir", str(tmp_path / "out")]) == 0
    written = (tmp_path / "out/model.safetensors").read_bytes()
    assert written == (tmp_path / "stored/policy/model.safetensors").read_bytes()
    if precision == "fp32":
        cut = settings(data, half, tmp_path / "cut")
        with resumed.watched(tmp_path / "cut", {6: resumed.send(signal.SIGTERM)}):
            assert run.train(cut) == run.STOPPED
        assert run.resume(RunDir(tmp_path / "cut").settings()) == run.DONE
        same_run(tmp_path / "stored", tmp_path / "cut")


def test_float32_file_is_rounded_once_on_request(
    data: Path, base: Path, half: Path, tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    with caplog.at_level("INFO"):
        assert (
            run.train(settings(data, base, tmp_path / "asked", lora={"base": "bfloat16"}, steps=4))
            == run.DONE
        )
    tensors = weights(final_tensors(tmp_path / "asked"), "weights")
    first = FlowPolicy.load(base).state_dict()
    narrow = {name for name, tensor in tensors.items() if tensor.dtype == torch.bfloat16}
    assert all(torch.equal(tensors[name], first[name].bfloat16()) for name in narrow)
    assert all(torch.equal(tensors[name], first[name]) for name in first.keys() - narrow), (
        "all others lose nothing"
    )
    count = sum(first[name].numel() for name in narrow)
    (line,) = [line for line in caplog.text.splitlines() if line.startswith("lora.base: ")]
    assert line.count(f"{count:,}") == 2
    caplog.clear()
    with caplog.at_level("INFO"):
        assert (
            run.train(settings(data, half, tmp_path / "exact", lora={"base": "bfloat16"}, steps=4))
            == run.DONE
        )
    (line,) = [line for line in caplog.text.splitlines() if line.startswith("lora.base: ")]
    assert line.count(f"{count:,}") == 1, "nothing was rounded"


@pytest.mark.long
@pytest.mark.skipif(
    not has_gradient_sum(), reason="torch < 2.8: FSDP2 cannot sum gradients through gloo"
)
def test_shards_change_no_bit_with_a_bf16_base(data: Path, half: Path, tmp_path: Path) -> None:
    on_mesh(data, half, tmp_path / "one", 1, {})
    in_ranks(2, on_mesh, data, half, tmp_path / "other", 2, {})
    same_run(tmp_path / "one", tmp_path / "other")
    assert torch.bfloat16 in frozen_dtypes(tmp_path / "other")


# -- meshes, storage, recomputation ----------------------------------------------------------------


def on_mesh(data: Path, base: Path, out: Path, shards: int, options: dict[str, Any]) -> None:
    parallel = ParallelConfig(timeout=300, dp_shard=shards)
    changes: dict[str, Any] = {
        "device": "cpu",
        "steps": 6,
        "micro_batch_size": 1,
        "parallel": parallel,
        **options,
    }
    assert run.train(settings(data, base, out, **changes)) == run.DONE


@pytest.mark.long
@pytest.mark.skipif(missing_compiler(torch.device("cpu")) is not None, reason="no compiler here")
def test_compiled_blocks_have_their_adapters(data: Path, base: Path, tmp_path: Path) -> None:
    on_mesh(data, base, tmp_path / "plain", 1, {})
    in_ranks(1, on_mesh, data, base, tmp_path / "compiled", 1, {"compile": True})
    plain, compiled = (series(tmp_path / name) for name in ("plain", "compiled"))
    assert [r["loss"] for r in compiled] == pytest.approx([r["loss"] for r in plain], rel=1e-4)
    one, two = (final_tensors(tmp_path / name) for name in ("plain", "compiled"))
    name = "weights/layers.0.grow.lora_b"
    assert two[name].any()
    torch.testing.assert_close(one[name], two[name], rtol=0.05, atol=1e-3)
