"""lab/benchmarks/defaults.py: rows with the promised figures."""

import json
import sys
from pathlib import Path

import numpy as np
import pytest

import defaults


def test_decoding_in_a_row_reads_every_frame_in_turn(monkeypatch: pytest.MonkeyPatch) -> None:
    clock = [0.0]
    reads = []
    monkeypatch.setattr("time.thread_time", lambda: clock[0])

    class Reader:
        count = 600

        def read(self, positions: np.ndarray) -> None:
            reads.append(positions)
            clock[0] += 0.002 * len(positions)

    read = defaults.in_a_row(Reader())
    assert [read() for _ in range(3)] == pytest.approx([2.0] * 3)
    assert max(map(len, reads)) == defaults.AT_ONCE
    assert np.concatenate(reads).tolist() == [*range(512), *range(256)]  # the rest is too short


@pytest.mark.long
def test_rows_have_the_promised_figures(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    out = tmp_path / "results.json"
    words = [
        "--json",
        "--quick",
        "--real",
        "",
        "--cache",
        str(tmp_path),
        "--only",
        "g30",
        "--out",
        str(out),
    ]
    monkeypatch.setattr(sys, "argv", ["defaults.py", *words])
    monkeypatch.setattr(defaults, "WAITING", ((30, 1, 10),))
    defaults.main()
    results = json.loads(capsys.readouterr().out)
    assert results == json.loads(out.read_text())
    (row,), (uniform,) = results["measured"], results["verified"]
    assert (row["codec"], row["gop"], row["height"], row["memory_gb"], row["frames"]) == (
        "libx264",
        30,
        64,
        1,
        192,
    )
    assert row["resident"]
    assert row["advice"] == ""
    assert row["ratio"] == row["cpu_ms"] / row["in_a_row_ms"]
    assert row["start_ratio"] > 0
    assert 0 <= row["start_waiting"] < 1
    assert 0 < row["first_batch_s"] < 60
    assert row["peak_mb"] > 0
    assert 0 < row["planned_mb"] <= 1000
    assert row["deff"][0] == pytest.approx(row["deff_uniform"][0], rel=0.1)
    assert uniform["order"] == "uniform"
    assert "x264-g30-64" in defaults.render(results)
    (waiting,) = results["waiting"]
    assert (waiting["cameras"], waiting["step_ms"], len(waiting["rounds"])) == (1, 10, 2)
    for measured in waiting["rounds"]:
        assert measured["first_batch_s"] > 0
        assert all(0 <= share < 1 for share in measured["waiting"])
    defaults.main()  # nothing is left to measure
    assert json.loads(capsys.readouterr().out) == results
