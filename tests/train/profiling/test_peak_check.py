"""Predicted peak against the memory of a GPU, whose size is an argument."""

import json
import sys
from contextlib import nullcontext
from dataclasses import replace
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest

from support.refusals import refused
from support.runs import series, tiny_config, tiny_dataset
from understudy.config.lora import LoraConfig
from understudy.config.train import DataConfig, EmaConfig, OptimConfig, ParallelConfig, TrainConfig
from understudy.distributed.mesh import Mesh
from understudy.errors import ConfigError
from understudy.train import run
from understudy.train.data.run_data import choose_normalization, open_data
from understudy.train.profiling import peak_check
from understudy.train.profiling.peak_check import check_peak, forecast_peak, smaller_settings
from understudy.train.profiling.plan import one_sample, trace_step

MEMORY = {"parameters": 2, "gradients": 2, "optimizer state": 4, "average": 0, "activations": 5}
GB = {**{name: size * 10**9 for name, size in MEMORY.items()}, "peak": 20 * 10**9}
CONFIG = TrainConfig(data=DataConfig(root="d"))


@pytest.mark.parametrize(
    ("free", "outcome"), [(18.99, "refused"), (19.01, "logged"), (21.2, "logged"), (21.3, "silent"), (80, "silent")]
)
@pytest.mark.parametrize("changes", [{"peak_check": "error"}, {"peak_check": "error", "compile": True}, {}])
def test_peak_beyond_the_memory_is_refused_with_its_parts(
    caplog: pytest.LogCaptureFixture, free: float, outcome: str, changes: dict[str, Any]
) -> None:
    config, size = replace(CONFIG, **changes), int(free * 10**9)
    if outcome == "refused" and changes == {"peak_check": "error"}:
        parts = "20.00", f"{free:.2f}", "2.00", "4.00", "5.00"
        values = *parts, "activation_checkpoint", "micro_batch_size", 32, "peak_check"
        with refused(*values, kind=ConfigError):
            check_peak(GB, 32, config, 1, size)
        return
    check_peak(GB, 32, config, 1, size)
    assert len(caplog.records) == (outcome != "silent")


@pytest.mark.parametrize(
    ("changes", "size", "world_size", "helps"),
    [
        ({}, 32, 1, {"micro_batch_size", "activation_checkpoint", "precision", "lora.rank", "optim.freeze"}),
        ({"precision": "bf16"}, 1, 1, {"activation_checkpoint", "precision", "lora.rank", "optim.freeze"}),
        ({"precision": "bf16-split", "activation_checkpoint": "full"}, 1, 2, {"lora.rank", "optim.freeze"}),
        (
            {"precision": "bf16", "activation_checkpoint": "full", "lora": LoraConfig(4)},
            1,
            4,
            {"parallel.dp_shard", "precision", "lora.base", "optim.freeze"},
        ),
        (
            {
                "precision": "bf16",
                "activation_checkpoint": "full",
                "parallel": ParallelConfig(dp_shard=4),
                "optim": OptimConfig(ema=EmaConfig(0.9)),
                "max_num_tokens": 900,
            },
            8,
            4,
            {"max_num_tokens", "optim.ema.decay", "lora.rank", "optim.freeze"},
        ),
    ],
)
def test_named_settings_are_those_that_still_help(
    changes: dict[str, Any], size: int, world_size: int, helps: set[str]
) -> None:
    assert {name.split()[0] for name in smaller_settings(replace(CONFIG, **changes), size, world_size)} == helps


def alone(timeout: float = 600.0) -> Any:
    """The mesh of one process without a process group."""
    given = {
        "rank": 0,
        "world_size": 1,
        "timeout": timeout,
        "gather": lambda each: [each],
        "first": lambda make: make(),
    }
    return SimpleNamespace(**given)


@pytest.fixture(scope="module")
def data(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return tiny_dataset(tmp_path_factory.mktemp("peak") / "dataset")


@pytest.mark.long
def test_forecast_is_that_of_the_plan_and_refuses_a_small_gpu(data: Path) -> None:
    config = replace(tiny_config(data, data.parent / "run"), peak_check="error").resolved()
    opened = open_data(config)
    scales, sample = choose_normalization(config, opened), one_sample(config, open_data(config))
    peak = trace_step(config, opened, scales, sample, 1, "cuda", 4).memory["peak"]
    mesh: Mesh = alone(timeout=1e5)
    small = int(0.94 * peak)
    forecast = forecast_peak(config, opened, scales, mesh, small, limit=1e4)
    with forecast as check, refused(4, "micro_batch_size", kind=ConfigError):
        check()


@pytest.mark.parametrize("fault", ["late", "no sample"])
def test_run_without_a_forecast_starts_unchecked(data: Path, caplog: pytest.LogCaptureFixture, fault: str) -> None:
    config = tiny_config(data, data.parent / "run").resolved()
    opened: Any = open_data(config)
    if fault == "no sample":
        opened = SimpleNamespace()
    mesh = alone(0.0 if fault == "late" else 600.0)
    with forecast_peak(config, opened, choose_normalization(config, open_data(config)), mesh, 1) as check:
        check()
    assert [(record.name, record.levelname) for record in caplog.records] == [(peak_check.__name__, "WARNING")]


def test_run_without_the_check_reads_nothing(caplog: pytest.LogCaptureFixture) -> None:
    nothing: Any = None
    with forecast_peak(replace(CONFIG, peak_check="off"), nothing, {}, nothing, 1) as check:
        check()
    assert not caplog.records


@pytest.mark.long
@pytest.mark.parametrize("setting", ["error", "warn", "off"])
def test_run_on_a_small_gpu_follows_the_setting(
    data: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture, setting: str
) -> None:
    """The card is planted; its predictions too, which the tests above make."""
    config = tiny_config(data, tmp_path / "run", steps=1, peak_check=setting, val={"every": 0}, log={"report": False})
    monkeypatch.setattr(run, "free_memory", lambda device: 10**9)
    planted = "import json, sys; print(json.dumps({'memory': json.loads(sys.argv[1]), 'size': 4}))"
    monkeypatch.setattr(peak_check, "COMMAND", (sys.executable, "-c", planted, json.dumps(GB)))
    with refused("20.00", "1.00", "peak_check", kind=ConfigError) if setting == "error" else nullcontext():
        run.train(config)
    assert bool(series(tmp_path / "run")) == (setting != "error")
    warnings = [record for record in caplog.records if record.name == peak_check.__name__]
    assert len(warnings) == (setting == "warn")


def test_run_without_a_gpu_reads_nothing() -> None:
    nothing: Any = None
    with forecast_peak(CONFIG, nothing, {}, alone(), None) as check:
        check()
