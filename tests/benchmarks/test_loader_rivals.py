"""lab/benchmarks/loader_rivals.py: its figures by hand, and a row of ours alone with the promised
keys.
"""

import json
import signal
import sys
from pathlib import Path
from typing import Any

import pytest

import loader_rivals as rivals


def answer(samples: int, cpu_seconds: float, read_bytes: int, waiting: float) -> dict[str, Any]:
    return {
        "samples": samples,
        "seconds": 1.0,
        "cpu_seconds": cpu_seconds,
        "read_bytes": read_bytes,
        "waiting_share": waiting,
        "first_batch_s": 0.5,
        "matches": True,
    }


class Named:
    name = "understudy"
    peak_mb = 300.0


def test_figures_are_medians_over_rounds() -> None:
    rounds = [
        [answer(10, cost, 1000, 0.1 * cost) | {"step": step} for step in (10, 50)]
        for cost in (0.1, 0.2, 0.9)
    ]
    turns = rivals.Turns(Named(), Path(), rounds)
    order = {"episode": [[0, 1]] * 8, "frame": [[n, n] for n in range(8)]}
    found = rivals.figures(turns, video_bytes=50.0, order=order, batch=2)
    assert found["cpu_ms"] == pytest.approx(20)
    assert found["waiting"] == {"10": pytest.approx(0.02), "50": pytest.approx(0.02), "150": None}
    assert found["read_ratio"] == pytest.approx(2)
    assert found["deff"]["1"] == pytest.approx(1)  # two episodes in each batch
    assert found["deff"]["8"] > 3  # eight neighbouring frames of each
    assert found["deff"]["64"] is None
    assert found["samples"] == 60


def test_a_failed_loader_has_a_reason_and_no_figures() -> None:
    found = rivals.figures(rivals.Turns(Named(), Path(), missing="no codec"), 50.0, {}, 2)
    assert found == {"loader": "understudy", "missing": "no codec"}


@pytest.mark.parametrize(
    ("ours", "epoch", "deff", "met"),
    [
        (1.0, None, 1.0, True),
        (1.1, None, 1.0, False),
        (1.0, None, 1.1, False),
        (0.2, None, 1.01, True),
        (1.1, 0.9, 1.0, True),
        (0.9, 1.1, 1.0, False),
    ],
)
def test_goal_is_half_of_the_best_rival(
    ours: float, epoch: float | None, deff: float, met: bool
) -> None:
    loaders = [
        {"loader": "understudy", "cpu_ms": ours, "cpu_ms_epoch": epoch, "deff": {"8": deff}},
        {"loader": "lance", "cpu_ms": 2.0, "deff": {"8": 1.0}},
        {"loader": "rerun", "cpu_ms": 9.0, "deff": {"8": 2.0}},
        {"loader": "lerobot-pyav", "missing": "no codec"},
    ]
    found = rivals.goals({"loaders": loaders})
    assert found["best_rival"] == "lance"
    assert found["met"] is met


def test_unknown_interpreter_is_refused(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(sys, "argv", ["loader_rivals.py", "--quick", "--python", "lerobt=python"])
    with pytest.raises(SystemExit):
        rivals.main()


@pytest.mark.long
@pytest.mark.skipif(not Path("/proc/self/smaps_rollup").exists(), reason="reads Linux's /proc")
def test_row_has_its_keys(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    words = [
        "--json",
        "--quick",
        "--real",
        "",
        "--cache",
        str(tmp_path / "sets"),
        "--seconds",
        "0.2",
        "--rounds",
        "1",
    ]
    monkeypatch.setattr(
        sys, "argv", ["loader_rivals.py", *words, "--out", str(tmp_path / "found.json")]
    )
    rivals.main()
    found = json.loads(capsys.readouterr().out)
    assert found == json.loads((tmp_path / "found.json").read_text())
    (row,) = found["rows"]
    (ours,) = row["loaders"]
    assert ours["loader"] == "understudy"
    assert ours["matches"]
    assert ours["cpu_ms"] > 0
    assert ours["cpu_ms_epoch"] > 0
    assert ours["peak_mb"] > 0
    assert set(ours["waiting"]) == {"10", "50", "150"}
    assert all(ours["deff"][window] > 0 for window in ("1", "8", "64"))
    assert "lance" in found["conditions"]["skipped"]
    assert "understudy" in rivals.render(found)


def test_a_loader_that_ended_has_no_answer(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    script = tmp_path / "ends.py"
    script.write_text('print(\'{"version": "7"}\')')
    monkeypatch.setattr(rivals, "SCRIPT", script)
    with rivals.Rival("lance", sys.executable) as rival:
        rival.process.send_signal(signal.SIGCONT)
        rival.process.wait()
        assert rival.ask(root="nowhere") == {"missing": "it ended with exit code 0"}
