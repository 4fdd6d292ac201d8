"""`lab/benchmarks/precision.py` in a tiny size: output, not figures."""

import functools
import json

import pytest

import precision

pytestmark = pytest.mark.long


def test_precision_reports_bytes_times_losses_and_moved_weights(
    capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setitem(precision.SIZES, "cpu", precision.Size(64, 2, 4))
    monkeypatch.setattr(precision, "word_mismatches", lambda device: 0)  # 2^26 words: seconds
    monkeypatch.setattr(
        precision, "master_mismatches", functools.partial(precision.master_mismatches, steps=30)
    )
    monkeypatch.setattr(precision.torch.cuda, "is_available", lambda: False)
    with pytest.raises(SystemExit):
        precision.main(["--device", "cuda"])
    assert "no CUDA device" in capsys.readouterr().err
    precision.main(["--json", "--seeds", "1", "--steps", "30", "--rounds", "3", "--no-compile"])
    found = json.loads(capsys.readouterr().out)
    assert set(found["variants"]) == {"fp32", "autocast", "split", "masters", "bf16"}
    for variant in found["variants"].values():
        assert {"bytes_per_param", "step_ms", "val_loss", "weights_moved"} <= set(variant)
    stored = {
        name: round(variant["bytes_per_param"], 1) for name, variant in found["variants"].items()
    }
    assert stored == {"fp32": 16.0, "autocast": 16.0, "split": 14.0, "masters": 16.0, "bf16": 8.0}
    assert (
        found["variants"]["bf16"]["weights_moved"]
        < 0.5
        < 0.99
        < found["variants"]["split"]["weights_moved"]
    )
    assert found["master_mismatches"] == 0
