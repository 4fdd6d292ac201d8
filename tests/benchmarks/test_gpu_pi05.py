"""`lab/benchmarks/gpu_pi05.py` in its tiny size on a CPU: the same code as on a GPU, its results
and its failures.
"""

import json
import os
import subprocess
import sys
from collections import Counter
from pathlib import Path
from typing import Any

import pytest
import torch
from torch.utils.flop_counter import FlopCounterMode

import gpu_pi05 as script
import gpu_pi05_rows as kinds
from gpu_pi05_run import forward_flops, sample_tokens, sizes_of
from understudy.policies import weight_files
from understudy.policies.pi05.network import Pi0Network

pytestmark = pytest.mark.long

BENCHMARKS = Path(__file__).parents[2] / "lab/benchmarks"
STEP = {
    "size": "tiny",
    "device": "cpu",
    "batch": 2,
    "precision": "bf16-split",
    "checkpoint": "full",
    "steps": 2,
}
MISSING = "raise ModuleNotFoundError(f'no {__name__} on this image', name=__name__)"


def test_gpu_pi05_runs_without_readers_of_files_and_lists_skipped_rows(tmp_path: Path) -> None:
    for package in ("pyarrow", "av"):
        (tmp_path / f"{package}.py").write_text(MISSING)
    out = tmp_path / "out"
    arguments = [
        "--size",
        "tiny",
        "--device",
        "cpu",
        "--rows",
        "3",
        "--only",
        "train",
        "memory",
        "--out",
        str(out),
    ]
    environment = {**os.environ, "PYTHONPATH": str(tmp_path)}
    subprocess.run(
        [sys.executable, str(BENCHMARKS / "gpu_pi05.py"), *arguments],
        env=environment,
        check=True,
        capture_output=True,
    )
    found = json.loads((out / "gpu-pi05.json").read_text())
    assert [(row["kind"], *set(row) & set(script.NOTES)) for row in found["rows"]] == [
        ("train",),
        ("train", "lora"),
        ("train", "masked"),
    ]
    for row in found["rows"]:
        assert row["samples_per_s"] > 0
        assert row["tokens_per_s"] == pytest.approx(
            row["samples_per_s"] * (3 * 64 + 16 + 8), rel=1e-3
        )
        assert (row["skipped"], row["mfu"]) == (0, None)  # the peak of this CPU is not known
    assert found["conditions"]["torch"] == torch.__version__
    assert {row["kind"] for row in found["skipped"]} == {"train", "memory"}
    table = [
        line for line in (out / "gpu-pi05.md").read_text().splitlines() if line.startswith("| bf16")
    ]
    assert [
        f"| {row['samples_per_s']} |" in line
        for row, line in zip(found["rows"], table, strict=True)
    ] == [True] * 3


def test_gpu_pi05_measures_nothing_after_its_time(tmp_path: Path) -> None:
    arguments = ["--size", "tiny", "--device", "cpu", "--minutes", "0", "--out", str(tmp_path)]
    assert script.main(arguments) == 1
    found = json.loads((tmp_path / "gpu-pi05.json").read_text())
    assert (found["rows"], found["skipped"]) == ([], script.rows("tiny", "cpu"))


def test_gpu_pi05_rows_hold_the_whole_table_once() -> None:
    found = script.rows("base", "cuda")
    keys = ("precision", "checkpoint", "compile", "batch")
    plain = [row for row in found if row["kind"] == "train" and not set(row) & set(script.NOTES)]
    assert set(Counter(tuple(row[key] for key in keys) for row in plain).values()) == {1}
    assert len(plain) == 3 * 3 * 2 * 3
    noted = {frozenset(set(row) & set(script.NOTES)) for row in found[:20]}
    assert noted >= {frozenset(more) for more in script.SPECIAL}
    assert {row["kind"] for row in found[:8]} >= {"train", "sampling", "attention"}


@pytest.mark.parametrize(
    ("error", "expected"),
    [
        (torch.OutOfMemoryError("CUDA out of memory. Tried to allocate 2 GiB"), "OOM"),
        (RuntimeError("wrapped: CUDA out of memory"), "OOM"),
        (ValueError("no kernel for this card"), "ValueError: no kernel for this card"),
    ],
)
def test_gpu_pi05_failure_is_a_result(
    monkeypatch: pytest.MonkeyPatch, error: Exception, expected: str
) -> None:
    def fail(row: Any) -> None:
        raise error

    monkeypatch.setitem(kinds.KINDS, "train", fail)
    row = kinds.measure({**STEP, "kind": "train", "compile": False})
    assert row["error"] == expected
    page = script.page(
        {
            "conditions": {},
            "rows": [script.with_rates(row, "NVIDIA H200")],
            "skipped": [],
            "minutes": 9,
        }
    )
    assert f"| {expected} |" in page


