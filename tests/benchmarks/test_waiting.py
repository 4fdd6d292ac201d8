"""benchmarks/waiting.py: shares of a consumer of fixed step time, and rows with the promised keys."""

import json
import sys
import time
from collections.abc import Iterator
from pathlib import Path

import pytest

import waiting


def test_share_is_the_time_in_next(monkeypatch: pytest.MonkeyPatch) -> None:
    clock = [0.0]
    monkeypatch.setattr(time, "perf_counter", lambda: clock[0])
    monkeypatch.setattr(time, "sleep", lambda seconds: clock.__setitem__(0, clock[0] + seconds))

    def batches(seconds: float) -> Iterator[int]:
        while True:
            clock[0] += seconds
            yield 0

    assert waiting.waiting_share(batches(0.01), step_ms=30, seconds=1) == pytest.approx(0.25)
    assert waiting.waiting_share(batches(0.0), step_ms=30, seconds=1) == 0


@pytest.mark.long
def test_row_has_its_keys(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]) -> None:
    monkeypatch.delenv("UNDERSTUDY_TEST_DATA", raising=False)
    words = ["--json", "--quick", "--cache", str(tmp_path), "--seconds", "0.2", "--rounds", "1", "--lerobot", "false"]
    monkeypatch.setattr(sys, "argv", ["waiting.py", *words, "--steps", "10", "--cameras", "1", "--gops", "30"])
    waiting.main()
    found = json.loads(capsys.readouterr().out)
    own = [row for row in found["rows"] if row["loader"] == "understudy"]
    assert [(row["trainer"], row["cameras"], row["gop"], row["step_ms"]) for row in own] == [("loop", 1, 30, 10)]
    assert 0 <= own[0]["waiting_share"] < 1
    others = [row for row in found["rows"] if row["loader"] == "lerobot"]
    assert len(others) == 1 or found["conditions"]["lerobot_missing"]
    assert "understudy" in waiting.render(found)
