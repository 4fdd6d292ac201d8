"""Benchmarks of precision and order, in a tiny size: output, not figures."""

import functools
import json
from pathlib import Path

import pytest
import torch
from torch import nn

import collapse
import precision

pytestmark = pytest.mark.long


def test_precision_reports_bytes_times_losses_and_moved_weights(
    capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setitem(precision.SIZES, "cpu", precision.Size(64, 2, 4))
    monkeypatch.setattr(precision, "word_mismatches", lambda device: 0)  # 2^26 words: seconds
    monkeypatch.setattr(precision, "master_mismatches", functools.partial(precision.master_mismatches, steps=30))
    monkeypatch.setattr(precision.torch.cuda, "is_available", lambda: False)
    with pytest.raises(SystemExit):
        precision.main(["--device", "cuda"])
    assert "no CUDA device" in capsys.readouterr().err
    precision.main(["--json", "--seeds", "1", "--steps", "30", "--rounds", "3", "--no-compile"])
    found = json.loads(capsys.readouterr().out)
    assert set(found["variants"]) == {"fp32", "autocast", "split", "masters", "bf16"}
    for variant in found["variants"].values():
        assert {"bytes_per_param", "step_ms", "val_loss", "weights_moved"} <= set(variant)
    stored = {name: round(variant["bytes_per_param"], 1) for name, variant in found["variants"].items()}
    assert stored == {"fp32": 16.0, "autocast": 16.0, "split": 14.0, "masters": 16.0, "bf16": 8.0}
    assert found["variants"]["bf16"]["weights_moved"] < 0.5 < 0.99 < found["variants"]["split"]["weights_moved"]
    assert found["master_mismatches"] == 0


def test_collapse_trains_all_four_and_keeps_finished_runs(
    capsys: pytest.CaptureFixture[str], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    pytest.importorskip("mujoco")
    sizes = {"episodes": 12, "steps": 8, "base-steps": 8, "tune-steps": 6, "rollouts": 1, "seeds": 0}
    arguments = [part for name, size in sizes.items() for part in (f"--{name}", str(size))]
    arguments += ["--json", "--out", str(tmp_path / "runs"), "--figures", str(tmp_path / "figures")]
    collapse.main(arguments)
    found = json.loads(capsys.readouterr().out)
    assert set(found["order"]) == {"sequential", "shuffled"}
    for row in found["order"].values():
        assert {"distinct_episodes_per_batch", "grad_norm_median_last", "val_loss", "success"} <= set(row)
    sequential, shuffled = (found["order"][name]["distinct_episodes_per_batch"] for name in found["order"])
    assert sequential < shuffled
    assert set(found["precision"]) == {"bf16", "fp32_truth"}
    for row in found["precision"].values():
        assert {"weights_moved", "val_loss", "success"} <= set(row)
    assert found["precision"]["bf16"]["weights_moved"] < 0.5 < 0.99 < found["precision"]["fp32_truth"]["weights_moved"]
    assert {path.name for path in (tmp_path / "figures").iterdir()} == {
        "collapse-order.png",
        "collapse-precision.png",
    }
    monkeypatch.setattr(collapse, "train", lambda config: pytest.fail("a finished run is not run again"))
    collapse.main(arguments)
    assert json.loads(capsys.readouterr().out) == found


def test_collapse_pure_adamw_steps_in_bfloat16() -> None:
    """Weights and moments are bfloat16, and a step can be skipped, as with the trainer's optimizer."""
    p = nn.Parameter(torch.ones(8, dtype=torch.bfloat16))
    optimizer = collapse.PureAdamW([p], lr=1e-2, fused=True)
    p.grad = torch.ones_like(p)
    optimizer.step(scale=torch.tensor(0.5), skip=torch.ones(()))
    assert torch.equal(p.detach(), torch.ones(8, dtype=torch.bfloat16))
    optimizer.step(scale=torch.tensor(0.5), skip=torch.zeros(()))
    assert not torch.equal(p.detach(), torch.ones(8, dtype=torch.bfloat16))
    assert {optimizer.state[p][kind].dtype for kind in ("exp_avg", "exp_avg_sq")} == {torch.bfloat16}