@pytest.mark.parametrize(
    ("program", "expected"),
    [
        ("import os; os.abort()", "ended with -6"),
        ("import time; time.sleep(600)", "not done after 1 seconds"),
    ],
)
def test_gpu_pi05_row_that_dies_or_hangs_is_a_result(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, program: str, expected: str
) -> None:
    (tmp_path / "gpu_pi05_rows.py").write_text(program)
    monkeypatch.setattr(script, "HERE", tmp_path)
    row = {**STEP, "kind": "train"}
    found = script.run_row(row, 1.0 if "sleep" in program else 60.0)
    assert found["error"].startswith(expected)
    assert {key: found[key] for key in row} == row


def test_gpu_pi05_rates_are_those_of_the_formula_and_the_data_sheet() -> None:
    sizes = sizes_of("tiny")
    tokens = sample_tokens("tiny")
    with torch.device("meta"):
        network = Pi0Network(sizes)
        images = torch.empty(1, len(kinds.CAMERAS), 3, 64, 64)
        words = torch.zeros(1, tokens["text"]).long()
        actions = torch.empty(1, sizes.chunk, sizes.dim)
    with FlopCounterMode(display=False) as counter:
        loss = network.flow_loss(
            images, None, words, None, actions[:, 0], actions, actions, actions[:, 0, 0]
        )
        loss.sum(dtype=torch.float32).backward()
    assert 3 * forward_flops(sizes, **tokens) == pytest.approx(counter.get_total_flops(), rel=0.01)
    row = {"kind": "train", "size": "base", "precision": "bf16", "samples_per_s": 28.0}
    found = script.with_rates(row, "NVIDIA H200")
    assert found["tokens_per_s"] == 28 * 1018
    assert found["mfu"] == pytest.approx(28 * 13.366e12 / 989.5e12, rel=1e-3)  # 13.4 Tflop a sample
    assert script.with_rates({**row, "precision": "fp32"}, "NVIDIA H200")["mfu"] == pytest.approx(
        2 * found["mfu"], rel=1e-3
    )


def test_gpu_pi05_fills_a_network_built_on_the_meta_device(monkeypatch: pytest.MonkeyPatch) -> None:
    row = {**STEP, "kind": "train"}
    small = kinds.measure(row)
    # all but the smallest tensors, as in the base size
    monkeypatch.setattr(weight_files, "LARGE", 64)
    large = kinds.measure(row)
    assert "error" not in small
    assert large["loss"] == small["loss"]


def test_gpu_pi05_packs_a_mixture_of_cameras() -> None:
    row = {**STEP, "kind": "train", "steps": 1, "compile": False, "mixture": True, "packed": True}
    found = script.with_rates(kinds.measure(row), "NVIDIA H200")
    assert found["samples_per_s"] > 0
    assert found["tokens_per_s"] is found["mfu"] is None  # samples have different tokens
    page = script.page({"conditions": {}, "rows": [found], "skipped": [], "minutes": 9})
    assert ", ".join(script.NOTES[name] for name in ("mixture", "packed")) in page


def test_gpu_pi05_has_past_frames_in_its_batches() -> None:
    row = {**STEP, "history": 6}
    batch = next(kinds.batches(row, torch.device("cpu")))
    assert kinds.train_config(row).policy.history == (1.0, 2.0, 3.0, 4.0, 5.0)
    for camera in kinds.CAMERAS:
        assert batch[camera].shape == (2, 6, 3, 64, 64)
        assert batch[f"{camera}_is_pad"].shape == (2, 6)


def test_gpu_pi05_reports_attention_sampling_and_memory() -> None:
    attention = kinds.measure({"kind": "attention", "size": "tiny", "device": "cpu", "batch": 2})
    calls = {name: call["back_ends"] for name, call in attention["calls"].items()}
    assert all(taken == {"flash": 1} for taken in calls.values())
    assert len(calls) == 5
    sampling = kinds.measure(
        {"kind": "sampling", "size": "tiny", "device": "cpu", "stored": "bfloat16", "repeats": 2}
    )
    times = {name: sampling[name]["plain"] for name in ("prefill", "step", "ten steps", "all")}
    assert all(0 < each["p50"] <= each["p99"] for each in times.values())
    memory = kinds.measure({**STEP, "kind": "memory"})
    assert 0 < memory["parameters_gib"] + memory["optimizer_state_gib"] < memory["peak_gib"]
    page = script.page(
        {"conditions": {}, "rows": [attention, sampling], "skipped": [], "minutes": 9}
    )
    assert "| prefix, dense mask | flash 1 |" in page
    assert f"| ten steps | {times['ten steps']['p50']} |" in page
