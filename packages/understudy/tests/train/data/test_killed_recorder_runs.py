"""Runs on a dataset whose recorder was killed, or whose rows contradict its metadata."""

from pathlib import Path
from typing import Any

import pytest

from understudy_data.testing.killed_recorder import cut, gap, packed_cut, v2
from understudy_kit import main


@pytest.mark.parametrize("fault", [gap, cut, packed_cut])
def test_killed_recorder_is_named_by_a_run(
    tmp_path: Path, fault: Any, capsys: pytest.CaptureFixture[str]
) -> None:
    root = tmp_path / "arm"
    fault(root)
    words = [
        "--data.root",
        str(root),
        "--output-dir",
        str(tmp_path / "run"),
        "--data.cameras",
        "none",
        "--steps",
        "1",
    ]
    words += [
        "--data.val-fraction",
        "0",
        "--batch-size",
        "2",
        "--val.every",
        "0",
        "--log.no-report",
    ]
    assert main(["train", *words]) == 0
    assert "named by no episode" in capsys.readouterr().err


def test_train_names_all_episodes_whose_rows_contradict(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    root = v2(tmp_path / "data")
    path = root / "meta/episodes.jsonl"
    path.write_text(path.read_text().replace('"length": 6', '"length": 7', 3))
    words = [
        "--data.root",
        str(root),
        "--output-dir",
        str(tmp_path / "run"),
        "--steps",
        "1",
        "--data.cameras",
        "none",
    ]
    assert main(["train", *words]) == 2
    said = capsys.readouterr().err
    assert all(f"episode {episode} has length 7" in said for episode in range(3))
    assert "--data.exclude-episodes 0 1 2" in said
