"""benchmarks/waiting.py: rows with the promised figures."""

import json
import sys
from pathlib import Path

import pytest

import waiting


@pytest.mark.long
def test_rows_have_the_promised_figures(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.delenv("UNDERSTUDY_TEST_DATA", raising=False)
    monkeypatch.setattr(waiting, "ROWS", ((30, 1, 10),))
    words = ["waiting.py", "--json", "--quick", "--cache", str(tmp_path), "--seconds", "0.2", "--rounds", "2"]
    monkeypatch.setattr(sys, "argv", words)
    waiting.main()
    (row,) = json.loads(capsys.readouterr().out)["rows"]
    assert (row["gop"], row["cameras"], row["step_ms"], len(row["rounds"])) == (30, 1, 10, 2)
    for measured in row["rounds"]:
        assert measured["first_batch_s"] > 0
        assert len(measured["waiting"]) == waiting.STRETCHES
        assert all(0 <= share < 1 for share in measured["waiting"])
