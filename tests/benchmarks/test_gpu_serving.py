"""`lab/benchmarks/gpu_serving.py` in its tiny size on a CPU: the same code as on a GPU."""

import json
import sys

import pytest

pytest.importorskip("sentencepiece", reason="needs the extra pi05")
pytest.importorskip("websockets", reason="needs the extra serve")

import gpu_serving as script

pytestmark = pytest.mark.long


def test_gpu_serving_measures_each_mode(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    words = ["--json", "--size", "tiny", "--device", "cpu", "--repeats", "1", "--robots", "2"]
    monkeypatch.setattr(sys, "argv", ["gpu_serving", *words, "--modes", "off", "graphs"])
    script.main()
    found = json.loads(capsys.readouterr().out.splitlines()[-1])
    assert found["levels"] == 0  # the CPU beside itself
    times = {"network_ms", "chunk_ms", "served_ms", "first_ms"}
    assert found["off"].keys() == times
    assert found["graphs"].keys() == times | {"start_s", "bytes", "apart", "same_bits"}
    assert found["graphs"]["same_bits"] is True
    assert found["graphs"]["apart"] < 0.05
