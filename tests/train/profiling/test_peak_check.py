"""Predicted peak against the memory of a GPU, whose size is an argument."""

import json
import sys
import time
from dataclasses import replace
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest

from support.runs import series, tiny_config
from understudy.config.lora import LoraConfig
from understudy.config.train import DataConfig, EmaConfig, OptimConfig, ParallelConfig, TrainConfig
from understudy.train import run
from understudy.train.data.run_data import open_data
from understudy.train.data.run_normalization import choose_normalization
from understudy.train.profiling import peak_check
from understudy.train.profiling.peak_check import PeakForecast, smaller_settings, warn_of_peak
from understudy.train.profiling.plan import one_sample, trace_step

MEMORY = {"parameters": 2, "gradients": 2, "optimizer state": 4, "average": 0, "activations": 5}
GB = {**{name: size * 10**9 for name, size in MEMORY.items()}, "peak": 20 * 10**9}
CONFIG = TrainConfig(data=DataConfig(root="d"))


@pytest.mark.parametrize(("free", "logged"), [(18.99, True), (21.2, True), (21.3, False), (80, False)])
def test_peak_beyond_the_memory_is_logged_with_its_parts(
    caplog: pytest.LogCaptureFixture, free: float, logged: bool
) -> None:
    warn_of_peak(GB, 32, CONFIG, 1, int(free * 10**9))
    assert len(caplog.records) == logged
    if logged:
        parts = "20.00", f"{free:.2f}", "2.00", "4.00", "5.00"
        for words in (*parts, "activation_checkpoint", "micro_batch_size", "32"):
            assert words in caplog.messages[0]


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


MESH: Any = SimpleNamespace(rank=0, world_size=1, device=None, gather=lambda size: [size])
NOTHING: Any = None


def forecast(monkeypatch: pytest.MonkeyPatch, config: TrainConfig, opened: Any, scales: Any, free: int | None) -> None:
    monkeypatch.setattr(peak_check, "free_memory", lambda device: free)
    prediction = PeakForecast(config, opened, scales, MESH)
    prediction.wait()
    prediction.close()


@pytest.mark.long
def test_forecast_is_that_of_the_plan(
    data: Path, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    config = tiny_config(data, data.parent / "run").resolved()
    opened = open_data(config)
    scales, sample = choose_normalization(config, opened), one_sample(config, open_data(config))
    peak = trace_step(config, opened, scales, sample, 1, "cuda", 4).memory["peak"]
    forecast(monkeypatch, config, opened, scales, int(peak / 0.95))
    assert len(caplog.records) == 1
    assert "micro-batches of 4" in caplog.messages[0]
    forecast(monkeypatch, config, opened, scales, int(peak / 0.93))
    assert len(caplog.records) == 1


@pytest.mark.parametrize("fault", ["late", "no sample"])
def test_run_without_a_forecast_starts_unchecked(
    data: Path, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture, fault: str
) -> None:
    config = tiny_config(data, data.parent / "run").resolved()
    opened = open_data(config)
    scales = choose_normalization(config, opened)
    late = "import signal, time; signal.alarm(1); time.sleep(60)"
    monkeypatch.setattr(peak_check, "COMMAND", (sys.executable, "-c", late))
    forecast(monkeypatch, config, SimpleNamespace() if fault == "no sample" else opened, scales, 1)
    assert [(record.name, record.levelname) for record in caplog.records] == [(peak_check.__name__, "WARNING")]


def test_run_without_the_check_or_a_gpu_reads_nothing(
    monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    forecast(monkeypatch, replace(CONFIG, peak_check="off"), NOTHING, {}, 1)
    forecast(monkeypatch, CONFIG, NOTHING, {}, None)
    assert not caplog.records


def test_a_run_does_not_wait_for_its_forecast(data: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    config = tiny_config(data, data.parent / "run").resolved()
    opened = open_data(config)
    monkeypatch.setattr(peak_check, "free_memory", lambda device: 1)
    monkeypatch.setattr(peak_check, "COMMAND", (sys.executable, "-c", "import time; time.sleep(600)"))
    start = time.monotonic()
    PeakForecast(config, opened, choose_normalization(config, opened), MESH).close()
    assert time.monotonic() - start < 60


@pytest.mark.long
@pytest.mark.parametrize("setting", ["warn", "off"])
def test_run_on_a_small_gpu_follows_the_setting(
    data: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture, setting: str
) -> None:
    """The card is planted; its predictions too, which the tests above make."""
    config = tiny_config(data, tmp_path / "run", steps=1, peak_check=setting, val={"every": 0}, log={"report": False})
    monkeypatch.setattr(peak_check, "free_memory", lambda device: 10**9)
    monkeypatch.setattr(PeakForecast, "close", PeakForecast.wait)
    planted = "import json, sys; print(json.dumps({'memory': json.loads(sys.argv[1]), 'size': 4}))"
    monkeypatch.setattr(peak_check, "COMMAND", (sys.executable, "-c", planted, json.dumps(GB)))
    run.train(config)
    assert series(tmp_path / "run")
    warnings = [record for record in caplog.records if record.name == peak_check.__name__]
    assert len(warnings) == (setting == "warn")
