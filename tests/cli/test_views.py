"""Views in commands of the trainer."""

from pathlib import Path

import pytest

from understudy_data.testing.datasets import Spec, write_dataset
from understudy_kit import main


def test_bench_takes_a_view(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    root = tmp_path / "data"
    write_dataset(root, Spec(lengths=(6, 9, 4), cameras=()))
    assert main(["select", str(root), "v", "--episodes", "1"]) == 0
    address = f"{root}#v"
    assert (
        main(
            ["bench", address, "--batch-size", "2", "--seconds", "0.05", "--rounds", "1", "--json"]
        )
        == 0
    )
    assert '"samples_per_s"' in capsys.readouterr().out
